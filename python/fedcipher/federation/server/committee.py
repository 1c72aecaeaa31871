"""The committee of schemes without a shared key: how a server asks its members.

Some frameworks bring only types of message to an app that it has a function for. So requests travel as what the round's
training messages are, and are known by their record.
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

__all__ = ["Committee", "NoSum", "addressed", "members_of", "needed_of"]

_log = quoting_log("fedcipher.federation")

_PROPOSALS = 3
"""So often members are asked to agree on one sum: as it is, with what more of them remember than lie, with all."""
_LEAST = 1.0
"""Seconds that members have at least."""


@dataclass(frozen=True)
class NoSum:
    """A sum that was not made, and ``why``. ``asked``: some member may have answered for its set, and remember it."""

    why: str
    asked: bool = False


def members_of(scheme: Scheme, key: _native.ServerKey) -> frozenset[int]:
    """The members of the committee; none where the scheme has no committee."""
    return frozenset() if scheme.committee is None else scheme.committee.members(key)


def needed_of(scheme: Scheme) -> int:
    """How many members must answer for a sum; 0 where the scheme has no committee."""
    return 0 if scheme.committee is None else scheme.committee.needed


def addressed(scheme: Scheme, frame: bytes, reader: int) -> bytes:
    """An aggregate with what ``reader`` needs of it; all of it where the scheme has no committee."""
    return frame if scheme.committee is None else scheme.committee.for_reader(frame, reader)


class Committee:
    """The server's side: which node each party is, and one exchange with the members a round."""

    def __init__(self, patience: float, scheme: Scheme, key: _native.ServerKey) -> None:
        self._patience, self._scheme, self._key = patience, scheme, key
        self._numbers: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._prekeys: dict[int, bytes] = {}
        self.lacking = ""
        """Why there can be no sum with the prekeys of the last `meet`."""

    def meet(self, link: Link, members: Collection[int], needed: int, message_type: str) -> list[bytes]:
        """The newest prekey of each of ``members``, for clients to seal shares to.

        Who is not known, or was not heard of when it was last asked, is asked for its prekey; who is away has none
        here. Once there are those of as many members as are ``needed`` for a sum, the others have as long again.
        Nothing where the scheme has no committee.
        """
        if set(members) - set(self._prekeys):
            self._hear(link, set(members), needed, message_type)
        found = [member for member in sorted(members) if member in self._prekeys]
        self.lacking = ""
        if len(found) < needed:
            self.lacking = (
                f"{len(found)} of {len(members)} members of the committee have given a prekey within "
                f"{self._patience:g} s, {needed - len(found)} more must; without: {sorted(set(members) - set(found))}"
            )
            _log.warning("%s", self.lacking)
        return [self._prekeys[member] for member in found]

    def _hear(self, link: Link, members: Set[int], needed: int, message_type: str) -> None:
        """Ask for the prekeys that are not there."""

        def lacking() -> Set[int]:
            return members - set(self._prekeys)

        known = {node for member, node in self._nodes.items() if member not in lacking()}
        messages = [_message(node, message_type, Config({"who": self._key.epoch})) for node in _others(link, known)]
        replies = link.exchange(
            messages,
            until=time.monotonic() + self._patience,
            enough=lambda: len(lacking()) <= len(members) - needed,
            grace=lambda seconds: max(_LEAST, seconds) if lacking() else 0.0,
        )
        for reply in replies:
            self._told(reply)
            if not lacking():
                return

    def end(self, link: Link, members: Collection[int], needed: int, message_type: str) -> None:
        """Tell the members that the run has ended: they delete their prekeys now, and not when these are too old.

        Once as many have heard it as are ``needed`` for a sum, the others have as long again.
        """
        nodes = {self._nodes[member]: member for member in members if member in self._nodes}
        messages = [_message(node, message_type, Config({"end": self._key.epoch})) for node in nodes]
        heard = set[int]()
        replies = link.exchange(
            messages,
            until=time.monotonic() + self._patience,
            enough=lambda: len(heard) >= needed,
            grace=lambda seconds: max(_LEAST, seconds),
        )
        for reply in replies:
            if reply.error is None:
                heard.add(nodes[reply.node])
        away = sorted(set(members) - heard)
        if away:
            _log.warning("members %s of the committee have not heard that the run has ended: they keep prekeys", away)
        self._prekeys.clear()

    def ask(self, link: Link, aggregator: Aggregator, message_type: str, known: dict[int, int]) -> NoSum | None:
        """Fix who is in the sum and collect the members' answers; why there are too few of them, if so.

        ``message_type`` is that of the round's training messages; ``known`` maps parties to the nodes that their
        updates came from. At once where the scheme has no committee.
        Members have ``patience`` seconds; who is not heard of by then is away. Once as many have answered as the sum
        takes, the others have as long again: with more answers than it takes a false one is found.

        Where the sum counts in a memory, members first agree that it may exist. Those that remember other sets say so,
        and all are asked again with these.
        """
        of_round = aggregator.committee
        if of_round is None:
            return None
        requests = of_round.requests()
        self._nodes.update({party: node for party, node in known.items() if party in requests})
        proposes, until, left = of_round.agreeing, time.monotonic() + self._patience, _PROPOSALS
        why: NoSum | None = None
        while of_round.agreeing:
            if left == 0 or (why is not None and time.monotonic() >= until):
                return why
            why = self._exchange(link, of_round, message_type, requests)
            requests, left = of_round.requests(), left - 1
        why = self._exchange(link, of_round, message_type, requests)
        # Who has agreed remembers the set.
        return why and replace(why, asked=why.asked or proposes)

    def _exchange(
        self, link: Link, of_round: CommitteeRound, message_type: str, requests: dict[int, bytes]
    ) -> NoSum | None:
        """Send ``requests`` and take the answers, until none is missing; why one is, if so."""
        began = time.monotonic()
        if self._missing(requests):
            self._find(link, message_type, requests, until=began + self._patience / 2)
        sent = {self._nodes[m]: (m, frame) for m, frame in requests.items() if m in self._nodes}
        asked = {node: wire_record({REQUEST: frame}) for node, (_, frame) in sent.items()}
        messages = [_message(node, message_type, record) for node, record in asked.items()]
        silent, refused, needed = set(requests), set[int](), of_round.missing
        replies = link.exchange(
            messages,
            until=max(began + self._patience, time.monotonic() + _LEAST),
            enough=lambda: not of_round.missing,
            grace=lambda seconds: max(_LEAST, seconds),
        )
        # Whoever is not heard of may have used its prekey.
        for member in requests:
            self._prekeys.pop(member, None)
        for reply in replies:
            member = sent.get(reply.node, (None, b""))[0]
            try:
                frame, prekey = _frames_of(reply)
                silent.discard(heard := of_round.answer(frame))
                self._keep(heard, prekey)
            except FedcipherError as error:
                # Its node may be another's by now.
                self._nodes.pop(member if member is not None else -1, None)
                refused.update([] if member is None else [member])
                _log.warning(
                    "member %s of the committee: %s",
                    member,
                    f"it refused; its own log has the cause, reference {reply.reference}" if reply.reference else error,
                )
        if not of_round.missing:
            return None
        asked = of_round.missing < needed or bool(silent - refused)
        if of_round.accused:
            return NoSum(f"clients {of_round.accused} have sealed to the committee what is no share of theirs", asked)
        return NoSum(
            f"{len(requests) - len(silent)} of {len(requests)} members of the committee have answered within "
            f"{self._patience:g} s, {of_round.missing} more must; without: {sorted(silent)}",
            asked,
        )

    def _missing(self, requests: Collection[int]) -> bool:
        return any(member not in self._nodes for member in requests)

    def _find(self, link: Link, message_type: str, requests: Collection[int], until: float) -> None:
        """Ask nodes that are not known who they are, until all members of ``requests`` are known."""
        strangers = _others(link, self._nodes.values())
        messages = [_message(node, message_type, Config({"who": self._key.epoch})) for node in strangers]
        for reply in link.exchange(messages, until=until, enough=lambda: not self._missing(requests)):
            self._told(reply)

    def _told(self, reply: Reply) -> None:
        """Keep what a node says of its party."""
        told = record_in(reply.content, COMMITTEE, Config) or Config()
        party, prekey = told.get(PARTY), told.get(PREKEY)
        if isinstance(party, int):
            if isinstance(prekey, bytes) and party not in self._prekeys and self._keep(party, prekey):
                # What it has signed is there, whoever else has said to be that member.
                self._nodes[party] = reply.node
            self._nodes.setdefault(party, reply.node)

    def _keep(self, member: int, prekey: bytes) -> bool:
        """Keep a prekey for the next clients, where this member has signed it and it is no older than the last.

        Clients refuse others, and their updates would lack a share that this server asks for.
        """
        try:
            header = inspect(prekey)
            of_round = self._scheme.aggregator(self._key).committee
            refused = ["the scheme has no committee"] if of_round is None else of_round.take_prekeys([prekey])
        except FedcipherError as error:
            header, refused = None, [str(error)]
        number = 0 if header is None else int.from_bytes(prekey[-8 - header.payload_bytes :][:8], "little")
        if refused or header is None or header.clients != [member] or number < self._numbers.get(member, 0):
            _log.warning("a prekey of member %s is not used: %s", member, refused or "another's, or an old one")
            return False
        self._prekeys[member], self._numbers[member] = prekey, number
        return True


def _others(link: Link, known: Iterable[int]) -> list[int]:
    """Nodes that are not ``known``."""
    return sorted(set(link.nodes()) - set(known))


def _message(node: int, message_type: str, record: Arrays | Config) -> Message:
    return Message(node, message_type, {COMMITTEE: record})


def _frames_of(reply: Reply) -> tuple[bytes, bytes]:
    """A member's answer, and its prekey for what comes next."""
    if reply.error is not None:
        raise FrameError(quoted(reply.error))
    record = record_in(reply.content, COMMITTEE, Arrays)
    if record is None or set(record) != {ANSWER, PREKEY}:
        raise FrameError("a member's reply does not hold its answer and its prekey")
    return frame_bytes(record[ANSWER]), frame_bytes(record[PREKEY])
