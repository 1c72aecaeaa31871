"""The one check that every reply passes right before it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from fedcipher import _native
from fedcipher.errors import PlaintextError
from fedcipher.flower import protocol

__all__ = ["Expected", "checked"]

_UPDATE_KIND = 1
# An update can also leave as a long list of metrics, or as bytes. What an app writes on purpose nobody can
# stop, since it sees its data; these limits stop what it writes by mistake. 4096 numbers: the confusion
# matrix of 64 classes.
_MOST_NUMBERS = 4096
_MOST_TEXT = 4096


@dataclass(frozen=True)
class Expected:
    """The update that a training reply must be."""

    scheme: str
    round: int


def checked(reply: object, update: Expected | None) -> Message:
    """``reply`` itself, when it is fit to leave; `PlaintextError` otherwise.

    A training reply holds exactly one array in exactly one ArrayRecord, and that array is an update of
    ``update``'s scheme and round. Every other reply holds no ArrayRecord at all. Neither holds bytes,
    more than 4096 numbers, or more than 4096 characters in its other records.
    """
    if not isinstance(reply, Message):
        raise PlaintextError(f"the app answered with {type(reply).__name__}, not with a Message")
    if reply.has_error():
        raise PlaintextError(f"the app's error reply stays here, its text may quote data: {reply.error.reason}")
    records = list(reply.content.items())
    arrays = [record for _, record in records if isinstance(record, ArrayRecord)]
    if update is not None:
        _check_update(arrays, update)
    elif arrays:
        raise PlaintextError(f"a reply that is no update carries {len(arrays)} ArrayRecords; return metrics only")
    _check_rest((name, record) for name, record in records if not isinstance(record, ArrayRecord))
    return reply


def _check_update(records: list[ArrayRecord], update: Expected) -> None:
    arrays = [array for record in records for array in record.items()]
    if len(records) != 1 or len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:
        raise PlaintextError(f"the reply carries {len(arrays)} arrays in {len(records)} records; only one frame leaves")
    kind, scheme, _, number, contributions, *_ = _native.inspect(protocol.frame_bytes(arrays[0][1]))
    if (kind, scheme, number, len(contributions)) != (_UPDATE_KIND, update.scheme, update.round, 1):
        raise PlaintextError("the reply's frame is not this client's update of this round")


def _check_rest(records: Iterable[tuple[str, Any]]) -> None:
    numbers = text = 0
    for name, record in records:
        if not isinstance(record, MetricRecord | ConfigRecord):
            raise PlaintextError(f"the reply carries a record of type {type(record).__name__}")
        text += len(name)
        for key, held in record.items():
            text += len(key)
            for value in held if isinstance(held, list) else [held]:
                if isinstance(value, str):
                    text += len(value)
                elif isinstance(value, int | float):
                    numbers += 1
                else:
                    raise PlaintextError(f"{key!r} of the reply's {name!r} is {type(value).__name__}, not a number")
    if numbers > _MOST_NUMBERS or text > _MOST_TEXT:
        raise PlaintextError(
            f"the reply carries {numbers} numbers and {text} characters beside its frame; at most {_MOST_NUMBERS} "
            f"and {_MOST_TEXT} leave in the clear"
        )
