"""What a server writes into every message of a round, and a client reads back.

Nothing of it can change what is computed from private data: the charter says that, and its digest is in every tag.
docs/reference/protocol.md has a row for each field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedcipher.codec import MAX_BITS, MIN_BITS
from fedcipher.errors import RoundError
from fedcipher.federation.messages import Config

__all__ = ["RoundSettings", "prekeys_of"]

_MOST_ROUND = 2**63 - 1
_MOST_STEPS = 1 << 20
_MOST_PREKEYS = 64
_DIGEST = 32
_T = TypeVar("_T")


@dataclass(frozen=True)
class RoundSettings:
    """One message of a round, as the server describes it; checked, because it comes from outside.

    ``charter`` is the digest of the run's charter, ``document`` the charter itself for a client that may lack it, with
    its coordinator's ``signature`` where there is one.
    ``round`` is the number that the key's ledgers count, ``index`` the run's own round, from 1. ``plan`` is
    `Scheme.round_plan`'s. The message's chain has ``steps`` steps, the last of which is named by ``last``;
    ``indices`` are the rounds of the steps that the message brings. ``bits`` are those of a value in this round, where
    the codec leaves a choice. ``prekeys`` are those of the committee's members, each under its signature.
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
        """For the message. Flower cannot count the bytes of empty values, so these are left out."""
        values = {**vars(self), "indices": list(self.indices), "prekeys": list(self.prekeys)}
        if not self.bits:
            del values["bits"]
        return Config({key: value for key, value in values.items() if value not in (b"", [])})

    @classmethod
    def parse(cls, record: Config) -> RoundSettings:
        """From the message. Raises `RoundError` for anything missing, unknown, of another type or out of range."""
        unknown = set(record) - set(cls.__dataclass_fields__)
        if unknown:
            raise RoundError("the round's settings have a field that there is not")
        made = cls(
            charter=_typed(record, "charter", bytes),
            round=_number(record, "round", 1, _MOST_ROUND),
            index=_number(record, "index", 1, _MOST_ROUND),
            steps=_number(record, "steps", 0, _MOST_STEPS),
            document=_typed(record, "document", bytes) if "document" in record else b"",
            signature=_typed(record, "signature", bytes) if "signature" in record else b"",
            plan=_typed(record, "plan", bytes) if "plan" in record else b"",
            last=_typed(record, "last", bytes) if "last" in record else b"",
            indices=_typed(record, "indices", list) if "indices" in record else [],
            bits=_number(record, "bits", MIN_BITS, MAX_BITS) if "bits" in record else 0,
            prekeys=prekeys_of(record),
        )
        if len(made.charter) != _DIGEST or len(made.last) not in (0, _DIGEST):
            raise RoundError("a digest of the round's settings has another length than SHA-256's")
        if not all(type(index) is int and 1 <= index <= _MOST_ROUND for index in made.indices):
            raise RoundError("the rounds of the steps that a message brings are no whole numbers from 1 on")
        return made


def prekeys_of(record: Config) -> list[bytes]:
    """The frames under ``prekeys``. Raises `RoundError` for anything else, and for more than a committee has."""
    found = _typed(record, "prekeys", list) if "prekeys" in record else []
    if len(found) > _MOST_PREKEYS or not all(type(frame) is bytes for frame in found):
        raise RoundError("the prekeys of a message are no frames, or more than any committee has members")
    return found


def _typed(record: Config, key: str, kind: type[_T]) -> _T:
    value: Any = record.get(key)
    # A bool is an int to isinstance, and not what was meant.
    if type(value) is not kind:
        raise RoundError(f"the round's settings have {type(value).__name__} where {key} should be {kind.__name__}")
    return value


def _number(record: Config, key: str, least: int, most: int) -> int:
    value = _typed(record, key, int)
    if not least <= value <= most:
        raise RoundError(f"{key} {value} of the round's settings is not {least} to {most}")
    return value
