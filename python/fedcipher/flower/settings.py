"""The round's settings: what `SecureStrategy` writes into every message and the mod reads back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ConfigRecord

from fedcipher.errors import RoundError
from fedcipher.flower.optimiser import Optimiser

__all__ = ["RoundSettings"]

_MOST_ROUND = 2**63 - 1
_MOST_NAMES = 1 << 16
_MOST_NAME = 1024
_T = TypeVar("_T")


@dataclass(frozen=True)
class RoundSettings:
    """One round, as the server describes it; checked, because it comes from outside.

    ``run`` is the round number before the run's first: it tells two runs of one app apart; ``segment`` counts the
    models that the server has set in the clear since. ``record`` names the message's ArrayRecord that the model is in,
    and ``names`` its arrays; other ArrayRecords are the server's own. ``unit`` is how many examples make one unit of
    weight (0: all clients weigh the same), counted by the metric ``weighted_by``; ``plan`` is `Scheme.plan`'s.
    ``ranges`` are clip ranges, one an array, for clients that have no last aggregate to fit them to; empty where the
    server knows none. ``last`` is the round of the newest aggregate in the model, 0 before there is one: who has opened
    another in its place has another model. ``optimiser`` is what clients make of each mean; none where the mean is the
    next model.
    """

    run: int
    segment: int
    round: int
    epoch: int
    record: str
    names: list[str]
    plan: bytes
    unit: float
    weighted_by: str
    ranges: list[float] = field(default_factory=list)
    last: int = 0
    optimiser: Optimiser | None = None

    def to_record(self) -> ConfigRecord:
        """For the message. Flower cannot count the bytes of empty values, so these stay out."""
        values = {**vars(self), "names": list(self.names), "ranges": list(self.ranges)}
        del values["optimiser"]
        if self.optimiser is not None:
            values.update(self.optimiser.to_values())
        return ConfigRecord({key: value for key, value in values.items() if value not in (b"", [])})

    @classmethod
    def parse(cls, record: ConfigRecord) -> RoundSettings:
        """From the message. Raises `RoundError` for anything missing, of another type or out of range."""
        made = cls(
            run=_number(record, "run", 0),
            segment=_number(record, "segment", 0),
            round=_number(record, "round", 1),
            epoch=_number(record, "epoch", 0),
            record=_text(_typed(record, "record", str), "record"),
            names=[_text(name, "an array's name") for name in _typed(record, "names", list)],
            plan=_typed(record, "plan", bytes) if "plan" in record else b"",
            unit=_typed(record, "unit", float),
            weighted_by=_text(_typed(record, "weighted_by", str), "weighted_by"),
            ranges=_typed(record, "ranges", list) if "ranges" in record else [],
            last=_number(record, "last", 0),
            optimiser=Optimiser.parse(record),
        )
        if made.round <= made.run:
            raise RoundError(f"round {made.round} is not after its run's start, {made.run}")
        if not 1 <= len(made.names) <= _MOST_NAMES or len(set(made.names)) != len(made.names):
            raise RoundError(f"the round's {len(made.names)} array names are not 1 to {_MOST_NAMES} different ones")
        if not (math.isfinite(made.unit) and made.unit >= 0):
            raise RoundError(f"{made.unit} examples cannot make one unit of weight")
        if made.ranges and len(made.ranges) != len(made.names):
            raise RoundError(f"{len(made.ranges)} clip ranges for {len(made.names)} arrays")
        if not all(type(x) is float and math.isfinite(x) and x > 0 for x in made.ranges):
            raise RoundError("a clip range of the round's settings is no positive number")
        return made


def _typed(record: ConfigRecord, key: str, kind: type[_T]) -> _T:
    value: Any = record.get(key)
    # A bool is an int to isinstance, and not what was meant.
    if type(value) is not kind:
        raise RoundError(f"the round's settings have {type(value).__name__} where {key} should be {kind.__name__}")
    return value


def _number(record: ConfigRecord, key: str, least: int) -> int:
    value = _typed(record, key, int)
    if not least <= value <= _MOST_ROUND:
        raise RoundError(f"{key} {value} of the round's settings is not {least} to {_MOST_ROUND}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _MOST_NAME:
        raise RoundError(f"{what} is not a text of 1 to {_MOST_NAME} characters")
    return value
