"""Stores the part of a client's update that clipping cut off, and adds it to the next update.

Only the cut part is fed back. Rounding is unbiased, and feeding its error back as well would use stale errors when
clients are sampled. The cut part waits for at most four rounds after a round whose sum includes this client. If an
update is in no sum, its cut part is dropped. The waiting part is removed once a sum includes the update that carried
it. A client that is asked for the same round again adds the same part again.
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
_MAX_ROUNDS = 4
"""A cut part that is older, in rounds, is dropped."""
_MAX_TIMES_SCALE = 8.0
"""The largest root mean square of a waiting array, in multiples of the array's scale. The excess is lost."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class ClipFeedback:
    """The cut part of an update that waits in ``store``. Use it inside the store's lock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stepped(self, index: int, *, included: bool) -> None:
        """Record the chain's step of round ``index``; ``included`` says whether its sum includes this client."""
        facts = self._facts
        made = facts["made"]
        if made is None or index < made["index"]:
            return
        if made["index"] == index and included:
            # The part that this update carried is in the model.
            facts["ready"] = None if made["nothing"] else made
        self._save(facts["ready"], None)

    def forget(self) -> None:
        """Drop all waiting parts."""
        self._save(None, None)

    def taken(self, index: int, like: Sequence[Array]) -> list[NDArray[np.float32]]:
        """The waiting arrays for the update of round ``index``, with the shapes of ``like``; empty if nothing waits.

        A repeated call for the same round returns the same arrays.
        """
        facts = self._facts
        ready = facts["ready"]
        if ready is None:
            return []
        arrays: list[NDArray[np.float32]] = []
        if index - ready["index"] <= _MAX_ROUNDS:
            arrays = self._read(ready["slot"])
        if len(arrays) != len(like) or any(x.size and x.shape != y.shape for x, y in zip(arrays, like, strict=True)):
            self._save(None, facts["made"])
            return []
        return arrays

    def keep(
        self, cut: Sequence[NDArray[np.float32] | None], scales: Sequence[float], index: int, *, share: float = 1.0
    ) -> None:
        """Store the ``cut`` part of an update of round ``index`` that had been scaled by ``share``; changes ``cut``.

        The root mean square of array t that waits is at most `_MAX_TIMES_SCALE` times ``scales[t]``.
        """
        ready = self._facts["ready"]
        made = {"index": index, "slot": 1 - ready["slot"] if ready else 0, "nothing": all(x is None for x in cut)}
        if not made["nothing"]:
            try:
                self._store.keep_cut(made["slot"], _shortened(cut, scales, share))
            except RunError as error:
                _log.warning("round %s: the part that was cut from the update is lost: %s", index, error)
                made["nothing"] = True
        if ready or not made["nothing"] or self._facts["made"]:
            self._save(ready, made)

    @property
    def _facts(self) -> dict[str, Any]:
        """``ready`` is added to the next update. ``made`` is the cut part of an update that may be in a later sum."""
        return dict(self._store.recall().get("waiting") or {"ready": None, "made": None})

    def _save(self, ready: dict[str, Any] | None, made: dict[str, Any] | None) -> None:
        used = {facts["slot"] for facts in (ready, made) if facts is not None and not facts["nothing"]}
        if {"ready": ready, "made": made} != self._facts:
            self._store.remember(waiting={"ready": ready, "made": made} if ready or made else None)
        for slot in {0, 1} - used:
            self._store.drop_cut(slot)

    def _read(self, slot: int) -> list[NDArray[np.float32]]:
        try:
            return self._store.cut(slot)
        except StateError as error:
            _log.warning("the stored part that was cut from an update is damaged and is left out: %s", error)
            return []


def _shortened(
    cut: Sequence[NDArray[np.float32] | None], scales: Sequence[float], share: float
) -> list[NDArray[np.float32]]:
    """``cut`` divided by ``share``, with the root mean square of each array limited by its scale."""
    made: list[NDArray[np.float32]] = []
    for x, scale in zip(cut, scales, strict=True):
        if x is None:
            made.append(np.zeros(0, np.float32))
            continue
        size, flat = root_mean_square(x) / share, np.ascontiguousarray(x).reshape(-1)
        _native.multiply(flat, min(1.0, _MAX_TIMES_SCALE * scale / size) / share if size else 1.0)
        made.append(flat.reshape(x.shape))
    return made


def with_waiting(update: Array, waiting: NDArray[np.float32]) -> Array:
    """The sum of ``update`` and ``waiting``, clipped to the range of float32."""
    if update.dtype.kind != "f" or not waiting.size:
        return update
    return np.clip(update.astype(np.float64) + waiting, -_FLOAT32_MAX, _FLOAT32_MAX).astype(update.dtype)
