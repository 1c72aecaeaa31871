"""The settings that a server writes into every message of a round, and that a client parses.

They cannot change what is computed from private data. The charter determines that, and every tag covers the charter's
digest. docs/reference/protocol.md has a row for each field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedcipher.codec import MAX_BITS, MIN_BITS
from fedcipher.errors import RoundError
from fedcipher.federation.messages import Config

__all__ = ["RoundSettings", "prekeys_of"]

_MAX_ROUND = 2**63 - 1
_MAX_STEPS = 1 << 20
_MAX_PREKEYS = 64
_DIGEST = 32
_T = TypeVar("_T")


@dataclass(frozen=True)
class RoundSettings:
    """The settings of one message in a round. `parse` checks them, because they come from outside.

    ``charter`` is the digest of the run's charter. ``document`` is the charter itself, for a client that may lack it,
    and ``signature`` is its coordinator's, if there is one. ``round`` is the number that the key's ledgers count, and
    ``index`` is the run's own round, from 1. ``plan`` is the result of `Scheme.round_plan`. The message's chain has
    ``steps`` steps, and ``last`` is the digest of the last one. ``indices`` are the rounds of the steps in the message.
    ``bits`` is the number of bits of a value in this round, if the codec leaves a choice; else 0. ``prekeys`` are the
    prekeys of the committee's members, each with the member's signature.
    """

    charter: bytes
    round: int
    index: int
    steps: int
    document: bytes = b""
    signature: bytes = b""
    plan: bytes = b""
    last: bytes = b""
    indices: list[int] = field(default_factory=list[int])
    bits: int = 0
    prekeys: list[bytes] = field(default_factory=list[bytes])

    def to_record(self) -> Config:
        """The record for the message. Empty values are left out, because Flower cannot count their bytes."""
        values = {**vars(self), "indices": list(self.indices), "prekeys": list(self.prekeys)}
        if not self.bits:
            del values["bits"]
        return Config({key: value for key, value in values.items() if value not in (b"", [])})

    @classmethod
    def parse(cls, record: Config) -> RoundSettings:
        """The settings in a message's record.

        Raises `RoundError` for a field that is missing, unknown, of another type or out of range.
        """
        unknown = set(record) - set(cls.__dataclass_fields__)
        if unknown:
            raise RoundError("the round's settings have an unknown field")
        made = cls(
            charter=_typed(record, "charter", bytes),
            round=_number(record, "round", 1, _MAX_ROUND),
            index=_number(record, "index", 1, _MAX_ROUND),
            steps=_number(record, "steps", 0, _MAX_STEPS),
            document=_typed(record, "document", bytes) if "document" in record else b"",
            signature=_typed(record, "signature", bytes) if "signature" in record else b"",
            plan=_typed(record, "plan", bytes) if "plan" in record else b"",
            last=_typed(record, "last", bytes) if "last" in record else b"",
            indices=_typed(record, "indices", list) if "indices" in record else [],
            bits=_number(record, "bits", MIN_BITS, MAX_BITS) if "bits" in record else 0,
            prekeys=prekeys_of(record),
        )
        if len(made.charter) != _DIGEST or len(made.last) not in (0, _DIGEST):
            raise RoundError("a digest of the round's settings does not have the length of a SHA-256")
        if not all(type(index) is int and 1 <= index <= _MAX_ROUND for index in made.indices):
            raise RoundError("the rounds of the steps in a message are not whole numbers from 1 on")
        return made


def prekeys_of(record: Config) -> list[bytes]:
    """The frames under ``prekeys``. Raises `RoundError` for other values, and for more than the largest committee."""
    found = _typed(record, "prekeys", list) if "prekeys" in record else []
    if len(found) > _MAX_PREKEYS or not all(type(frame) is bytes for frame in found):
        raise RoundError(f"the prekeys of a message are not a list of at most {_MAX_PREKEYS} frames")
    return found


def _typed(record: Config, key: str, kind: type[_T]) -> _T:
    value: Any = record.get(key)
    # Not isinstance, because a bool is an int there.
    if type(value) is not kind:
        raise RoundError(f"the round's settings have {type(value).__name__} where {key} should be {kind.__name__}")
    return value


def _number(record: Config, key: str, minimum: int, maximum: int) -> int:
    value = _typed(record, key, int)
    if not minimum <= value <= maximum:
        raise RoundError(f"{key} {value} of the round's settings is not {minimum} to {maximum}")
    return value
