"""How a server asks the members of a committee, under schemes without a shared key.

Some frameworks deliver only message types that the app has a function for. So a request has the message type of the
round's training messages. Its record (``COMMITTEE``) marks it as a request.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, replace

from fedcipher import _native
from fedcipher.errors import FedcipherError, FrameError
from fedcipher.federation.messages import (
    ANSWER,
    COMMITTEE,
    PARTY,
    PREKEY,
    REQUEST,
    Arrays,
    Config,
    Message,
    Reply,
    frame_bytes,
    record_in,
    wire_record,
)
from fedcipher.federation.server.link import Link
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.frame import inspect
from fedcipher.schemes import Aggregator, CommitteeRound, Scheme

__all__ = ["Committee", "NoSum", "for_reader", "members_of", "needed_of"]

_log = quoting_log("fedcipher.federation")

_MAX_PROPOSALS = 3
"""How often members are asked to agree on one sum.

First as the server proposes it, then with the sets that more members remember than may lie, then with all sets.
"""
_MIN_SECONDS = 1.0
"""The shortest time, in seconds, that members have to answer."""


@dataclass(frozen=True)
class NoSum:
    """A sum that was not made, and ``why``.

    ``asked`` is true if a member may have answered for the sum's set of clients, and so remembers the set.
    """

    why: str
    asked: bool = False


def members_of(scheme: Scheme, key: _native.ServerKey) -> frozenset[int]:
    """The members of the committee; empty if the scheme has no committee."""
    return frozenset() if scheme.committee is None else scheme.committee.members(key)


def needed_of(scheme: Scheme) -> int:
    """How many members must answer for a sum; 0 if the scheme has no committee."""
    return 0 if scheme.committee is None else scheme.committee.needed


def for_reader(scheme: Scheme, frame: bytes, reader: int) -> bytes:
    """The part of an aggregate that ``reader`` needs; the whole aggregate if the scheme has no committee."""
    return frame if scheme.committee is None else scheme.committee.for_reader(frame, reader)


class Committee:
    """The server's side of a committee. It knows the node of each party and exchanges messages with the members.

    Members have ``patience`` seconds to answer.
    """

    def __init__(self, patience: float, scheme: Scheme, key: _native.ServerKey) -> None:
        self._patience, self._scheme, self._key = patience, scheme, key
        self._numbers: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._prekeys: dict[int, bytes] = {}
        self.why_no_sum = ""
        """Why there can be no sum with the prekeys of the last `collect_prekeys`; empty if there can be one."""

    def collect_prekeys(self, link: Link, members: Collection[int], needed: int, message_type: str) -> list[bytes]:
        """The newest prekey of each of ``members``, to which clients encrypt their shares.

        Members without a known node, and members that did not answer the last question, are asked for their prekeys.
        Members that do not answer are missing from the result. Once ``needed`` members have answered, the others have
        the same time again. Returns an empty list if the scheme has no committee.
        """
        if set(members) - set(self._prekeys):
            self._ask_prekeys(link, set(members), needed, message_type)
        found = [member for member in sorted(members) if member in self._prekeys]
        self.why_no_sum = ""
        if len(found) < needed:
            self.why_no_sum = (
                f"{len(found)} of {len(members)} members of the committee have sent a prekey within "
                f"{self._patience:g} s, and {needed - len(found)} more must; "
                f"missing: {sorted(set(members) - set(found))}"
            )
            _log.warning("%s", self.why_no_sum)
        return [self._prekeys[member] for member in found]

    def _ask_prekeys(self, link: Link, members: Set[int], needed: int, message_type: str) -> None:
        """Ask for the prekeys that are missing."""

        def missing() -> Set[int]:
            return members - set(self._prekeys)

        known = {node for member, node in self._nodes.items() if member not in missing()}
        messages = [
            _message(node, message_type, Config({"who": self._key.epoch})) for node in _unknown_nodes(link, known)
        ]
        replies = link.exchange(
            messages,
            until=time.monotonic() + self._patience,
            enough=lambda: len(missing()) <= len(members) - needed,
            grace=lambda seconds: max(_MIN_SECONDS, seconds) if missing() else 0.0,
        )
        for reply in replies:
            self._note_party(reply)
            if not missing():
                return

    def announce_end(self, link: Link, members: Collection[int], needed: int, message_type: str) -> None:
        """Tell the members that the run has ended, so that they delete their prekeys now instead of at expiry.

        Once ``needed`` members have replied, the others have the same time again.
        """
        nodes = {self._nodes[member]: member for member in members if member in self._nodes}
        messages = [_message(node, message_type, Config({"end": self._key.epoch})) for node in nodes]
        heard = set[int]()
        replies = link.exchange(
            messages,
            until=time.monotonic() + self._patience,
            enough=lambda: len(heard) >= needed,
            grace=lambda seconds: max(_MIN_SECONDS, seconds),
        )
        for reply in replies:
            if reply.error is None:
                heard.add(nodes[reply.node])
        missing = sorted(set(members) - heard)
        if missing:
            _log.warning(
                "members %s of the committee did not confirm the end of the run: their prekeys stay until they expire",
                missing,
            )
        self._prekeys.clear()

    def collect_answers(
        self, link: Link, aggregator: Aggregator, message_type: str, known: dict[int, int]
    ) -> NoSum | None:
        """Fix the sum's set of clients and collect the members' answers. Return `NoSum` if too few members answer.

        ``message_type`` is the type of the round's training messages. ``known`` maps parties to the nodes that sent
        their updates. Returns None at once if the scheme has no committee. Members have ``patience`` seconds. Once
        enough members for the sum have answered, the others have the same time again: extra answers reveal a false
        one.

        If the sum counts in a memory of sets, members first agree that it may exist. A member that remembers other
        sets reports them, and all members are asked again with these sets.
        """
        of_round = aggregator.committee
        if of_round is None:
            return None
        requests = of_round.requests()
        self._nodes.update({party: node for party, node in known.items() if party in requests})
        proposes, until, left = of_round.agreeing, time.monotonic() + self._patience, _MAX_PROPOSALS
        why: NoSum | None = None
        while of_round.agreeing:
            if left == 0 or (why is not None and time.monotonic() >= until):
                return why
            why = self._exchange(link, of_round, message_type, requests)
            requests, left = of_round.requests(), left - 1
        why = self._exchange(link, of_round, message_type, requests)
        # A member that has agreed remembers the set.
        return why and replace(why, asked=why.asked or proposes)

    def _exchange(
        self, link: Link, of_round: CommitteeRound, message_type: str, requests: dict[int, bytes]
    ) -> NoSum | None:
        """Send ``requests`` and take answers until there are enough. Return `NoSum` if there are too few."""
        began = time.monotonic()
        if self._any_unknown(requests):
            self._identify_members(link, message_type, requests, until=began + self._patience / 2)
        sent = {self._nodes[m]: (m, frame) for m, frame in requests.items() if m in self._nodes}
        asked = {node: wire_record({REQUEST: frame}) for node, (_, frame) in sent.items()}
        messages = [_message(node, message_type, record) for node, record in asked.items()]
        silent, refused, needed = set(requests), set[int](), of_round.missing
        replies = link.exchange(
            messages,
            until=max(began + self._patience, time.monotonic() + _MIN_SECONDS),
            enough=lambda: not of_round.missing,
            grace=lambda seconds: max(_MIN_SECONDS, seconds),
        )
        # A member that does not answer may still have used its prekey.
        for member in requests:
            self._prekeys.pop(member, None)
        for reply in replies:
            member = sent.get(reply.node, (None, b""))[0]
            try:
                frame, prekey = _frames_of(reply)
                silent.discard(heard := of_round.answer(frame))
                self._keep_prekey(heard, prekey)
            except FedcipherError as error:
                # The node may belong to another party by now.
                self._nodes.pop(member if member is not None else -1, None)
                refused.update([] if member is None else [member])
                _log.warning(
                    "member %s of the committee: %s",
                    member,
                    f"it refused; see its log, reference {reply.reference}" if reply.reference else error,
                )
        if not of_round.missing:
            return None
        asked = of_round.missing < needed or bool(silent - refused)
        if of_round.accused:
            return NoSum(f"clients {of_round.accused} have sent false shares to the committee", asked)
        return NoSum(
            f"{len(requests) - len(silent)} of {len(requests)} members of the committee have answered within "
            f"{self._patience:g} s, and {of_round.missing} more must; missing: {sorted(silent)}",
            asked,
        )

    def _any_unknown(self, requests: Collection[int]) -> bool:
        return any(member not in self._nodes for member in requests)

    def _identify_members(self, link: Link, message_type: str, requests: Collection[int], until: float) -> None:
        """Ask unknown nodes for their party, until the node of each member in ``requests`` is known."""
        strangers = _unknown_nodes(link, self._nodes.values())
        messages = [_message(node, message_type, Config({"who": self._key.epoch})) for node in strangers]
        for reply in link.exchange(messages, until=until, enough=lambda: not self._any_unknown(requests)):
            self._note_party(reply)

    def _note_party(self, reply: Reply) -> None:
        """Store the party and the prekey that a node has sent."""
        record = record_in(reply.content, COMMITTEE, Config) or Config()
        party, prekey = record.get(PARTY), record.get(PREKEY)
        if isinstance(party, int):
            if isinstance(prekey, bytes) and party not in self._prekeys and self._keep_prekey(party, prekey):
                # The member's signature decides, even if another node has claimed to be this member.
                self._nodes[party] = reply.node
            self._nodes.setdefault(party, reply.node)

    def _keep_prekey(self, member: int, prekey: bytes) -> bool:
        """Store a prekey for the next clients. Return whether this member signed it and it is not older than the last.

        Clients refuse any other prekey. Their updates would then lack a share that this server asks for.
        """
        try:
            header = inspect(prekey)
            of_round = self._scheme.aggregator(self._key).committee
            refused = ["the scheme has no committee"] if of_round is None else of_round.take_prekeys([prekey])
        except FedcipherError as error:
            return _not_used(member, [str(error)])
        number = int.from_bytes(prekey[-8 - header.payload_bytes :][:8], "little")
        if refused or header.clients != [member] or number < self._numbers.get(member, 0):
            return _not_used(member, refused or "it is another member's, or an old one")
        self._prekeys[member], self._numbers[member] = prekey, number
        return True


def _not_used(member: int, why: object) -> bool:
    """False, with ``why`` in the log."""
    _log.warning("a prekey of member %s is not used: %s", member, why)
    return False


def _unknown_nodes(link: Link, known: Iterable[int]) -> list[int]:
    """The nodes of ``link`` that are not in ``known``, sorted."""
    return sorted(set(link.nodes()) - set(known))


def _message(node: int, message_type: str, record: Arrays | Config) -> Message:
    return Message(node, message_type, {COMMITTEE: record})


def _frames_of(reply: Reply) -> tuple[bytes, bytes]:
    """A member's answer, and its prekey for the next frames."""
    if reply.error is not None:
        raise FrameError(quoted(reply.error))
    record = record_in(reply.content, COMMITTEE, Arrays)
    if record is None or set(record) != {ANSWER, PREKEY}:
        raise FrameError("a member's reply does not hold its answer and its prekey")
    return frame_bytes(record[ANSWER]), frame_bytes(record[PREKEY])
