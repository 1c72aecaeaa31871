"""State that the parts of a run's server share: the run's model and files, its rounds, and the active round."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedcipher import _native
from fedcipher._arguments import as_float, is_finite
from fedcipher.federation.charter import Charter
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.journal import Ended, Journal
from fedcipher.federation.server.liar_search import LiarSearch
from fedcipher.federation.server.link import Link
from fedcipher.federation.server.model import ServerModel
from fedcipher.federation.server.node_map import NodeMap
from fedcipher.federation.server.round_ids import reserved_after
from fedcipher.federation.server.setup import Plan, RunSetup
from fedcipher.federation.server.sum_maker import SumMaker
from fedcipher.foreign_text import quoting_log

__all__ = ["OVERTAKEN", "ROUNDS_OF_A_RUN", "RunState"]

_log = quoting_log("fedcipher.federation")
ROUNDS_OF_A_RUN = 1 << _native.ROUND_INDEX_BITS
OVERTAKEN = (
    "another run or query of this user has begun since this run began, with later round numbers. Clients that took "
    "part in it refuse the numbers of this run. If they do, start a new run, from the model of `fedcipher open`"
)


class RunState:
    """The state of a run, also before it has begun.

    ``show`` is called with lines for the operator, such as the charter's digest. Without it, they are logged.
    """

    def __init__(self, setup: RunSetup, show: Callable[[str], None] | None = None) -> None:
        self.setup = setup
        self.show = show or partial(_log.info, "%s")
        self.scheme, self.key = setup.scheme, setup.key
        self.nodes = NodeMap()
        self.sums = SumMaker(setup, self.nodes)
        self.rounds: list[RoundRecord] = []
        self.link: Link | None = None
        """The connection to the run's nodes; None before the first round."""
        self.timeout: float = 3600.0
        """The longest time of an exchange, in seconds."""
        self.plan, self.planned = Plan(), 1
        self.end_reason = ""
        """Why no further round can have a sum; empty if one can."""
        # Round numbers must increase over the life of a key, also when the app is run again.
        self.base = self.number = 0
        self.done = 0
        """Number of the last round that an earlier process has ended; 0 if there is none."""
        self.ended = Ended(0)
        self.round_began = 0.0
        self.training = self.waits_for_all = False
        self.journal: Journal | None = None
        self._model: ServerModel | None = None
        self._search: LiarSearch | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def record(self) -> RoundRecord:
        """The record of the present round."""
        return self.rounds[-1]

    @property
    def model(self) -> ServerModel:
        """The run's model. The run must have begun."""
        assert self._model is not None
        return self._model

    @property
    def begun(self) -> bool:
        """Whether the run has begun, so that it has a charter and a model."""
        return self._model is not None

    @property
    def charter(self) -> Charter:
        """The run's charter. The run must have begun."""
        return self.model.charter

    @property
    def search(self) -> LiarSearch:
        """The run's search for liars. The run must have begun."""
        assert self._search is not None
        return self._search

    def leave_unfinished(self, why: str) -> None:
        """End the present round without an aggregate; ``why`` is the reason."""
        record = self.record
        # Keep the first reason: a round that did not start also has no updates.
        if record.unfinished is None:
            if self.overtaken():
                why = f"{why}; {OVERTAKEN}"
            record.unfinished = why
            _log.warning("round %s has no aggregate, the global model is unchanged: %s", record.round, why)

    def overtaken(self) -> bool:
        """Whether a later run or query of this user has reserved later round numbers."""
        return reserved_after(self.base + ROUNDS_OF_A_RUN)

    def record_part(self, part: str, metrics: Mapping[str, Any] | None, state: bytes | None = None) -> None:
        """Record the end of a ``part`` of the round ("train", "evaluate" or "server"), also in the journal.

        ``state`` is the strategy's state for a resumed run.
        """
        record = self.record
        record.wall_seconds = time.monotonic() - self.round_began
        if metrics is not None:
            # Loggers and pages convert integers to floats, which overflows for large ones.
            record.metrics[part] = {
                name: as_float(value) if isinstance(value, int) and not is_finite(value) else value
                for name, value in metrics.items()
            }
        if self.journal is not None:
            self.journal.end(record, self.ended, state)

    def gather(self, send: Callable[..., Any], timeout: float | None) -> Any:
        """The replies to the messages of ``send``, until the round closes.

        ``send`` is `Link.exchange` with its messages.
        """
        record = self.record
        records = record.clients if self.training else record.evaluations
        return self.setup.round_close.gather(send, timeout, None if self.waits_for_all else records)

    def change_round(self, record: RoundRecord) -> None:
        """Write the changed ``record`` of an earlier round to the journal."""
        if self.journal is not None:
            self.journal.change(record)
