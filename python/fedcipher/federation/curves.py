"""A run's metrics for whoever has a client's key: the encrypted sums of its folder, opened as the folder grows.

The server sees no metrics of a run that it does not open. The sums of what clients answered lie in the run's folder,
beside the aggregates, and open in the order in which they were made.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcipher.engine import Engine
from fedcipher.errors import DecryptError, FrameError, RoundError, RunError, StrategyError
from fedcipher.federation.answers import Answer, Sums, part_of
from fedcipher.federation.chain import Chain
from fedcipher.federation.charter import PURPOSES, Charter, Purpose, arrays_digest
from fedcipher.federation.records import RoundRecord, counted_of, losses
from fedcipher.federation.server.committee import for_reader
from fedcipher.federation.server.run_folder import StoredRun, read_run
from fedcipher.keys.store import load_client
from fedcipher.schemes import Decryptor, Scheme

__all__ = ["Aggregate", "Curves", "OpenedRound"]

Aggregate = Callable[[Sums, Sequence[Answer], str], dict[str, Any]]
"""What a strategy makes of opened answers: from their sums, the charter's answers, and the metric of weights."""

_REFUSED = (FrameError, RoundError, DecryptError)


@dataclass(frozen=True)
class OpenedRound:
    """What was opened of one of the run's rounds."""

    train: Sums | None = None
    """What the clients of its aggregate answered; none where there is no aggregate, or its frames have no answers."""
    evaluate: Sums | None = None
    model: str = ""
    """SHA-256 of the model that the round ended with, or evaluated."""


