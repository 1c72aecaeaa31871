"""Coding of updates where clip ranges follow them: from an update to the values of a frame, and from a mean back.

Each array is divided by its scale, so that one grid fits all arrays. If a few values of an array are far larger than
the others, the array is rotated: a randomised Hadamard transform with a public seed. Such arrays are rotated together.
Rotated values have nearly equal sizes, so their range is a small multiple of that size. Other arrays are not rotated,
and their range is their peak.

Each value is rounded to a whole step. A random choice between the two neighbouring steps is right on average. The
nearest step has half the error, so rotated values take the nearest step if their own errors show no bias. Values beyond
a scale or a range are cut, and the cut part waits for a later round.

A `Coding` is computed from the charter and from opened sums, so all clients have the same one. Readers' results with a
`Coding` are equal to the bit on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcipher.codec import Array, Levels
from fedcipher.federation.kernels import Kernels, kernels_of, split
from fedcipher.federation.ranges import MIN_SCALE, PEAKS, Ranges
from fedcipher.tensors import with_numpy

__all__ = ["Coded", "Coding", "coding_of"]

_SPREADS = ((6, 2.5), (14, 3.0), (40, 3.5), (126, 4.0), (510, 4.5), (4094, 5.3))
"""(largest number of levels, range of rotated values in units of their root mean square). The range minimises the sum
of what is cut and what rounding adds."""
_WIDEST = 6.0
_MAX_BIAS = 0.01
"""Largest relative difference in length between values and their nearest steps, measured along the values."""
_MAX_UNEVENNESS = 0.1
"""Largest relative difference between the nearest steps' errors and those of values spread evenly between steps."""
_MIN_NEAREST = 0.67
"""Root mean square of rotated values, in steps, from which their nearest steps are unbiased."""
_MIN_ROTATED = 256
"""Arrays with fewer values together are not rotated, because so few rotated values are not normally distributed."""
_DAMPED_FROM = 1.0
"""A mean is damped if its noise exceeds this multiple of one client's mean square. Below that it is not damped, because
damping adds bias, and means that are half noise train as well as others."""
_NEGLIGIBLE = 2.0**-20
"""Part of the smallest scale. Smaller values vanish in single precision beside other values of an update."""


_Move = tuple[float, float]
"""Of one array: the size of a client's update in units of the scale, and the part of the clients that moved it."""


@dataclass(frozen=True)
class Coded:
    """One update as the values of a frame."""

    values: list[Array]
    rest: list[Array | None]
    """The cut part of each array, in the update's own units; None if nothing was cut."""
    kept: list[float]
    """<coded, update> / <update, update>: of all arrays together, then of each array."""
    clipped: int
    """Number of values beyond their range, plus all values of arrays beyond their scale."""


