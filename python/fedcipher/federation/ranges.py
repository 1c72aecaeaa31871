"""Clip ranges that follow the clients' updates, without telling the server anything of a single one.

Ranges have to be public and the same for all clients. Each client counts one in a histogram of every tensor: in the bin
of the largest magnitude of its update, beside the present range. The counts are lanes of the client's frame. Whoever
opens a sum has the sums of these counts, and nobody has one client's. All set the next range alike: the largest bin,
and two bins more. From sixteen clients on the largest sixteenth is left out; below that nothing widens a range to more
than sixteen times the median. Float32 alone sets a least range: small updates are kept as well as large ones.

Before the first update nobody knows how far an array moves. So a run begins with a sum of histograms alone: clients
train, keep what they have made, and send their counts; then they encode that same update in the ranges which the sum
has shown. Where the codec has a ``start``, the run begins with that range instead.

Magnitudes are those of the update itself. An update then travels times its client's weight, beside the largest weight
that was opened lately, which a histogram of weights tells in the same way: nine clients of 60 examples lose nothing to
one of 60,000 that the charter allows for.

Exponents are whole quarter octaves, so that every machine has the same ranges to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, largest_magnitude
from fedcipher.errors import ForgedAggregateError
from fedcipher.schemes import Scheme

__all__ = [
    "FIRST",
    "HISTOGRAMS",
    "MAGNITUDES",
    "WEIGHTS",
    "Bins",
    "Ranges",
    "exponent_of",
    "follows",
    "histogram_lanes",
    "measures",
    "power_of",
]

HISTOGRAMS = "fedcipher.histograms"
"""Names the lanes with the counts."""
_OCTAVE = 4
_NEAR = 4
"""Quarter octaves beside the present range that have a bin each; further out a bin is an octave."""
_FAR = 16 * _OCTAVE
"""As far as bins go, and as far as a range goes in one step."""


class Bins:
    """The bins of a histogram of exponents beside a given one: the first for zero, the last for all that is larger.

    ``edges`` are the largest exponents of the bins between. ``ends``: no value is above the last edge.
    """

    def __init__(self, edges: Iterable[int], *, ends: bool = False) -> None:
        self._edges = tuple(edges)
        self.count = 1 + len(self._edges) + (not ends)

    def one(self, value: float, beside: int) -> list[int]:
        """Counts of one client: 1 in the bin of ``value``, which is not negative."""
        lanes = [0] * self.count
        lanes[self._place(exponent_of(value) - beside) if value > 0 else 0] = 1
        return lanes

    def _place(self, exponent: int) -> int:
        return min(1 + sum(exponent > edge for edge in self._edges), self.count - 1)

    def ranked(self, histogram: Sequence[int], rank: int) -> int:
        """The exponent, beside the given one, of the client of that ``rank``: 0 has the largest."""
        place = len(histogram)
        while rank >= 0:
            place -= 1
            rank -= histogram[place]
        # What is above all bins counts as the last.
        return self._edges[min(place, len(self._edges)) - 1]


_NEAR_EDGES = (
    *range(-_FAR, -_NEAR, _OCTAVE),
    *range(-_NEAR, _NEAR + 1),
    *range(_NEAR + _OCTAVE, _FAR + 1, _OCTAVE),
)
MAGNITUDES = Bins(_NEAR_EDGES)
"""Of magnitudes beside the present range."""
FIRST = Bins(range(-64 * _OCTAVE, 24 * _OCTAVE + 1, _OCTAVE))
"""Of magnitudes beside 1, where there is no range yet: octaves from 5e-20 to 2e7."""
WEIGHTS = Bins((edge for edge in _NEAR_EDGES if edge <= 0), ends=True)
"""Of weights beside the charter's largest."""
_MARGIN = 2
"""Bins by which a range is larger than the largest magnitude that counts."""
_LEFT_OUT = 16
"""One client of so many is left out."""
_ABOVE_MEDIAN = 4 * _OCTAVE
"""So much, and no more, is the largest of fewer clients above their median."""
_REMEMBERED = 8
"""Rounds of which the largest weight counts."""
_LEAST, _LARGEST = -99 * _OCTAVE, 99 * _OCTAVE
"""Steps of ranges between these are float32 numbers that are not subnormal."""
_QUARTERS = tuple(float(np.float32(2.0 ** (k / _OCTAVE))) for k in range(_OCTAVE))


def follows(scheme: Scheme) -> bool:
    """Whether ranges of ``scheme`` follow its updates: dense deltas with ``clip="auto"``.

    Sparse updates send later what was cut (error feedback). The ranges of whole models are fitted to the last model.
    Any other clip is the app's choice. With privacy ranges are fixed, and no noise would cover the histograms.
    """
    codec = scheme.codec
    if codec.privacy is not None:
        return False
    return codec.target == "delta" and not scheme.sends_parts and codec.clip == "auto"


def measures(scheme: Scheme, *, sets_models: bool) -> bool:
    """Whether a run begins with a sum of histograms, which sets its first ranges.

    Not where the server sets the models: its clients open no sums.
    """
    return follows(scheme) and scheme.codec.start is None and not sets_models


