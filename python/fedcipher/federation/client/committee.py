"""A committee member's replies to the server: its identity, its answer to a request, and the end of a run.

A member is a node with the key of a member of the roster. It answers inside a `ClientSession`, so an app needs no code
for it.
"""

from __future__ import annotations

from fedcipher.errors import FrameError
from fedcipher.federation.client.key_holder import KeyHolder
from fedcipher.federation.messages import (
    ANSWER,
    COMMITTEE,
    PARTY,
    PREKEY,
    REQUEST,
    Arrays,
    Config,
    Content,
    Metrics,
    frame_bytes,
    wire_record,
)
from fedcipher.frame import inspect

__all__ = ["answer"]


def answer(record: Arrays | Config | Metrics, holder: KeyHolder) -> Content:
    """The content of the reply to a message for the committee with this ``record``.

    The reply holds the member's number or answer and its prekey for the next round, which are public. Raises
    `FrameError` and the errors of a member.
    """
    if isinstance(record, Config):
        return {COMMITTEE: _describe_party(holder, record)}
    if not isinstance(record, Arrays) or list(record) != [REQUEST]:
        raise FrameError("a message to a member of the committee has no request")
    request = frame_bytes(record[REQUEST])
    member = holder.member(inspect(request).epoch)
    frame = member.answer(request)
    return {COMMITTEE: wire_record({ANSWER: frame, PREKEY: member.prekey()})}


def _describe_party(holder: KeyHolder, record: Config) -> Config:
    """This party's number, and a member's prekey, for a server that asks for them or announces the end of the run."""
    reply = Config({PARTY: holder.client})
    epoch = record.get("who", record.get("end"))
    if set(record) not in ({"who"}, {"end"}) or type(epoch) is not int:
        raise FrameError("a message to a member of the committee has an unknown question")
    if holder.is_member:
        # A run keeps its key epoch, even if an engine already has a newer one.
        member = holder.member(epoch)
        if "end" in record:
            member.forget()
        else:
            reply[PREKEY] = member.prekey()
    return reply
