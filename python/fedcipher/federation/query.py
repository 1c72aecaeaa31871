"""A query: a document with the question to all clients, and with the sums of their answers that are opened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher._arguments import as_float
from fedcipher.dp import Grid, Privacy
from fedcipher.errors import CharterError
from fedcipher.federation.answers import Answer, Lanes, parse_answer
from fedcipher.federation.canonical import decode, encode
from fedcipher.federation.charter import digest_of
from fedcipher.schemes import Scheme
from fedcipher.schemes.noise import Mechanism

__all__ = ["NoisyAnswers", "Query", "query_lanes"]

_VERSION = 1
_FIELDS = ("fedcipher_query", "round", "key_set", "epoch", "scheme", "type", "asked", "answers")
_MAX_ROUND = 2**63 - 1


@dataclass(frozen=True)
class Query:
    """One query; every field is public.

    ``round`` is the number that the key's ledgers count. ``key_set`` and ``epoch`` name the keys, and ``scheme`` is
    `Scheme.spec`. ``type`` is the message type, ``asked`` the app's input, and ``answers`` lists the summed answers.
    """

    round: int
    key_set: str
    epoch: int
    scheme: Mapping[str, Any]
    type: str
    asked: Mapping[str, Any]
    answers: Sequence[Answer]

    def encode(self) -> bytes:
        """The canonical document: ASCII JSON, see `fedcipher.federation.canonical`."""
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
        """The query of an encoded document, which may come from outside. Raises `CharterError`."""
        document = decode(content)
        if not isinstance(document, dict) or sorted(cast("dict[str, Any]", document)) != sorted(_FIELDS):
            raise CharterError("the query does not have the fields that a query has")
        fields = cast("dict[str, Any]", document)
        kinds = {"key_set": str, "scheme": dict, "type": str, "asked": dict, "answers": list}
        wrong = [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]
        numbers = [fields["round"], fields["epoch"]]
        if wrong or any(type(n) is not int or not 0 <= n <= _MAX_ROUND for n in numbers) or not fields["round"]:
            raise CharterError("a field of the query has another type or is out of range")
        if fields["fedcipher_query"] != _VERSION or not fields["answers"]:
            raise CharterError(f"the query does not have version {_VERSION}, or asks for no answer")
        answers = [parse_answer(answer) for answer in fields["answers"]]
        if any(answer.how != "sum" for answer in answers) or len({a.name for a in answers}) != len(answers):
            raise CharterError("the answers of a query must be sums with different names")
        names = ("round", "key_set", "epoch", "scheme", "type", "asked")
        return cls(**{name: fields[name] for name in names}, answers=answers)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the encoded query."""
        return digest_of(self.encode())

    def associated_data(self, context: bytes) -> bytes:
        """Digest that an answer's tag covers: the query, and ``context``, the digest of the app's other inputs."""
        return digest_of(b"fedcipher query 1", self.digest, context)

    @staticmethod
    def memory() -> bytes:
        """Name of the memory in which the rule of sets counts all queries of a key."""
        return b"\x01" + digest_of(b"queries")


class NoisyAnswers:
    """Answers to a query with differential privacy: one float vector, which the encryptor clips and adds noise to.

    Each number is divided by its answer's largest magnitude. The vector is then scaled so that it has the longest
    length that ``privacy`` allows if every number is the largest. So no answer is clipped. The noise of a total has the
    standard deviation ``noise_multiplier * sqrt(n) * largest`` for ``n`` numbers.
    """

    def __init__(self, answers: Sequence[Answer], privacy: Privacy) -> None:
        self._answers, self._count = answers, sum(answer.count for answer in answers)
        self._privacy = privacy
        # Slightly below the norm, because rounding to float32 may increase the length.
        self._unit = privacy.clip / math.sqrt(self._count) * (1 - 2.0**-20)

    @property
    def shape(self) -> NDArray[np.float32]:
        """A float32 vector of zeros: one value for each number of all answers."""
        return np.zeros(self._count, np.float32)

    def grid(self, scheme: Scheme) -> Grid:
        """How clients of ``scheme`` round and add noise. Raises `ParameterError` if its bits have no room for noise."""
        return Mechanism(scheme.codec, self._privacy, scheme.noise_shares).grid([self.shape])

    def encode(self, values: Mapping[str, Sequence[int | float]]) -> NDArray[np.float32]:
        """One client's float32 vector. Missing values and NaN are zero, and other values are clipped to the largest."""
        made: list[float] = []
        for answer in self._answers:
            given = [as_float(value) for value in values.get(answer.name, ())][: answer.count]
            made += [x / answer.largest for x in given + [0.0] * (answer.count - len(given))]
        return (np.clip(np.nan_to_num(np.array(made), nan=0.0), -1, 1) * self._unit).astype(np.float32)

    def totals(self, mean: NDArray[np.float32], clients: int) -> dict[str, list[float]]:
        """The sums by name, from the ``mean`` of the vectors of ``clients`` clients."""
        ends = np.cumsum([answer.count for answer in self._answers])[:-1]
        parts = np.split(mean.astype(np.float64) * (clients / self._unit), ends)
        return {a.name: (part * a.largest).tolist() for a, part in zip(self._answers, parts, strict=True)}

    def deviations(self, noise: float, clients: int) -> dict[str, float]:
        """The standard deviation of each total, if one client's vector has noise of standard deviation ``noise``."""
        return {a.name: noise * math.sqrt(clients) / self._unit * a.largest for a in self._answers}


def query_lanes(answers: Sequence[Answer], scheme: Scheme) -> Lanes:
    """The lanes of a frame that answers a query."""
    return Lanes(answers, largest_weight=1, largest_digit=scheme.largest_digit)
