"""The last check of a reply, right before it leaves the client."""

from __future__ import annotations

from typing import Any

from fedcipher.errors import PlaintextError
from fedcipher.federation.client.evidence import HEAD_BYTES
from fedcipher.federation.messages import (
    CLEAR,
    CONTEXT,
    METRICS,
    UPDATE,
    Arrays,
    Config,
    Content,
    Metrics,
    frame_bytes,
)
from fedcipher.federation.records import PHASES
from fedcipher.frame import Kind, inspect

__all__ = ["checked", "only_metrics"]

# A reply of an allowed message type could carry data as a long list of metrics. An app sees its data, so this check
# cannot stop what an app sends on purpose. These limits stop data that an app sends by mistake.
_MAX_NUMBERS = 4096
_MAX_TEXT = 4096


def checked(reply: Content, scheme: str, number: int, clear: frozenset[str]) -> Content:
    """Return ``reply`` if it may leave. Raises `PlaintextError` otherwise.

    The reply must hold exactly one array in one record: a frame of ``scheme`` and round ``number``. It may also hold
    seconds and bytes of work that do not depend on data, the digest of the app's settings, the head of the site's log,
    and the metrics in ``clear``.
    """
    for name, record in reply.items():
        keys = set(record.keys())
        if isinstance(record, Arrays):
            fit = keys == {UPDATE}
        elif name == METRICS:
            fit = isinstance(record, Metrics) and keys <= PHASES
        elif name == CONTEXT:
            fit = isinstance(record, Config) and {"digest"} <= keys <= {"digest", "unopened", "head"}
            head = record.get("head", bytes(HEAD_BYTES))
            fit = fit and isinstance(head, bytes) and len(head) == HEAD_BYTES
        else:
            fit = name == CLEAR and isinstance(record, Metrics) and keys <= clear
        if not fit:
            raise PlaintextError(f"the reply carries a record {name!r} that must not leave")
    arrays = [record for record in reply.values() if isinstance(record, Arrays)]
    if len(arrays) != 1:
        raise PlaintextError(f"the reply carries {len(arrays)} records of arrays; it must carry one frame")
    header = inspect(frame_bytes(arrays[0][UPDATE]))
    if (header.kind, header.scheme, header.round, len(header.clients)) != (Kind.UPDATE, scheme, number, 1):
        raise PlaintextError("the reply's frame is not this client's frame of this round")
    return reply


def only_metrics(reply: Content) -> Content:
    """Return ``reply`` if it carries no arrays, no bytes, and at most 4096 numbers and 4096 characters.

    Raises `PlaintextError` otherwise.
    """
    numbers = text = 0
    for name, record in reply.items():
        if isinstance(record, Arrays):
            raise PlaintextError("the reply carries a record of arrays; return metrics only")
        text += len(name)
        for key, value in record.items():
            text += len(key)
            counted, characters = _size(name, key, value)
            numbers, text = numbers + counted, text + characters
    if numbers > _MAX_NUMBERS or text > _MAX_TEXT:
        raise PlaintextError(
            f"the reply carries {numbers} numbers and {text} characters; at most {_MAX_NUMBERS} numbers and "
            f"{_MAX_TEXT} characters may leave in the clear"
        )
    return reply


def _size(name: str, key: str, values: Any) -> tuple[int, int]:
    """How many numbers and characters one entry has. Raises `PlaintextError` for any other type."""
    numbers = text = 0
    for value in values if isinstance(values, list) else [values]:
        if isinstance(value, str):
            text += len(value)
        elif isinstance(value, int | float):
            numbers += 1
        else:
            raise PlaintextError(f"{key!r} of the reply's {name!r} is {type(value).__name__}, not a number or text")
    return numbers, text
