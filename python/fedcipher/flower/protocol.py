"""What the two ends of the Flower integration call things in their messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

__all__ = [
    "AGGREGATE_PREFIX",
    "CONFIG",
    "METRICS",
    "UPDATE",
    "aggregate_key",
    "bytes_array",
    "frame_bytes",
    "record_bytes",
    "wire_record",
]

PREFIX = "fedcipher."
CONFIG = PREFIX + "round"
"""ConfigRecord of a message: round, epoch, names, plan, unit, weighted_by."""
METRICS = PREFIX + "metrics"
"""MetricRecord of a reply: seconds and bytes by phase; removed before the strategy sees it."""
UPDATE = PREFIX + "update"
"""Array of a reply: the client's frame."""
AGGREGATE_PREFIX = PREFIX + "aggregate."
"""Arrays of a message: aggregates by sequence number, to be applied in order."""


def aggregate_key(sequence: int) -> str:
    """Key of aggregate number ``sequence``; keys sort in sequence order."""
    return f"{AGGREGATE_PREFIX}{sequence:08d}"


def bytes_array(frame: bytes) -> Array:
    """A frame as a Flower array of uint8."""
    return Array(np.frombuffer(frame, dtype=np.uint8))


def frame_bytes(array: Array) -> bytes:
    """The frame in a Flower array."""
    return array.numpy().tobytes()


def wire_record(frames: Mapping[str, bytes]) -> ArrayRecord:
    """An ArrayRecord of frames."""
    return ArrayRecord({key: bytes_array(frame) for key, frame in frames.items()})


def record_bytes(record: ArrayRecord) -> int:
    """Bytes of an ArrayRecord's payloads."""
    return sum(len(array.data) for array in record.values())
