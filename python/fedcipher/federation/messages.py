"""Messages between a run's server and its clients, independent of the transport.

A message has named records, like Flower's messages: arrays, settings or metrics. An adapter transports them either
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
    "CONSENT",
    "CONTEXT",
    "EVALUATION",
    "METRICS",
    "PARTY",
    "PREFIX",
    "PREKEY",
    "QUERY",
    "READY",
    "RECORD",
    "REFUSED",
    "REPORT",
    "REQUEST",
    "UPDATE",
    "WAITING",
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
"""Settings record of a message: `fedcipher.federation.round_settings.RoundSettings`."""
METRICS = PREFIX + "metrics"
"""Metrics record of a reply: seconds of work that does not depend on data. A strategy does not get this record."""
CONSENT = PREFIX + "consent"
"""Settings record of a message that asks for consent to a charter, and of the reply with the site's state."""
READY, WAITING = "ready", "waiting"
"""States of a site in `CONSENT`: its people agree to the run, or have not decided yet."""
CONTEXT = PREFIX + "context"
"""Settings record of a reply: the digest of the app's inputs that the charter does not list."""
CLEAR = PREFIX + "clear"
"""Metrics record of a reply: unencrypted metrics, which the charter and the client's configuration allow."""
REPORT = PREFIX + "report"
"""Settings record of a message that asks a reader for a report, and of the reply with the report."""
EVALUATION = PREFIX + "evaluation"
"""Arrays record of a message that asks for a report, and name of its one array: the sum of an evaluation's answers."""
COMMITTEE = PREFIX + "committee"
"""Arrays or settings record of a message to a member of the committee, and of the member's reply."""
QUERY = PREFIX + "query"
"""Settings record of a query: its charter, and the round's plan."""
UPDATE = PREFIX + "update"
"""Name of an array in a reply: the client's frame."""
REFUSED = PREFIX + "refused"
"""Settings record of a reply: the text of a refusal, if the framework has no errors of its own."""
RECORD = "arrays"
"""Arrays record of a reply to a query."""
REQUEST, ANSWER = PREFIX + "request", PREFIX + "answer"
"""Names of arrays in `COMMITTEE`: the request to a member, and the member's answer."""
PARTY, PREKEY = "party", "prekey"
"""Names of a member's number and of its next prekey in the member's reply. Answers have the prekey too."""
AGGREGATE_PREFIX = PREFIX + "aggregate."
"""Prefix of arrays in a message: sums by step and group, to be applied in order."""

_FRAME = "an encrypted frame; SecureStrategy(opener=...) and `fedcipher open` read models"
"""Serialisation type of a frame: raw bytes. A program that reads a frame as numbers shows this text in its error."""
_DIGITS, _GROUP_DIGITS = 8, 4
_KINDS = "biuf"
_VERSION = 1
_CATEGORIES = ("train", "evaluate", "query")
_LENGTH = 8
"""Bytes of the length of the head. An encoded message begins with this length."""


