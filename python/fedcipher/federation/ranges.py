"""Clip ranges that follow the sizes of the clients' updates, without revealing any client's size to the server.

Ranges must be public and equal for all clients. Each client adds 1 to a bin in two histograms of every tensor. The
first histogram is of the root mean square of its update, relative to the current scale. The second is of the peak: the
largest magnitude, relative to that root mean square. The counts are lanes of the client's frame, so a reader sees the
sums of all clients' counts and not one client's.

All readers compute the next scale and the next peak in the same way. The scale is the largest occupied bin plus two
bins. From sixteen clients on, the largest sixteenth of the clients is ignored. With fewer clients, no honest client can
widen a scale beyond sixteen times the median. Only the limits of float32 bound a scale from below, so small updates
keep as much detail as large ones. `fedcipher.federation.coding` uses the scales and peaks.

Before the first update the sizes are unknown. So a run begins with a sum of histograms alone: clients train, store
their update, and send their counts. Then they encode the same update in the ranges that the sum gives. If the codec has
a ``start``, the run begins with that range instead.

Histograms count sizes of the unweighted update. The encoded update is multiplied by the client's weight, relative to
the largest weight that was opened lately. A histogram of weights gives that weight in the same way. So nine clients
with 60 examples lose no accuracy if the charter allows 60,000. They do lose accuracy to noise if a client with 60,000
examples took part in the last rounds and is away now. With ``weighs_each_round`` the charter begins every round with a
sum of histograms, and weights are then relative to the largest weight of their own round.

Exponents are whole quarter octaves, so every machine computes the same ranges to the bit.
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
    "MAGNITUDES",
    "MIN_SCALE",
    "PEAKS",
    "REMEMBERED",
    "WEIGHTS",
    "Bins",
    "Ranges",
    "begins_with_histograms",
    "exponent_of",
    "histogram_lanes",
    "power_of",
    "ranges_follow_updates",
    "reached_by_histograms",
    "sends_histograms_at",
]

HISTOGRAMS = "fedcipher.histograms"
"""Name of the lanes with the counts."""
_OCTAVE = 4
_NEAR = 4
"""Quarter octaves on either side of the current range that have one bin each. Bins further out are an octave wide."""
_FAR = 16 * _OCTAVE
"""Quarter octaves from the current range to the last bin. A range changes by no more in one step."""


class Bins:
    """The bins of a histogram of exponents, relative to a base exponent.

    The first bin is for zero. ``edges`` are the largest exponents of the next bins. The last bin is for all larger
    exponents, unless ``ends`` states that there are none.
    """

    def __init__(self, edges: Iterable[int], *, ends: bool = False) -> None:
        self._edges = tuple(edges)
        self.count = 1 + len(self._edges) + (not ends)

    def count_one(self, value: float, base: int) -> list[int]:
        """One client's counts: 1 in the bin of ``value``, which must not be negative, and 0 in all others."""
        lanes = [0] * self.count
        lanes[self._bin(exponent_of(value) - base) if value > 0 else 0] = 1
        return lanes

    def _bin(self, exponent: int) -> int:
        return min(1 + sum(exponent > edge for edge in self._edges), self.count - 1)

    def exponent_at_rank(self, histogram: Sequence[int], rank: int) -> int:
        """The exponent, relative to the base, of the client with this ``rank``. Rank 0 has the largest value."""
        place = len(histogram)
        while rank >= 0:
            place -= 1
            rank -= histogram[place]
        # Values above all edges count as the last edge.
        return self._edges[min(place, len(self._edges)) - 1]

    @property
    def last(self) -> float:
        """The value at the last edge."""
        return power_of(self._edges[-1])

    def counts(self, histogram: Sequence[int]) -> list[tuple[int, int]]:
        """(upper edge, number of clients) of each bin that has clients, without the bin for zero."""
        last = len(self._edges) - 1
        return [(self._edges[min(k, last)], count) for k, count in enumerate(histogram[1:]) if count]


_NEAR_EDGES = (
    *range(-_FAR, -_NEAR, _OCTAVE),
    *range(-_NEAR, _NEAR + 1),
    *range(_NEAR + _OCTAVE, _FAR + 1, _OCTAVE),
)
MAGNITUDES = Bins(_NEAR_EDGES)
"""Bins of root mean squares relative to the current scale."""
FIRST = Bins(range(-64 * _OCTAVE, 24 * _OCTAVE + 1, _OCTAVE))
"""Bins of root mean squares relative to 1, for runs without a scale: octaves from 5e-20 to 2e7."""
PEAKS = Bins(range(12), ends=True)
"""Bins of largest magnitudes relative to root mean squares. The last bin is for all larger peaks."""
WEIGHTS = Bins((edge for edge in _NEAR_EDGES if edge <= 0), ends=True)
"""Bins of weights relative to the charter's largest weight."""
_MARGIN = 2
"""Quarter octaves between the bin that counts as the largest and the scale."""
_OUTLIER_RATIO = 16
"""One of so many clients is ignored as an outlier."""
_ABOVE_MEDIAN = 4 * _OCTAVE
"""With fewer clients, quarter octaves above the median that the largest size may count."""
REMEMBERED = 8
"""Number of last rounds whose largest weight counts."""
_MIN_EXPONENT, _MAX_EXPONENT = -99 * _OCTAVE, 99 * _OCTAVE
"""Limits of scales. Between them, steps of ranges are normal float32 numbers."""
_STATE = 0x5E02
"""First value of `Ranges.export`. Exponents are smaller, so it cannot be one."""
_QUARTER_POWERS = tuple(float(np.float32(2.0 ** (k / _OCTAVE))) for k in range(_OCTAVE))


