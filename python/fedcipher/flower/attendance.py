"""When a round closes, and who has not been heard of by then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedcipher._arguments import real_number, seconds
from fedcipher.errors import ParameterError
from fedcipher.flower.records import ClientRecord, RoundRecord
from fedcipher.flower.replies import Gathering, Pulls
from fedcipher.foreign_text import quoting_log

__all__ = ["Attendance"]

_log = quoting_log("fedcipher.flower")


class Attendance:
    """The rules by which a round closes; `fedcipher.flower.SecureStrategy` has what the numbers mean.

    ``minimum`` is the least number of updates that a sum is opened of. Raises `ParameterError`.
    """

    def __init__(self, *, quorum: float, deadline: float | None, grace: float, minimum: int) -> None:
        quorum, grace = real_number(quorum, "quorum", 0, 1), real_number(grace, "grace", 0)
        deadline = None if deadline is None else seconds(deadline, "deadline")
        if not quorum:
            raise ParameterError("quorum=0 is no share of the sampled clients above 0 and up to 1")
        self._quorum, self._deadline, self._grace, self._minimum = quorum, deadline, grace, minimum
        self._gathering: Gathering | None = None
        self._pulls: Pulls | None = None
        # Messages of what has closed without their answer: the round, its record where the answer would have been an
        # update, and whom they were sent to.
        self._outstanding: dict[str, tuple[int, RoundRecord | None, int]] = {}

    def gather(
        self, grid: Grid, messages: Iterable[Message], timeout: float | None, heard: Sequence[ClientRecord] | None
    ) -> Iterable[Message]:
        """The replies to ``messages``, as they come, until the deadline, or until there is a quorum of those ``heard``.

        ``heard`` grows while replies are used; None: all are waited for.
        """
        most = math.inf if timeout is None else timeout
        until = time.monotonic() + (most if self._deadline is None else min(most, self._deadline))

        def enough() -> bool:
            if heard is None or self._quorum == 1:
                return False
            accepted = sum(client.left_out is None for client in heard)
            return accepted >= max(math.ceil(self._quorum * len(made.asked)), self._minimum)

        if self._pulls is None or self._pulls.grid is not grid:
            self._pulls = Pulls(grid)
        made = Gathering(grid, messages, until=until, enough=enough, grace=lambda _: self._grace, pulls=self._pulls)
        self._gathering = made
        return made

    def silent(self, record: RoundRecord, heard: list[ClientRecord], *, training: bool) -> list[int]:
        """The nodes of which nothing was ``heard`` when the round, or its evaluation, closed; they may still answer."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return []
        late = record if training else None
        self._outstanding.update({name: (record.round, late, node) for name, node in gathering.waiting.items()})
        nodes = {client.node for client in heard}
        return [node for node in gathering.asked if node not in nodes]

    def collect_late(self) -> list[RoundRecord]:
        """Answers to rounds that have closed: counted in their records, which are returned, and thrown away."""
        if self._pulls is None or not self._outstanding:
            return []
        changed: dict[int, RoundRecord] = {}
        # There may be many, of all rounds.
        late = self._pulls.replies(list(self._outstanding), time.monotonic() + 1, together=True)
        for reply in late:
            number, record, asked = self._outstanding.pop(reply.metadata.reply_to_message_id, (0, None, None))
            node = reply.metadata.src_node_id
            # The SuperLink's word for it that none comes is in its own name.
            if node != asked:
                continue
            if record is None:
                _log.warning("node %s has evaluated round %s after that closed; its answer is not used", node, number)
                continue
            record.late.append(node)
            changed[record.number] = record
            _log.warning("node %s has answered round %s after it closed; its update is not used", node, number)
        return list(changed.values())
