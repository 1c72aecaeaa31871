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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcipher import _native
from fedcipher.codec import Array, Levels, largest_magnitude, root_mean_square
from fedcipher.federation.ranges import LEAST_SCALE, PEAKS, Ranges

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
_MOST = float(np.finfo(np.float32).max)


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
    def limits(self) -> list[float]:
        """About the largest magnitude of each array's update that is not cut."""
        return [end * scale for end, scale in zip(self.ranges, self.scales, strict=True)]

    def encode(self, update: Sequence[Array], seed: bytes, draws: bytes) -> Coded:
        """An ``update`` of finite values, of shapes that all clients have.

        ``seed`` is the rotation's; ``draws`` seeds the rounding, for each client another.
        """
        sizes = [root_mean_square(x) for x in update]
        parts = [self._part(t, size) for t, size in enumerate(sizes)]
        beside = [self._beside(t, x, size) for t, (x, size) in enumerate(zip(update, sizes, strict=True))]
        values = list(beside)
        self._rotate(values, seed, back=False)
        values, over = self._in_range(values)
        clipped = 0
        for x, part, beyond in zip(update, parts, over, strict=True):
            clipped += x.size if 0 < part < 1 else 0 if beyond is None else int(np.count_nonzero(beyond))
        if any(x is not None for t, x in enumerate(over) if self.rotated[t]):
            turned = [np.zeros_like(y) if x is None else x for x, y in zip(over, beside, strict=True)]
            self._rotate(turned, seed, back=True)
            over = [x if self.rotated[t] else over[t] for t, x in enumerate(turned)]
        kept = [
            part if x is None else part * (1 - _along(x, y)) for part, x, y in zip(parts, over, beside, strict=True)
        ]
        rest = [self._rest(t, x, part, over[t]) for t, (x, part) in enumerate(zip(update, parts, strict=True))]
        squares = [x.size * size**2 for x, size in zip(update, sizes, strict=True)]
        whole = sum(squares)
        together = sum(part * square for part, square in zip(kept, squares, strict=True)) / whole if whole else 1.0
        return Coded(self._rounded(values, draws), rest, [together, *kept], clipped)

    def _part(self, t: int, size: float) -> float:
        """How much of array t is left when one of this root mean square is shortened to its scale."""
        scale = self.scales[t]
        if not size:
            return 1.0
        if size < _LOST * scale and scale <= LEAST_SCALE:
            return 0.0
        return min(1.0, scale / size)

    def _beside(self, t: int, x: Array, size: float) -> Array:
        """``x`` beside its scale; one that is larger is shortened to it, not bent."""
        return x / np.float32(max(size, self.scales[t]))

    def _rest(self, t: int, x: Array, part: float, over: Array | None) -> Array | None:
        """What is cut from ``x``: all but a ``part``, and what is ``over`` the range beside its scale."""
        beyond = None if over is None else over * np.float32(self.scales[t])
        if part in (0.0, 1.0):
            return beyond
        shortened = x * np.float32(1 - part)
        return shortened if beyond is None else shortened + beyond

    def _in_range(self, values: Sequence[Array]) -> tuple[list[Array], list[Array | None]]:
        """``values`` in their ranges, and what was beyond; none where nothing was."""
        made: list[Array] = []
        over: list[Array | None] = []
        for y, end in zip(values, self.ranges, strict=True):
            beyond = largest_magnitude(y) > end
            made.append(np.clip(y, -np.float32(end), np.float32(end)) if beyond else y)
            over.append(y - made[-1] if beyond else None)
        return made, over

    def _rotate(self, values: list[Array], seed: bytes, *, back: bool) -> None:
        """Turn the arrays that are rotated, in place of ``values``."""
        for places in self._groups:
            flat = np.concatenate([values[t].reshape(-1) for t in places])
            turned = _native.rotated(flat.astype(np.float32, copy=False), seed, back)
            ends = np.cumsum([values[t].size for t in places])[:-1]
            for t, part in zip(places, np.split(turned, ends), strict=True):
                values[t] = part.reshape(values[t].shape)

    def _rounded(self, values: Sequence[Array], draws: bytes) -> list[Array]:
        """Whole steps, which the encryptor finds again."""
        made: list[Array] = []
        for t, (y, step) in enumerate(zip(values, self.steps, strict=True)):
            flat = y.reshape(-1)
            # All clients look; both ways take the same work. So time does not tell which one the data have chosen.
            nearest = bool(self.rotated[t]) and not self.always_at_random and _unbiased(flat, step)
            made.append(_native.whole_steps(flat, step, not nearest, draws, t).reshape(y.shape))
        return made

    def decode(
        self, means: Sequence[Array], seed: bytes, noise: Sequence[float]
    ) -> tuple[list[Array], list[tuple[int, float]]]:
        """The mean update behind ``means`` of frames' values, and which arrays count by which part.

        ``noise`` is one number an array. Where it is more than half of the mean square, a part counts.
        """
        values = list(means)
        self._rotate(values, seed, back=True)
        made, drowned = list[Array](), list[tuple[int, float]]()
        for t, (y, scale, added) in enumerate(zip(values, self.scales, noise, strict=True)):
            whole, part = _native.mean_square(y.reshape(-1)), 1.0
            if added > _DROWNED * whole:
                part = max(0.0, 1 - added / whole) / (1 - _DROWNED) if whole else 0.0
                drowned.append((t, part))
            made.append(np.asarray(np.clip(y.astype(np.float64) * (part * scale), -_MOST, _MOST), np.float32))
        return made, drowned

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


def _unbiased(y: Array, step: float) -> bool:
    """Whether the nearest whole steps of ``y`` are on average as long, and off as if ``y`` lay evenly between steps."""
    square, coded, error = _native.nearest_squares(y, step)
    along = (square + coded - error) / 2
    return abs(along - square) <= _BIAS * square and abs(12 * error / (step * step) - 1) <= _EVEN


def _variance(step: float, size: float) -> float:
    """What rounding at random adds to the square of a client's value of this root mean square."""
    return min(step * step / 6, 0.8 * step * size)


def _along(x: Array, y: Array) -> float:
    """<x, y> / <y, y>."""
    square = float(np.vdot(y, y))
    return float(np.vdot(x, y)) / square if square else 0.0


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
