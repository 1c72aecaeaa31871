"""The charter: one document that states what a run computes from private data.

A server that could choose a setting, a range or a model for one client could measure that client with them. So the
charter names everything that may influence what leaves a client. All clients accept the charter before they compute,
every frame's tag covers its digest, and no later message may bring other choices.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import CharterError, ParameterError
from fedcipher.federation.answers import Answer, parse_answer
from fedcipher.federation.canonical import decode, encode
from fedcipher.federation.optimiser_step import Optimiser
from fedcipher.foreign_text import MAX_NAME, quoted

__all__ = [
    "MAX_ROUNDS",
    "PURPOSES",
    "SIGNATURE_BYTES",
    "Charter",
    "Purpose",
    "Records",
    "Settings",
    "Table",
    "arrays_digest",
    "digest_of",
    "table_of",
]

Purpose = Literal["train", "evaluate"]
PURPOSES: tuple[Purpose, ...] = ("train", "evaluate")
Records = dict[str, dict[str, Any]]
"""An app's inputs beside the model: records by name, and in each its values by key, in the form of `canonical`."""

SIGNATURE_BYTES = 3309 + 64
"""Length of an identity's signature: ML-DSA-65 and Ed25519."""
MAX_ROUNDS = 1 << 20
"""Rounds of a run. The limit bounds the charter, which lists the settings of every round."""
_VERSION = 1
_MAX_NAMES = 1 << 16
_MAX_NAME = 1024
_MAX_RUN = 2**63 - 1
_RESERVED = "fedcipher."
"""Prefix of Fedcipher's own counters, which a charter's answers must not use."""
_FIELDS = (
    *("fedcipher_charter", "run", "key_set", "epoch", "scheme", "record", "arrays", "first", "optimiser", "weights"),
    *("answers", "clear", "types", "rounds", "reader", "reports", "sets_models", "settings"),
)


@dataclass(frozen=True)
class Settings:
    """An app's inputs in each round ``index`` (from 1). A value is constant, the round plus a number, or listed."""

    values: Mapping[str, Mapping[str, Any]]

    def at(self, index: int) -> Records:
        """The records of round ``index``. Raises `CharterError` for a round that the charter does not list."""
        return {name: {key: _at(rule, index) for key, rule in record.items()} for name, record in self.values.items()}


def _at(rule: Mapping[str, Any], index: int) -> Any:
    ((kind, value),) = rule.items()
    if kind == "is":
        return value
    if kind == "round":
        return index + value
    if not 1 <= index <= len(value):
        raise CharterError(f"the charter has no settings for round {index}")
    return value[index - 1]


Table = Sequence[Records | None]
"""An app's inputs, round by round; None for a round in which no client is asked."""


def table_of(rounds: Table) -> Settings:
    """`Settings` that give ``rounds[i]`` in round i + 1. Raises `ParameterError` if records or keys differ."""
    asked = [records for records in rounds if records is not None]
    if not asked:
        return Settings({})
    first = asked[0]
    if any(_shape(records) != _shape(first) for records in asked):
        raise ParameterError("the app is given other records or keys in one round than in another; give the same ones")
    return Settings(
        {
            name: {key: _rule_of([None if r is None else (r[name][key],) for r in rounds]) for key in record}
            for name, record in first.items()
        }
    )


def _shape(records: Records) -> list[tuple[str, list[str]]]:
    return [(name, sorted(record)) for name, record in sorted(records.items())]


def _rule_of(values: list[tuple[Any] | None]) -> dict[str, Any]:
    """The rule that gives these values, round by round. It may give any value where there is None."""
    known = [(index, held[0]) for index, held in enumerate(values, 1) if held is not None]
    at, first = known[0]
    if all(type(value) is int and value - index == first - at for index, value in known) and len(known) > 1:
        return {"round": first - at}
    # Encoded, because True == 1 in Python, while an app can tell them apart.
    if all(encode(value) == encode(first) for _, value in known):
        return {"is": first}
    return {"of": [first if held is None else held[0] for held in values]}