@dataclass(frozen=True)
class PackedArray:
    """An array as bytes: in NumPy's file format, or a frame."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes = field(repr=False)


class Arrays(dict[str, PackedArray]):
    """A record of arrays by name; their order counts."""


class Config(dict[str, Any]):
    """A record of settings: numbers, texts, booleans, bytes, or lists of one of these types."""


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
    """A message to or from ``node``. ``type`` is Flower's message type, such as ``train``.

    ``place`` is the name of the record in which a strategy expects the model. It is not sent.
    """

    node: int
    type: str
    content: Content = field(default_factory=Content)
    place: str = ""

    def to_bytes(self) -> bytes:
        """The type and content as bytes, for a transport of bytes. Raises `FrameError` for values of other types."""
        blobs: list[bytes] = []
        records = [[name, *_encoded(record, blobs)] for name, record in self.content.items()]
        head = json.dumps({"fedcipher_message": _VERSION, "type": self.type, "records": records}).encode()
        return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *blobs])

    @classmethod
    def parse(cls, raw: bytes, node: int = 0) -> Message:
        """The message of `to_bytes`, from ``node``. Raises `FrameError` for other bytes."""
        size = int.from_bytes(raw[:_LENGTH], "little")
        if len(raw) < _LENGTH or size > min(len(raw) - _LENGTH, MAX_INDEX):
            raise FrameError("the bytes are not a message: they do not begin with the length of a head")
        try:
            head: Any = parse_json(raw[_LENGTH : _LENGTH + size])
            if head["fedcipher_message"] != _VERSION or type(head["type"]) is not str:
                raise ValueError("another version")
            blobs = _Blobs(memoryview(raw)[_LENGTH + size :])
            content: Content = {_text(name): _decoded(kind, encoded, blobs) for name, kind, encoded in head["records"]}
            blobs.check_empty()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FrameError("the bytes are not a message of this version, or they are damaged") from error
        return cls(node, head["type"], content)


@dataclass
class Reply:
    """A reply from ``node``: its content, or the ``error`` that the framework reports.

    ``reference`` is the reference of a refusal, if the reply is one. The client's own log has the cause under it.
    """

    node: int
    content: Content = field(default_factory=Content)
    error: str | None = None
    reference: str | None = None


# --- as bytes --------------------------------------------------------------------------------


class _Blobs:
    """The bytes after a head, read in order."""

    def __init__(self, left: memoryview) -> None:
        self._left = left

    def take(self, size: object) -> bytes:
        if type(size) is not int or not 0 <= size <= len(self._left):
            raise ValueError("the head names more bytes than there are")
        taken, self._left = bytes(self._left[:size]), self._left[size:]
        return taken

    def check_empty(self) -> None:
        if len(self._left):
            raise ValueError("bytes are left over")


def _encoded(record: Arrays | Config | Metrics, blobs: list[bytes]) -> tuple[str, list[Any]]:
    if isinstance(record, Arrays):
        blobs.extend(array.data for array in record.values())
        return "arrays", [[k, a.dtype, list(a.shape), a.stype, len(a.data)] for k, a in record.items()]
    kind = "config" if isinstance(record, Config) else "metrics"
    return kind, [[name, _encoded_value(value, blobs)] for name, value in record.items()]


def _encoded_value(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, list):
        return {"list": [_encoded_value(item, blobs) for item in cast("list[Any]", value)]}
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bool, int, str)):
        return value
    raise FrameError(f"a message cannot have a value of type {type(value).__name__}")


def _decoded(kind: Any, encoded: Any, blobs: _Blobs) -> Arrays | Config | Metrics:
    if _RECORDS[kind] is Arrays:
        made = Arrays()
        for name, dtype, shape, stype, size in encoded:
            lengths = tuple(length for length in shape if type(length) is int and length >= 0)
            if len(lengths) != len(shape):
                raise ValueError("a shape has a value that is not a whole number")
            made[_text(name)] = PackedArray(_text(dtype), lengths, _text(stype), blobs.take(size))
        return made
    return _RECORDS[kind]({_text(name): _decoded_value(value, blobs) for name, value in encoded})


def _decoded_value(encoded: Any, blobs: _Blobs) -> Any:
    if not isinstance(encoded, dict):
        if not isinstance(encoded, (bool, int, str)):
            raise TypeError("a value has another type")
        return encoded
    ((kind, value),) = cast("dict[str, Any]", encoded).items()
    if kind == "list":
        return [_decoded_value(item, blobs) for item in value]
    return float.fromhex(value) if kind == "float" else {"bytes": blobs.take}[kind](value)


def _text(encoded: Any) -> str:
    if type(encoded) is not str:
        raise TypeError("a name is not a text")
    return encoded


# --- records ---------------------------------------------------------------------------------


def record_in(content: Content, name: str, kind: type[_Record]) -> _Record | None:
    """The record ``name`` if it is of this ``kind``, else None."""
    found = content.get(name)
    return found if isinstance(found, kind) else None


def aggregate_key(step: int, group: int = 0) -> str:
    """The key of the sum of ``group`` in the chain's ``step``. Sorted keys are in the order of steps."""
    return f"{AGGREGATE_PREFIX}{step:0{_DIGITS}d}.{group:0{_GROUP_DIGITS}d}"


