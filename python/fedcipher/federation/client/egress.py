"""The check that a reply with an app's work passes right before it leaves."""

from __future__ import annotations

from typing import Any

from fedcipher.errors import PlaintextError
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

# A query that is allowed by name can also leave data as a long list of metrics. What an app writes on purpose nobody
# can stop, since it sees its data; these limits stop what it writes by mistake.
_MOST_NUMBERS = 4096
_MOST_TEXT = 4096


def checked(reply: Content, scheme: str, number: int, clear: frozenset[str]) -> Content:
    """``reply`` itself, when it is fit to leave; `PlaintextError` otherwise.

    It holds one array in one record, a frame of ``scheme`` and round ``number``; seconds and bytes of work that does
    not depend on data; the digest of what the app was told; and metrics named in ``clear``. Nothing else.
    """
    for name, record in reply.items():
        keys = set(record.keys())
        if isinstance(record, Arrays):
            fit = keys == {UPDATE}
        elif name == METRICS:
            fit = isinstance(record, Metrics) and keys <= PHASES
        elif name == CONTEXT:
            fit = isinstance(record, Config) and {"digest"} <= keys <= {"digest", "unopened"}
        else:
            fit = name == CLEAR and isinstance(record, Metrics) and keys <= clear
        if not fit:
            raise PlaintextError(f"the reply carries a record {name!r} that must not leave")
    arrays = [record for record in reply.values() if isinstance(record, Arrays)]
    if len(arrays) != 1:
        raise PlaintextError(f"the reply carries {len(arrays)} records of arrays; only one frame leaves")
    header = inspect(frame_bytes(arrays[0][UPDATE]))
    if (header.kind, header.scheme, header.round, len(header.clients)) != (Kind.UPDATE, scheme, number, 1):
        raise PlaintextError("the reply's frame is not this client's frame of this round")
    return reply


def only_metrics(reply: Content) -> Content:
    """``reply`` itself, when it carries no arrays, no bytes, at most 4096 numbers and 4096 characters.

    Raises `PlaintextError`.
    """
    numbers = text = 0
    for name, record in reply.items():
        if isinstance(record, Arrays):
            raise PlaintextError("the reply carries a record of arrays; return metrics only")
        text += len(name)
        for key, held in record.items():
            text += len(key)
            counted, written = _size(name, key, held)
            numbers, text = numbers + counted, text + written
    if numbers > _MOST_NUMBERS or text > _MOST_TEXT:
        raise PlaintextError(
            f"the reply carries {numbers} numbers and {text} characters; at most {_MOST_NUMBERS} and {_MOST_TEXT} "
            "leave in the clear"
        )
    return reply


def _size(name: str, key: str, held: Any) -> tuple[int, int]:
    numbers = text = 0
    for value in held if isinstance(held, list) else [held]:
        if isinstance(value, str):
            text += len(value)
        elif isinstance(value, int | float):
            numbers += 1
        else:
            raise PlaintextError(f"{key!r} of the reply's {name!r} is {type(value).__name__}, not a number")
    return numbers, text
