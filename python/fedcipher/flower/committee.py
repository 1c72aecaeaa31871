"""The committee of schemes without a shared key: how a server asks its members, and how one answers.

A member is a node whose key is that of a member of the roster; it answers inside `client_mod`, so an app needs no
line for it. Flower brings only types of message to an app that it has a function for, so requests travel as what the
round's training messages are, and are known by their record.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from fedcipher.errors import FedcipherError, FrameError
from fedcipher.flower import protocol
from fedcipher.flower.party import party_of
from fedcipher.flower.refusal import reference_of
from fedcipher.flower.replies import Gathering
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.schemes import Aggregator

__all__ = ["Committee", "NoSum", "answer", "is_for_member"]

_log = quoting_log("fedcipher.flower")

_RECORD = protocol.PREFIX + "committee"
_REQUEST = protocol.PREFIX + "request"
_ANSWER = protocol.PREFIX + "answer"
_PARTY = "party"
_PROPOSALS = 3
"""So often members are asked to agree on one sum: as it is, with what more of them remember than lie, with all."""
_LEAST = 1.0
"""Seconds that members have at least."""


@dataclass(frozen=True)
class NoSum:
    """A sum that was not made, and ``why``. ``asked``: some member may have answered for its set, and remember it."""

    why: str
    asked: bool = False


def is_for_member(msg: Message) -> bool:
    """Whether a message is to a member of a committee, and not to the app."""
    return _RECORD in msg.content


def answer(msg: Message, ctxt: Context) -> Message:
    """The member's side: its number, or its answer to a request. Raises `FrameError` and what a member raises.

    A number is no secret: it is in every frame of that party.
    """
    party = party_of(ctxt)
    record = msg.content.get(_RECORD)
    if isinstance(record, ConfigRecord):
        return Message(RecordDict({_RECORD: ConfigRecord({_PARTY: party.client})}), reply_to=msg)
    if not isinstance(record, ArrayRecord) or list(record.keys()) != [_REQUEST]:
        raise FrameError("a message to a member of the committee without a request")
    frame = party.member().answer(protocol.frame_bytes(record[_REQUEST]))
    return Message(RecordDict({_RECORD: protocol.wire_record({_ANSWER: frame})}), reply_to=msg)


class Committee:
    """The server's side: which node each party is, and one exchange with the members a round."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._nodes: dict[int, int] = {}

    def ask(self, grid: Grid, aggregator: Aggregator, message_type: str, known: dict[int, int]) -> NoSum | None:
        """Fix who is in the sum and collect the members' answers; why there are too few of them, if so.

        ``message_type`` is that of the round's training messages; ``known`` maps parties to the nodes that their
        updates came from. At once where the scheme has no committee.
        Members have ``patience`` seconds; who is not heard of by then is away. Once as many have answered as the sum
        takes, the others have as long again: with more answers than it takes a false one is found.

        Where the sum counts in a memory, members first agree that it may exist. Those that remember other sets say so,
        and all are asked again with these.
        """
        requests = aggregator.requests()
        if not requests:
            return None
        self._nodes.update({party: node for party, node in known.items() if party in requests})
        proposes, until, left = aggregator.agreeing, time.monotonic() + self._patience, _PROPOSALS
        why: NoSum | None = None
        while aggregator.agreeing:
            if left == 0 or (why is not None and time.monotonic() >= until):
                return why
            why = self._exchange(grid, aggregator, message_type, requests)
            requests, left = aggregator.requests(), left - 1
        why = self._exchange(grid, aggregator, message_type, requests)
        # Who has agreed remembers the set.
        return why and replace(why, asked=why.asked or proposes)

    def _exchange(
        self, grid: Grid, aggregator: Aggregator, message_type: str, requests: dict[int, bytes]
    ) -> NoSum | None:
        """Send ``requests`` and take the answers, until none is missing; why one is, if so."""
        began = time.monotonic()
        if self._missing(requests):
            self._find(grid, message_type, requests, until=began + self._patience / 2)
        sent = {self._nodes[m]: (m, frame) for m, frame in requests.items() if m in self._nodes}
        asked = {node: protocol.wire_record({_REQUEST: frame}) for node, (_, frame) in sent.items()}
        messages = [_message(node, message_type, record) for node, record in asked.items()]
        silent, refused, needed = set(requests), set[int](), aggregator.missing
        replies = Gathering(
            grid,
            messages,
            until=max(began + self._patience, time.monotonic() + _LEAST),
            enough=lambda: not aggregator.missing,
            grace=lambda seconds: max(_LEAST, seconds),
        )
        for reply in replies:
            member = sent.get(reply.metadata.src_node_id, (None, b""))[0]
            try:
                silent.discard(aggregator.answer(_frame_of(reply)))
            except FedcipherError as error:
                reference = reference_of(reply)
                # Its node may be another's by now.
                self._nodes.pop(member if member is not None else -1, None)
                refused.update([] if member is None else [member])
                _log.warning(
                    "member %s of the committee: %s",
                    member,
                    f"it refused; its own log has the cause, reference {reference}" if reference else error,
                )
        if not aggregator.missing:
            return None
        asked = aggregator.missing < needed or bool(silent - refused)
        if aggregator.accused:
            return NoSum(f"clients {aggregator.accused} have sealed to the committee what is no share of theirs", asked)
        return NoSum(
            f"{len(requests) - len(silent)} of {len(requests)} members of the committee have answered within "
            f"{self._patience:g} s, {aggregator.missing} more must; without: {sorted(silent)}",
            asked,
        )

    def _missing(self, requests: Collection[int]) -> bool:
        return any(member not in self._nodes for member in requests)

    def _find(self, grid: Grid, message_type: str, requests: Collection[int], until: float) -> None:
        """Ask nodes that are not known who they are, until all members of ``requests`` are known."""
        strangers = sorted(set(grid.get_node_ids()) - set(self._nodes.values()))
        messages = [_message(node, message_type, ConfigRecord({"who": True})) for node in strangers]
        for reply in Gathering(grid, messages, until=until, enough=lambda: not self._missing(requests)):
            record = None if reply.has_error() else reply.content.get(_RECORD)
            party = record.get(_PARTY) if isinstance(record, ConfigRecord) else None
            if isinstance(party, int):
                self._nodes.setdefault(party, reply.metadata.src_node_id)


def _message(node: int, message_type: str, record: ArrayRecord | ConfigRecord) -> Message:
    return Message(RecordDict({_RECORD: record}), dst_node_id=node, message_type=message_type)


def _frame_of(reply: Message) -> bytes:
    if reply.has_error():
        raise FrameError(quoted(reply.error.reason))
    record = reply.content.get(_RECORD)
    if not isinstance(record, ArrayRecord) or list(record.keys()) != [_ANSWER]:
        raise FrameError("a member's reply does not hold its answer")
    return protocol.frame_bytes(record[_ANSWER])
