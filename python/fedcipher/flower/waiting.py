"""What was cut from a client's update waits, and goes with the next update.

Only what was cut: what rounding takes is unbiased, and feeding it back as well grows stale where clients are sampled.
It waits for at most four rounds, and only where the round's sum has this client in it: else the update is in no model,
and the next one is made without it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, root_mean_square
from fedcipher.errors import RunError
from fedcipher.federation.store import Store
from fedcipher.foreign_files import MAX_MODEL, read_npz
from fedcipher.foreign_text import quoting_log

__all__ = ["Waiting", "with_waiting"]

_log = quoting_log("fedcipher.flower")
_ROUNDS = 4
"""What is older is forgotten."""
_MOST = 8.0
"""Times its scale: the largest root mean square that waits. The rest is lost, and counted as what is not kept."""
_LARGEST = float(np.finfo(np.float32).max)


class Waiting:
    """What waits in ``store``; use it inside the store's lock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stepped(self, index: int, *, included: bool) -> None:
        """The chain has made the step of the run's round ``index``, whose sum may have this client in it."""
        facts = self._store.recall().get("waiting")
        if facts is None or facts["committed"]:
            return
        if facts["index"] == index and included:
            self._store.remember(waiting={**facts, "committed": True})
        elif index >= facts["index"]:
            self.forget()

    def forget(self) -> None:
        """Nothing waits any more."""
        self._store.remember(waiting=None)
        self._store.drop_cut()

    def taken(self, index: int, like: Sequence[Array]) -> list[NDArray[np.float32]]:
        """What goes with the update of round ``index``, of the shapes ``like``; empty where nothing waits."""
        facts = self._store.recall().get("waiting")
        if facts is None:
            return []
        if not facts["committed"] or index - facts["index"] > _ROUNDS:
            self.forget()
            return []
        try:
            held = read_npz(self._store.cut(), MAX_MODEL)
            arrays = [held[f"arr_{k}"] for k in range(len(held))]
        except (ValueError, KeyError) as error:
            _log.warning("what was cut from an update is damaged, and is left out: %s", error)
            arrays = []
        if len(arrays) != len(like) or any(x.size and x.shape != y.shape for x, y in zip(arrays, like, strict=True)):
            self.forget()
            return []
        return arrays

    def keep(self, rest: Sequence[NDArray[np.float64] | None], most: Sequence[float], index: int) -> None:
        """The ``rest`` of an update of round ``index``; of array t at most `_MOST` times ``most[t]`` waits."""
        if all(x is None for x in rest):
            if self._store.recall().get("waiting") is not None:
                self.forget()
            return
        rest = [np.zeros(0) if x is None else x for x in rest]
        kept = [_shortened(x, min(_MOST * end, _LARGEST)) for x, end in zip(rest, most, strict=True)]
        packed = io.BytesIO()
        np.savez(packed, *kept)
        try:
            self._store.keep_cut(packed.getvalue())
        except RunError as error:
            _log.warning("round %s: what was cut from the update is lost: %s", index, error)
            self.forget()
            return
        self._store.remember(waiting={"index": index, "committed": False})


def _shortened(x: NDArray[np.float64], most: float) -> NDArray[np.float32]:
    """``x``, no larger than float32, and shortened where its root mean square is above ``most``."""
    x = np.clip(x, -_LARGEST, _LARGEST)
    size = root_mean_square(x)
    return (x * (most / size) if size > most else x).astype(np.float32)


def with_waiting(update: Array, waiting: NDArray[np.float32]) -> Array:
    """Their sum, which ends where float32 does."""
    if update.dtype.kind != "f" or not waiting.size:
        return update
    return np.clip(update.astype(np.float64) + waiting, -_LARGEST, _LARGEST).astype(update.dtype)
