"""Answers as exact integers: numbers that a client sends beside its update, in lanes of the same ciphertext.

A charter names every answer with its length, resolution and largest magnitude. A client rounds its values to multiples
of the resolution. A missing value and NaN become zero, a surplus value stays on the client, and a value out of range
saturates. Each number is split into digits that a lane carries exactly, so the sum of all clients' numbers is exact. If
a lane holds magnitudes up to m, the radix is R = 2 m + 1 and digits are -m to m, so a negative number needs no sign.
Counts, which are 0 or 1, have lanes of their own. The number of lanes follows from the charter alone.

A mean is a ratio of two sums. Each client multiplies its value by its number of examples. Readers divide the sum of the
products by the sum of examples.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher._arguments import as_text, real_number, several, whole_number
from fedcipher.errors import CharterError, ForgedAggregateError, ParameterError

__all__ = ["Answer", "Lanes", "Report", "Sums", "Tally", "parse_answer"]

_MAX_LENGTH = 1 << 20
_MAX_BITS: dict[str, int] = {"mean": 40, "sum": 64}
"""Bits of the largest magnitude in steps. A mean has fewer, because it is multiplied by a weight."""
_MAX_NAME = 1024


@dataclass(frozen=True)
class Answer:
    """One answer of a charter.

    Parameters
    ----------
    name
        The metric's name in the app's reply.
    length
        Number of values; 0 for a single number instead of a list.
    resolution
        The step to which each client rounds.
    largest
        The largest magnitude. Values beyond it saturate.
    how
        ``"mean"``, weighted by the clients' numbers of examples, or ``"sum"``.
    """

    name: str
    length: int = 0
    resolution: float = 1e-6
    largest: float = 1e6
    how: Literal["mean", "sum"] = "mean"

    @classmethod
    def all_of(cls, given: object, name: str, **unnamed: Any) -> list[Answer]:
        """The answers that a caller lists, as `Answer` or by name alone. Raises `ParameterError`.

        ``unnamed`` has the other parameters of answers that are given by name.
        """
        return [
            answer if isinstance(answer, Answer) else cls(as_text(answer, name), **unnamed)
            for answer in several(given, name)
        ]

    def __post_init__(self) -> None:
        given: Any = self
        if not isinstance(given.name, str) or not 1 <= len(self.name) <= _MAX_NAME or not self.name.isprintable():
            raise ParameterError(f"an answer's name has 1 to {_MAX_NAME} printable characters, unlike {self.name!r}")
        length = whole_number(given.length, f"answer {self.name!r}: length", 0, _MAX_LENGTH)
        object.__setattr__(self, "length", length)
        for part in ("resolution", "largest"):
            value = real_number(getattr(given, part), f"answer {self.name!r}: {part}", 0, sys.float_info.max)
            if not value:
                raise ParameterError(f"answer {self.name!r}: {part}=0 must be a positive number")
            object.__setattr__(self, part, float(value))
        if not math.isfinite(self.largest / self.resolution):
            raise ParameterError(f"answer {self.name!r}: {self.largest:g} has too many steps of {self.resolution:g}")
        if not isinstance(given.how, str) or given.how not in ("mean", "sum"):
            raise ParameterError(f"answer {self.name!r}: how={self.how!r} is neither 'mean' nor 'sum'")
        if self.steps.bit_length() > _MAX_BITS[self.how]:
            raise ParameterError(
                f"answer {self.name!r}: {self.largest:g} in steps of {self.resolution:g} takes "
                f"{self.steps.bit_length()} bits; take a coarser resolution or a smaller largest"
            )

    @property
    def steps(self) -> int:
        """The largest magnitude in units of the resolution."""
        return math.ceil(Fraction(self.largest) / Fraction(repr(self.resolution)))

    @property
    def count(self) -> int:
        """Number of values: at least 1."""
        return self.length or 1

    def to_values(self) -> dict[str, Any]:
        """The fields of the answer, as a charter lists them."""
        return {
            "name": self.name,
            "length": self.length,
            "resolution": self.resolution,
            "largest": self.largest,
            "how": self.how,
        }


def parse_answer(value: object) -> Answer:
    """The answer of `Answer.to_values` in a charter. Raises `CharterError`."""
    if not isinstance(value, dict) or set(cast("dict[str, object]", value)) != set(Answer.__dataclass_fields__):
        raise CharterError("an answer of the charter does not have the fields that an answer has")
    fields = cast("dict[str, Any]", value)
    if any(type(fields[name]) is not kind for name, kind in (("resolution", float), ("largest", float), ("name", str))):
        raise CharterError("an answer of the charter has a field of another type")
    try:
        return Answer(**fields)
    except ParameterError as error:
        raise CharterError(f"the charter: {error}") from error


@dataclass(frozen=True)
class Tally:
    """One client's numbers in a frame of an update or an evaluation, before they become lanes."""

    counted: bool
    """False if the app failed. Then no number of this client counts."""
    examples: float
    values: Mapping[str, Sequence[int | float]]
    """Values of counters and answers, by name."""


