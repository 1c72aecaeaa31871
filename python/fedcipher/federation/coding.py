"""How an update becomes the values of a frame where ranges follow, and a sum's mean an update again.

Each array is divided by its scale, so that one grid fits all. Arrays of which few values are far larger than the rest
are rotated together (a randomised Hadamard transform, with a seed that all know): afterwards all values have nearly one
size, and the range is a few of these. Other arrays have the range of their peak, which is smaller. Each value becomes a
whole step, on average itself. To the nearest step that holds for rotated values that are not small beside one, and with
half the error; for all others the step is drawn at random. What is beyond a scale or a range is cut, and waits.

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
_NEAREST_FROM = 0.67
"""Steps: normally distributed values that are so large are rounded to the nearest without bias."""
_LEAST_ROTATED = 256
"""Fewer values together are not rotated: they would not be normal."""
_DROWNED = 0.5
"""Of a mean's square, the part from which on noise damps it."""
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

    floats: tuple[bool, ...]
    """Whole numbers are sent as they are."""
    scales: tuple[float, ...]
    ranges: tuple[float, ...]
    """Clip ranges of the values of a frame."""
    steps: tuple[float, ...]
    rotated: tuple[bool, ...]
    always_at_random: bool
    """As the codec says; else rotated values are rounded to the nearest step where that is unbiased."""

    @property
    def _turned(self) -> list[int]:
        """The arrays that are rotated together."""
        return [t for t, turned in enumerate(self.rotated) if turned]

    def _together(self, squares: Sequence[float], sizes: Sequence[int]) -> float:
        """The mean square of all rotated values, of arrays with these mean squares and so many values each."""
        turned = self._turned
        return math.fsum(sizes[t] * squares[t] for t in turned) / max(1, sum(sizes[t] for t in turned))

    @property
    def limits(self) -> list[float]:
        """About the largest magnitude of each array's update that is not cut."""
        parts = zip(self.ranges, self.scales, self.floats, strict=True)
        return [end * (scale if is_float else 1.0) for end, scale, is_float in parts]

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
        if not self.floats[t] or not size:
            return 1.0
        if size < _LOST * scale and scale <= LEAST_SCALE:
            return 0.0
        return min(1.0, scale / size)

    def _beside(self, t: int, x: Array, size: float) -> Array:
        """``x`` beside its scale; one that is larger is shortened to it, not bent."""
        return x.astype(np.float32, copy=False) / np.float32(max(size, self.scales[t])) if self.floats[t] else x

    def _rest(self, t: int, x: Array, part: float, over: Array | None) -> Array | None:
        """What is cut from ``x``: all but a ``part``, and what is ``over`` the range beside its scale."""
        if not self.floats[t]:
            return None
        beyond = None if over is None else over * np.float32(self.scales[t])
        if part in (0.0, 1.0):
            return beyond
        shortened = x * np.float32(1 - part)
        return shortened if beyond is None else shortened + beyond

    def _in_range(self, values: Sequence[Array]) -> tuple[list[Array], list[Array | None]]:
        """``values`` in their ranges, and what was beyond; none where nothing was."""
        made: list[Array] = []
        over: list[Array | None] = []
        for y, end, is_float in zip(values, self.ranges, self.floats, strict=True):
            if not largest_magnitude(y) > end:
                made.append(y)
                over.append(None)
            elif is_float:
                made.append(np.clip(y, -np.float32(end), np.float32(end)))
                over.append(y - made[-1])
            else:
                # The encryptor cuts them.
                made.append(y)
                over.append(y.astype(np.float64) - np.clip(y.astype(np.float64), -end, end))
        return made, over

    def _rotate(self, values: list[Array], seed: bytes, *, back: bool) -> None:
        """Turn the arrays that are rotated, in place of ``values``."""
        places = self._turned
        if not places:
            return
        flat = np.concatenate([values[t].reshape(-1) for t in places])
        turned = _native.rotated(flat.astype(np.float32, copy=False), seed, back)
        ends = np.cumsum([values[t].size for t in places])[:-1]
        for t, part in zip(places, np.split(turned, ends), strict=True):
            values[t] = part.reshape(values[t].shape)

    def _rounded(self, values: Sequence[Array], draws: bytes) -> list[Array]:
        """Whole steps, which the encryptor finds again. Both ways take the same work: a client chooses by its data."""
        squares = [root_mean_square(y) ** 2 if turned else 0.0 for y, turned in zip(values, self.rotated, strict=True)]
        size = math.sqrt(self._together(squares, [y.size for y in values]))
        made = list(values)
        for t, (y, step) in enumerate(zip(values, self.steps, strict=True)):
            if self.floats[t]:
                flat = _native.whole_steps(y.reshape(-1), step, not self._nearest(t, size), draws, t)
                made[t] = flat.reshape(y.shape)
        return made

    def _nearest(self, t: int, size: float) -> bool:
        """Whether values of array t of this root mean square are rounded to the nearest step."""
        return self.rotated[t] and not self.always_at_random and size >= _NEAREST_FROM * self.steps[t]

    def decode(self, means: Sequence[Array], seed: bytes) -> list[Array]:
        """The mean update behind ``means`` of frames' values."""
        values = list(means)
        self._rotate(values, seed, back=True)
        most = float(np.finfo(np.float32).max)
        return [
            np.asarray(np.clip(y.astype(np.float64) * scale, -most, most), np.float32) if is_float else y
            for y, scale, is_float in zip(values, self.scales, self.floats, strict=True)
        ]

    def noise(self, ranges: Ranges, lanes: Sequence[int], total: float, sizes: Sequence[int]) -> list[float]:
        """The mean square of what rounding has added to a value of the mean of each array, in frames' own units.

        It follows from the sums of all clients' ``lanes`` of histograms; ``total`` is the sum of their weights, beside
        `Ranges.omega`.
        """
        middles = ranges.middles(lanes)
        beside = [min(1.0, size / scale) for (size, _), scale in zip(middles, self.scales, strict=True)]
        together = math.sqrt(self._together([size**2 for size in beside], sizes))
        shares = ranges.shares(lanes)
        clients = max(1, sum(count for count, _ in shares))
        found: list[float] = []
        for t, step in enumerate(self.steps):
            size = together if self.rotated[t] else beside[t]
            each = [count * self._variance(t, step, size * share) for count, share in shares]
            # Zeros are coded exactly where they are not rotated with others.
            part = 1.0 if self.rotated[t] else middles[t][1] / clients
            found.append(min(1.0, part) * math.fsum(each) / total**2 if total and size and self.floats[t] else 0.0)
        return found

    def _variance(self, t: int, step: float, size: float) -> float:
        """What rounding adds to the square of a client's value of this root mean square."""
        return step**2 / 12 if self._nearest(t, size) else min(step**2 / 6, 0.8 * step * size)

    def damped(self, means: Sequence[Array], noise: Sequence[float]) -> tuple[list[Array], list[tuple[int, float]]]:
        """``means`` of frames' values, less where ``noise`` is most of them; and which arrays count how much."""
        kinds = zip(means, self.floats, strict=True)
        squares = [_native.mean_square(y.reshape(-1)) if is_float else 0.0 for y, is_float in kinds]
        both = [self._together(held, [y.size for y in means]) for held in (squares, noise)]
        made, found = list(means), list[tuple[int, float]]()
        for t, y in enumerate(means):
            whole, part = both if self.rotated[t] else (squares[t], noise[t])
            if part > _DROWNED * whole:
                factor = max(0.0, 1 - part / whole) if whole else 0.0
                made[t] = np.asarray(y * np.float32(factor))
                found.append((t, factor))
        return made, found


