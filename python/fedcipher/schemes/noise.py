"""Where an encryptor clips an update and adds its share of noise: after training, before any scheme sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.codec import Array, Codec, Layout, flat_float32
from fedcipher.dp import Grid, Privacy, grid

__all__ = ["Mechanism", "Noisy"]


@dataclass(frozen=True)
class Noisy:
    """An update on the grid, with its noise."""

    layout: Layout
    arrays: list[NDArray[np.float32]]
    """Flat; what they stand for, to the nearest, are the noisy integers."""
    cut: list[int]
    """Values of each array that were beyond the range."""
    scaled: float
    """What the update was multiplied by, to keep its norm: private."""


class Mechanism:
    """The noise of a codec's privacy for sums with so many ``shares`` of it (`fedcipher.dp`)."""

    def __init__(self, codec: Codec, privacy: Privacy, shares: int) -> None:
        self._codec, self._privacy, self._shares = codec, privacy, shares
        (self._bits,) = codec.bit_widths

    def grid(self, update: Sequence[Array]) -> Grid:
        """For updates of these shapes. Raises `ParameterError` where the bits hold none."""
        return grid(self._privacy, self._bits, sum(math.prod(np.shape(x)) for x in update), self._shares)

    def layout(self, update: Sequence[Array]) -> Layout:
        """One range for all arrays. Raises `LayoutError` for arrays that are no floats."""
        self._codec.check_floats(update)
        return replace(self._codec, privacy=None, clip=self.grid(update).alpha).layout(update)

    def apply(self, update: Sequence[Array]) -> Noisy:
        """Clip, round and add noise from the operating system. Raises `NotFiniteError` and as `layout`."""
        layout, made = self.layout(update), self.grid(update)
        clip = self._privacy.clip
        flat, cut, norm = _native.add_noise(layout, flat_float32(update), clip, made.square, made.numerator, made.shift)
        ends = np.cumsum([math.prod(np.shape(x)) for x in update])[:-1]
        return Noisy(layout, np.split(flat, ends), cut, min(1.0, clip / norm) if norm else 1.0)