@dataclass(frozen=True)
class Sums:
    """The exact sums of all clients' lanes."""

    clients: int
    """Frames in the sum."""
    counted: int
    """Clients whose app answered."""
    examples: int
    numbers: Mapping[str, list[float]]
    """Sums by name, in the answers' own units. For a mean it is the sum of value times examples."""
    drowned: tuple[tuple[str, float], ...] = ()
    """Arrays whose rounding noise exceeded a client's update, each with the part of its mean that was applied."""
    kept: float | None = None
    """The share of their updates that the clients' coding kept (`fedcipher.federation.kept_share`); None if unknown."""
    thin: tuple[tuple[str, float], ...] = ()
    """Arrays with a kept share below `kept_share.MIN_KEPT_SHARE`, each with that share."""

    def ratio(self, answer: Answer) -> list[float]:
        """The reported values of ``answer``: the mean, rounded to its resolution, or the sum."""
        held = self.numbers[answer.name]
        if answer.how == "sum":
            return held
        if not self.examples:
            return [0.0] * len(held)
        return [_value(round(value / self.examples / answer.resolution), answer) for value in held]


def part_of(sums: Sums | Report, answers: Sequence[Answer], weighted_by: str, clients: int) -> dict[str, Any]:
    """One client's equal part of opened answers.

    Weighted means and sums over ``clients`` such parts give the opened answers.
    """
    made: dict[str, Any] = {weighted_by: max(sums.examples, 1) / clients}
    for answer in answers:
        held = sums.ratio(answer)
        values = [value / clients for value in held] if answer.how == "sum" else held
        made[answer.name] = values if answer.length else values[0]
    return made


@dataclass(frozen=True)
class Report:
    """The part of `Sums` that readers report to the server: the ratios of the charter's answers alone."""

    values: Mapping[str, list[float]]

    examples = 0
    """A report does not contain the number of examples."""

    def ratio(self, answer: Answer) -> list[float]:
        """Like `Sums.ratio`."""
        return self.values[answer.name]


