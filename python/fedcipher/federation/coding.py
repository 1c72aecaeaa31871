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
_NEAREST = 0.67
"""Of a step: from this root mean square on the nearest steps of rotated values are unbiased."""
_LEAST_ROTATED = 256
"""Fewer values together are not rotated: they would not be normal."""
_DROWNED = 1.0
"""Noise is damped from so many times the mean square of one client's update on. Less has no bias, and damping has:
means that are half noise train as well as others."""
_LOST = 2.0**-20
"""Of the least scale: what is smaller is nothing in single precision beside other values of an update."""


_Move = tuple[float, float]


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

        What was beyond is turned back. Where no value of the row was beyond, it is None.
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

    def decode(self, means: Sequence[Array], seed: bytes, parts: Sequence[float]) -> list[Array]:
        """The mean update behind ``means`` of frames' values, of which each array counts by its part."""
        kernels, means = kernels_of(means)
        made = list[Array](means)
        for places in self._rows:
            row = kernels.divided([kernels.flat(means[t]) for t in places], [1.0] * len(places))
            if self.rotated[places[0]]:
                row = kernels.rotated(row, seed, back=True)
            for t, values in zip(places, split(row, [means[t].size for t in places]), strict=True):
                made[t] = kernels.multiplied(values, parts[t] * self.scales[t]).reshape(means[t].shape)
        return made

    def parts(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> list[float]:
        """The part of its mean that each array counts by, given as `noise` is: 1 but where rounding drowns it.

        Noise that is no larger than one client's update takes nothing away: a later round's is another. Where it is
        larger, the part is as much smaller.
        """
        moves = self._moves(ranges, lanes)
        noise = self._noise(moves, ranges.shares(lanes), total, values)
        return [
            1.0 if added <= _DROWNED * (single := part * size * size) else _DROWNED * single / added
            for (size, part), added in zip(moves, noise, strict=True)
        ]

    def noise(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> list[float]:
        """The mean square of what rounding adds to a value of the mean of each array, beside its scale.

        It follows from the sums of all clients' ``lanes`` of histograms; ``total`` is the sum of their weights, beside
        `Ranges.omega`. An array has so many ``values``.
        """
        return self._noise(self._moves(ranges, lanes), ranges.shares(lanes), total, values)

    def total_noise(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> float:
        """The square of all that rounding adds to the mean; arguments as `noise`."""
        added = self.noise(ranges, lanes, total, values)
        return math.fsum(n * (scale * scale) * part for n, scale, part in zip(values, self.scales, added, strict=True))

    def total_square(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> float:
        """The sum of the squares of all clients' parts of the mean; arguments as `noise`."""
        moves = zip(values, self.scales, self._moves(ranges, lanes), strict=True)
        square = math.fsum(n * part * (size * scale) ** 2 for n, scale, (size, part) in moves)
        shares = math.fsum(count * share * share for count, share in ranges.shares(lanes))
        return square * shares / (total * total) if total else 0.0

    def _noise(
        self, moves: Sequence[_Move], shares: Sequence[tuple[int, float]], total: float, values: Sequence[int]
    ) -> list[float]:
        moves = list(moves)
        for places in self._groups:
            # Rotated values have one size, and a client that moves one array moves all values.
            squares = math.fsum(values[t] * moves[t][0] ** 2 for t in places)
            together = math.sqrt(squares / sum(values[t] for t in places))
            most = max(moves[t][1] for t in places)
            for t in places:
                moves[t] = (together, most)
        found: list[float] = []
        for t, (size, part) in enumerate(moves):
            each = [count * self._variance(t, size * share) for count, share in shares]
            found.append(part * math.fsum(each) / (total * total) if total else 0.0)
        return found

    def _moves(self, ranges: Ranges, lanes: Sequence[int]) -> list[_Move]:
        """Of each array: a client's size beside the scale, and which part of the clients have moved it."""
        clients = sum(count for count, _ in ranges.shares(lanes))
        return [
            (min(1.0, size / scale), min(1.0, movers / clients) if clients else 0.0)
            for (size, movers), scale in zip(ranges.middles(lanes), self.scales, strict=True)
        ]

    def _variance(self, t: int, size: float) -> float:
        """What rounding adds to the square of a client's value of array t, of this root mean square."""
        step = self.steps[t]
        if self.rotated[t] and not self.always_at_random and size >= _NEAREST * step:
            return step * step / 12
        return min(step * step / 6, 0.8 * step * size)


def _unbiased(squares: Sequence[float], step: float) -> bool:
    """Whether the nearest whole steps are on average as long as their values, and as far off as evenly spread ones.

    ``squares`` are those of `Kernels.nearest_squares`.
    """
    square, coded, error = squares
    along = (square + coded - error) / 2
    return abs(along - square) <= _BIAS * square and abs(12 * error / (step * step) - 1) <= _EVEN


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
