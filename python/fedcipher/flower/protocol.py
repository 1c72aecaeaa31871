"""What the two ends of the Flower integration call things in their messages, and how bytes become arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord

from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FrameError

__all__ = [
    "AGGREGATE_PREFIX",
    "CONFIG",
    "METRICS",
    "UPDATE",
    "aggregate_key",
    "aggregate_sequence",
    "bytes_array",
    "frame_bytes",
    "record_bytes",
    "to_numpy",
    "wire_record",
]

PREFIX = "fedcipher."
CONFIG = PREFIX + "round"
"""ConfigRecord of a message: `fedcipher.flower.settings.RoundSettings`."""
METRICS = PREFIX + "metrics"
"""MetricRecord of a reply: seconds and bytes by phase; removed before the strategy sees it."""
UPDATE = PREFIX + "update"
"""Array of a reply: the client's frame."""
AGGREGATE_PREFIX = PREFIX + "aggregate."
"""Arrays of a message: aggregates by sequence number, to be applied in order."""
_SERIALISATION = "an encrypted frame; SecureStrategy(opener=...) and `fedcipher open` read models"
"""How a frame's bytes lie in Flower's array: as they are, where ``numpy.save`` would copy and wrap them. Who reads one
as numbers is told this by Flower."""

_DIGITS = 8
_KINDS = "biuf"


def aggregate_key(sequence: int) -> str:
    """Key of aggregate number ``sequence``; keys sort in sequence order."""
    return f"{AGGREGATE_PREFIX}{sequence:0{_DIGITS}d}"


def aggregate_sequence(key: str) -> int:
    """The number behind an `aggregate_key`. Raises `FrameError` for any other text."""
    digits = key.removeprefix(AGGREGATE_PREFIX)
    if len(digits) < _DIGITS or not (digits.isascii() and digits.isdigit()) or aggregate_key(int(digits)) != key:
        raise FrameError(f"{key!r} does not name an aggregate by its number")
    return int(digits)


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


def wire_record(frames: Mapping[str, bytes]) -> ArrayRecord:
    """An ArrayRecord of frames."""
    return ArrayRecord({key: bytes_array(frame) for key, frame in frames.items()})


def record_bytes(record: ArrayRecord) -> int:
    """Bytes of an ArrayRecord's payloads."""
    return sum(len(array.data) for array in record.values())
