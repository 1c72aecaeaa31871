"""What was cut from a client's update waits, and goes with the next update.

Only what was cut: what rounding takes is unbiased, and feeding it back as well grows stale where clients are sampled.
It waits for at most four rounds, from a round whose sum has this client in it; an update that is in no sum leaves
nothing behind. It is gone when a sum has the update that took it along. A client that is asked for the same round
again takes the same along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.codec import Array, root_mean_square
from fedcipher.errors import RunError, StateError
from fedcipher.federation.store import Store
from fedcipher.foreign_text import quoting_log

__all__ = ["ClipFeedback", "with_waiting"]

_log = quoting_log("fedcipher.federation")
_ROUNDS = 4
"""What is older is forgotten."""
_MOST = 8.0
"""Times its scale: the largest root mean square that waits. The rest is lost, and counted as what is not kept."""
_LARGEST = float(np.finfo(np.float32).max)


class ClipFeedback:
    """What waits in ``store``; use it inside the store's lock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stepped(self, index: int, *, included: bool) -> None:
        """The chain has made the step of the run's round ``index``, whose sum may have this client in it."""
        facts = self._facts
        made = facts["made"]
        if made is None or index < made["index"]:
            return
        if made["index"] == index and included:
            # What went with that update is in the model.
            facts["ready"] = None if made["nothing"] else made
        self._remember(facts["ready"], None)

    def forget(self) -> None:
        """Nothing waits any more."""
        self._remember(None, None)

    def taken(self, index: int, like: Sequence[Array]) -> list[NDArray[np.float32]]:
        """What goes with the update of round ``index``, of the shapes ``like``; empty where nothing waits.

        The same again, where that round is asked for once more.
        """
        facts = self._facts
        ready = facts["ready"]
        if ready is None:
            return []
        arrays: list[NDArray[np.float32]] = []
        if index - ready["index"] <= _ROUNDS:
            arrays = self._read(ready["slot"])
        if len(arrays) != len(like) or any(x.size and x.shape != y.shape for x, y in zip(arrays, like, strict=True)):
            self._remember(None, facts["made"])
            return []
        return arrays

    def keep(
        self, rest: Sequence[NDArray[np.float32] | None], most: Sequence[float], index: int, *, share: float = 1.0
    ) -> None:
        """The ``rest`` of an update of round ``index``, which was ``share`` times its own size. It is changed.

        Of array t at most `_MOST` times ``most[t]`` waits.
        """
        ready = self._facts["ready"]
        made = {"index": index, "slot": 1 - ready["slot"] if ready else 0, "nothing": all(x is None for x in rest)}
        if not made["nothing"]:
            try:
                self._store.keep_cut(made["slot"], _shortened(rest, most, share))
            except RunError as error:
                _log.warning("round %s: what was cut from the update is lost: %s", index, error)
                made["nothing"] = True
        if ready or not made["nothing"] or self._facts["made"]:
            self._remember(ready, made)

    @property
    def _facts(self) -> dict[str, Any]:
        """``ready`` goes with the next update. ``made`` is of an update that may be in a sum yet to come."""
        return dict(self._store.recall().get("waiting") or {"ready": None, "made": None})

    def _remember(self, ready: dict[str, Any] | None, made: dict[str, Any] | None) -> None:
        held = {facts["slot"] for facts in (ready, made) if facts is not None and not facts["nothing"]}
        if {"ready": ready, "made": made} != self._facts:
            self._store.remember(waiting={"ready": ready, "made": made} if ready or made else None)
        for slot in {0, 1} - held:
            self._store.drop_cut(slot)

    def _read(self, slot: int) -> list[NDArray[np.float32]]:
        try:
            return self._store.cut(slot)
        except StateError as error:
            _log.warning("what was cut from an update is damaged, and is left out: %s", error)
            return []


def _shortened(
    rest: Sequence[NDArray[np.float32] | None], most: Sequence[float], share: float
) -> list[NDArray[np.float32]]:
    """``rest`` over ``share``, each array shortened where its root mean square is then above `_MOST` times its own."""
    made: list[NDArray[np.float32]] = []
    for x, end in zip(rest, most, strict=True):
        if x is None:
            made.append(np.zeros(0, np.float32))
            continue
        size, flat = root_mean_square(x) / share, np.ascontiguousarray(x).reshape(-1)
        _native.multiply(flat, min(1.0, _MOST * end / size) / share if size else 1.0)
        made.append(flat.reshape(x.shape))
    return made


def with_waiting(update: Array, waiting: NDArray[np.float32]) -> Array:
    """Their sum, which ends where float32 does."""
    if update.dtype.kind != "f" or not waiting.size:
        return update
    return np.clip(update.astype(np.float64) + waiting, -_LARGEST, _LARGEST).astype(update.dtype)
