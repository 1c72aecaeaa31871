"""Arrays of whole numbers and truth values: they travel in lanes of the frame, and their sums are exact.

A quantised counter is a counter with another value: steps of 17 examples of a range of 69,000. So what a model counts
(the batches that a batch norm has seen, say) is sent as answers are: in digits that a lane carries exactly.
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

__all__ = ["LARGEST", "WHOLE", "WholeNumbers"]

WHOLE = "fedcipher.whole"
"""Names the lanes."""
LARGEST = 2**40 - 1
"""The largest magnitude; beyond it a value is cut."""
_MOST = 4096
"""Values of a model that travel so. Larger arrays are quantised, as floats are."""


class WholeNumbers:
    """The arrays of a charter's model whose values are exact.

    Not with sparse updates, where what is not sent waits, nor with privacy, whose noise covers no whole numbers.
    """

    def __init__(self, charter: Charter, scheme: Scheme) -> None:
        self._equal = charter.equal_weights
        self._shapes: dict[int, tuple[int, ...]] = {}
        if scheme.codec.top is not None or scheme.sends_parts or scheme.codec.privacy is not None:
            return
        found = {t: tuple(shape) for t, (_, dtype, shape) in enumerate(charter.arrays) if np.dtype(dtype).kind in "iub"}
        if sum(map(math.prod, found.values())) <= _MOST:
            self._shapes = found

    @property
    def count(self) -> int:
        """Values of all arrays."""
        return sum(map(math.prod, self._shapes.values()))

    def __contains__(self, t: int) -> bool:
        return t in self._shapes

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The lanes, where there are any: a sum of values, or of values times weights."""
        if not self.count:
            return ()
        return (Answer(WHOLE, self.count, 1.0, float(LARGEST), "sum" if self._equal else "mean"),)

    def without(self, arrays: Sequence[Array]) -> list[Array]:
        """``arrays`` with nothing in the place of those that travel here."""
        return [np.zeros(0, x.dtype) if t in self else x for t, x in enumerate(arrays)]

    def values(self, trained: Sequence[Array], model: Sequence[Array]) -> tuple[list[int], int]:
        """By how much a client has moved each value, flat, and how many of these numbers are cut.

        It is the change also where the codec sends whole models: these count from where the model is.
        """
        flat: list[int] = []
        for t in self._shapes:
            new, old = trained[t].reshape(-1), model[t].reshape(-1)
            if new.dtype.kind == "f":
                # Python's own float, whatever the app has returned: a longer one has other rules.
                new = new.astype(np.float64)
            # Python's whole numbers have no end.
            flat += [_moved(n, int(b)) for n, b in zip(new.tolist(), old.tolist(), strict=True)]
        return [max(-LARGEST, min(n, LARGEST)) for n in flat], sum(abs(n) > LARGEST for n in flat)

    def means(self, sums: Sequence[Sums]) -> Mapping[int, Array]:
        """The mean change of each array, float64 in its shape, from the sums of all groups of clients."""
        total = sum(s.counted if self._equal else s.examples for s in sums)
        columns = zip(*(s.numbers[WHOLE] for s in sums), strict=True) if self.count else iter(())
        made: dict[int, NDArray[Any]] = {}
        for t, shape in self._shapes.items():
            held = [Fraction(sum(int(n) for n in next(columns)), total or 1) for _ in range(math.prod(shape))]
            made[t] = np.array([float(mean) for mean in held], np.float64).reshape(shape)
        return made


def _moved(value: float, before: int) -> int:
    """The change to the nearest whole number; NaN is no change, and what is infinite is beyond `LARGEST`."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if math.isnan(value) else math.floor(math.copysign(2.0**64, value))
    return round(value) - before
