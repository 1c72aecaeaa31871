"""A run's metrics for the holder of a client's key: opens the encrypted sums of the run's folder as the folder grows.

The server sees no metrics of a run whose sums it does not open. The sums of the clients' answers are in the run's
folder, beside the aggregates. They open in the order in which they were made.
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
"""A strategy's aggregation of metrics: from opened sums, the charter's answers, and the name of the weight metric."""

_REFUSED = (FrameError, RoundError, DecryptError)


@dataclass(frozen=True)
class OpenedRound:
    """The opened sums of one of the run's rounds."""

    train: Sums | None = None
    """Answers of the clients in the aggregate; None without an aggregate, or if its frames have no answers."""
    evaluate: Sums | None = None
    """Answers of the clients in the evaluation; None if it was not opened."""
    model: str = ""
    """SHA-256 (hexadecimal) of the model that the round ended with, or evaluated."""


class Curves:
    """The metrics of the run in ``folder``, for the holder of a client's key.

    ``key`` is the path of a key file, or an `Engine`. A key file opens sums in memory and leaves the client's own
    ledgers unchanged. An engine remembers the newest sum that it has opened and opens no older one. So call `read`
    often while the client trains; `missed` lists the rounds that were read too late.

    ``train`` and ``evaluate`` aggregate metrics like the app's strategy (`fedcipher.adapters.flower.aggregate_by`).
    Without them a metric is the mean over the clients. Raises what `load_client` or an engine raises.
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
        # A dashboard calls from several threads.
        self._lock = threading.Lock()
        self._charter: Charter | None = None
        self._decryptor: Decryptor | None = None
        self._chain: Chain | None = None
        self._steps: list[int] = []
        self._stuck: tuple[int, int] | None = None
        self._made: dict[tuple[int, Purpose], tuple[Sums, dict[str, Any]]] = {}
        self.rounds: dict[int, OpenedRound] = {}
        """Opened rounds, by the run's round number."""
        self.missed: dict[int, str] = {}
        """Rounds with a sum that did not open, and why."""

    @property
    def charter(self) -> Charter | None:
        """The run's charter; None before `read`."""
        return self._charter

    @property
    def arrays(self) -> list[Any] | None:
        """The newest opened model, one array for each of the charter's; None before the first step."""
        return None if self._chain is None or self._chain.at_first_model else self._chain.model

    def read(self) -> dict[int, OpenedRound]:
        """Open the sums that were added since the last call. Returns all opened rounds by their number in the run.

        Raises `RunError` if the run has other keys or its folder cannot be read, and what an unreachable engine raises.
        """
        with self._lock:
            run = read_run(self._folder)
            if run.scheme_spec != json.loads(json.dumps(self.scheme.spec())):
                raise RunError(f"the run {self._folder} has other keys: scheme, parameters or codec differ")
            if self._charter is None or self._charter.digest != run.charter.digest or self._withdrawn(run):
                self._begin(run.charter)
            # If the server sets the models, it opens all sums itself and writes the metrics into its journal.
            if not run.charter.sets_models and (run.count or run.evaluations()):
                self._follow(run)
            return dict(self.rounds)

    def _begin(self, charter: Charter) -> None:
        self._charter, self._chain, self._steps, self._stuck = charter, None, [], None
        self._decryptor = self.decryptor()
        self.rounds.clear()
        self.missed.clear()

    def _withdrawn(self, run: StoredRun) -> bool:
        """Whether the server has withdrawn a step that this object opened or failed to open."""
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
        frames = [self._for_key(frame) for frame in run.step(step)]
        try:
            opened = chain.step(self._opener, frames, number)
        except _REFUSED as error:
            self._stuck = step, number
            self.missed[number] = f"its aggregate and all later ones do not open ({error})"
            return
        self._steps.append(number)
        self._add(number, train=opened.answers, model=self._model(chain))

    def _evaluations(self, run: StoredRun, chain: Chain) -> None:
        """Open the evaluations of the chain's current position."""
        here = sorted(number for number, step in run.evaluations().items() if step == len(self._steps))
        for number in here:
            known = self.rounds.get(number)
            if self._stuck is not None or number in self.missed or (known and known.evaluate is not None):
                continue
            try:
                sums = chain.open_answers(self._opener, self._for_key(run.evaluation(number)), number)
            except _REFUSED as error:
                self.missed[number] = f"its evaluation no longer opens ({error})"
                continue
            self._add(number, evaluate=sums, model=self._model(chain))

    def _add(self, number: int, **found: Any) -> None:
        self.rounds[number] = replace(self.rounds.get(number, OpenedRound()), **found)

    @property
    def _opener(self) -> Decryptor:
        assert self._decryptor is not None
        return self._decryptor

    def _for_key(self, frame: bytes) -> bytes:
        """The frame in the form that an engine opens: for the engine's client."""
        return for_reader(self.scheme, frame, self._key.client) if isinstance(self._key, Engine) else frame

    @staticmethod
    def _model(chain: Chain) -> str:
        return arrays_digest(chain.charter.names, chain.model).hex()

    # --- values for a round's record ---------------------------------------------------------

    def metrics(self, number: int) -> dict[str, dict[str, Any]]:
        """`RoundRecord.metrics` of the run's round ``number``, from the sums that were opened."""
        made: dict[str, dict[str, Any]] = {}
        for purpose in PURPOSES:
            sums = self._sums(number, purpose)
            if sums is not None and self._charter is not None and self._charter.answers[purpose]:
                # Cached, because a page asks for all rounds at every refresh.
                before, held = self._made.get((number, purpose), (None, {}))
                if before is not sums:
                    held = self._aggregated(self._charter, sums, purpose)
                    self._made[number, purpose] = sums, held
                made[purpose] = dict(held)
        return made

    def counted(self, number: int) -> dict[str, float]:
        """`RoundRecord.counted` of the run's round ``number``, from the sums that were opened."""
        made: dict[str, float] = {}
        for purpose in PURPOSES:
            sums = self._sums(number, purpose)
            made.update({} if sums is None else counted_of(sums, purpose))
        return made

    def losses(self, record: RoundRecord) -> list[str]:
        """Warnings about values that are missing from the opened sums of ``record``'s round."""
        sums = {purpose: self._sums(record.round, purpose) for purpose in PURPOSES}
        return [lost for purpose in PURPOSES for lost in losses(sums[purpose], purpose, record.elements)]

    def filled(self, record: RoundRecord) -> RoundRecord:
        """``record`` with the opened values of its round. Values that the server recorded itself take precedence."""
        metrics = {**self.metrics(record.round), **{part: held for part, held in record.metrics.items() if held}}
        return replace(record, metrics=metrics, counted={**self.counted(record.round), **record.counted})

    def notice(self) -> str:
        """One line about the rounds that did not open; empty if all opened."""
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
            raise StrategyError(f"the function that aggregates metrics failed: {error}") from error


def _in_memory(scheme: Scheme, key: Any) -> Callable[[], Decryptor]:
    return lambda: scheme.decryptor(key, in_memory=True)


def _means(sums: Sums, answers: Sequence[Answer], weighted_by: str) -> dict[str, Any]:
    """The mean over the clients of each answer. For a summed answer it is the sum divided by the number of clients."""
    made = part_of(sums, answers, weighted_by, sums.clients)
    return {answer.name: made[answer.name] for answer in answers}