def ranges_follow_updates(scheme: Scheme) -> bool:
    """Whether clip ranges follow the updates: only for dense deltas with ``clip="auto"`` and without privacy.

    Sparse updates send cut values later (error feedback). The ranges of whole models are fitted to the last model. Any
    other clip is the app's choice. With differential privacy ranges are fixed, and no noise would cover the histograms.
    """
    codec = scheme.codec
    if codec.privacy is not None:
        return False
    return codec.target == "delta" and not scheme.sends_parts and codec.clip == "auto"


def begins_with_histograms(scheme: Scheme, *, sets_models: bool) -> bool:
    """Whether a run begins with a sum of histograms, which sets its first ranges.

    It does not if the server sets the models, because clients then open no sums.
    """
    return ranges_follow_updates(scheme) and scheme.codec.start is None and not sets_models


def sends_histograms_at(scheme: Scheme, charter: Charter, steps: int) -> bool:
    """Whether clients that train after ``steps`` steps of the chain send histograms alone."""
    if not begins_with_histograms(scheme, sets_models=charter.sets_models):
        return False
    return steps % 2 == 0 if charter.weighs_each_round else steps == 0


def reached_by_histograms(scheme: Scheme, charter: Charter, steps: int) -> bool:
    """Whether the last of ``steps`` steps was a sum of histograms, which leaves the model unchanged."""
    return steps > 0 and sends_histograms_at(scheme, charter, steps - 1)