@dataclass(frozen=True)
class Coding:
    """The coding of all updates at one position of the chain. Each tuple has one entry for each array."""

    scales: tuple[float, ...]
    ranges: tuple[float, ...]
    """Clip ranges of the values of a frame."""
    steps: tuple[float, ...]
    rotated: tuple[int, ...]
    """Group of each array. Arrays of one group are rotated together, and those of group 0 are not rotated. Arrays that
    moved and arrays that did not are in different groups: otherwise rotation would spread noise over zeros."""
    always_at_random: bool
    """Whether the codec asks for random rounding. Otherwise rotated values take the nearest step if it is unbiased."""

    @property
    def _groups(self) -> list[list[int]]:
        """Indices of the arrays that are rotated together, one list for each group."""
        numbers = sorted(set(self.rotated) - {0})
        return [[t for t, number in enumerate(self.rotated) if number == group] for group in numbers]

    @property
    def _rows(self) -> list[list[int]]:
        """Indices of all arrays: one list for each rotated group, and one list for each other array."""
        return [*self._groups, *([t] for t, number in enumerate(self.rotated) if not number)]

    @property
    def limits(self) -> list[float]:
        """For each array, about the largest magnitude of an update's value that is not cut."""
        return [end * scale for end, scale in zip(self.ranges, self.scales, strict=True)]

    def encode(self, update: Sequence[Any], seed: bytes, draws: bytes) -> Coded:
        """Encode an ``update``: finite float32 arrays of the model's shapes. Arrays on a GPU are encoded there.

        ``seed``, 16 bytes, is the public seed of the rotation. ``draws``, 16 bytes, seeds the rounding and is different
        for each client.
        """
        kernels, arrays = kernels_of(update)
        flat = [kernels.flat(x) for x in arrays]
        sizes = [math.sqrt(kernels.mean_square(x)) for x in flat]
        parts = [self._part(t, size) for t, size in enumerate(sizes)]
        # An array larger than its scale is scaled down, so that it keeps its direction.
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
        """The part of array ``t`` that remains if its root mean square ``size`` is scaled down to the scale."""
        scale = self.scales[t]
        if not size:
            return 1.0
        if size < _NEGLIGIBLE * scale and scale <= MIN_SCALE:
            return 0.0
        return min(1.0, scale / size)

    def _in_range(
        self, kernels: Kernels, places: Sequence[int], row: Any, lengths: Sequence[int], seed: bytes
    ) -> Iterator[tuple[int, Any, int, Any]]:
        """For each array of a ``row``: its index, its values in their range, how many were cut, and the cut part.

        The cut part is rotated back; None if no value of the row was cut.
        """
        rotated = bool(self.rotated[places[0]])
        if rotated:
            row = kernels.rotated(row, seed, back=False)
        row, beyond, over = kernels.cut(row, lengths, [self.ranges[t] for t in places])
        if over is not None and rotated:
            over = kernels.rotated(over, seed, back=True)
        cut = [None] * len(places) if over is None else split(over, lengths)
        return zip(places, split(row, lengths), beyond, cut, strict=True)

    def _rest(self, kernels: Kernels, t: int, x: Any, part: float, over: Any) -> Any:
        """The cut of ``x``: all but ``part`` of the array, and ``over``, the cut in units of the scale."""
        if over is not None:
            over = kernels.multiplied(over, self.scales[t])
        if part in (0.0, 1.0):
            return over
        shortened = x * float(np.float32(1 - part))
        return shortened if over is None else shortened + over

    def _rounded(self, kernels: Kernels, t: int, values: Any, draws: bytes) -> Any:
        """``values`` rounded to multiples of the step, so that the encryptor's own rounding changes nothing."""
        step = self.steps[t]
        # Always computed, and both ways take the same work, so time does not reveal which one the data selected.
        squares = kernels.nearest_squares(values, step)
        nearest = bool(self.rotated[t]) and not self.always_at_random and _unbiased(squares, step)
        return kernels.whole_steps(values, step, at_random=not nearest, draws=draws, stream=t)

    def decode(self, means: Sequence[Array], seed: bytes, parts: Sequence[float]) -> list[Array]:
        """The mean update, from the ``means`` of frames' values. ``parts`` has a factor for each array."""
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
        """The part of each array's mean that is applied: 1, unless the noise of rounding exceeds a client's update.

        Smaller noise is harmless, because it is independent from round to round. Larger noise makes the part smaller by
        the same ratio. The arguments are those of `noise`.
        """
        moves = self._moves(ranges, lanes)
        noise = self._noise(moves, ranges.shares(lanes), total, values)
        return [
            1.0 if added <= _DAMPED_FROM * (single := part * size * size) else _DAMPED_FROM * single / added
            for (size, part), added in zip(moves, noise, strict=True)
        ]

    def noise(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> list[float]:
        """For each array, the mean square of the noise that rounding adds to a value of the mean.

        The result is in units of the squared scale.

        ``lanes`` are the sums of all clients' histograms, ``total`` is the sum of their weights in units of
        `Ranges.recent_weight`, and ``values`` are the arrays' numbers of values.
        """
        return self._noise(self._moves(ranges, lanes), ranges.shares(lanes), total, values)

    def total_noise(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> float:
        """The squared length of the noise that rounding adds to the mean. The arguments are those of `noise`."""
        added = self.noise(ranges, lanes, total, values)
        return math.fsum(n * (scale * scale) * part for n, scale, part in zip(values, self.scales, added, strict=True))

    def total_square(self, ranges: Ranges, lanes: Sequence[int], total: float, values: Sequence[int]) -> float:
        """The sum of the squared lengths of all clients' parts of the mean. The arguments are those of `noise`."""
        moves = zip(values, self.scales, self._moves(ranges, lanes), strict=True)
        square = math.fsum(n * part * (size * scale) ** 2 for n, scale, (size, part) in moves)
        shares = math.fsum(count * share * share for count, share in ranges.shares(lanes))
        return square * shares / (total * total) if total else 0.0

    def _noise(
        self, moves: Sequence[_Move], shares: Sequence[tuple[int, float]], total: float, values: Sequence[int]
    ) -> list[float]:
        moves = list(moves)
        for places in self._groups:
            # Rotation gives all values of a group one size, and spreads a change of one array over all of them.
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
        """For each array, the size of a client's update and the part of the clients that moved it, see `_Move`."""
        clients = sum(count for count, _ in ranges.shares(lanes))
        return [
            (min(1.0, size / scale), min(1.0, movers / clients) if clients else 0.0)
            for (size, movers), scale in zip(ranges.median_sizes(lanes), self.scales, strict=True)
        ]

    def _variance(self, t: int, size: float) -> float:
        """The variance that rounding adds to a client's value of array ``t`` with root mean square ``size``."""
        step = self.steps[t]
        if self.rotated[t] and not self.always_at_random and size >= _MIN_NEAREST * step:
            return step * step / 12
        return min(step * step / 6, 0.8 * step * size)


def _unbiased(squares: Sequence[float], step: float) -> bool:
    """Whether rounding to the nearest step is unbiased.

    It is if the steps are on average as long as the values, and if their errors are those of values that are spread
    evenly between steps. ``squares`` is the result of `Kernels.nearest_squares`.
    """
    square, coded, error = squares
    along = (square + coded - error) / 2
    return abs(along - square) <= _MAX_BIAS * square and abs(12 * error / (step * step) - 1) <= _MAX_UNEVENNESS


def _shaped(arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """``arrays`` as NumPy arrays of these shapes; None stays None."""
    here = with_numpy(arrays)
    return [x if x is None else x.reshape(shape) for x, shape in zip(here, shapes, strict=True)]


def coding_of(
    ranges: Ranges, like: Sequence[Array], bits: Sequence[int], levels: Levels, *, at_random: bool = False
) -> Coding:
    """The coding of float32 updates with the shapes of ``like`` in the next round of ``ranges``.

    ``bits`` are the bits of each array's values. With ``at_random`` all values are rounded at random.
    """
    scales, peaks = ranges.scales, ranges.peaks
    spread = [_spread(levels.of(b)) for b in bits]
    rotated = [
        0 if not x.size or peak <= most else 1 if moved else 2
        for x, moved, peak, most in zip(like, ranges.moved, peaks, spread, strict=True)
    ]
    for group in (1, 2):
        if sum(x.size for x, number in zip(like, rotated, strict=True) if number == group) < _MIN_ROTATED:
            rotated = [0 if number == group else number for number in rotated]
    ends: list[float] = []
    for t, x in enumerate(like):
        # In units of the root mean square, no value exceeds the root of the number of values.
        peak = min(peaks[t], math.sqrt(x.size)) if peaks[t] < PEAKS.last else math.sqrt(x.size)
        ends.append(spread[t] if rotated[t] else max(1.0, peak))
    steps = tuple(2 * end / levels.of(b) for end, b in zip(ends, bits, strict=True))
    return Coding(tuple(scales), tuple(ends), steps, tuple(rotated), at_random)


def _spread(levels: int) -> float:
    return next((end for most, end in _SPREADS if levels <= most), _WIDEST)
