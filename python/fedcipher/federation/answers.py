"""Answers as exact integers: what clients say beside an update travels as lanes of the same ciphertext.

A charter names every answer with its length, resolution and largest magnitude. A client turns its values into whole
numbers of the resolution, whatever its app returned: a missing value is zero, a surplus one stays on the client, a
value out of range saturates, NaN is zero. Each number is cut into digits that a lane carries exactly, so the sum of
all clients' numbers comes out exact: of radix R = 2 m + 1 where a lane holds magnitudes of m, and from -m to m, so that
a negative number needs no sign. Counts, which are 0 or 1, have lanes of their own. The number of lanes follows from
the charter alone.

A mean is a ratio of two sums: each client multiplies its value by its number of examples, and the sum of these is
divided by the sum of examples.
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

_MOST_LENGTH = 1 << 20
_MOST_BITS: dict[str, int] = {"mean": 40, "sum": 64}
"""Of a magnitude in steps: that of a mean is multiplied by a weight."""
_MOST_NAME = 1024


@dataclass(frozen=True)
class Answer:
    """One answer of a charter.

    Parameters
    ----------
    name
        The metric's name in the app's reply.
    length
        How many numbers it has; 0: a single number, not a list.
    resolution
        The step to which each client rounds.
    largest
        The largest magnitude; beyond it a value saturates.
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
        """Answers as a caller lists them; of one that is a name ``unnamed`` is the rest. Raises `ParameterError`."""
        return [
            answer if isinstance(answer, Answer) else cls(as_text(answer, name), **unnamed)
            for answer in several(given, name)
        ]

    def __post_init__(self) -> None:
        given: Any = self
        if not isinstance(given.name, str) or not 1 <= len(self.name) <= _MOST_NAME or not self.name.isprintable():
            raise ParameterError(f"an answer's name is 1 to {_MOST_NAME} printable characters, not {self.name!r}")
        length = whole_number(given.length, f"answer {self.name!r}: length", 0, _MOST_LENGTH)
        object.__setattr__(self, "length", length)
        for part in ("resolution", "largest"):
            value = real_number(getattr(given, part), f"answer {self.name!r}: {part}", 0, sys.float_info.max)
            if not value:
                raise ParameterError(f"answer {self.name!r}: {part}=0 is not a positive number")
            object.__setattr__(self, part, float(value))
        if not math.isfinite(self.largest / self.resolution):
            raise ParameterError(f"answer {self.name!r}: {self.largest:g} has too many steps of {self.resolution:g}")
        if not isinstance(given.how, str) or given.how not in ("mean", "sum"):
            raise ParameterError(f"answer {self.name!r}: how={self.how!r} is neither 'mean' nor 'sum'")
        if self.steps.bit_length() > _MOST_BITS[self.how]:
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
        """Numbers it has."""
        return self.length or 1

    def to_values(self) -> dict[str, Any]:
        """For a charter."""
        return {
            "name": self.name,
            "length": self.length,
            "resolution": self.resolution,
            "largest": self.largest,
            "how": self.how,
        }


def parse_answer(value: object) -> Answer:
    """From a charter. Raises `CharterError`."""
    if not isinstance(value, dict) or set(cast("dict[str, object]", value)) != set(Answer.__dataclass_fields__):
        raise CharterError("an answer of the charter does not have the fields that an answer has")
    said = cast("dict[str, Any]", value)
    if type(said["resolution"]) is not float or type(said["largest"]) is not float or type(said["name"]) is not str:
        raise CharterError("an answer of the charter has a field of another type")
    try:
        return Answer(**said)
    except ParameterError as error:
        raise CharterError(f"the charter: {error}") from error


@dataclass(frozen=True)
class Tally:
    """What one client says beside an update or an evaluation, before it becomes lanes."""

    counted: bool
    """False where the app failed: nothing of this client counts."""
    examples: float
    values: Mapping[str, Sequence[int | float]]
    """By name, of counters and answers."""


@dataclass(frozen=True)
class Sums:
    """The exact sums of all clients' lanes."""

    clients: int
    """Frames in the sum."""
    counted: int
    """Clients whose app answered."""
    examples: int
    numbers: Mapping[str, list[float]]
    """Sums by name, in the answers' own units; of a mean, the sum of value times examples."""
    drowned: tuple[tuple[str, float], ...] = ()
    """Arrays whose noise of rounding was larger than a client's update, and the part of their mean that was applied."""
    kept: float | None = None
    """How much of their updates the clients' coding kept, where frames say so (`fedcipher.federation.kept`)."""
    thin: tuple[tuple[str, float], ...] = ()
    """Arrays of which it kept less than `kept.ENOUGH`, and how much."""

    def ratio(self, answer: Answer) -> list[float]:
        """What is reported of ``answer``: the mean rounded to its resolution, or the sum."""
        held = self.numbers[answer.name]
        if answer.how == "sum":
            return held
        if not self.examples:
            return [0.0] * len(held)
        return [_value(round(value / self.examples / answer.resolution), answer) for value in held]