def power_of(exponent: int) -> float:
    """2^(exponent / 4), the same float32 number on every machine."""
    return math.ldexp(_QUARTERS[exponent % _OCTAVE], exponent // _OCTAVE)


def exponent_of(value: float) -> int:
    """The least exponent whose `power_of` is not below ``value``, which is positive and finite."""
    fraction, octaves = math.frexp(value)
    quarter = sum(2 * fraction > limit for limit in _QUARTERS)
    return (octaves - 1) * _OCTAVE + quarter


class Ranges:
    """The ranges of a run's next round; the same on all clients that have opened the same sums.

    ``first`` are the ranges of the first round, one a tensor. With ``weighted`` there is a histogram of weights too.
    While it is ``measuring``, counts are beside 1, and not beside ranges that nobody knows yet.
    """

    def __init__(self, first: Sequence[float], *, weighted: bool, measuring: bool = False) -> None:
        self._weighted, self._measuring = weighted, measuring
        self._exponents = [min(max(exponent_of(value), _LEAST), _LARGEST) for value in first]
        self._weights: list[int] = []

    @property
    def ranges(self) -> list[float]:
        """Ranges of the next round, one a tensor."""
        return [power_of(exponent) for exponent in self._exponents]

    @property
    def omega(self) -> float:
        """The largest weight that was opened lately, beside the charter's largest: at most 1."""
        return power_of(max(self._weights)) if self._weights else 1.0

    def counted(self, update: Sequence[Array], share: float) -> list[int]:
        """One client's lanes: a 1 in a bin of each tensor, and of its weight's ``share`` of the charter's largest."""
        made: list[int] = []
        for x, beside in zip(update, self._beside, strict=True):
            made += self._bins.one(largest_magnitude(x), beside)
        return made + (WEIGHTS.one(share, 0) if self._weighted else [])

    @property
    def _bins(self) -> Bins:
        return FIRST if self._measuring else MAGNITUDES

    @property
    def _beside(self) -> list[int]:
        """The exponents that counts are beside."""
        return [0] * len(self._exponents) if self._measuring else self._exponents

    def check(self, lanes: Sequence[int], clients: int) -> None:
        """Raise `ForgedAggregateError` for sums that lanes of so many honest ``clients`` cannot have."""
        for histogram in self._cut(lanes):
            if sum(histogram) != clients or min(histogram) < 0:
                raise ForgedAggregateError("a histogram's counts are not those of its clients")

    def _cut(self, lanes: Sequence[int]) -> list[Sequence[int]]:
        """The histograms of all tensors, then that of the weights."""
        count = self._bins.count
        return [lanes[at : at + count] for at in range(0, len(lanes), count)]

    def observe(self, lanes: Sequence[int]) -> None:
        """The sums of all clients' lanes."""
        histograms = self._cut(lanes)
        weights = histograms.pop() if self._weighted else []
        for t, (beside, histogram) in enumerate(zip(self._beside, histograms, strict=True)):
            found = _next(self._bins, beside, histogram)
            if found is not None:
                self._exponents[t] = min(max(found, _LEAST), _LARGEST)
        self._measuring = False
        if self._weighted and sum(weights[1:]):
            self._weights = [*self._weights, WEIGHTS.ranked(weights, 0)][-_REMEMBERED:]

    def below(self, lanes: Sequence[int], steps: Sequence[float], total: float) -> list[int]:
        """Tensors whose sums are noise; ``total`` is the sum of all clients' shares of the charter's largest weight.

        Rounding x in ``steps`` at random adds to a mean of n clients the square root of step times x over n: less than
        x itself from step over n on. A tensor's largest magnitude is some three times what x mostly is.
        """
        histograms = self._cut(lanes)
        weights = histograms.pop() if self._weighted else []
        share = power_of(WEIGHTS.ranked(weights, 0)) if any(weights[1:]) else 1.0
        limit = min(1.0, 3 * share / total) if total else 1.0
        found: list[int] = []
        for t, (histogram, step) in enumerate(zip(histograms, steps, strict=True)):
            if not any(histogram[1:]):
                continue
            largest = share / self.omega * power_of(self._exponents[t] + MAGNITUDES.ranked(histogram, 0))
            if largest < limit * step:
                found.append(t)
        return found

    def export(self) -> bytes:
        """For `restore`."""
        return np.array([*self._exponents, *self._weights], "<i2").tobytes()

    def restore(self, state: bytes) -> None:
        """Take up what `export` gave, for as many tensors."""
        held: NDArray[np.int16] = np.frombuffer(state, "<i2")
        tensors = len(self._exponents)
        if tensors <= held.size <= tensors + _REMEMBERED:
            self._exponents, self._weights = held[:tensors].tolist(), held[tensors:].tolist()


def histogram_lanes(tensors: int, *, weighted: bool, measuring: bool = False) -> int:
    """Counts that each client sends of so many ``tensors``."""
    return (FIRST if measuring else MAGNITUDES).count * tensors + (WEIGHTS.count if weighted else 0)


def _next(bins: Bins, beside: int, histogram: Sequence[int]) -> int | None:
    """The exponent of the next range; none where every client has sent zeros."""
    clients, moved = sum(histogram), sum(histogram[1:])
    if not moved:
        return None
    if clients >= _LEFT_OUT:
        found = bins.ranked(histogram, min(clients // _LEFT_OUT, moved - 1))
    else:
        found = min(bins.ranked(histogram, 0), bins.ranked(histogram, moved // 2) + _ABOVE_MEDIAN)
    return beside + found + _MARGIN
