"""What the parts of a run's server share: the run's model and files, its rounds, and the one that is under way."""

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
from fedcipher.federation.server.round_ids import asked_after
from fedcipher.federation.server.setup import Plan, RunSetup
from fedcipher.federation.server.sum_maker import SumMaker
from fedcipher.foreign_text import quoting_log

__all__ = ["OVERTAKEN", "ROUNDS_OF_A_RUN", "RunState"]

_log = quoting_log("fedcipher.federation")
ROUNDS_OF_A_RUN = 1 << _native.ROUND_INDEX_BITS
OVERTAKEN = (
    "another run or query of this user has begun since this run did, and its round numbers are later: clients whose "
    "keys had part in it refuse this run's as used. Then begin a run anew, from the model of `fedcipher open`"
)


class RunState:
    """A run, from before it has begun.

    ``shown`` is called with lines that an operator should see, such as the charter's digest; they are logged otherwise.
    """

    def __init__(self, setup: RunSetup, shown: Callable[[str], None] | None = None) -> None:
        self.setup = setup
        self.shown = shown or partial(_log.info, "%s")
        self.scheme, self.key = setup.scheme, setup.key
        self.nodes = NodeMap()
        self.sums = SumMaker(setup, self.nodes)
        self.rounds: list[RoundRecord] = []
        self.link: Link | None = None
        """How this run reaches its nodes; none before a round has begun."""
        self.timeout: float = 3600.0
        """Seconds after which an exchange ends whatever else is said."""
        self.plan, self.planned = Plan(), 1
        self.ends = ""
        """Why no further round can have a sum."""
        # Rounds must increase over the life of a key, also when the app is run again.
        self.base = self.number = 0
        self.done = 0
        """Rounds of the run that another process has ended."""
        self.ended = Ended(0)
        self.round_began = 0.0
        self.training = self.waits_for_all = False
        self.journal: Journal | None = None
        self._model: ServerModel | None = None
        self._search: LiarSearch | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def record(self) -> RoundRecord:
        """The present round's."""
        return self.rounds[-1]

    @property
    def model(self) -> ServerModel:
        """The run's model. It has begun."""
        assert self._model is not None
        return self._model

    @property
    def begun(self) -> bool:
        """Whether the run has a charter."""
        return self._model is not None

    @property
    def charter(self) -> Charter:
        """The run's charter. It has begun."""
        return self.model.charter

    @property
    def search(self) -> LiarSearch:
        """The run's search for liars. It has begun."""
        assert self._search is not None
        return self._search

    def leave_unfinished(self, why: str) -> None:
        """The present round ends without an aggregate."""
        record = self.record
        # The first cause stands: a round that was not begun has no updates either.
        if record.unfinished is None:
            if self.overtaken():
                why = f"{why}; {OVERTAKEN}"
            record.unfinished = why
            _log.warning("round %s has no aggregate, the global model stays: %s", record.round, why)

    def overtaken(self) -> bool:
        """Whether a later run or query of this user has taken later numbers."""
        return asked_after(self.base + ROUNDS_OF_A_RUN)

    def note(self, part: str, metrics: Mapping[str, Any] | None, state: bytes | None = None) -> None:
        """A part of a round has ended: what there is to say of it, also in the journal."""
        record = self.record
        record.wall_seconds = time.monotonic() - self.round_began
        if metrics is not None:
            # Loggers and pages take whole numbers for floats.
            record.metrics[part] = {
                name: as_float(value) if isinstance(value, int) and not is_finite(value) else value
                for name, value in metrics.items()
            }
        if self.journal is not None:
            self.journal.end(record, self.ended, state)

    def gathered(self, send: Callable[..., Any], timeout: float | None) -> Any:
        """The replies to what ``send`` sends (`Link.exchange` with its messages), until the round closes."""
        record = self.record
        heard = record.clients if self.training else record.evaluations
        return self.setup.round_close.gather(send, timeout, None if self.waits_for_all else heard)

    def change(self, record: RoundRecord) -> None:
        """A round that has ended before is another now, also in the journal."""
        if self.journal is not None:
            self.journal.change(record)
