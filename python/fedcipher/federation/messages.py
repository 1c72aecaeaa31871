"""Messages between a run's server and its clients, apart from whatever carries them.

A message has named records, as Flower's messages have: arrays, settings or metrics. An adapter carries them either
record by record, or as the bytes of `Message.to_bytes`. docs/reference/protocol.md lists the records and their fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar, cast

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import FrameError, LayoutError, ParameterError
from fedcipher.foreign_files import MAX_INDEX, parse_json

__all__ = [
    "AGGREGATE_PREFIX",
    "ANSWER",
    "CLEAR",
    "COMMITTEE",
    "CONFIG",
    "CONTEXT",
    "EVALUATION",
    "METRICS",
    "PARTY",
    "PREFIX",
    "PREKEY",
    "QUERY",
    "RECORD",
    "REFUSED",
    "REPORT",
    "REQUEST",
    "UPDATE",
    "Arrays",
    "Config",
    "Content",
    "Message",
    "Metrics",
    "PackedArray",
    "Reply",
    "aggregate_key",
    "aggregate_of",
    "frame_bytes",
    "named",
    "packed_frame",
    "payload_bytes",
    "record_in",
    "split_type",
    "to_numpy",
    "type_of",
    "wire_record",
]

PREFIX = "fedcipher."
CONFIG = PREFIX + "round"
"""Settings of a message: `fedcipher.federation.round_settings.RoundSettings`."""
METRICS = PREFIX + "metrics"
"""Metrics of a reply: seconds of work that does not depend on data. The server removes them before a strategy."""
CONTEXT = PREFIX + "context"
"""Settings of a reply: the digest of what the app was given beside the charter."""
CLEAR = PREFIX + "clear"
"""Metrics of a reply: those that charter and client configuration let leave in the clear."""
REPORT = PREFIX + "report"
"""Settings of a message that asks a reader for a report, and of the reply with the report."""
EVALUATION = PREFIX + "evaluation"
"""Arrays of such a message, and their one array: the sum of an evaluation's answers."""
COMMITTEE = PREFIX + "committee"
"""Arrays or settings of a message to a member of the committee, and of the member's reply."""
QUERY = PREFIX + "query"
"""Settings of a query: its charter, and the round's plan."""
UPDATE = PREFIX + "update"
"""Array of a reply: the client's frame."""
REFUSED = PREFIX + "refused"
"""Settings of a reply: the text of a refusal, where a framework has no errors of its own."""
RECORD = "arrays"
"""Arrays of an answer to a query."""
REQUEST, ANSWER = PREFIX + "request", PREFIX + "answer"
"""Arrays of `COMMITTEE`: what a member is asked, and its answer."""
PARTY, PREKEY = "party", "prekey"
"""A member's number and its prekey for what comes next, in what it says of itself; the prekey is beside answers too."""
AGGREGATE_PREFIX = PREFIX + "aggregate."
"""Arrays of a message: sums by step and group, to be applied in order."""

_FRAME = "an encrypted frame; SecureStrategy(opener=...) and `fedcipher open` read models"
"""The serialisation of a frame: its bytes as they are. Whoever reads a frame as numbers is told this text."""
_DIGITS, _GROUP_DIGITS = 8, 4
_KINDS = "biuf"
_VERSION = 1
_CATEGORIES = ("train", "evaluate", "query")
_LENGTH = 8
"""Bytes of the head's length, which a message of bytes begins with."""


