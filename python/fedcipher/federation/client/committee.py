"""A member of a committee: who it is, the end of a run, or its answer to a request.

A member is a node whose key is that of a member of the roster. It answers inside a `ClientSession`, so an app needs no
line for it.
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
    """The content of the reply to a message with this ``record`` for the committee.

    A member says its number and its prekey for the next round, which are no secret. Raises `FrameError` and what a
    member raises.
    """
    if isinstance(record, Config):
        return {COMMITTEE: _told(holder, record)}
    if not isinstance(record, Arrays) or list(record) != [REQUEST]:
        raise FrameError("a message to a member of the committee without a request")
    request = frame_bytes(record[REQUEST])
    member = holder.member(inspect(request).epoch)
    frame = member.answer(request)
    return {COMMITTEE: wire_record({ANSWER: frame, PREKEY: member.prekey()})}


def _told(holder: KeyHolder, record: Config) -> Config:
    """What a party says of itself to a server that asks who it is, or that says that the run has ended."""
    told = Config({PARTY: holder.client})
    epoch = record.get("who", record.get("end"))
    if set(record) not in ({"who"}, {"end"}) or type(epoch) is not int:
        raise FrameError("a message to a member of the committee that asks nothing known")
    if holder.is_member:
        # A run keeps its key epoch, when an engine has a newer one too.
        member = holder.member(epoch)
        if "end" in record:
            member.forget()
        else:
            told[PREKEY] = member.prekey()
    return told
