"""How an update becomes the values of a frame where ranges follow, and a sum's mean an update again.

Each array is divided by its scale, so that one grid fits all. Arrays of which few values are far larger than the rest
are rotated together (a randomised Hadamard transform, with a seed that all know): afterwards all values have nearly one
size, and the range is a few of these. Other arrays have the range of their peak, which is smaller. Each value becomes a
whole step, on average itself. The step is drawn at random. The nearest step has half the error, so rotated values get
that one where their own errors show no bias. What is beyond a scale or a range is cut, and waits.

What a `Coding` knows follows from the charter and from opened sums, so it is the same on all clients, and what readers
compute with it is the same to the bit on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcipher.codec import Array, Levels
from fedcipher.federation.kernels import Kernels, kernels_of, split
from fedcipher.federation.ranges import LEAST_SCALE, PEAKS, Ranges
from fedcipher.tensors import with_numpy

__all__ = ["Coded", "Coding", "coding_of"]

_SPREADS = ((6, 2.5), (14, 3.0), (40, 3.5), (126, 4.0), (510, 4.5), (4094, 5.3))
"""The range of rotated values in their own size, by the most levels that it is for: what is cut and what a step adds
are together least."""
_WIDEST = 6.0
_BIAS = 0.01
"""The most that the nearest steps may be longer or shorter than their values, along these."""
_EVEN = 0.1
"""The most that the errors of the nearest steps may be off those of values that lie evenly between steps."""
_LEAST_ROTATED = 256
"""Fewer values together are not rotated: they would not be normal."""
_DROWNED = 0.5
"""Of a mean's square, the part from which on noise damps it: there by nothing, and to nothing where all is noise.
Less noise has no bias, and damping has."""
_LOST = 2.0**-20
"""Of the least scale: what is smaller is nothing in single precision beside other values of an update."""


@dataclass(frozen=True)
class Coded:
    """One update as the values of a frame."""

    values: list[Array]
    rest: list[Array | None]
    """What was cut, in the update's own size; none where nothing was."""
    kept: list[float]
    """<coded, update> / <update, update>: of all arrays together, then of each."""
    clipped: int
    """Values that were beyond their range, and all of arrays that were beyond their scale."""