@dataclass(frozen=True)
class PackedArray:
    """An array as bytes: in NumPy's own format, or a frame."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes = field(repr=False)


class Arrays(dict[str, PackedArray]):
    """A record of arrays by name, in their order."""


class Config(dict[str, Any]):
    """A record of settings: numbers, texts, truth values, bytes, or lists of one of these."""


class Metrics(dict[str, Any]):
    """A record of metrics: numbers, or lists of numbers."""


Content = dict[str, "Arrays | Config | Metrics"]
_Record = TypeVar("_Record", Arrays, Config, Metrics)
_RECORDS: dict[str, type[Arrays] | type[Config] | type[Metrics]] = {
    "arrays": Arrays,
    "config": Config,
    "metrics": Metrics,
}


@dataclass
class Message:
    """A message to or from ``node``. ``type`` is what Flower calls a message type, such as ``train``.

    ``place`` names the record that a strategy wants the model in, before a run has put it there; it does not travel.
    """

    node: int
    type: str
    content: Content = field(default_factory=Content)
    place: str = ""

    def to_bytes(self) -> bytes:
        """Type and content, for whatever carries bytes only. Raises `FrameError` for a value of another kind."""
        blobs: list[bytes] = []
        said = [[name, *_said(record, blobs)] for name, record in self.content.items()]
        head = json.dumps({"fedcipher_message": _VERSION, "type": self.type, "records": said}).encode()
        return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *blobs])

    @classmethod
    def parse(cls, raw: bytes, node: int = 0) -> Message:
        """From `to_bytes`. Raises `FrameError` for anything else."""
        size = int.from_bytes(raw[:_LENGTH], "little")
        if len(raw) < _LENGTH or size > min(len(raw) - _LENGTH, MAX_INDEX):
            raise FrameError("the bytes are no message: they do not begin with the length of a head")
        try:
            head: Any = parse_json(raw[_LENGTH : _LENGTH + size])
            if head["fedcipher_message"] != _VERSION or type(head["type"]) is not str:
                raise ValueError("another version")
            blobs = _Blobs(memoryview(raw)[_LENGTH + size :])
            content: Content = {_text(name): _record(kind, said, blobs) for name, kind, said in head["records"]}
            blobs.check_empty()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FrameError("the bytes are no message of this version, or they are damaged") from error
        return cls(node, head["type"], content)


@dataclass
class Reply:
    """What came back from ``node``: content, or the ``error`` that its framework reports.

    ``reference`` is that of a refusal of ours, under which the client's own log has the cause.
    """

    node: int
    content: Content = field(default_factory=Content)
    error: str | None = None
    reference: str | None = None


# --- as bytes --------------------------------------------------------------------------------


class _Blobs:
    """The bytes behind a head, taken in order."""

    def __init__(self, left: memoryview) -> None:
        self._left = left

    def take(self, size: object) -> bytes:
        if type(size) is not int or not 0 <= size <= len(self._left):
            raise ValueError("more bytes are named than there are")
        taken, self._left = bytes(self._left[:size]), self._left[size:]
        return taken

    def check_empty(self) -> None:
        if len(self._left):
            raise ValueError("bytes are left over")


def _said(record: Arrays | Config | Metrics, blobs: list[bytes]) -> tuple[str, list[Any]]:
    if isinstance(record, Arrays):
        blobs.extend(array.data for array in record.values())
        return "arrays", [[k, a.dtype, list(a.shape), a.stype, len(a.data)] for k, a in record.items()]
    kind = "config" if isinstance(record, Config) else "metrics"
    return kind, [[name, _said_value(value, blobs)] for name, value in record.items()]


def _said_value(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, list):
        return {"list": [_said_value(item, blobs) for item in cast("list[Any]", value)]}
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bool, int, str)):
        return value
    raise FrameError(f"a message carries no value of type {type(value).__name__}")


def _record(kind: Any, said: Any, blobs: _Blobs) -> Arrays | Config | Metrics:
    if _RECORDS[kind] is Arrays:
        made = Arrays()
        for name, dtype, shape, stype, size in said:
            lengths = tuple(length for length in shape if type(length) is int and length >= 0)
            if len(lengths) != len(shape):
                raise ValueError("a shape is not of whole numbers")
            made[_text(name)] = PackedArray(_text(dtype), lengths, _text(stype), blobs.take(size))
        return made
    return _RECORDS[kind]({_text(name): _value(value, blobs) for name, value in said})


def _value(said: Any, blobs: _Blobs) -> Any:
    if not isinstance(said, dict):
        if not isinstance(said, (bool, int, str)):
            raise TypeError("a value of another kind")
        return said
    ((kind, value),) = cast("dict[str, Any]", said).items()
    if kind == "list":
        return [_value(item, blobs) for item in value]
    return float.fromhex(value) if kind == "float" else {"bytes": blobs.take}[kind](value)


def _text(said: Any) -> str:
    if type(said) is not str:
        raise TypeError("a name that is no text")
    return said


# --- records ---------------------------------------------------------------------------------


def record_in(content: Content, name: str, kind: type[_Record]) -> _Record | None:
    """The record ``name``, where it is of this ``kind``."""
    found = content.get(name)
    return found if isinstance(found, kind) else None


def aggregate_key(step: int, group: int = 0) -> str:
    """Key of the sum of ``group`` in the chain's ``step``; keys sort in the order of steps."""
    return f"{AGGREGATE_PREFIX}{step:0{_DIGITS}d}.{group:0{_GROUP_DIGITS}d}"