class Lanes:
    """The lanes of a frame for one purpose: those that every frame has, then those of the charter's ``answers``.

    ``largest_weight`` is the largest number of examples that counts, ``largest_digit`` the largest magnitude of a lane
    (`Scheme.largest_digit`). ``counters`` are Fedcipher's own sums, such as the number of values cut to their range.
    ``counts`` are own sums too, but each of their values is 0 or 1. Raises `ParameterError` if two have one name.
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        *,
        largest_weight: int,
        largest_digit: int,
        counters: Sequence[Answer] = (),
        counts: Sequence[Answer] = (),
    ) -> None:
        self.answers = list(answers)
        self._weight = largest_weight
        self._counts, self._others = list(counts), [*counters, *answers]
        names = [answer.name for answer in [*self._counts, *self._others]]
        if len(set(names)) != len(names):
            raise ParameterError(f"two answers have one name: {sorted(names)}")
        self._radix = 2 * largest_digit + 1
        # (minimum, maximum, count) of all numbers that are split into digits.
        self._bounds = [(0, largest_weight, 1)]
        self._bounds += [(-self._max_steps(a), self._max_steps(a), a.count) for a in self._others]
        self._digits = [_digits_of(maximum, self._radix) for _, maximum, _ in self._bounds]

    def _max_steps(self, answer: Answer) -> int:
        return answer.steps * (self._weight if answer.how == "mean" else 1)

    @property
    def counts(self) -> int:
        """Number of lanes that are 0 or 1. They come first in a frame."""
        return 1 + sum(answer.count for answer in self._counts)

    @property
    def count(self) -> int:
        """Number of lanes of a frame."""
        return self.counts + sum(d * count for d, (_, _, count) in zip(self._digits, self._bounds, strict=True))

    def weight(self, examples: float) -> int:
        """The number of examples that counts: a whole number from 0 to ``largest_weight``."""
        if isinstance(examples, float) and not math.isfinite(examples):
            return self._weight if examples == math.inf else 0
        return min(max(0, round(examples)), self._weight)

    def encode(self, tally: Tally) -> NDArray[np.float32]:
        """One client's lanes, a float32 array of whole numbers and shape (`count`,): counts, then digits."""
        weight = self.weight(tally.examples) if tally.counted else 0
        lanes = [int(tally.counted)]
        for answer in self._counts:
            lanes += [min(max(0, steps), 1) for steps in self._given(answer, tally)]
        numbers = [weight]
        for answer in self._others:
            factor = weight if answer.how == "mean" else 1
            numbers += [factor * steps for steps in self._given(answer, tally)]
        kinds = zip(self._digits, self._bounds, strict=True)
        lengths = [digits for digits, (_, _, count) in kinds for _ in range(count)]
        half = self._radix // 2
        for number, digits in zip(numbers, lengths, strict=True):
            rest = number
            for _ in range(digits):
                above, digit = divmod(rest + half, self._radix)
                lanes.append(digit - half)
                rest = above
        return np.array(lanes, np.float32)

    @staticmethod
    def _given(answer: Answer, tally: Tally) -> list[int]:
        """A client's values of ``answer`` in steps: exactly ``answer.count`` of them."""
        given = list(tally.values.get(answer.name, ())) if tally.counted else []
        return [_steps(value, answer) for value in (given + [0.0] * answer.count)[: answer.count]]

    def decode(self, sums: Sequence[int], clients: int) -> Sums:
        """The sums of numbers, from the lanes' ``sums`` over ``clients`` frames.

        Raises `ForgedAggregateError` for sums that honest clients cannot have made.
        """
        if len(sums) != self.count:
            raise ForgedAggregateError(f"a sum has {len(sums)} lanes, and the charter's answers have {self.count}")
        counted, *counts = [int(n) for n in sums[: self.counts]]
        found = [(0, n, 1) for n in (counted, *counts)]
        at = self.counts
        for digits, (minimum, maximum, count) in zip(self._digits, self._bounds, strict=True):
            for _ in range(count):
                number = sum(int(sums[at + k]) * self._radix**k for k in range(digits))
                found.append((minimum, number, maximum))
                at += digits
        if not all(clients * minimum <= number <= clients * maximum for minimum, number, maximum in found):
            raise ForgedAggregateError("a lane's sum is larger than its clients can have sent")
        examples, *rest = [number for _, number, _ in found[self.counts :]]
        numbers: dict[str, list[float]] = {}
        for answers, held in ((self._counts, counts), (self._others, rest)):
            at = 0
            for answer in answers:
                numbers[answer.name] = [_value(n, answer) for n in held[at : at + answer.count]]
                at += answer.count
        return Sums(clients, counted, examples, numbers)


def _digits_of(maximum: int, radix: int) -> int:
    """Number of digits that hold magnitudes up to ``maximum``."""
    digits = 1
    while (radix**digits - 1) // 2 < maximum:
        digits += 1
    return digits


def _steps(value: int | float, answer: Answer) -> int:
    """A value in steps of its answer. It saturates, and NaN becomes zero."""
    if type(value) is int and answer.resolution == 1 and abs(value) <= answer.largest:
        return value
    if isinstance(value, float) and math.isnan(value):
        return 0
    if abs(value) >= answer.largest:
        return answer.steps if value > 0 else -answer.steps
    # repr gives the decimal number that was written, so 3 in steps of 0.001 is exactly 3000.
    return round(Fraction(value) / Fraction(repr(answer.resolution)))


def _value(steps: int, answer: Answer) -> int | float:
    return steps if answer.resolution == 1 else float(steps * Fraction(repr(answer.resolution)))
