"""When a round closes, and who has not been heard of by then."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedcipher.errors import ParameterError
from fedcipher.flower.records import RoundRecord
from fedcipher.flower.replies import Gathering, Pulls

__all__ = ["Attendance"]

_log = logging.getLogger("fedcipher.flower")


class Attendance:
    """The rules by which a round closes; `fedcipher.flower.SecureStrategy` has what the numbers mean.

    ``minimum`` is the least number of updates that a sum is opened of. Raises `ParameterError`.
    """

    def __init__(self, *, quorum: float, deadline: float | None, grace: float, minimum: int) -> None:
        if not 0 < quorum <= 1:
            raise ParameterError(f"quorum={quorum} is no share of the sampled clients above 0 and up to 1")
        if not (grace >= 0 and (deadline is None or deadline > 0)):
            raise ParameterError(f"grace={grace} and deadline={deadline} are seconds; the deadline is more than 0")
        self._quorum, self._deadline, self._grace, self._minimum = quorum, deadline, grace, minimum
        self._gathering: Gathering | None = None
        self._pulls: Pulls | None = None
        # Messages of rounds that have closed without their answer, which round, and whom they were sent to.
        self._outstanding: dict[str, tuple[RoundRecord, int]] = {}

    def gather(
        self, grid: Grid, messages: Iterable[Message], timeout: float | None, training: RoundRecord | None
    ) -> Iterable[Message]:
        """The replies to ``messages``, as they come; those of a ``training`` round until it closes."""
        seconds = math.inf if timeout is None else timeout
        if training is None:
            return Gathering(grid, messages, until=time.monotonic() + seconds)
        until = time.monotonic() + (seconds if self._deadline is None else min(seconds, self._deadline))

        def enough() -> bool:
            share = math.ceil(self._quorum * len(made.asked))
            return self._quorum < 1 and training.accepted >= max(share, self._minimum)

        if self._pulls is None or self._pulls.grid is not grid:
            self._pulls = Pulls(grid)
        made = Gathering(grid, messages, until=until, enough=enough, grace=lambda _: self._grace, pulls=self._pulls)
        self._gathering = made
        return made

    def silent(self, record: RoundRecord) -> list[int]:
        """The nodes that have not answered when the round closes; their answers may still come."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return []
        self._outstanding.update({name: (record, node) for name, node in gathering.waiting.items()})
        heard = {client.node for client in record.clients}
        return [node for node in gathering.asked if node not in heard]

    def collect_late(self) -> None:
        """Answers to rounds that have closed: counted, and thrown away."""
        if self._pulls is None or not self._outstanding:
            return
        # There may be many, of all rounds.
        late = self._pulls.replies(list(self._outstanding), time.monotonic() + 1, together=True)
        for reply in late:
            record, node = self._outstanding.pop(reply.metadata.reply_to_message_id, (None, 0))
            if record is None or reply.metadata.src_node_id != node:
                # The SuperLink's word for it that none comes.
                continue
            record.late.append(node)
            _log.warning(
                "node %s has answered round %s after it closed; its update is not used",
                node,
                record.round,
            )
