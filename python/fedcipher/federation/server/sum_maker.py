"""The sums of a round: of all its frames or of groups of clients, with a committee's answers where there is one."""

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
    """Makes the sums of a run; ``nodes`` learns of clients that a committee accuses."""

    def __init__(self, setup: RunSetup, nodes: NodeMap) -> None:
        self._setup, self._nodes = setup, nodes
        self._committee = Committee(setup.committee_timeout, setup.scheme, setup.key)
        self._members = members_of(setup.scheme, setup.key)
        self._needed = needed_of(setup.scheme)
        self.prekeys: list[bytes] = []
        """Those that the clients of the present round were given."""

    @property
    def lacking(self) -> str:
        """Why there can be no sum with the present prekeys; empty where there can."""
        return self._committee.lacking

    def meet(self, link: Link, message_type: str) -> None:
        """Collect the prekeys of the committee's members for the clients of the next frames."""
        self.prekeys = self._committee.meet(link, self._members, self._needed, message_type)

    def end(self, link: Link, message_type: str) -> None:
        """Tell the committee's members, where there are any, that the run has ended."""
        if self._members:
            self._committee.end(link, self._members, self._needed, message_type)

    def empty(self, number: int) -> Aggregator:
        """A sum of the frames of ``number``, which takes shares for the prekeys that clients were given only."""
        made = self._setup.scheme.aggregator(self._setup.key, round=number)
        if made.committee is not None:
            for why in made.committee.take_prekeys(self.prekeys):
                _log.warning("a prekey of the committee is not used: %s", why)
        return made

    def finish(
        self, aggregator: Aggregator, record: RoundRecord, link: Link | None, message_type: str
    ) -> bytes | NoSum:
        """The sum of all frames in ``aggregator``, or why there is none: too few of a committee have answered."""
        if link is not None:
            away = self._committee.ask(link, aggregator, message_type, self._nodes.node_of)
            if aggregator.committee is not None:
                self._accuse(aggregator.committee.accused, record)
            if away is not None:
                return away
        began = time.perf_counter()
        frame = self._finished(aggregator)
        record.aggregate_seconds += time.perf_counter() - began
        return frame

    def groups(
        self,
        sets: Iterable[frozenset[int]],
        frames: Sequence[tuple[int, bytes]],
        record: RoundRecord,
        number: int,
        link: Link | None,
        message_type: str,
    ) -> list[bytes] | NoSum:
        """A sum of each of ``sets``, or why there is none; ``frames`` are (client, frame)."""
        sums: list[bytes] = []
        for group in sets:
            aggregator = self.empty(number)
            for client, frame in frames:
                if client in group:
                    aggregator.add(frame)
            summed = self.finish(aggregator, record, link, message_type)
            if isinstance(summed, NoSum):
                return replace(summed, asked=summed.asked or bool(sums))
            sums.append(summed)
        return sums

    def _accuse(self, clients: Iterable[int], record: RoundRecord) -> None:
        """Leave those out of the run that the committee has named."""
        news = sorted(set(clients) - self._nodes.accused)
        if news:
            _log.warning(
                "round %s: clients %s have sealed false shares to the committee, and are left out of the run",
                *(record.round, news),
            )
        self._nodes.accused.update(news)

    def _finished(self, aggregator: Aggregator) -> bytes:
        setup = self._setup
        if setup.workers is not None:
            try:
                return setup.workers.finish(setup.scheme, setup.key, aggregator, setup.on_progress)
            except WorkersError as error:
                _log.warning("%s: this process does the round's work itself", error)
        return aggregator.finish(setup.on_progress)
