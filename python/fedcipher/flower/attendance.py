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
from fedcipher.flower.replies import Gathering, answered

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
        # Messages of rounds that have closed without their answer, and which round.
        self._outstanding: dict[str, RoundRecord] = {}

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

        made = Gathering(grid, messages, until=until, enough=enough, grace=lambda _: self._grace)
        self._gathering = made
        return made

    def silent(self, record: RoundRecord) -> list[int]:
        """The nodes that have not answered when the round closes; their answers may still come."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return []
        self._outstanding.update(dict.fromkeys(gathering.waiting, record))
        heard = {client.node for client in record.clients}
        return [node for node in gathering.asked if node not in heard]

    def collect_late(self, grid: Grid) -> None:
        """Answers to rounds that have closed: counted, and thrown away."""
        if not self._outstanding:
            return
        for reply in answered(grid.pull_messages, list(self._outstanding)):
            record = self._outstanding.pop(reply.metadata.reply_to_message_id, None)
            if record is not None:
                record.late.append(reply.metadata.src_node_id)
                _log.warning(
                    "node %s has answered round %s after it closed; its update is not used",
                    reply.metadata.src_node_id,
                    record.round,
                )
