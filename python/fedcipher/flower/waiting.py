"""What a client's update lost to its clip range waits, and goes with the next update.

Only what was cut: what rounding takes is unbiased, and feeding it back as well grows stale where clients are sampled.
It waits for at most four rounds, and only where the round's sum has this client in it: else the update is in no model,
and the next one is made without it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, Layout, largest_magnitude
from fedcipher.errors import RunError
from fedcipher.federation.store import Store
from fedcipher.foreign_files import MAX_MODEL, read_npz
from fedcipher.foreign_text import quoting_log

__all__ = ["Waiting", "with_waiting"]

_log = quoting_log("fedcipher.flower")
_ROUNDS = 4
"""What is older is forgotten."""
_MOST = 8.0
"""Times its range: the largest value that waits. The rest of it is lost, and counted as what is not kept."""


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
        if [x.shape for x in arrays] != [x.shape for x in like]:
            self.forget()
            return []
        return arrays

    def keep(self, update: Sequence[Array], layout: Layout, share: float, index: int) -> None:
        """What the ranges of ``layout`` cut from an ``update`` of round ``index``, ``share`` times its own size."""
        rest = [_cut(x, alpha, share) for x, (_, _, alpha, _) in zip(update, layout.tensors, strict=True)]
        if not any(x.any() for x in rest):
            if self._store.recall().get("waiting") is not None:
                self.forget()
            return
        packed = io.BytesIO()
        np.savez(packed, *rest)
        try:
            self._store.keep_cut(packed.getvalue())
        except RunError as error:
            _log.warning("round %s: what was cut from the update is lost: %s", index, error)
            self.forget()
            return
        self._store.remember(waiting={"index": index, "committed": False})


def _cut(x: Array, alpha: float, share: float) -> NDArray[np.float32]:
    """What is beyond ±``alpha`` in the update's own size, at most `_MOST` times its range."""
    if x.dtype.kind != "f" or not largest_magnitude(x) > alpha:
        return np.zeros(x.shape, np.float32)
    beyond = (x.astype(np.float64) - np.clip(x, -alpha, alpha)) / share
    most = min(_MOST * alpha, float(np.finfo(np.float32).max))
    return np.clip(beyond, -most, most).astype(np.float32)


def with_waiting(update: Array, waiting: NDArray[np.float32]) -> Array:
    """Their sum, which ends where float32 does."""
    if update.dtype.kind != "f":
        return update
    most = float(np.finfo(np.float32).max)
    return np.clip(update.astype(np.float64) + waiting, -most, most).astype(update.dtype)
