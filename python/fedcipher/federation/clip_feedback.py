"""Clip ranges that follow the clients' updates, without telling the server anything of them.

Ranges have to be public and the same for all clients, so they are usually fitted to the mean of the last updates
(FedBit, section V: FEDBIT FRAMEWORK). Where clients pull in different directions that mean shrinks and their updates
do not: single updates would be cut round after round, and the model would not be their mean. So each update carries,
encrypted like the rest, two numbers a tensor: how much of its range the client has used, and the share of values that
were cut.
Whoever opens the sum reads their means, and all set the next ranges alike.

The use travels as its fourth power: of n clients of equal weight none has used more than n^(1/4) times the fourth root
of the mean, so that a margin of two is enough for 16 clients whatever they do, and for more unless one stands out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, Codec
from fedcipher.errors import LayoutError
from fedcipher.schemes import Scheme

__all__ = ["ClipFeedback", "carries_use", "split_use", "use_of"]

_GROWTH = 4.0
"""By how much a range grows after a round that cut."""
_SHRINK = 1 / 8
"""Of a range, what at least remains in the next round: small uses vanish in the fourth power."""
_POWER = 4
_LARGEST = 2.0**120


def carries_use(scheme: Scheme) -> bool:
    """Whether updates of ``scheme`` carry the use of their ranges: dense deltas with ``clip="auto"``.

    Sparse updates keep what was cut for the next round (error feedback); whole models are fitted to the last model;
    the other ways to clip are the app's choice. With privacy ranges are fixed, and the noise would not cover the use.
    """
    codec = scheme.codec
    if codec.privacy is not None:
        return False
    return codec.target == "delta" and not scheme.sends_parts and codec.clip == "auto"


def use_of(update: Sequence[Array], ranges: Sequence[float]) -> NDArray[np.float32]:
    """What an update carries: float32 of shape (2, tensors) in [0, 1], fourth power of the use, and share cut."""
    used, cut = np.zeros(len(ranges), np.float32), np.zeros(len(ranges), np.float32)
    for i, (x, r) in enumerate(zip(update, ranges, strict=True)):
        magnitude = np.abs(x)
        used[i] = min(1.0, float(np.max(magnitude, initial=0.0)) / r)
        if used[i] >= 1:
            cut[i] = np.count_nonzero(magnitude > r) / x.size
    return np.stack([used**_POWER, cut])


def split_use(opened: Sequence[Array]) -> tuple[list[Array], Array]:
    """An opened sum whose updates carried their use: the tensors, and the mean use. Raises `LayoutError`."""
    *tensors, use = opened
    if np.shape(use) != (2, len(tensors)):
        raise LayoutError(f"an aggregate of {len(opened)} tensors does not say what was cut; its clients are older")
    return tensors, use


class ClipFeedback:
    """The ranges of a run's next round; the same on all clients that have seen the same aggregates.

    ``first`` are the ranges of the first round. A tensor of which nothing was cut gets ``margin`` times what the
    clients used, not less than the codec's floor or an eighth of its range; one of which something was cut gets four
    times its range, and never again less than twice of what was too little.
    """

    def __init__(self, codec: Codec, first: Sequence[float]) -> None:
        self._codec = codec
        self._ranges = np.array(first, np.float64)
        self._least = np.full(len(first), codec.smallest, np.float64)

    @property
    def ranges(self) -> list[float]:
        """Ranges of the next round, one a tensor."""
        return self._ranges.tolist()

    def observe(self, use: Array) -> None:
        """The mean use of a round, shape (2, tensors)."""
        powers, cut = np.clip(np.asarray(use, np.float64), 0, 1)
        used = np.maximum(powers ** (1 / _POWER), _SHRINK / self._codec.margin)
        self._least = np.where(cut > 0, np.minimum(2 * self._ranges, _LARGEST), self._least)
        fitted = np.maximum(self._codec.margin * used * self._ranges, self._least)
        self._ranges = np.where(cut > 0, np.minimum(_GROWTH * self._ranges, _LARGEST), fitted)

    def export(self) -> bytes:
        """For `restore`."""
        return np.stack([self._ranges, self._least]).astype("<f8").tobytes()

    def restore(self, state: bytes) -> None:
        """Take up what `export` gave, for as many tensors."""
        if len(state) == 16 * self._ranges.size:
            self._ranges, self._least = np.frombuffer(state, "<f8").reshape(2, -1).copy()