def aggregate_of(key: str) -> tuple[int, int]:
    """(step, group) of an `aggregate_key`. Raises `FrameError` for any other text."""
    step, _, group = key.removeprefix(AGGREGATE_PREFIX).partition(".")
    digits = step + group
    if not (digits.isascii() and digits.isdigit() and step and group) or aggregate_key(int(step), int(group)) != key:
        raise FrameError("an array of the message does not name a sum by its step and group")
    return int(step), int(group)


def packed_frame(frame: bytes) -> PackedArray:
    """A frame as a uint8 array of shape (bytes,), without a copy."""
    return PackedArray("uint8", (len(frame),), _FRAME, frame)


def frame_bytes(array: PackedArray) -> bytes:
    """The frame in an array of `packed_frame`, without a copy. Raises `FrameError` for any other array."""
    if (array.stype, array.dtype, tuple(array.shape)) != (_FRAME, "uint8", (len(array.data),)):
        found = f"{array.stype!r} of type {array.dtype} and shape {array.shape}"
        raise FrameError(f"an array should be a frame's bytes, and it is {found}")
    return array.data


def to_numpy(array: PackedArray) -> Array:
    """The values of an array, read-only, without a copy. Raises `FrameError`.

    NumPy's own reader allocates the size that the bytes claim before it looks for the values. This function checks the
    claim first.
    """
    stream = BytesIO(array.data)
    try:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[np.lib.format.read_magic(stream)](stream)
    except Exception as error:
        # NumPy's readers of headers raise nearly every error, also those of Python's tokenizer.
        raise FrameError("an array's bytes do not begin with a header of NumPy's format") from error
    start = stream.tell()
    if dtype.kind not in _KINDS or any(length < 0 for length in shape):
        raise FrameError(f"an array of type {dtype} and shape {shape} is not an array of numbers")
    count = math.prod(shape)
    if count * dtype.itemsize != len(array.data) - start:
        raise FrameError(f"an array claims {count} values of type {dtype} and has {len(array.data) - start} bytes")
    values = np.frombuffer(array.data, dtype, count, start) if count else np.zeros(0, dtype)
    try:
        return values.reshape(shape, order="F" if fortran else "C")
    except ValueError as error:
        raise FrameError(f"an array has a shape that NumPy does not support: {error}") from error


def _packed(values: Array) -> PackedArray:
    # np.ascontiguousarray would change the shape () to (1,).
    values = np.asarray(values, order="C")
    stream = BytesIO()
    np.save(stream, values, allow_pickle=False)
    return PackedArray(str(values.dtype), values.shape, "numpy.ndarray", stream.getvalue())


def named(names: Sequence[str], arrays: Sequence[Array]) -> Arrays:
    """A record of ``arrays`` under the model's ``names``. Raises `LayoutError` if their numbers differ."""
    if len(names) != len(arrays):
        raise LayoutError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    return Arrays({name: _packed(values) for name, values in zip(names, arrays, strict=True)})


def wire_record(frames: Mapping[str, bytes]) -> Arrays:
    """A record of ``frames`` by name."""
    return Arrays({key: packed_frame(frame) for key, frame in frames.items()})


def payload_bytes(record: Arrays) -> int:
    """Total number of bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())


# --- types -----------------------------------------------------------------------------------


def type_of(message_type: str) -> tuple[str, str]:
    """Category and function of a message type from a caller. Raises `ParameterError` for any other text."""
    category, action = split_type(message_type)
    if not action.isidentifier() or category not in _CATEGORIES:
        raise ParameterError(
            f"{message_type!r} is not a message type; name a category (train, evaluate, query), or a category, a dot "
            "and a function of it, such as query.stats"
        )
    return category, action


def split_type(message_type: str) -> tuple[str, str]:
    """Category and function of a message type. Flower reads ``query`` as ``query.default``."""
    category, dot, action = message_type.partition(".")
    return category, action if dot else "default"
