"""Decides when a round closes, and finds the nodes that have not answered by then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedcipher._arguments import real_number, seconds
from fedcipher.errors import ParameterError
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server.link import Exchange, Link
from fedcipher.foreign_text import quoting_log

__all__ = ["RoundClose"]

_Exchange = TypeVar("_Exchange", bound=Exchange)

_log = quoting_log("fedcipher.federation")


class RoundClose:
    """The rules by which a round closes.

    `fedcipher.federation.server.setup.RunSetup` describes ``quorum``, ``deadline`` and ``grace``. ``minimum`` is the
    smallest number of updates in a sum. Raises `ParameterError`.
    """

    def __init__(self, *, quorum: float, deadline: float | None, grace: float, minimum: int) -> None:
        quorum, grace = real_number(quorum, "quorum", 0, 1), real_number(grace, "grace", 0)
        deadline = None if deadline is None else seconds(deadline, "deadline")
        if not quorum:
            raise ParameterError("quorum=0 must be a share of the sampled clients, above 0 and at most 1")
        self._quorum, self._deadline, self._grace, self._minimum = quorum, deadline, grace, minimum
        self._exchange: Exchange | None = None
        # Messages without an answer in rounds that have closed, by id: the round, its record if the answer would have
        # been an update, and the node that was asked.
        self._outstanding: dict[str, tuple[int, RoundRecord | None, int]] = {}

    def gather(
        self, send: Callable[..., _Exchange], timeout: float | None, records: Sequence[ClientRecord] | None
    ) -> _Exchange:
        """The replies to the messages of ``send``, until the deadline, ``timeout`` seconds, or a quorum.

        ``send`` is `Link.exchange` with its messages. The caller adds a record to ``records`` for each reply that it
        uses, from which the quorum is counted. Without ``records``, the exchange waits for all replies.
        """
        limit = math.inf if timeout is None else timeout
        until = time.monotonic() + (limit if self._deadline is None else min(limit, self._deadline))

        def enough() -> bool:
            if records is None or self._quorum == 1:
                return False
            accepted = sum(client.left_out is None for client in records)
            return accepted >= max(math.ceil(self._quorum * len(made.asked)), self._minimum)

        made = send(until=until, enough=enough, grace=self._seconds_left)
        self._exchange = made
        return made

    def _seconds_left(self, _: float) -> float:
        """Seconds to wait after the quorum is reached."""
        return self._grace

    def silent(self, record: RoundRecord, records: list[ClientRecord], *, training: bool) -> list[int]:
        """The nodes without a record in ``records`` when the round or its evaluation closed. They may still answer."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return []
        late = record if training else None
        self._outstanding.update({name: (record.round, late, node) for name, node in exchange.waiting.items()})
        nodes = {client.node for client in records}
        return [node for node in exchange.asked if node not in nodes]

    def collect_late(self, link: Link | None) -> list[RoundRecord]:
        """Discard answers to closed rounds, count late updates in these rounds' records, and return the records."""
        if link is None or not self._outstanding:
            return []
        changed: dict[int, RoundRecord] = {}
        for name, reply in link.late(list(self._outstanding), time.monotonic() + 1):
            number, record, asked = self._outstanding.pop(name, (0, None, None))
            # A framework reports in its own name that a node will not answer.
            if reply.node != asked:
                continue
            if record is None:
                _log.warning(
                    "node %s has evaluated round %s after it closed; its answer is not used", reply.node, number
                )
                continue
            record.late.append(reply.node)
            changed[record.number] = record
            _log.warning("node %s has answered round %s after it closed; its update is not used", reply.node, number)
        return list(changed.values())
