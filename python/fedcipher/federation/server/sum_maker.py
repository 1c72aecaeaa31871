"""Makes the sums of a round: of all its frames or of groups of clients, with a committee's answers if there is one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedcipher.errors import WorkersError
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.committee import Committee, NoSum, members_of, needed_of
from fedcipher.federation.server.link import Link
from fedcipher.federation.server.node_map import NodeMap
from fedcipher.federation.server.setup import RunSetup
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Aggregator

__all__ = ["SumMaker"]

_log = quoting_log("fedcipher.federation")


class SumMaker:
    """Makes the sums of a run, and marks clients in ``nodes`` that a committee accuses."""

    def __init__(self, setup: RunSetup, nodes: NodeMap) -> None:
        self._setup, self._nodes = setup, nodes
        self._committee = Committee(setup.committee_timeout, setup.scheme, setup.key)
        self._members = members_of(setup.scheme, setup.key)
        self._needed = needed_of(setup.scheme)
        self.prekeys: list[bytes] = []
        """The prekeys that the clients of the present round got."""

    @property
    def why_no_sum(self) -> str:
        """Why there can be no sum with the present prekeys; empty if there can be one."""
        return self._committee.why_no_sum

    def collect_prekeys(self, link: Link, message_type: str) -> None:
        """Collect the prekeys of the committee's members for the clients of the next frames."""
        self.prekeys = self._committee.collect_prekeys(link, self._members, self._needed, message_type)

    def announce_end(self, link: Link, message_type: str) -> None:
        """Tell the committee's members that the run has ended, if the scheme has a committee."""
        if self._members:
            self._committee.announce_end(link, self._members, self._needed, message_type)

    def empty_sum(self, number: int) -> Aggregator:
        """An empty sum for frames of ``number``. It accepts only shares for the prekeys that clients got."""
        made = self._setup.scheme.aggregator(self._setup.key, round=number)
        if made.committee is not None:
            for why in made.committee.take_prekeys(self.prekeys):
                _log.warning("a prekey of the committee is not used: %s", why)
        return made

    def finish(
        self, aggregator: Aggregator, record: RoundRecord, link: Link | None, message_type: str
    ) -> bytes | NoSum:
        """The sum of all frames in ``aggregator``, or `NoSum` if too few members of a committee have answered."""
        if link is not None:
            failed = self._committee.collect_answers(link, aggregator, message_type, self._nodes.node_of)
            if aggregator.committee is not None:
                self._leave_out_accused(aggregator.committee.accused, record)
            if failed is not None:
                return failed
        began = time.perf_counter()
        frame = self._finished(aggregator)
        record.aggregate_seconds += time.perf_counter() - began
        return frame

    def group_sums(
        self,
        sets: Iterable[frozenset[int]],
        frames: Sequence[tuple[int, bytes]],
        record: RoundRecord,
        number: int,
        link: Link | None,
        message_type: str,
    ) -> list[bytes] | NoSum:
        """One sum for each of ``sets``, or `NoSum`; ``frames`` are pairs of (client, frame)."""
        sums: list[bytes] = []
        for group in sets:
            aggregator = self.empty_sum(number)
            for client, frame in frames:
                if client in group:
                    aggregator.add(frame)
            summed = self.finish(aggregator, record, link, message_type)
            if isinstance(summed, NoSum):
                return replace(summed, asked=summed.asked or bool(sums))
            sums.append(summed)
        return sums

    def _leave_out_accused(self, clients: Iterable[int], record: RoundRecord) -> None:
        """Leave the ``clients`` that the committee accuses out of the run."""
        new = sorted(set(clients) - self._nodes.sent_false_shares)
        if new:
            _log.warning(
                "round %s: clients %s have sent false shares to the committee and are left out of the run",
                *(record.round, new),
            )
        self._nodes.sent_false_shares.update(new)

    def _finished(self, aggregator: Aggregator) -> bytes:
        setup = self._setup
        if setup.workers is not None:
            try:
                return setup.workers.finish(setup.scheme, setup.key, aggregator, setup.on_progress)
            except WorkersError as error:
                _log.warning("%s: this process does the work of the round instead", error)
        return aggregator.finish(setup.on_progress)