@dataclass(frozen=True)
class Charter:
    """The charter of one run; every field is public.

    ``run`` is a number that grows over the life of a key. ``key_set`` and ``epoch`` name the keys, ``scheme`` is
    `Scheme.spec`. ``record`` names the record of the model, ``arrays`` its arrays as (name, NumPy type, shape), and
    ``first`` is the digest of the first model. ``optimiser`` is (kind, numbers); None if the mean is the next model.
    ``weighted_by`` is the metric that counts examples, empty if all clients weigh the same. ``largest_weight`` is the
    largest number of examples that counts. With ``weighs_each_round`` every round begins with a sum of histograms,
    also of weights. ``answers`` are summed; metrics in ``clear`` leave each client unencrypted. ``reader`` says who
    opens means, models and answers. With ``reports``, clients that open answers send their ratios to the server. With
    ``sets_models`` the server sets the models.
    """

    run: int
    key_set: str
    epoch: int
    scheme: Mapping[str, Any]
    record: str
    arrays: Sequence[tuple[str, str, tuple[int, ...]]]
    first: str
    optimiser: tuple[str, tuple[float, ...]] | None
    equal_weights: bool
    weighted_by: str
    largest_weight: int
    weighs_each_round: bool
    answers: Mapping[Purpose, Sequence[Answer]]
    clear: Mapping[Purpose, Sequence[str]]
    types: Mapping[Purpose, str]
    rounds: int
    reader: Literal["clients", "server"]
    reports: bool
    sets_models: bool
    settings: Mapping[Purpose, Settings]

    @property
    def names(self) -> list[str]:
        """Names of the model's arrays."""
        return [name for name, _, _ in self.arrays]

    def metrics(self, purpose: Purpose) -> set[str]:
        """The metrics that a client takes from its app's reply."""
        return {self.weighted_by, *self.clear[purpose], *(answer.name for answer in self.answers[purpose])}

    def encode(self) -> bytes:
        """The canonical document: ASCII JSON, see `fedcipher.federation.canonical`."""
        return encode(
            {
                "fedcipher_charter": _VERSION,
                "run": self.run,
                "key_set": self.key_set,
                "epoch": self.epoch,
                "scheme": _plain(self.scheme),
                "record": self.record,
                "arrays": [[name, dtype, list(shape)] for name, dtype, shape in self.arrays],
                "first": self.first,
                "optimiser": None if self.optimiser is None else [self.optimiser[0], list(self.optimiser[1])],
                "weights": {
                    "equal": self.equal_weights,
                    "by": self.weighted_by,
                    "largest": self.largest_weight,
                    "each_round": self.weighs_each_round,
                },
                "answers": {p: [answer.to_values() for answer in self.answers[p]] for p in PURPOSES},
                "clear": {p: list(self.clear[p]) for p in PURPOSES},
                "types": dict(self.types),
                "rounds": self.rounds,
                "reader": self.reader,
                "reports": self.reports,
                "sets_models": self.sets_models,
                "settings": {p: {n: dict(r) for n, r in self.settings[p].values.items()} for p in PURPOSES},
            }
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the encoded charter."""
        return digest_of(self.encode())

    @classmethod
    def named(cls, content: bytes, digest: bytes) -> Charter:
        """Like `decode`, of a document that a message names by its ``digest``. Raises `CharterError` for another."""
        charter = cls.decode(content)
        if charter.digest != digest:
            raise CharterError("the charter's digest is not the one that the message names")
        return charter

    @classmethod
    def decode(cls, content: bytes) -> Charter:
        """The charter of an encoded document, which may come from outside. Raises `CharterError`."""
        document = decode(content)
        if not isinstance(document, dict) or sorted(cast("dict[str, Any]", document)) != sorted(_FIELDS):
            raise CharterError("the charter does not have the fields that a charter has")
        fields = cast("dict[str, Any]", document)
        if type(fields["fedcipher_charter"]) is not int or fields["fedcipher_charter"] != _VERSION:
            raise CharterError(f"the charter has version {fields['fedcipher_charter']!r}, this build reads {_VERSION}")
        try:
            made = _parse(fields)
            same = made.encode() == content
        except CharterError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise CharterError("a field of the charter is of another type") from error
        if not same:
            raise CharterError("a field of the charter is of another type")
        return made

    def associated_data(self, what: Purpose | Literal["measure"], position: bytes, index: int) -> bytes:
        """Digest that a frame's tag covers: this charter, the frame's purpose, the model's position, and the round."""
        parts = [b"fedcipher frame 1", self.digest, what.encode(), position, index.to_bytes(8, "little")]
        return digest_of(*parts)


def digest_of(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each preceded by its length."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


def arrays_digest(names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> bytes:
    """SHA-256 of named arrays: names, types, shapes and bytes. Raises `CharterError` for names that no charter has."""
    hashed = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)

    add(b"fedcipher arrays 1")
    for name, values in zip(names, arrays, strict=True):
        add(_text(name, "arrays").encode())
        add(values.dtype.str.encode())
        add(np.array(values.shape, "<u8").tobytes())
        add(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return hashed.digest()


def _plain(value: Any) -> Any:
    """``value`` with lists in place of tuples, as `canonical` requires."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value


def _parse(fields: dict[str, Any]) -> Charter:
    weights = _keys(fields["weights"], "weights", ("equal", "by", "largest", "each_round"))
    arrays = [_array(given) for given in _list(fields["arrays"], "arrays", _MAX_NAMES)]
    if not arrays or len({name for name, _, _ in arrays}) != len(arrays):
        raise CharterError(f"the charter's {len(arrays)} arrays do not have 1 to {_MAX_NAMES} different names")
    _distinct_answers(fields["answers"])
    by_purpose = {part: _keys(fields[part], part, PURPOSES) for part in ("answers", "clear", "types", "settings")}
    scheme = _keys(fields["scheme"], "scheme", ("scheme", "params", "codec"))
    reader, sets_models = fields["reader"], _truth(fields["sets_models"], "sets_models")
    if reader not in ("clients", "server"):
        raise CharterError("the charter's reader is neither clients nor server")
    return Charter(
        run=_whole(fields["run"], "run", 1, _MAX_RUN),
        key_set=_text(fields["key_set"], "key_set"),
        epoch=_whole(fields["epoch"], "epoch", 0, _MAX_RUN),
        scheme=scheme,
        record=_text(fields["record"], "record"),
        arrays=arrays,
        first=_hex(fields["first"], "first"),
        optimiser=_optimiser(fields["optimiser"], scheme, sets_models=sets_models),
        equal_weights=_truth(weights["equal"], "weights"),
        weighted_by=_text(weights["by"], "weights"),
        largest_weight=_whole(weights["largest"], "largest weight", 1, 1 << 40),
        weighs_each_round=_truth(weights["each_round"], "weights"),
        answers={p: [parse_answer(a) for a in _list(by_purpose["answers"][p], "answers", 4096)] for p in PURPOSES},
        clear={p: [_text(n, "clear") for n in _list(by_purpose["clear"][p], "clear", 4096)] for p in PURPOSES},
        types={p: _text(by_purpose["types"][p], "types") for p in PURPOSES},
        rounds=_whole(fields["rounds"], "rounds", 1, MAX_ROUNDS),
        reader=reader,
        reports=_truth(fields["reports"], "reports"),
        sets_models=sets_models,
        settings={p: _settings(by_purpose["settings"][p]) for p in PURPOSES},
    )


def _distinct_answers(given: Any) -> None:
    for answers in _keys(given, "answers", PURPOSES).values():
        names = [parse_answer(answer).name for answer in _list(answers, "answers", 4096)]
        if len(set(names)) != len(names) or any(name.startswith(_RESERVED) for name in names):
            raise CharterError(f"two answers of the charter have one name, or one begins with {_RESERVED!r}")


def _optimiser(given: Any, scheme: dict[str, Any], *, sets_models: bool) -> tuple[str, tuple[float, ...]] | None:
    if given is None:
        return None
    kind, numbers = _list(given, "optimiser", 2)
    found = _text(kind, "optimiser"), tuple(_float(x, "optimiser") for x in _list(numbers, "optimiser", 16))
    try:
        Optimiser(*found)
    except ParameterError as error:
        raise CharterError(f"the charter's optimiser: {error}") from error
    if sets_models or scheme["codec"]["target"] != "delta":
        raise CharterError("the charter has an optimiser, and clients apply an optimiser only to changes of the model")
    return found


def _settings(given: Any) -> Settings:
    values: dict[str, dict[str, Any]] = {}
    for name, record in _dict(given, "settings").items():
        values[_text(name, "settings")] = {
            _text(key, "settings"): _setting(rule) for key, rule in _dict(record, "settings").items()
        }
    return Settings(values)


def _setting(given: Any) -> dict[str, Any]:
    held = _dict(given, "settings")
    if len(held) != 1 or next(iter(held)) not in ("is", "round", "of"):
        raise CharterError("a setting of the charter is neither a value nor a function of the round")
    ((kind, value),) = held.items()
    if kind == "round":
        _whole(value, "settings", -MAX_ROUNDS, MAX_ROUNDS)
    if kind == "of":
        _list(value, "settings", MAX_ROUNDS)
    return held


def _array(given: Any) -> tuple[str, str, tuple[int, ...]]:
    name, dtype, shape = given
    sizes = tuple(_whole(n, "arrays", 0, 1 << 33) for n in _list(shape, "arrays", 32))
    if math.prod(sizes) > 1 << 33:
        raise CharterError("an array of the charter has more than 2^33 values")
    kind = np.dtype(_text(dtype, "arrays"))
    if kind.kind not in "biuf" or kind.str != dtype:
        raise CharterError("an array of the charter is not of numbers")
    return _text(name, "arrays"), kind.str, sizes


def _keys(given: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    held = _dict(given, what)
    if sorted(held) != sorted(names):
        raise CharterError(f"{what} of the charter does not have its fields: {', '.join(names)}")
    return held


def _dict(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise CharterError(f"{what} of the charter is of another type")
    return cast("dict[str, Any]", given)


def _list(given: Any, what: str, maximum: int) -> list[Any]:
    if not isinstance(given, list) or len(cast("list[Any]", given)) > maximum:
        raise CharterError(f"{what} of the charter is not a list of at most {maximum} values")
    return cast("list[Any]", given)


def _whole(given: Any, what: str, minimum: int, maximum: int) -> int:
    if type(given) is not int or not minimum <= given <= maximum:
        raise CharterError(f"{what} of the charter is not a whole number from {minimum} to {maximum}")
    return given


def _float(given: Any, what: str) -> float:
    if type(given) is not float:
        raise CharterError(f"{what} of the charter is of another type")
    return given


def _truth(given: Any, what: str) -> bool:
    if type(given) is not bool:
        raise CharterError(f"{what} of the charter is of another type")
    return given


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= _MAX_NAME or not given.isprintable():
        shown = quoted(repr(given), MAX_NAME)
        raise CharterError(
            f"{shown} in the {what} of the charter is not a text of 1 to {_MAX_NAME} printable characters"
        )
    return given


def _hex(given: Any, what: str) -> str:
    if not isinstance(given, str) or not re.fullmatch("[0-9a-f]{64}", given):
        raise CharterError(f"{what} of the charter is not a SHA-256 of 64 hexadecimal digits")
    return given