def aggregate_of(key: str) -> tuple[int, int]:
    """(step, group) behind an `aggregate_key`. Raises `FrameError` for any other text."""
    step, _, group = key.removeprefix(AGGREGATE_PREFIX).partition(".")
    digits = step + group
    if not (digits.isascii() and digits.isdigit() and step and group) or aggregate_key(int(step), int(group)) != key:
        raise FrameError("an array of the message does not name a sum by its step and group")
    return int(step), int(group)


def packed_frame(frame: bytes) -> PackedArray:
    """A frame as an array of uint8, without a copy."""
    return PackedArray("uint8", (len(frame),), _FRAME, frame)


def frame_bytes(array: PackedArray) -> bytes:
    """The frame in an array of `packed_frame`, without a copy. Raises `FrameError` for any other array."""
    if (array.stype, array.dtype, tuple(array.shape)) != (_FRAME, "uint8", (len(array.data),)):
        found = f"{array.stype!r} of type {array.dtype} and shape {array.shape}"
        raise FrameError(f"a frame is a row of bytes, not {found}")
    return array.data


def to_numpy(array: PackedArray) -> Array:
    """The values of an array, read-only, without a copy.

    NumPy's own reader allocates whatever size the bytes claim before it looks for the values; here the claim is checked
    first. Raises `FrameError`.
    """
    stream = BytesIO(array.data)
    try:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError, RecursionError, MemoryError, SyntaxError, TypeError) as error:
        raise FrameError("an array's bytes do not begin with a header of NumPy's format") from error
    start = stream.tell()
    if dtype.kind not in _KINDS or any(length < 0 for length in shape):
        raise FrameError(f"an array of type {dtype} and shape {shape} is no array of numbers")
    count = math.prod(shape)
    if count * dtype.itemsize != len(array.data) - start:
        raise FrameError(f"an array claims {count} values of type {dtype} and brings {len(array.data) - start} bytes")
    values = np.frombuffer(array.data, dtype, count, start) if count else np.zeros(0, dtype)
    return values.reshape(shape, order="F" if fortran else "C")


def _packed(values: Array) -> PackedArray:
    # np.ascontiguousarray would make a row of one out of an array without dimensions.
    values = np.asarray(values, order="C")
    stream = BytesIO()
    np.save(stream, values, allow_pickle=False)
    return PackedArray(str(values.dtype), values.shape, "numpy.ndarray", stream.getvalue())


def named(names: Sequence[str], arrays: Sequence[Array]) -> Arrays:
    """Arrays under the model's names."""
    if len(names) != len(arrays):
        raise LayoutError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    return Arrays({name: _packed(values) for name, values in zip(names, arrays, strict=True)})


def wire_record(frames: Mapping[str, bytes]) -> Arrays:
    """Frames by name."""
    return Arrays({key: packed_frame(frame) for key, frame in frames.items()})


def payload_bytes(record: Arrays) -> int:
    """Bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())


# --- types -----------------------------------------------------------------------------------


def type_of(message_type: str) -> tuple[str, str]:
    """Category and function of a message type that a caller names. Raises `ParameterError`."""
    category, action = split_type(message_type)
    if not action.isidentifier() or category not in _CATEGORIES:
        raise ParameterError(
            f"{message_type!r} is no message type; name a category (train, evaluate, query) or, behind a dot, one "
            "function of it, such as query.stats"
        )
    return category, action


def split_type(message_type: str) -> tuple[str, str]:
    """Category and function; Flower takes ``query`` for ``query.default``."""
    category, dot, action = message_type.partition(".")
    return category, action if dot else "default"
