"""A query's charter: what clients are asked, and which exact sums of their answers are opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fedcipher.errors import CharterError
from fedcipher.federation.answers import Answer, Lanes, parse_answer
from fedcipher.federation.canonical import decode, encode
from fedcipher.federation.charter import digest_of
from fedcipher.schemes import Scheme

__all__ = ["Query", "query_lanes"]

_VERSION = 1
_FIELDS = ("fedcipher_query", "round", "key_set", "epoch", "scheme", "type", "asked", "answers")
_MOST_ROUND = 2**63 - 1


@dataclass(frozen=True)
class Query:
    """One query; every field is public.

    ``round`` is the number that the key's ledgers count, ``key_set`` and ``epoch`` name the keys, ``scheme`` is
    `Scheme.spec`, ``type`` the message type, ``asked`` what the app is given, ``answers`` what is summed.
    """

    round: int
    key_set: str
    epoch: int
    scheme: Mapping[str, Any]
    type: str
    asked: Mapping[str, Any]
    answers: Sequence[Answer]

    def encode(self) -> bytes:
        """The document."""
        return encode(
            {
                "fedcipher_query": _VERSION,
                "round": self.round,
                "key_set": self.key_set,
                "epoch": self.epoch,
                "scheme": dict(self.scheme),
                "type": self.type,
                "asked": dict(self.asked),
                "answers": [answer.to_values() for answer in self.answers],
            }
        )

    @classmethod
    def decode(cls, content: bytes) -> Query:
        """From a document of outside. Raises `CharterError`."""
        said = decode(content)
        if not isinstance(said, dict) or sorted(cast("dict[str, Any]", said)) != sorted(_FIELDS):
            raise CharterError("the query does not have the fields that a query has")
        fields = cast("dict[str, Any]", said)
        kinds = {"key_set": str, "scheme": dict, "type": str, "asked": dict, "answers": list}
        wrong = [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]
        numbers = [fields["round"], fields["epoch"]]
        if wrong or any(type(n) is not int or not 0 <= n <= _MOST_ROUND for n in numbers) or not fields["round"]:
            raise CharterError("a field of the query is of another type or out of range")
        if fields["fedcipher_query"] != _VERSION or not fields["answers"]:
            raise CharterError(f"the query is not of version {_VERSION}, or asks for no answer")
        answers = [parse_answer(answer) for answer in fields["answers"]]
        if any(answer.how != "sum" for answer in answers) or len({a.name for a in answers}) != len(answers):
            raise CharterError("the answers of a query are sums under different names")
        names = ("round", "key_set", "epoch", "scheme", "type", "asked")
        return cls(**{name: fields[name] for name in names}, answers=answers)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the document."""
        return digest_of(self.encode())

    def binding(self, context: bytes) -> bytes:
        """What an answer's tag names: the query, and what the app was told beside it."""
        return digest_of(b"fedcipher query 1", self.digest, context)

    @staticmethod
    def memory() -> bytes:
        """All queries of a key count in one memory of the rule of sets, whatever they ask."""
        return b"\x01" + digest_of(b"queries")


def query_lanes(answers: Sequence[Answer], scheme: Scheme) -> Lanes:
    """The lanes of an answer to a query."""
    return Lanes(answers, largest_weight=1, largest_digit=scheme.largest_digit)