def power_of(exponent: int) -> float:
    """2^(exponent / 4), the same float32 number on every machine."""
    return math.ldexp(_QUARTER_POWERS[exponent % _OCTAVE], exponent // _OCTAVE)


MIN_SCALE = power_of(_MIN_EXPONENT)
"""The smallest scale."""


def exponent_of(value: float) -> int:
    """The smallest exponent whose `power_of` is at least ``value``, which must be positive and finite."""
    fraction, octaves = math.frexp(value)
    quarter = sum(2 * fraction > limit for limit in _QUARTER_POWERS)
    return (octaves - 1) * _OCTAVE + quarter


class Ranges:
    """The scales and peaks of a run's next round. Clients that have opened the same sums have the same ones.

    ``first`` has the ranges of the first round, one for each tensor. With ``weighted`` there is also a histogram of
    weights. With ``measuring`` the first counts are relative to 1, because there are no scales yet. The largest weight
    of the last ``remembered`` sums counts.
    """

    def __init__(
        self, first: Sequence[float], *, weighted: bool, measuring: bool = False, remembered: int = REMEMBERED
    ) -> None:
        self._weighted, self._measuring, self._remembered = weighted, measuring, remembered
        self._scales = [min(max(exponent_of(value), _MIN_EXPONENT), _MAX_EXPONENT) for value in first]
        # A peak of 1, because the first range is meant to hold all values.
        self._peaks = [0] * len(self._scales)
        self._moved = [1] * len(self._scales)
        self._weights: list[int] = []

    @property
    def scales(self) -> list[float]:
        """One scale for each tensor: an upper estimate of the root mean square of its next update."""
        return [power_of(exponent) for exponent in self._scales]

    @property
    def peaks(self) -> list[float]:
        """One peak for each tensor: an upper estimate of largest magnitude over root mean square, below six."""
        return [power_of(exponent) for exponent in self._peaks]

    @property
    def moved(self) -> list[bool]:
        """For each tensor, whether any client changed it in the last round."""
        return [bool(moved) for moved in self._moved]

    @property
    def recent_weight(self) -> float:
        """The largest weight that was opened lately, relative to the charter's largest weight: at most 1."""
        return power_of(max(self._weights)) if self._weights else 1.0

    def histogram_counts(self, update: Sequence[Array], share: float) -> list[int]:
        """One client's lanes: a 1 in two bins of each tensor, and in the bin of ``share``, its relative weight."""
        made: list[int] = []
        for x, base in zip(update, self._base, strict=True):
            size = root_mean_square(x)
            made += self._bins.count_one(size, base)
            made += PEAKS.count_one(largest_magnitude(x) / size if size else 0.0, 0)
        return made + (WEIGHTS.count_one(share, 0) if self._weighted else [])

    @property
    def _bins(self) -> Bins:
        return FIRST if self._measuring else MAGNITUDES

    @property
    def _base(self) -> list[int]:
        """The exponents that counts are relative to."""
        return [0] * len(self._scales) if self._measuring else self._scales

    def check(self, lanes: Sequence[int], clients: int) -> None:
        """Raise `ForgedAggregateError` for sums of lanes that ``clients`` honest clients cannot have made."""
        sizes, peaks, weights = self._histograms(lanes)
        for histogram in [*sizes, *peaks, *([weights] if self._weighted else [])]:
            if sum(histogram) != clients or min(histogram) < 0:
                raise ForgedAggregateError("a histogram's counts do not add up to its number of clients")

    def _histograms(self, lanes: Sequence[int]) -> tuple[list[Sequence[int]], list[Sequence[int]], Sequence[int]]:
        """The tensors' histograms of sizes, their histograms of peaks, and the histogram of weights."""
        size, both = self._bins.count, self._bins.count + PEAKS.count
        ends = [both * t for t in range(len(self._scales) + 1)]
        sizes = [lanes[at : at + size] for at in ends[:-1]]
        peaks = [lanes[at + size : at + both] for at in ends[:-1]]
        return sizes, peaks, lanes[ends[-1] :]

    def median_sizes(self, lanes: Sequence[int]) -> list[tuple[float, int]]:
        """For each tensor, the median size over the clients that changed it, and the number of these clients.

        ``lanes`` are the sums of all clients' lanes. Sizes are root mean squares, rounded up to the edges of bins.
        """
        found: list[tuple[float, int]] = []
        for base, histogram in zip(self._base, self._histograms(lanes)[0], strict=True):
            moved = sum(histogram[1:])
            size = power_of(base + self._bins.exponent_at_rank(histogram, moved // 2)) if moved else 0.0
            found.append((size, moved))
        return found

    def shares(self, lanes: Sequence[int]) -> list[tuple[int, float]]:
        """(number of clients, their weight relative to `recent_weight`) for each weight that clients have.

        ``lanes`` are the sums of all clients' lanes. Clients without weight are left out.
        """
        if not self._weighted:
            return [(sum(self._histograms(lanes)[0][0]), 1.0)] if self._scales else []
        return [
            (count, power_of(exponent) / self.recent_weight)
            for exponent, count in WEIGHTS.counts(self._histograms(lanes)[2])
        ]

    def observe(self, lanes: Sequence[int]) -> None:
        """Set the next round's scales, peaks and weights from ``lanes``, the sums of all clients' lanes."""
        sizes, peaks, weights = self._histograms(lanes)
        for t, (base, size, peak) in enumerate(zip(self._base, sizes, peaks, strict=True)):
            found, highest = _largest(self._bins, size), _largest(PEAKS, peak)
            self._moved[t] = int(found is not None)
            if found is not None and highest is not None:
                self._scales[t] = min(max(base + found + _MARGIN, _MIN_EXPONENT), _MAX_EXPONENT)
                self._peaks[t] = highest
        self._measuring = False
        if self._weighted and sum(weights[1:]):
            self._weights = [*self._weights, WEIGHTS.exponent_at_rank(weights, 0)][-self._remembered :]

    def export(self) -> bytes:
        """The state as bytes, which `restore` reads."""
        return np.array([_STATE, *self._scales, *self._peaks, *self._moved, *self._weights], "<i2").tobytes()

    def restore(self, state: bytes) -> None:
        """Set the state from `export`. An empty ``state`` changes nothing. Raises `StateError`."""
        if not state:
            return
        begin: NDArray[np.int16] = np.frombuffer(state[: len(state) // 2 * 2], "<i2")
        tensors, held = len(self._scales), begin[1:]
        known = not len(state) % 2 and begin.size and begin[0] == _STATE
        if not known or not 3 * tensors <= held.size <= 3 * tensors + REMEMBERED:
            raise StateError("the stored ranges are of another model or build; begin a new run")
        parts = [part.tolist() for part in np.split(held, [tensors, 2 * tensors, 3 * tensors])]
        self._scales, self._peaks, self._moved, self._weights = parts


def histogram_lanes(tensors: int, *, weighted: bool, measuring: bool = False) -> int:
    """The number of counts that each client sends for ``tensors`` tensors."""
    of_a_tensor = (FIRST if measuring else MAGNITUDES).count + PEAKS.count
    return of_a_tensor * tensors + (WEIGHTS.count if weighted else 0)


def _largest(bins: Bins, histogram: Sequence[int]) -> int | None:
    """The exponent that counts as the largest, relative to the base; None if every client sent zeros."""
    clients, moved = sum(histogram), sum(histogram[1:])
    if not moved:
        return None
    if clients >= _OUTLIER_RATIO:
        return bins.exponent_at_rank(histogram, min(clients // _OUTLIER_RATIO, moved - 1))
    return min(bins.exponent_at_rank(histogram, 0), bins.exponent_at_rank(histogram, moved // 2) + _ABOVE_MEDIAN)
