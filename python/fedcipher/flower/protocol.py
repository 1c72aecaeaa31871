"""What the two ends of the Flower integration call things in their messages, and how bytes become arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord

from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FrameError, LayoutError

__all__ = [
    "AGGREGATE_PREFIX",
    "CLEAR",
    "CONFIG",
    "CONTEXT",
    "EVALUATION",
    "METRICS",
    "REPORT",
    "UPDATE",
    "aggregate_key",
    "aggregate_of",
    "bytes_array",
    "frame_bytes",
    "named",
    "record_bytes",
    "to_numpy",
    "wire_record",
]

PREFIX = "fedcipher."
CONFIG = PREFIX + "round"
"""ConfigRecord of a message: `fedcipher.flower.settings.RoundSettings`."""
METRICS = PREFIX + "metrics"
"""MetricRecord of a reply: seconds of work that does not depend on data; removed before the strategy sees it."""
CONTEXT = PREFIX + "context"
"""ConfigRecord of a reply: the digest of what the app was given beside the charter."""
CLEAR = PREFIX + "clear"
"""MetricRecord of a reply: the metrics that charter and client configuration let leave in the clear."""
REPORT = PREFIX + "report"
"""ConfigRecord of a message that asks a reader for a report, and of the reply with it."""
EVALUATION = PREFIX + "evaluation"
"""ArrayRecord of such a message, and its one array: the sum of an evaluation's answers."""
UPDATE = PREFIX + "update"
"""Array of a reply: the client's frame."""
AGGREGATE_PREFIX = PREFIX + "aggregate."
"""Arrays of a message: sums by step and group, to be applied in order."""
_SERIALISATION = "an encrypted frame; SecureStrategy(opener=...) and `fedcipher open` read models"
"""How a frame's bytes lie in Flower's array: as they are, where ``numpy.save`` would copy and wrap them. Who reads one
as numbers is told this by Flower."""

_DIGITS, _GROUP_DIGITS = 8, 4
_KINDS = "biuf"


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


def bytes_array(frame: bytes) -> Array:
    """A frame as a Flower array of uint8, without a copy."""
    return Array(dtype="uint8", shape=(len(frame),), stype=_SERIALISATION, data=frame)


def to_numpy(array: Array) -> NumpyArray:
    """The values of a Flower array, read-only, without a copy.

    Flower's own ``numpy()`` allocates whatever size the bytes claim before it looks for the values; here
    the claim is checked first. Raises `FrameError`.
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


def frame_bytes(array: Array) -> bytes:
    """The frame in an array of `bytes_array`, without a copy. Raises `FrameError` for any other array."""
    if (array.stype, array.dtype, array.shape) != (_SERIALISATION, "uint8", (len(array.data),)):
        found = f"{array.stype!r} of type {array.dtype} and shape {array.shape}"
        raise FrameError(f"a frame is a row of bytes, not {found}")
    return array.data


def named(names: Sequence[str], arrays: Sequence[NumpyArray]) -> ArrayRecord:
    """Arrays under the model's names."""
    if len(names) != len(arrays):
        raise LayoutError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    # np.ascontiguousarray would make a row of one out of an array without dimensions.
    return ArrayRecord({name: Array(np.asarray(x, order="C")) for name, x in zip(names, arrays, strict=True)})


def wire_record(frames: Mapping[str, bytes]) -> ArrayRecord:
    """An ArrayRecord of frames."""
    return ArrayRecord({key: bytes_array(frame) for key, frame in frames.items()})


def record_bytes(record: ArrayRecord) -> int:
    """Bytes of an ArrayRecord's payloads."""
    return sum(len(array.data) for array in record.values())