@dataclass(frozen=True)
class Coding:
    """Of updates that are made at one position; one entry an array."""

    scales: tuple[float, ...]
    ranges: tuple[float, ...]
    """Clip ranges of the values of a frame."""
    steps: tuple[float, ...]
    rotated: tuple[int, ...]
    """Arrays of one number are rotated together; those of number 0 are not. What moves gets no place in the zeros of
    what does not: that would make them noise."""
    always_at_random: bool
    """As the codec says; else rotated values are rounded to the nearest step where that is unbiased."""

    @property
    def _groups(self) -> list[list[int]]:
        """The arrays that are rotated together."""
        numbers = sorted(set(self.rotated) - {0})
        return [[t for t, number in enumerate(self.rotated) if number == group] for group in numbers]

    @property
    def _rows(self) -> list[list[int]]:
        """All arrays: those that are rotated together, and each of the others by itself."""
        return [*self._groups, *([t] for t, number in enumerate(self.rotated) if not number)]

    @property
    def limits(self) -> list[float]:
        """About the largest magnitude of each array's update that is not cut."""
        return [end * scale for end, scale in zip(self.ranges, self.scales, strict=True)]

    def encode(self, update: Sequence[Any], seed: bytes, draws: bytes) -> Coded:
        """An ``update`` of finite float32 values, of shapes that all clients have; on a GPU the work is done there.

        ``seed`` is the rotation's; ``draws`` seeds the rounding, for each client another.
        """
        kernels, arrays = kernels_of(update)
        flat = [kernels.flat(x) for x in arrays]
        sizes = [math.sqrt(kernels.mean_square(x)) for x in flat]
        parts = [self._part(t, size) for t, size in enumerate(sizes)]
        # An array that is larger than its scale is shortened to it, not bent.
        divisors = [max(size, scale) for size, scale in zip(sizes, self.scales, strict=True)]
        values, over = list[Any](flat), list[Any]([None] * len(flat))
        clipped = 0
        for places in self._rows:
            row = kernels.divided([flat[t] for t in places], [divisors[t] for t in places])
            for t, made, count, cut in self._in_range(kernels, places, row, [len(flat[t]) for t in places], seed):
                clipped += len(made) if 0 < parts[t] < 1 else count
                values[t], over[t] = self._rounded(kernels, t, made, draws), cut
        squares = [len(x) * size**2 for x, size in zip(flat, sizes, strict=True)]
        kept = [
            part if cut is None or not square else part * (1 - kernels.dot(cut, x) * divisor / square)
            for x, square, part, divisor, cut in zip(flat, squares, parts, divisors, over, strict=True)
        ]
        rest = [self._rest(kernels, t, x, parts[t], over[t]) for t, x in enumerate(flat)]
        whole = sum(squares)
        together = sum(part * square for part, square in zip(kept, squares, strict=True)) / whole if whole else 1.0
        shapes = [tuple(x.shape) for x in update]
        return Coded(_shaped(values, shapes), _shaped(rest, shapes), [together, *kept], clipped)

    def _part(self, t: int, size: float) -> float:
        """How much of array t is left when one of this root mean square is shortened to its scale."""
        scale = self.scales[t]
        if not size:
            return 1.0
        if size < _LOST * scale and scale <= LEAST_SCALE:
            return 0.0
        return min(1.0, scale / size)

    def _in_range(
        self, kernels: Kernels, places: Sequence[int], row: Any, lengths: Sequence[int], seed: bytes
    ) -> Iterator[tuple[int, Any, int, Any]]:
        """Of each array of a ``row``: its place, its values in their range, how many were beyond, and what was.

        None was beyond where none of the row was. What was beyond is turned back.
        """
        turned = bool(self.rotated[places[0]])
        if turned:
            row = kernels.rotated(row, seed, back=False)
        row, beyond, over = kernels.cut(row, lengths, [self.ranges[t] for t in places])
        if over is not None and turned:
            over = kernels.rotated(over, seed, back=True)
        cut = [None] * len(places) if over is None else split(over, lengths)
        return zip(places, split(row, lengths), beyond, cut, strict=True)

    def _rest(self, kernels: Kernels, t: int, x: Any, part: float, over: Any) -> Any:
        """What is cut from ``x``: all but a ``part``, and what is ``over`` the range beside its scale."""
        if over is not None:
            over = kernels.multiplied(over, self.scales[t])
        if part in (0.0, 1.0):
            return over
        shortened = x * float(np.float32(1 - part))
        return shortened if over is None else shortened + over

    def _rounded(self, kernels: Kernels, t: int, values: Any, draws: bytes) -> Any:
        """Whole steps, which the encryptor finds again."""
        step = self.steps[t]
        # All clients look; both ways take the same work. So time does not tell which one the data have chosen.
        squares = kernels.nearest_squares(values, step)
        nearest = bool(self.rotated[t]) and not self.always_at_random and _unbiased(squares, step)
        return kernels.whole_steps(values, step, at_random=not nearest, draws=draws, stream=t)

    def decode(
        self, means: Sequence[Array], seed: bytes, noise: Sequence[float]
    ) -> tuple[list[Array], list[tuple[int, float]]]:
        """The mean update behind ``means`` of frames' values, and which arrays count by which part.

        ``noise`` is one number an array. Where it is more than half of the mean square, a part counts.
        """
        kernels, means = kernels_of(means)
        made, drowned = list[Array](means), list[tuple[int, float]]()
        for places in self._rows:
            row = kernels.divided([kernels.flat(means[t]) for t in places], [1.0] * len(places))
            if self.rotated[places[0]]:
                row = kernels.rotated(row, seed, back=True)
            for t, values in zip(places, split(row, [means[t].size for t in places]), strict=True):
                whole, part = kernels.mean_square(values), 1.0
                if noise[t] > _DROWNED * whole:
                    part = max(0.0, 1 - noise[t] / whole) / (1 - _DROWNED) if whole else 0.0
                    drowned.append((t, part))
                made[t] = kernels.multiplied(values, part * self.scales[t]).reshape(means[t].shape)
        return made, sorted(drowned)

    def noise(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> list[float]:
        """The mean square of what rounding at random adds to a value of the mean of each array, beside its scale.

        It follows from the sums of all clients' ``lanes`` of histograms; ``total`` is the sum of their weights, beside
        `Ranges.omega`. An array has so many ``values``. To the nearest step it is less.
        """
        middles = ranges.middles(lanes)
        sizes = [min(1.0, size / scale) for (size, _), scale in zip(middles, self.scales, strict=True)]
        moved = [clients for _, clients in middles]
        for places in self._groups:
            # Rotated values have one size, and a client that moves one array moves all values.
            squares = math.fsum(values[t] * sizes[t] * sizes[t] for t in places)
            together = math.sqrt(squares / sum(values[t] for t in places))
            most = max(moved[t] for t in places)
            for t in places:
                sizes[t], moved[t] = together, most
        shares = ranges.shares(lanes)
        clients = sum(count for count, _ in shares)
        found: list[float] = []
        for step, size, movers in zip(self.steps, sizes, moved, strict=True):
            each = [count * _variance(step, size * share) for count, share in shares]
            part = min(1.0, movers / clients) if clients else 0.0
            found.append(part * math.fsum(each) / (total * total) if total else 0.0)
        return found


def _unbiased(squares: Sequence[float], step: float) -> bool:
    """Whether the nearest whole steps are on average as long as their values, and as far off as evenly spread ones.

    ``squares`` are those of `Kernels.nearest_squares`.
    """
    square, coded, error = squares
    along = (square + coded - error) / 2
    return abs(along - square) <= _BIAS * square and abs(12 * error / (step * step) - 1) <= _EVEN


def _variance(step: float, size: float) -> float:
    """What rounding at random adds to the square of a client's value of this root mean square."""
    return min(step * step / 6, 0.8 * step * size)


def _shaped(arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """``arrays`` of numpy in their shapes; none stays none."""
    here = with_numpy(arrays)
    return [x if x is None else x.reshape(shape) for x, shape in zip(here, shapes, strict=True)]


def coding_of(
    ranges: Ranges, like: Sequence[Array], bits: Sequence[int], levels: Levels, *, at_random: bool = False
) -> Coding:
    """Of updates of the shapes of ``like``, float32, in the next round of ``ranges``; ``at_random``: all values."""
    scales, peaks = ranges.scales, ranges.peaks
    spread = [_spread(levels.of(b)) for b in bits]
    rotated = [
        0 if not x.size or peak <= most else 1 if moved else 2
        for x, moved, peak, most in zip(like, ranges.moved, peaks, spread, strict=True)
    ]
    for group in (1, 2):
        if sum(x.size for x, number in zip(like, rotated, strict=True) if number == group) < _LEAST_ROTATED:
            rotated = [0 if number == group else number for number in rotated]
    ends: list[float] = []
    for t, x in enumerate(like):
        # No value is larger than all together.
        peak = min(peaks[t], math.sqrt(x.size)) if peaks[t] < PEAKS.last else math.sqrt(x.size)
        ends.append(spread[t] if rotated[t] else max(1.0, peak))
    steps = tuple(2 * end / levels.of(b) for end, b in zip(ends, bits, strict=True))
    return Coding(tuple(scales), tuple(ends), steps, tuple(rotated), at_random)


def _spread(levels: int) -> float:
    return next((end for most, end in _SPREADS if levels <= most), _WIDEST)
