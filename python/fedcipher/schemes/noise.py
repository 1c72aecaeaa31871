"""Clips an update and adds a client's share of noise, after training and before encryption."""

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
    """An update on the grid, with noise."""

    layout: Layout
    arrays: list[NDArray[np.float32]]
    """Flat arrays. Rounding them to the nearest grid step gives the noisy integers."""
    cut: list[int]
    """The number of values of each array beyond the range."""
    scaled: float
    """The factor that limited the update's norm. The factor is private."""


class Mechanism:
    """The noise mechanism of a codec with privacy, for sums of ``shares`` noise shares (`fedcipher.dp`)."""

    def __init__(self, codec: Codec, privacy: Privacy, shares: int) -> None:
        self._codec, self._privacy, self._shares = codec, privacy, shares
        (self._bits,) = codec.bit_widths

    def grid(self, update: Sequence[Array]) -> Grid:
        """The grid for updates of these shapes. Raises `ParameterError` if the bits are too few for any grid."""
        return grid(self._privacy, self._bits, sum(math.prod(np.shape(x)) for x in update), self._shares)

    def layout(self, update: Sequence[Array]) -> Layout:
        """A layout with one range for all arrays. Raises `LayoutError` for arrays that are not floats."""
        self._codec.check_floats(update)
        return replace(self._codec, privacy=None, clip=self.grid(update).alpha).layout(update)

    def apply(self, update: Sequence[Array]) -> Noisy:
        """Clip, round and add noise from the operating system. Raises `NotFiniteError` and the errors of `layout`."""
        layout, made = self.layout(update), self.grid(update)
        clip = self._privacy.clip
        flat, cut, norm = _native.add_noise(layout, flat_float32(update), clip, made.square, made.numerator, made.shift)
        ends = np.cumsum([math.prod(np.shape(x)) for x in update])[:-1]
        return Noisy(layout, np.split(flat, ends), cut, min(1.0, clip / norm) if norm else 1.0)
