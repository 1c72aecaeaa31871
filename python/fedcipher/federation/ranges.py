"""Sizes of the clients' updates, from which all set the next ranges alike, without telling the server of a single one.

Ranges have to be public and the same for all clients. Each client counts one in two histograms of every tensor: in the
bin of the root mean square of its update, beside the present scale, and in the bin of the largest magnitude beside that
root mean square, the peak. The counts are lanes of the client's frame. Whoever opens a sum has the sums of these
counts, and nobody has one client's. All set the next scale alike: the largest bin, and two bins more; and the next
peak. From sixteen clients on the largest sixteenth is left out; below that no honest client widens a scale to more
than sixteen times the median. Float32 alone sets a least scale: small updates are kept as well as large ones. What the
scales and peaks are for is in `fedcipher.federation.coding`.

Before the first update nobody knows how far an array moves. So a run begins with a sum of histograms alone: clients
train, keep what they have made, and send their counts; then they encode that same update in the ranges which the sum
has shown. Where the codec has a ``start``, the run begins with that range instead.

Sizes are those of the update itself. An update then travels times its client's weight, beside the largest weight
that was opened lately, which a histogram of weights tells in the same way: nine clients of 60 examples lose nothing to
one of 60,000 that the charter allows for. They do lose to noise where such a client was there in the last rounds and is
away now. A charter can have every round begin with a sum of histograms (``weighs_each_round``): updates are then beside
the largest weight of their own round.

Exponents are whole quarter octaves, so that every machine has the same ranges to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, largest_magnitude, root_mean_square
from fedcipher.errors import ForgedAggregateError, StateError
from fedcipher.federation.charter import Charter
from fedcipher.schemes import Scheme

__all__ = [
    "FIRST",
    "HISTOGRAMS",
    "LEAST_SCALE",
    "MAGNITUDES",
    "PEAKS",
    "REMEMBERED",
    "WEIGHTS",
    "Bins",
    "Ranges",
    "exponent_of",
    "follows",
    "histogram_lanes",
    "measured_at",
    "measures",
    "measures_at",
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

    @property
    def last(self) -> float:
        """What the last edge stands for."""
        return power_of(self._edges[-1])

    def counts(self, histogram: Sequence[int]) -> list[tuple[int, int]]:
        """The exponents that end bins with clients, and how many are in each; without zeros."""
        last = len(self._edges) - 1
        return [(self._edges[min(k, last)], count) for k, count in enumerate(histogram[1:]) if count]


_NEAR_EDGES = (
    *range(-_FAR, -_NEAR, _OCTAVE),
    *range(-_NEAR, _NEAR + 1),
    *range(_NEAR + _OCTAVE, _FAR + 1, _OCTAVE),
)
MAGNITUDES = Bins(_NEAR_EDGES)
"""Of root mean squares beside the present scale."""
FIRST = Bins(range(-64 * _OCTAVE, 24 * _OCTAVE + 1, _OCTAVE))
"""Of root mean squares beside 1, where there is no scale yet: octaves from 5e-20 to 2e7."""
PEAKS = Bins(range(12), ends=True)
"""Of largest magnitudes beside root mean squares; the last is for all that is larger."""
WEIGHTS = Bins((edge for edge in _NEAR_EDGES if edge <= 0), ends=True)
"""Of weights beside the charter's largest."""
_MARGIN = 2
"""Quarter octaves by which a scale is larger than the bin that counts as the largest."""
_LEFT_OUT = 16
"""One client of so many is left out."""
_ABOVE_MEDIAN = 4 * _OCTAVE
"""So much, and no more, is the largest of fewer clients above their median."""
REMEMBERED = 8
"""Rounds of which the largest weight counts."""
_LEAST, _LARGEST = -99 * _OCTAVE, 99 * _OCTAVE
"""Steps of ranges between these are float32 numbers that are not subnormal."""
_STATE = 0x5E02
"""Begins what `Ranges.export` gives; no exponent is so large."""
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