def part_of(sums: Sums | Report, answers: Sequence[Answer], weighted_by: str, clients: int) -> dict[str, Any]:
    """One client's part of opened answers, so that weighted means and sums over ``clients`` such parts are right."""
    made: dict[str, Any] = {weighted_by: max(sums.examples, 1) / clients}
    for answer in answers:
        held = sums.ratio(answer)
        values = [value / clients for value in held] if answer.how == "sum" else held
        made[answer.name] = values if answer.length else values[0]
    return made


@dataclass(frozen=True)
class Report:
    """What readers tell of `Sums`: the ratios of the charter's answers, and nothing else."""

    values: Mapping[str, list[float]]

    examples = 0
    """Not told."""

    def ratio(self, answer: Answer) -> list[float]:
        """As `Sums.ratio`."""
        return self.values[answer.name]


class Lanes:
    """The lanes of a charter's answers for one purpose, behind those that every frame has.

    ``largest_weight`` is the largest number of examples that counts, ``largest_digit`` the largest magnitude of a lane
    (`Scheme.largest_digit`); ``counters`` are sums that Fedcipher itself carries, such as values cut to their range,
    and ``counts`` those of which each is 0 or 1.
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
        # The least and the most that a number is, and how many there are: those that are digits.
        self._plan = [(0, largest_weight, 1)]
        self._plan += [(-self._most(a), self._most(a), a.count) for a in self._others]
        self._digits = [_digits_of(most, self._radix) for _, most, _ in self._plan]

    def _most(self, answer: Answer) -> int:
        return answer.steps * (self._weight if answer.how == "mean" else 1)

    @property
    def counts(self) -> int:
        """Lanes of a frame that are 0 or 1: the first."""
        return 1 + sum(answer.count for answer in self._counts)

    @property
    def count(self) -> int:
        """Lanes of a frame."""
        return self.counts + sum(d * count for d, (_, _, count) in zip(self._digits, self._plan, strict=True))

    def weight(self, examples: float) -> int:
        """The number of examples that counts: whole, at least 0, at most the largest."""
        if isinstance(examples, float) and not math.isfinite(examples):
            return self._weight if examples == math.inf else 0
        return min(max(0, round(examples)), self._weight)

    def encode(self, tally: Tally) -> NDArray[np.float32]:
        """One client's lanes, float32 whole numbers: counts, then digits."""
        weight = self.weight(tally.examples) if tally.counted else 0
        lanes = [int(tally.counted)]
        for answer in self._counts:
            lanes += [min(max(0, steps), 1) for steps in self._given(answer, tally)]
        numbers = [weight]
        for answer in self._others:
            factor = weight if answer.how == "mean" else 1
            numbers += [factor * steps for steps in self._given(answer, tally)]
        kinds = zip(self._digits, self._plan, strict=True)
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
        """A client's values of ``answer`` in its steps, as many as it has."""
        given = list(tally.values.get(answer.name, ())) if tally.counted else []
        return [_steps(value, answer) for value in (given + [0.0] * answer.count)[: answer.count]]

    def decode(self, sums: Sequence[int], clients: int) -> Sums:
        """The sums of numbers from the sums of lanes of ``clients`` frames.

        Raises `ForgedAggregateError` for sums that honest clients cannot have made.
        """
        if len(sums) != self.count:
            raise ForgedAggregateError(f"a sum of {len(sums)} lanes, the charter's answers have {self.count}")
        counted, *counts = [int(n) for n in sums[: self.counts]]
        found = [(0, n, 1) for n in (counted, *counts)]
        at = self.counts
        for digits, (least, most, count) in zip(self._digits, self._plan, strict=True):
            for _ in range(count):
                number = sum(int(sums[at + k]) * self._radix**k for k in range(digits))
                found.append((least, number, most))
                at += digits
        if not all(clients * least <= number <= clients * most for least, number, most in found):
            raise ForgedAggregateError("a lane's sum is more than its clients can have sent")
        examples, *rest = [number for _, number, _ in found[self.counts :]]
        numbers: dict[str, list[float]] = {}
        for answers, held in ((self._counts, counts), (self._others, rest)):
            at = 0
            for answer in answers:
                numbers[answer.name] = [_value(n, answer) for n in held[at : at + answer.count]]
                at += answer.count
        return Sums(clients, counted, examples, numbers)


def _digits_of(most: int, radix: int) -> int:
    """Digits of numbers of at most this magnitude."""
    digits = 1
    while (radix**digits - 1) // 2 < most:
        digits += 1
    return digits


def _steps(value: int | float, answer: Answer) -> int:
    """A value in steps of its answer: saturated, NaN is zero."""
    if type(value) is int and answer.resolution == 1 and abs(value) <= answer.largest:
        return value
    if isinstance(value, float) and math.isnan(value):
        return 0
    if abs(value) >= answer.largest:
        return answer.steps if value > 0 else -answer.steps
    # The decimal number that was written, not the float next to it: 3 in steps of 0.001 is 3000.
    return round(Fraction(value) / Fraction(repr(answer.resolution)))


def _value(steps: int, answer: Answer) -> int | float:
    return steps if answer.resolution == 1 else float(steps * Fraction(repr(answer.resolution)))