def _along(x: Array, y: Array) -> float:
    """<x, y> / <y, y>."""
    if y.dtype.kind != "f":
        y = y.astype(np.float64)
    square = float(np.vdot(y, y))
    return float(np.vdot(x, y)) / square if square else 0.0


def coding_of(
    ranges: Ranges, like: Sequence[Array], bits: Sequence[int], levels: Levels, *, at_random: bool = False
) -> Coding:
    """Of updates of the shapes and types of ``like`` in the next round of ``ranges``; ``at_random``: all values."""
    scales, peaks = ranges.scales, ranges.peaks
    floats = tuple(x.dtype.kind == "f" for x in like)
    spread = [_spread(levels.of(b)) for b in bits]
    # Rotated with others, zeros would get the others' noise.
    rotated = tuple(
        is_float and x.size > 0 and moved and peak > most
        for x, is_float, moved, peak, most in zip(like, floats, ranges.moved, peaks, spread, strict=True)
    )
    if sum(x.size for x, turned in zip(like, rotated, strict=True) if turned) < _LEAST_ROTATED:
        rotated = (False,) * len(like)
    ends: list[float] = []
    for t, (x, b) in enumerate(zip(like, bits, strict=True)):
        # No value is larger than all together.
        peak = min(peaks[t], math.sqrt(x.size)) if peaks[t] < PEAKS.last else math.sqrt(x.size)
        end = spread[t] if rotated[t] else max(1.0, peak)
        half = levels.of(b) // 2
        # Whole numbers are in whole steps: as the codec has them.
        ends.append(end if floats[t] else float(half * max(1, math.ceil(end * scales[t] / half))))
    steps = tuple(2 * end / levels.of(b) for end, b in zip(ends, bits, strict=True))
    return Coding(floats, tuple(scales), tuple(ends), steps, rotated, at_random)


def _spread(levels: int) -> float:
    return next((end for most, end in _SPREADS if levels <= most), _WIDEST)
