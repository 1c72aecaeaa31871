"""Refuses the messages that belong to no run, in a form that ends the app of a server without `SecureStrategy`.

Flower's strategies count error replies, go on, and end well without a result. So training is refused with
unreadable arrays. The server's app ends in the first round, with NumPy's error, which quotes the refusal. The form of
the reply depends on the message alone.
"""

from __future__ import annotations

import math

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedcipher.adapters.flower.records import refuse
from fedcipher.errors import PlaintextError
from fedcipher.federation.messages import Arrays, Content
from fedcipher.federation.refusal import TEXT, reference_of, refusal, unreadable_array

__all__ = ["is_refusal", "refuse_without_run"]

_NAME = "fedcipher.refused"
"""The array of a refusal whose message has no arrays."""
_OLDER_MODEL = "fitins.parameters"
"""The record of a strategy of ``flwr.server.strategy``, Flower's older API, that holds the model."""


def refuse_without_run(msg: Message, content: Content, remedy: str) -> Message:
    """The refusal of ``msg``, which belongs to no run of Fedcipher. ``remedy`` is for this client's log.

    ``content`` is what the message brought; ``msg`` itself may be empty by now.
    """
    kind = msg.metadata.message_type
    error = PlaintextError(f"a message of type {kind!r} without a round of SecureStrategy; {remedy}")
    if kind.partition(".")[0] != "train":
        return refuse(msg, error)
    unreadable = Array(dtype="float32", shape=(0,), stype="numpy.ndarray", data=unreadable_array(refusal(error)))
    models = ((key, list(record)) for key, record in content.items() if isinstance(record, Arrays))
    key, names = next(models, ("arrays", []))
    # Flower compares the names of all replies before it reads an array. Not a number: no sum counts this client.
    arrays, weight = ArrayRecord(dict.fromkeys(names or [_NAME], unreadable)), math.nan
    if key == _OLDER_MODEL:
        return Message(_older_reply(arrays, weight), reply_to=msg)
    return Message(RecordDict({key: arrays, "metrics": MetricRecord({"num-examples": weight})}), reply_to=msg)


def is_refusal(reply: Message) -> bool:
    """Whether ``reply`` is a refusal, of training or of another message. Its arrays are not read."""
    if reply.has_error():
        return reference_of(reply.error.reason or "", reply.error.code) is not None
    arrays = [array for record in reply.content.array_records.values() for array in record.values()]
    return any(TEXT.encode() in array.data[: 2 * len(TEXT)] for array in arrays[:1])


def _older_reply(arrays: ArrayRecord, weight: float) -> RecordDict:
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        "parameters": arrays,
        "num_examples": MetricRecord({"num_examples": weight}),
        "metrics": ConfigRecord(),
        "status": ConfigRecord({"code": 0, "message": ""}),
    }
    return RecordDict({f"fitres.{name}": record for name, record in records.items()})