def measures_at(scheme: Scheme, charter: Charter, steps: int) -> bool:
    """Whether training sends histograms alone after so many ``steps`` of the chain: they are the next step."""
    if not measures(scheme, sets_models=charter.sets_models):
        return False
    return steps % 2 == 0 if charter.weighs_each_round else steps == 0


def measured_at(scheme: Scheme, charter: Charter, steps: int) -> bool:
    """Whether the last of so many ``steps`` was a sum of histograms, so that the model is that of the step before."""
    return steps > 0 and measures_at(scheme, charter, steps - 1)


def power_of(exponent: int) -> float:
    """2^(exponent / 4), the same float32 number on every machine."""
    return math.ldexp(_QUARTERS[exponent % _OCTAVE], exponent // _OCTAVE)


LEAST_SCALE = power_of(_LEAST)
"""No scale is below it."""


def exponent_of(value: float) -> int:
    """The least exponent whose `power_of` is not below ``value``, which is positive and finite."""
    fraction, octaves = math.frexp(value)
    quarter = sum(2 * fraction > limit for limit in _QUARTERS)
    return (octaves - 1) * _OCTAVE + quarter


class Ranges:
    """The scales and peaks of a run's next round; the same on all clients that have opened the same sums.

    ``first`` are the ranges of the first round, one a tensor. With ``weighted`` there is a histogram of weights too.
    While it is ``measuring``, counts are beside 1, and not beside scales that nobody knows yet. The largest weight of
    the last ``remembered`` sums counts.
    """

    def __init__(
        self, first: Sequence[float], *, weighted: bool, measuring: bool = False, remembered: int = REMEMBERED
    ) -> None:
        self._weighted, self._measuring, self._remembered = weighted, measuring, remembered
        self._scales = [min(max(exponent_of(value), _LEAST), _LARGEST) for value in first]
        # A range that was given holds all values: a peak of 1.
        self._peaks = [0] * len(self._scales)
        self._moved = [1] * len(self._scales)
        self._weights: list[int] = []

    @property
    def scales(self) -> list[float]:
        """At least the root mean square of each tensor's next update."""
        return [power_of(exponent) for exponent in self._scales]

    @property
    def peaks(self) -> list[float]:
        """At least the largest magnitude of each tensor beside its root mean square, where that is below six."""
        return [power_of(exponent) for exponent in self._peaks]

    @property
    def moved(self) -> list[bool]:
        """Whether any client has moved a tensor in the last round."""
        return [bool(moved) for moved in self._moved]

    @property
    def omega(self) -> float:
        """The largest weight that was opened lately, beside the charter's largest: at most 1."""
        return power_of(max(self._weights)) if self._weights else 1.0

    def counted(self, update: Sequence[Array], share: float) -> list[int]:
        """One client's lanes: a 1 in two bins of each tensor, and in that of its ``share`` of the largest weight."""
        made: list[int] = []
        for x, beside in zip(update, self._beside, strict=True):
            size = root_mean_square(x)
            made += self._bins.one(size, beside)
            made += PEAKS.one(largest_magnitude(x) / size if size else 0.0, 0)
        return made + (WEIGHTS.one(share, 0) if self._weighted else [])

    @property
    def _bins(self) -> Bins:
        return FIRST if self._measuring else MAGNITUDES

    @property
    def _beside(self) -> list[int]:
        """The exponents that counts are beside."""
        return [0] * len(self._scales) if self._measuring else self._scales

    def check(self, lanes: Sequence[int], clients: int) -> None:
        """Raise `ForgedAggregateError` for sums that lanes of so many honest ``clients`` cannot have."""
        sizes, peaks, weights = self._cut(lanes)
        for histogram in [*sizes, *peaks, *([weights] if self._weighted else [])]:
            if sum(histogram) != clients or min(histogram) < 0:
                raise ForgedAggregateError("a histogram's counts are not those of its clients")

    def _cut(self, lanes: Sequence[int]) -> tuple[list[Sequence[int]], list[Sequence[int]], Sequence[int]]:
        """The histograms of all tensors' sizes, those of their peaks, and that of the weights."""
        size, both = self._bins.count, self._bins.count + PEAKS.count
        ends = [both * t for t in range(len(self._scales) + 1)]
        sizes = [lanes[at : at + size] for at in ends[:-1]]
        peaks = [lanes[at + size : at + both] for at in ends[:-1]]
        return sizes, peaks, lanes[ends[-1] :]

    def middles(self, lanes: Sequence[int]) -> list[tuple[float, int]]:
        """Of each tensor: the middle size of the clients that have moved it, and how many these are.

        From the sums of all clients' lanes. Sizes are root mean squares, where their bins end.
        """
        found: list[tuple[float, int]] = []
        for beside, histogram in zip(self._beside, self._cut(lanes)[0], strict=True):
            moved = sum(histogram[1:])
            size = power_of(beside + self._bins.ranked(histogram, moved // 2)) if moved else 0.0
            found.append((size, moved))
        return found

    def shares(self, lanes: Sequence[int]) -> list[tuple[int, float]]:
        """How many clients had which weight beside `omega`, by the sums of all clients' lanes; none without weight."""
        if not self._weighted:
            return [(sum(self._cut(lanes)[0][0]), 1.0)] if self._scales else []
        return [(count, power_of(exponent) / self.omega) for exponent, count in WEIGHTS.counts(self._cut(lanes)[2])]

    def observe(self, lanes: Sequence[int]) -> None:
        """The sums of all clients' lanes."""
        sizes, peaks, weights = self._cut(lanes)
        for t, (beside, size, peak) in enumerate(zip(self._beside, sizes, peaks, strict=True)):
            found, highest = _largest(self._bins, size), _largest(PEAKS, peak)
            self._moved[t] = int(found is not None)
            if found is not None and highest is not None:
                self._scales[t] = min(max(beside + found + _MARGIN, _LEAST), _LARGEST)
                self._peaks[t] = highest
        self._measuring = False
        if self._weighted and sum(weights[1:]):
            self._weights = [*self._weights, WEIGHTS.ranked(weights, 0)][-self._remembered :]

    def export(self) -> bytes:
        """For `restore`."""
        return np.array([_STATE, *self._scales, *self._peaks, *self._moved, *self._weights], "<i2").tobytes()

    def restore(self, state: bytes) -> None:
        """Take up what `export` gave, for as many tensors; nothing where that is empty. Raises `StateError`."""
        if not state:
            return
        begin: NDArray[np.int16] = np.frombuffer(state[: len(state) // 2 * 2], "<i2")
        tensors, held = len(self._scales), begin[1:]
        known = not len(state) % 2 and begin.size and begin[0] == _STATE
        if not known or not 3 * tensors <= held.size <= 3 * tensors + REMEMBERED:
            raise StateError("the ranges that are kept are of another model or build; begin a new run")
        parts = [part.tolist() for part in np.split(held, [tensors, 2 * tensors, 3 * tensors])]
        self._scales, self._peaks, self._moved, self._weights = parts


def histogram_lanes(tensors: int, *, weighted: bool, measuring: bool = False) -> int:
    """Counts that each client sends of so many ``tensors``."""
    of_a_tensor = (FIRST if measuring else MAGNITUDES).count + PEAKS.count
    return of_a_tensor * tensors + (WEIGHTS.count if weighted else 0)


def _largest(bins: Bins, histogram: Sequence[int]) -> int | None:
    """The exponent that counts as the largest, beside the given one; none where every client has sent zeros."""
    clients, moved = sum(histogram), sum(histogram[1:])
    if not moved:
        return None
    if clients >= _LEFT_OUT:
        return bins.ranked(histogram, min(clients // _LEFT_OUT, moved - 1))
    return min(bins.ranked(histogram, 0), bins.ranked(histogram, moved // 2) + _ABOVE_MEDIAN)