class Curves:
    """The metrics of the run in ``folder``, for the holder of a client's key: its file, or its engine.

    A key file opens in memory: the client's own ledgers stay as they are. An engine remembers what it has opened and
    opens nothing older than that, so read often while the client trains; `missed` has the rounds that came too late.
    ``train`` and ``evaluate`` aggregate as the app's strategy does (`fedcipher.adapters.flower.aggregate_by`); without
    them a metric is the mean of the clients'. Raises `RunError` where the run is of other keys, and what a key file or
    engine raises.
    """

    def __init__(
        self,
        folder: str | Path,
        key: str | Path | Engine,
        *,
        train: Aggregate | None = None,
        evaluate: Aggregate | None = None,
    ) -> None:
        self._folder, self._key = Path(folder), key
        self.aggregates: dict[Purpose, Aggregate | None] = {"train": train, "evaluate": evaluate}
        if isinstance(key, Engine):
            self.scheme, self.decryptor = key.scheme, key.decryptor
        else:
            self.scheme, secret = load_client(key)
            self.decryptor = _in_memory(self.scheme, secret)
        # A dashboard asks from several threads.
        self._lock = threading.Lock()
        self._charter: Charter | None = None
        self._decryptor: Decryptor | None = None
        self._chain: Chain | None = None
        self._steps: list[int] = []
        self._stuck: tuple[int, int] | None = None
        self._made: dict[tuple[int, Purpose], tuple[Sums, dict[str, Any]]] = {}
        self.rounds: dict[int, OpenedRound] = {}
        """What has been opened, by the run's round."""
        self.missed: dict[int, str] = {}
        """Rounds of which a sum did not open, and why."""

    @property
    def charter(self) -> Charter | None:
        """The run's; none before `read`."""
        return self._charter

    @property
    def arrays(self) -> list[Any] | None:
        """The newest model that was opened; none before there is one."""
        return None if self._chain is None or self._chain.at_first_model else self._chain.model

    def read(self) -> dict[int, OpenedRound]:
        """Open what has come since the last time; all rounds that are opened, by their number in the run.

        Raises `RunError`, and what an engine raises that cannot be reached.
        """
        with self._lock:
            run = read_run(self._folder)
            if run.scheme_spec != json.loads(json.dumps(self.scheme.spec())):
                raise RunError(f"the run {self._folder} is of other keys: scheme, parameters or codec differ")
            if self._charter is None or self._charter.digest != run.charter.digest or self._withdrawn(run):
                self._begin(run.charter)
            # Where the server sets the models it opens all sums itself, and its journal has the metrics.
            if not run.charter.sets_models and (run.count or run.evaluations()):
                self._follow(run)
            return dict(self.rounds)

    def _begin(self, charter: Charter) -> None:
        self._charter, self._chain, self._steps, self._stuck = charter, None, [], None
        self._decryptor = self.decryptor()
        self.rounds.clear()
        self.missed.clear()

    def _withdrawn(self, run: StoredRun) -> bool:
        """Whether the server has taken back a step that was opened here, or that did not open."""
        if self._stuck is not None:
            step, number = self._stuck
            if run.count < step or run.round_of(step) != number:
                return True
        seen = self._steps
        return run.count < len(seen) or [run.round_of(k + 1) for k in range(len(seen))] != seen

    def _follow(self, run: StoredRun) -> None:
        if self._chain is None:
            self._chain = Chain(run.charter, self.scheme, run.context, first=run.first())
        self._evaluations(run, self._chain)
        while len(self._steps) < run.count and self._stuck is None:
            self._step(run, self._chain, len(self._steps) + 1)
            self._evaluations(run, self._chain)

    def _step(self, run: StoredRun, chain: Chain, step: int) -> None:
        number = run.round_of(step)
        frames = [self._own(frame) for frame in run.step(step)]
        try:
            opened = chain.step(self._opener, frames, number)
        except _REFUSED as error:
            self._stuck = step, number
            self.missed[number] = f"its aggregate does not open, nor does what follows ({error})"
            return
        self._steps.append(number)
        self._know(number, train=opened.answers, model=self._model(chain))

    def _evaluations(self, run: StoredRun, chain: Chain) -> None:
        """Open the evaluations of the chain's present position."""
        here = sorted(number for number, step in run.evaluations().items() if step == len(self._steps))
        for number in here:
            known = self.rounds.get(number)
            if self._stuck is not None or number in self.missed or (known and known.evaluate is not None):
                continue
            try:
                sums = chain.open_answers(self._opener, self._own(run.evaluation(number)), number)
            except _REFUSED as error:
                self.missed[number] = f"its evaluation does not open any more ({error})"
                continue
            self._know(number, evaluate=sums, model=self._model(chain))

    def _know(self, number: int, **found: Any) -> None:
        self.rounds[number] = replace(self.rounds.get(number, OpenedRound()), **found)

    @property
    def _opener(self) -> Decryptor:
        assert self._decryptor is not None
        return self._decryptor

    def _own(self, frame: bytes) -> bytes:
        """A frame as the engine's client is sent it: an engine opens one form of it only."""
        return for_reader(self.scheme, frame, self._key.client) if isinstance(self._key, Engine) else frame

    @staticmethod
    def _model(chain: Chain) -> str:
        return arrays_digest(chain.charter.names, chain.model).hex()

    # --- what a record has -------------------------------------------------------------------

    def metrics(self, number: int) -> dict[str, dict[str, Any]]:
        """`RoundRecord.metrics` of the run's round ``number``, as far as it was opened."""
        made: dict[str, dict[str, Any]] = {}
        for purpose in PURPOSES:
            sums = self._sums(number, purpose)
            if sums is not None and self._charter is not None and self._charter.answers[purpose]:
                # A page asks again and again for all rounds.
                before, held = self._made.get((number, purpose), (None, {}))
                if before is not sums:
                    held = self._aggregated(self._charter, sums, purpose)
                    self._made[number, purpose] = sums, held
                made[purpose] = dict(held)
        return made

    def counted(self, number: int) -> dict[str, float]:
        """`RoundRecord.counted` of the run's round ``number``, as far as it was opened."""
        made: dict[str, float] = {}
        for purpose in PURPOSES:
            sums = self._sums(number, purpose)
            made.update({} if sums is None else counted_of(sums, purpose))
        return made

    def losses(self, record: RoundRecord) -> list[str]:
        """What is not in the sums that were opened of ``record``'s round."""
        sums = {purpose: self._sums(record.round, purpose) for purpose in PURPOSES}
        return [lost for purpose in PURPOSES for lost in losses(sums[purpose], purpose, record.elements)]

    def filled(self, record: RoundRecord) -> RoundRecord:
        """``record`` with what was opened of its round; what the server has seen itself goes before."""
        metrics = {**self.metrics(record.round), **{part: held for part, held in record.metrics.items() if held}}
        return replace(record, metrics=metrics, counted={**self.counted(record.round), **record.counted})

    def notice(self) -> str:
        """One line on the rounds that did not open; empty where all did."""
        if not self.missed:
            return ""
        first = min(self.missed)
        listed = ", ".join(str(number) for number in sorted(self.missed))
        return f"not opened: round{'s' if len(self.missed) > 1 else ''} {listed}; round {first}: {self.missed[first]}"

    def _sums(self, number: int, purpose: Purpose) -> Sums | None:
        opened = self.rounds.get(number)
        return None if opened is None else opened.train if purpose == "train" else opened.evaluate

    def _aggregated(self, charter: Charter, sums: Sums, purpose: Purpose) -> dict[str, Any]:
        try:
            return dict((self.aggregates[purpose] or _means)(sums, charter.answers[purpose], charter.weighted_by))
        except Exception as error:
            raise StrategyError(f"the function that aggregates metrics has failed: {error}") from error


def _in_memory(scheme: Scheme, key: Any) -> Callable[[], Decryptor]:
    return lambda: scheme.decryptor(key, in_memory=True)


def _means(sums: Sums, answers: Sequence[Answer], weighted_by: str) -> dict[str, Any]:
    """Of each answer the clients' mean, and of one that is summed one client's part."""
    made = part_of(sums, answers, weighted_by, sums.clients)
    return {answer.name: made[answer.name] for answer in answers}
