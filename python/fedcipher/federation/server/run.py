"""The server's side of a run, apart from any framework: whom it asks, what it sums, and how it ends.

A run is `ServerRun.begin`, then for each round `begin_round`, `ask`, `accept_train`, `end_training`, `ask`,
`accept_evaluate`, `end_evaluation`, and `close` at the end. `run_round` does a round in one call, for whoever has a
`Link` and no strategy of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from fedcipher.codec import Array
from fedcipher.dp import grid
from fedcipher.errors import LostRoundsError, StrategyError
from fedcipher.federation.charter import Charter, Purpose
from fedcipher.federation.messages import Message, Reply
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.accepting import Accepting, Summed
from fedcipher.federation.server.asking import Asking
from fedcipher.federation.server.journal import Ended, Journal
from fedcipher.federation.server.liar_search import LiarSearch
from fedcipher.federation.server.link import Link
from fedcipher.federation.server.model import ServerModel
from fedcipher.federation.server.outcome import Outcome
from fedcipher.federation.server.round_ids import clock_advice, reserve
from fedcipher.federation.server.run_charter import charter_of, check_same
from fedcipher.federation.server.run_folder import RunFolder, read_run, replay
from fedcipher.federation.server.setup import Plan, RunSetup
from fedcipher.federation.server.state import OVERTAKEN, ROUNDS_OF_A_RUN, RunState
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Decryptor

__all__ = ["ServerRun", "Summed"]

_log = quoting_log("fedcipher.federation")


class ServerRun(RunState):
    """One run of a federation. Its options are those of its setup."""

    def __init__(self, setup: RunSetup, shown: Callable[[str], None] | None = None) -> None:
        super().__init__(setup, shown)
        self._asking = Asking(self)
        self._accepting = Accepting(self, self._asking)
        self.state: bytes | None = None
        """What a resumed run's strategy kept of the run, where it kept anything."""

    # --- to begin ----------------------------------------------------------------------------

    def begin(self, names: Sequence[str], values: Sequence[Array], rounds: int, plan: Plan | None = None) -> None:
        """Begin a run of so many ``rounds`` with this first model, or go on with the one in the setup's folder.

        ``plan`` is what the strategy does in that many rounds; without one the mean is the next model. Everything that
        can be refused before a client trains is refused here: raises `StrategyError`, and what the codec raises for a
        model that it does not take.
        """
        setup, codec = self.setup, self.scheme.codec
        setup.check_model(names)
        self.plan, self.planned = plan or Plan(), max(rounds, 1)
        # Refused here, and not by each client after it has trained.
        codec.check(values, list(names))
        if codec.privacy is not None:
            grid(codec.privacy, codec.bit_widths[0], sum(x.size for x in values), self.scheme.noise_shares)
        self._check_plan(rounds)
        if self.plan.optimiser is not None:
            self.plan.optimiser.check_types(values)
        if codec.privacy is not None and setup.answers["train"]:
            raise StrategyError("train_answers and privacy: no noise covers answers; leave them out, or the privacy")
        self.rounds, self.done, self.state = [], 0, None
        self.nodes.restart()
        there = setup.resume and setup.out is not None and setup.out.exists()
        if there and RunFolder.has_run(cast(Path, setup.out)):
            self._go_on(cast(Path, setup.out), names, values)
            return
        self.base = self.number = max(reserve(ROUNDS_OF_A_RUN), self.base + ROUNDS_OF_A_RUN)
        charter = charter_of(self, names, values)
        if setup.out is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="fedcipher-run-")
        path = setup.out if self._scratch is None else Path(self._scratch.name) / "run"
        folder = RunFolder(cast(Path, path), self.scheme, charter, values, begun=there)
        self.journal = None if self._scratch is not None else Journal(folder.folder)
        self._take_up(folder)
        self._announce(charter)
        self._check_signed(folder)

    def _check_plan(self, rounds: int) -> None:
        plan = self.plan
        if not plan.trains and rounds > 1:
            # Nothing is averaged. Two sums of answers to one model would tell one client's from the others'.
            raise StrategyError(
                f"{plan.name} asks nobody to train in {rounds} rounds, and a client evaluates a model once: start "
                "it with num_rounds=1, and once more for another evaluation"
            )
        if plan.optimiser is not None and self.scheme.codec.target != "delta":
            raise StrategyError(
                f"{plan.name} makes its step on the clients, from the mean of their changes, and these keys are for "
                'whole models: make them with Codec(target="delta"), which is the default'
            )

    def _take_up(self, folder: RunFolder) -> None:
        self._model = ServerModel(folder, self.scheme, self.setup.opener)
        setup = self.setup
        self._search = LiarSearch(folder.folder, corrupt=setup.corrupt, minimum=setup.minimum, seed=self.base)

    def _announce(self, charter: Charter) -> None:
        self.shown(
            f"run {charter.run} has the charter {charter.digest.hex()}; clients log the same digest, and a site's "
            "policy can name it"
        )

    def _check_signed(self, folder: RunFolder) -> None:
        """Refuse, with `StrategyError`, to ask clients before the coordinator has signed."""
        if self.setup.signed_charter and not folder.signature:
            digest = folder.charter.digest.hex()
            raise StrategyError(
                f"the charter of the run {folder.folder} waits for its coordinator: `fedcipher charter "
                f"{folder.folder} --sign NAME.identity --digest {digest}` signs it, and resume=True goes on"
            )

    def _go_on(self, path: Path, names: Sequence[str], values: Sequence[Array]) -> None:
        """With the run in ``path``, after its last round that has ended."""
        self.journal = Journal(path, used=bool(read_run(path).rounds))
        past = self.journal.past
        begun = {record.round for record in past.rounds}
        folder = RunFolder.reopen(path, self.scheme, (past.newest or Ended(0)).count, begun)
        self.base = folder.charter.run - 1
        check_same(self, path, folder.charter, names, values)
        self._take_up(folder)
        self.done = max((record.round for record in past.finished), default=0)
        if self.model.false_start:
            self.search.settle(range(len(self.search.pending)))
        else:
            self.search.go_on(self.done, measured=bool(self.model.measured_sets))
        self._announce(folder.charter)
        self._check_signed(folder)
        self.rounds, self.state = past.rounds, past.inner
        self.nodes.remember(past.rounds)
        self.model.remember(past.rounds)
        self.number = max([self.base, *(max(record.number, record.evaluated) for record in past.rounds)])
        if self.overtaken():
            _log.warning("the run %s: %s", path, OVERTAKEN)
        if past.rounds:
            self.shown(f"the run {path} goes on after its round {self.done}; its app counts rounds from 1 again")

    def warn_of_budget(self, rounds: int) -> None:
        """Say where clients would have to refuse some of so many ``rounds``, by their differential privacy."""
        privacy = self.scheme.codec.privacy
        if privacy is None:
            return
        frames = rounds * (2 if self.setup.answers["evaluate"] else 1)
        if frames > privacy.rounds:
            _log.warning(
                "num_rounds=%s, and these keys give %s updates of each client, by its differential privacy, answers to "
                "evaluations among them: clients that have given them refuse all further rounds. Sample fewer in a "
                "round, or make keys for more",
                rounds,
                privacy.rounds,
            )

    def set_model(self, names: Sequence[str], values: Callable[[], Sequence[Array]]) -> None:
        """The next round begins with ``values``, which are not what the last one came to.

        Something around the run's strategy changed them: taken where the charter lets the server set models, refused
        elsewhere. Raises `StrategyError`.
        """
        model = self.model
        if self.setup.opener is None:
            raise StrategyError(
                "the arrays that this round is run with are not what the last round returned: something around "
                "SecureStrategy changed them, and without a key that changed ciphertext. Noise on the server needs "
                "opener=...; clipping and noise on the clients go into a mod before client_mod"
            )
        given = values()
        if list(names) != model.names or [x.shape for x in given] != [x.shape for x in model.arrays]:
            raise StrategyError(f"the round is run with arrays {names[:5]}, the run began with {model.names[:5]}")
        model.change(given)

    # --- round by round ------------------------------------------------------------------------

    def begin_round(self, index: int, link: Link) -> None:
        """The run's round ``index`` begins: it has numbers, on disk, before anybody is asked."""
        self._follow_epochs()
        measured = 0
        if self.model.measuring:
            self.number += 1
            measured = self.number
        self.number += 1
        record = RoundRecord(index, self.number, self.key.epoch, measured, planned=self.planned)
        self.round_began = time.monotonic()
        self.rounds.append(record)
        if self.journal is not None:
            self.journal.begin(record)
        self.link, self.training, self.waits_for_all = link, True, False
        self.note_late()

    def _follow_epochs(self) -> None:
        """A run keeps the epoch of its charter; a new one is said."""
        newest = self.setup.keys.current()
        if newest.epoch != self.key.epoch:
            _log.warning("key epoch %s waits: this run keeps epoch %s", newest.epoch, self.key.epoch)

    @property
    def evaluates(self) -> bool:
        """As `Asking.evaluates`."""
        return self._asking.evaluates

    def ask(self, purpose: Purpose, index: int, messages: list[Message]) -> Iterator[Message]:
        """As `Asking.ask`."""
        return self._asking.ask(purpose, index, messages)

    def accept_train(self, replies: Iterable[Reply]) -> Summed | None:
        """As `Accepting.accept_train`."""
        return self._accepting.accept_train(replies)

    def accept_evaluate(self, replies: Iterable[Reply]) -> Summed | None:
        """As `Accepting.accept_evaluate`."""
        return self._accepting.accept_evaluate(replies)

    def end_training(self, metrics: Mapping[str, Any] | None, state: bytes | None = None) -> None:
        """The round's training has ended: nobody needs this process for it from here on.

        ``metrics`` are the strategy's, ``state`` what it keeps for a run that is resumed. Raises `StrategyError` where
        no further round can have a sum.
        """
        self.ended = Ended(self.model.steps)
        self.note("train", metrics, state)
        if self.ends:
            raise StrategyError(f"the run ends in round {self.record.round}: {self.ends}")

    def note_late(self) -> None:
        """Count the answers to rounds that have closed, also in the journal."""
        for record in self.setup.round_close.collect_late(self.link):
            self.change(record)

    def tell(self) -> None:
        """Call whoever wants each finished round."""
        for watcher in self.setup.watchers:
            watcher(self.record)

    def end_evaluation(self, metrics: Mapping[str, Any] | None) -> None:
        """The round's evaluation has ended, with the strategy's ``metrics``."""
        if not self.plan.trains and not self.model.folder.evaluations():
            self.leave_unfinished("nobody trains in this run, and its evaluation has no sum of answers")
        self.note("evaluate", metrics)

    # --- to end --------------------------------------------------------------------------------

    def close(self) -> None:
        """The run's files are closed, and a committee is told that the run has ended."""
        if self.journal is not None:
            self.journal.close()
        if self._model is not None and self.link is not None:
            self.sums.end(self.link, self.charter.types["train"])

    @property
    def outcome(self) -> Outcome:
        """What the rounds so far have lost."""
        return Outcome.of(self.rounds)

    def where_the_model_is(self) -> Iterator[str]:
        """Lines for an operator whose server cannot see the model."""
        folder = self.model.folder.folder
        yield (
            f"the model is encrypted in {folder}; a client opens it with `fedcipher open {folder} --key client-0.key "
            "--out model.npz`"
        )
        if not self.model.somebody_has_all:
            yield (
                "no client has tried the last round's sum, since none was asked to evaluate it: only `fedcipher open` "
                "shows whether it opens"
            )

    def open_model(self, decryptor: Decryptor) -> list[Array]:
        """The current global model, for a holder of a client's key. Raises what a decryptor raises."""
        if not self.begun:
            raise StrategyError("no round has been run yet")
        model = self.model
        return model.arrays if model.charter.sets_models else replay(model.folder, self.scheme, decryptor).model

    def past_metrics(self, part: str) -> dict[int, dict[str, Any]]:
        """What another process has noted of ``part`` of the rounds before this one's, by round."""
        past = () if self.journal is None or not self.done else self.journal.past.finished
        return {record.round: record.metrics[part] for record in past if part in record.metrics}

    def check_some_finished(self, asked: int, before: int) -> None:
        """Raise `StrategyError` where none of the ``asked`` rounds has an aggregate, or none after those ``before``."""
        finished = sum(record.unfinished is None for record in self.rounds)
        if asked > 0 and finished == 0:
            raise StrategyError(f"none of {len(self.rounds)} rounds has an aggregate; the last: {self._last_reason()}")
        ours = self.rounds[before:]
        if before and ours and all(record.unfinished is not None for record in ours):
            raise StrategyError(
                f"none of the {len(ours)} rounds since the run was resumed has an aggregate: its model "
                f"is what it was; the last: {self._last_reason()}"
            )

    def check_lost(self, result: Any = None) -> None:
        """Log what the run has lost; raise `LostRoundsError`, with ``result``, where more rounds than it may lose."""
        outcome = self.outcome
        if not outcome.lost and not outcome.losses:
            return
        liars = sorted({*self.search.found, *self.nodes.accused})
        found = f"clients {liars} have lied and are left out" if liars else "no client is proven to have lied"
        text = outcome.text(found)
        _log.warning("%s", text)
        if len(outcome.lost) > self.setup.may_lose:
            raise LostRoundsError(
                f"{text}. SecureStrategy(may_lose={len(outcome.lost)}) takes such a run for a success",
                result=result,
                lost=outcome.lost,
                liars=liars,
            )

    def _last_reason(self) -> str:
        record = self.record
        left_out = next((c.left_out for c in record.clients if c.left_out), None)
        advice = clock_advice()
        return f"{record.unfinished}{f' ({left_out})' if left_out else ''}{f'; {advice}' if advice else ''}"

    # --- a round in one call -------------------------------------------------------------------

    def run_round(
        self, index: int, link: Link, nodes: Sequence[int], *, evaluate: bool = False
    ) -> tuple[Summed | None, Summed | None]:
        """Round ``index`` of the run with these ``nodes``: what its training came to, and its evaluation.

        For a server without a strategy of its own: the mean is the next model.
        """
        self.begin_round(index, link)
        summed = self.accept_train(self._exchanged("train", index, link, nodes))
        self.end_training(None)
        evaluated = None
        if evaluate and self.evaluates:
            evaluated = self.accept_evaluate(self._exchanged("evaluate", index, link, nodes))
            self.end_evaluation(None)
        self.tell()
        return summed, evaluated

    def _exchanged(self, purpose: Purpose, index: int, link: Link, nodes: Sequence[int]) -> Iterable[Reply]:
        messages = self.ask(purpose, index, [Message(node, self.charter.types[purpose]) for node in nodes])
        return self.gathered(partial(link.exchange, messages), self.timeout)
