"""Exact sums for a model's arrays of integers and booleans, which are sent in lanes of the frame.

Quantising changes a counter: in a range of 69,000 one step may be 17. So a model's counters, such as the number of
batches that a batch norm has processed, are sent like answers: in digits that a lane carries exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array
from fedcipher.federation.answers import Answer, Sums
from fedcipher.federation.charter import Charter
from fedcipher.schemes import Scheme

__all__ = ["MAX_MAGNITUDE", "WHOLE", "WholeNumbers"]

WHOLE = "fedcipher.whole"
"""Name of the lanes."""
MAX_MAGNITUDE = 2**40 - 1
"""The largest magnitude of a value. Larger values are cut to it."""
_MAX_VALUES = 4096
"""Largest number of such values in a model. If a model has more, they are quantised like floats."""


class WholeNumbers:
    """The arrays of a charter's model that have exact sums.

    There are none with sparse updates, where values that are not sent wait for a later round. There are none with
    differential privacy either, because its noise does not cover whole numbers.
    """

    def __init__(self, charter: Charter, scheme: Scheme) -> None:
        self._equal = charter.equal_weights
        self._shapes: dict[int, tuple[int, ...]] = {}
        if scheme.codec.top is not None or scheme.sends_parts or scheme.codec.privacy is not None:
            return
        found = {t: tuple(shape) for t, (_, dtype, shape) in enumerate(charter.arrays) if np.dtype(dtype).kind in "iub"}
        if sum(map(math.prod, found.values())) <= _MAX_VALUES:
            self._shapes = found

    @property
    def count(self) -> int:
        """Number of values of all these arrays."""
        return sum(map(math.prod, self._shapes.values()))

    def __contains__(self, t: int) -> bool:
        return t in self._shapes

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the lanes, if there are any: a sum of values, or of values times weights."""
        if not self.count:
            return ()
        return (Answer(WHOLE, self.count, 1.0, float(MAX_MAGNITUDE), "sum" if self._equal else "mean"),)

    def without(self, arrays: Sequence[Array]) -> list[Array]:
        """``arrays``, with an empty array in place of each array that has an exact sum."""
        return [np.zeros(0, x.dtype) if t in self else x for t, x in enumerate(arrays)]

    def values(self, trained: Sequence[Array], model: Sequence[Array]) -> tuple[list[int], int]:
        """A client's change of each value, as a flat list, and how many changes were cut.

        With a codec that sends whole models these are still changes, relative to the current model.
        """
        flat: list[int] = []
        for t in self._shapes:
            new, old = trained[t].reshape(-1), model[t].reshape(-1)
            if new.dtype.kind == "f":
                # float64, which converts to Python's float. The app may have returned a longer float type.
                new = new.astype(np.float64)
            # Python's integers do not overflow.
            flat += [_change(n, int(b)) for n, b in zip(new.tolist(), old.tolist(), strict=True)]
        return [max(-MAX_MAGNITUDE, min(n, MAX_MAGNITUDE)) for n in flat], sum(abs(n) > MAX_MAGNITUDE for n in flat)

    def means(self, sums: Sequence[Sums]) -> Mapping[int, Array]:
        """The mean change of each array by its index, float64 with the array's shape, from the sums of all groups."""
        total = sum(s.counted if self._equal else s.examples for s in sums)
        columns = zip(*(s.numbers[WHOLE] for s in sums), strict=True) if self.count else iter(())
        made: dict[int, NDArray[Any]] = {}
        for t, shape in self._shapes.items():
            held = [Fraction(sum(int(n) for n in next(columns)), total or 1) for _ in range(math.prod(shape))]
            made[t] = np.array([float(mean) for mean in held], np.float64).reshape(shape)
        return made


def _change(value: float, before: int) -> int:
    """The change, rounded to a whole number. NaN gives 0, and infinity gives a number beyond `MAX_MAGNITUDE`."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if math.isnan(value) else math.floor(math.copysign(2.0**64, value))
    return round(value) - before
