"""The server's side of a run, independent of any framework.

Call `ServerRun.begin`; then for each round `begin_round`, `ask`, `accept_train`, `end_training`, `ask`,
`accept_evaluate`, `end_evaluation`; and `close` at the end. `run_round` runs a whole round over a `Link`, for a server
without a strategy of its own.
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
    """One run of a federation, with the options of ``setup``.

    ``show`` is called with lines for the operator; without it they are logged.
    """

    def __init__(self, setup: RunSetup, show: Callable[[str], None] | None = None) -> None:
        super().__init__(setup, show)
        self._asking = Asking(self)
        self._accepting = Accepting(self, self._asking)
        self.state: bytes | None = None
        """The stored state of a resumed run's strategy; None if there is none."""

    # --- to begin ----------------------------------------------------------------------------

    def begin(self, names: Sequence[str], values: Sequence[Array], rounds: int, plan: Plan | None = None) -> None:
        """Begin a run of ``rounds`` rounds, or resume the run in the setup's folder.

        ``names`` and ``values`` are the first model's arrays. ``plan`` describes what the strategy does in these
        rounds; without one, the mean is the next model. Everything that can be refused before a client trains is
        refused here. Raises `StrategyError`, and the codec's errors for a model that it does not accept.
        """
        setup, codec = self.setup, self.scheme.codec
        setup.check_model(names)
        self.plan, self.planned = plan or Plan(), max(rounds, 1)
        # Otherwise each client would refuse the model only after training.
        codec.check(values, list(names))
        if codec.privacy is not None:
            grid(codec.privacy, codec.bit_widths[0], sum(x.size for x in values), self.scheme.noise_shares)
        self._check_plan(rounds)
        if self.plan.optimiser is not None:
            self.plan.optimiser.check_types(values)
        if codec.privacy is not None and setup.answers["train"]:
            raise StrategyError("train_answers do not work with privacy: no noise covers them; remove one of the two")
        self.rounds, self.done, self.state = [], 0, None
        self.nodes.restart()
        exists = setup.resume and setup.out is not None and setup.out.exists()
        if exists and RunFolder.has_run(cast(Path, setup.out)):
            self._resume(cast(Path, setup.out), names, values)
            return
        self.base = self.number = max(reserve(ROUNDS_OF_A_RUN), self.base + ROUNDS_OF_A_RUN)
        charter = charter_of(self, names, values)
        if setup.out is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="fedcipher-run-")
        path = setup.out if self._scratch is None else Path(self._scratch.name) / "run"
        folder = RunFolder(cast(Path, path), self.scheme, charter, values, begun=exists)
        self.journal = None if self._scratch is not None else Journal(folder.folder)
        self._start_from(folder)
        self._announce(charter)
        self._check_signed(folder)

    def _check_plan(self, rounds: int) -> None:
        plan = self.plan
        if not plan.trains and rounds > 1:
            # The model never changes. Two sums of answers to the same model could tell one client's answers apart.
            raise StrategyError(
                f"{plan.name} does not train in {rounds} rounds, and a client evaluates a model only once: start it "
                "with num_rounds=1, and start it again for another evaluation"
            )
        if plan.optimiser is not None and self.scheme.codec.target != "delta":
            raise StrategyError(
                f"the clients make the step of {plan.name} from the mean of their changes, but these keys are for "
                'whole models: make keys with Codec(target="delta"), which is the default'
            )

    def _start_from(self, folder: RunFolder) -> None:
        self._model = ServerModel(folder, self.scheme, self.setup.opener)
        setup = self.setup
        self._search = LiarSearch(folder.folder, corrupt=setup.corrupt, minimum=setup.minimum, seed=self.base)

    def _announce(self, charter: Charter) -> None:
        self.show(
            f"the charter of run {charter.run} has the digest {charter.digest.hex()}; clients log the same digest, and "
            "a site's policy can name it"
        )

    def _check_signed(self, folder: RunFolder) -> None:
        """Raise `StrategyError` if the coordinator must sign the charter and has not yet."""
        if self.setup.signed_charter and not folder.signature:
            digest = folder.charter.digest.hex()
            raise StrategyError(
                f"the coordinator must sign the charter of the run {folder.folder}, with `fedcipher charter "
                f"{folder.folder} --sign NAME.identity --digest {digest}`; then start again with resume=True"
            )

    def _resume(self, path: Path, names: Sequence[str], values: Sequence[Array]) -> None:
        """Resume the run in ``path`` after its last round that ended."""
        self.journal = Journal(path, used=bool(read_run(path).rounds))
        past = self.journal.past
        begun = {record.round for record in past.rounds}
        folder = RunFolder.reopen(path, self.scheme, (past.newest or Ended(0)).count, begun)
        self.base = folder.charter.run - 1
        check_same(self, path, folder.charter, names, values)
        self._start_from(folder)
        self.done = max((record.round for record in past.finished), default=0)
        if self.model.first_sum_withdrawn:
            self.search.record_opened(range(len(self.search.pending)))
        else:
            self.search.resume(self.done, measured=bool(self.model.measured_sets))
        self._announce(folder.charter)
        self._check_signed(folder)
        self.rounds, self.state = past.rounds, past.strategy_state
        self.nodes.remember(past.rounds)
        self.model.remember(past.rounds)
        self.number = max([self.base, *(max(record.number, record.evaluated) for record in past.rounds)])
        if self.overtaken():
            _log.warning("the run %s: %s", path, OVERTAKEN)
        if past.rounds:
            self.show(f"the run {path} continues after round {self.done}; its app counts rounds from 1 again")

    def warn_of_budget(self, rounds: int) -> None:
        """Log a warning if clients would refuse some of ``rounds`` rounds because of their privacy budget."""
        privacy = self.scheme.codec.privacy
        if privacy is None:
            return
        frames = rounds * (2 if self.setup.answers["evaluate"] else 1)
        if frames > privacy.rounds:
            _log.warning(
                "num_rounds=%s, but the differential privacy of these keys allows %s updates of each client, including "
                "answers to evaluations. A client that has sent them refuses all further rounds. Sample fewer clients "
                "in each round, or make keys for more updates",
                rounds,
                privacy.rounds,
            )

    def set_model(self, names: Sequence[str], values: Callable[[], Sequence[Array]]) -> None:
        """Begin the next round with ``values``, which differ from the last round's result.

        Code around the run's strategy changed them. They are accepted only if the charter lets the server set models;
        otherwise raises `StrategyError`.
        """
        model = self.model
        if self.setup.opener is None:
            raise StrategyError(
                "the arrays of this round are not those that the last round returned: code around SecureStrategy "
                "changed them, and without a key it changed ciphertext. Noise on the server needs opener=...; put "
                "clipping and noise on the clients into a mod before client_mod"
            )
        given = values()
        if list(names) != model.names or [x.shape for x in given] != [x.shape for x in model.arrays]:
            raise StrategyError(f"the round has the arrays {names[:5]}, but the run began with {model.names[:5]}")
        model.set_model(given)

    # --- round by round ------------------------------------------------------------------------

    def begin_round(self, index: int, link: Link) -> None:
        """Begin the run's round ``index``. Its numbers are on disk before any client is asked."""
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
        """Log a warning if there is a newer key epoch; a run keeps the epoch of its charter."""
        newest = self.setup.keys.current()
        if newest.epoch != self.key.epoch:
            _log.warning("key epoch %s is not used yet: this run keeps epoch %s", newest.epoch, self.key.epoch)

    @property
    def evaluates(self) -> bool:
        """Like `Asking.evaluates`."""
        return self._asking.evaluates

    def ask(self, purpose: Purpose, index: int, messages: list[Message]) -> Iterator[Message]:
        """Like `Asking.ask`."""
        return self._asking.ask(purpose, index, messages)

    def accept_train(self, replies: Iterable[Reply]) -> Summed | None:
        """Like `Accepting.accept_train`."""
        return self._accepting.accept_train(replies)

    def accept_evaluate(self, replies: Iterable[Reply]) -> Summed | None:
        """Like `Accepting.accept_evaluate`."""
        return self._accepting.accept_evaluate(replies)

    def end_training(self, metrics: Mapping[str, Any] | None, state: bytes | None = None) -> None:
        """End the round's training. Another process can resume the run from here.

        ``metrics`` are the strategy's, ``state`` is its state for a resumed run. Raises `StrategyError` if no further
        round can have a sum.
        """
        self.ended = Ended(self.model.steps)
        self.record_part("train", metrics, state)
        if self.end_reason:
            raise StrategyError(f"the run ends in round {self.record.round}: {self.end_reason}")

    def note_late(self) -> None:
        """Count late answers to closed rounds, also in the journal."""
        for record in self.setup.round_close.collect_late(self.link):
            self.change_round(record)

    def call_on_round(self) -> None:
        """Call the functions of ``on_round`` with the finished round's record."""
        for function in self.setup.on_round:
            function(self.record)

    def end_evaluation(self, metrics: Mapping[str, Any] | None) -> None:
        """End the round's evaluation, with the strategy's ``metrics``."""
        if not self.plan.trains and not self.model.folder.evaluations():
            self.leave_unfinished("this run does not train, and its evaluation has no sum of answers")
        self.record_part("evaluate", metrics)

    # --- to end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the run's files, and tell a committee that the run has ended."""
        if self.journal is not None:
            self.journal.close()
        if self._model is not None and self.link is not None:
            self.sums.announce_end(self.link, self.charter.types["train"])

    @property
    def outcome(self) -> Outcome:
        """The outcome of all rounds so far."""
        return Outcome.of(self.rounds)

    def where_the_model_is(self) -> Iterator[str]:
        """Lines for an operator whose server cannot see the model."""
        folder = self.model.folder.folder
        yield (
            f"the model is encrypted in {folder}; a client opens it with `fedcipher open {folder} --key client-0.key "
            "--out model.npz`"
        )
        if not self.model.any_node_up_to_date:
            yield (
                "no client has opened the last round's sum, because none was asked to evaluate it. `fedcipher open` "
                "shows whether it opens"
            )

    def open_model(self, decryptor: Decryptor) -> list[Array]:
        """The current global model, for a holder of a client's key. Raises the errors of a decryptor."""
        if not self.begun:
            raise StrategyError("no round has been run yet")
        model = self.model
        return model.arrays if model.charter.sets_models else replay(model.folder, self.scheme, decryptor).model

    def past_metrics(self, part: str) -> dict[int, dict[str, Any]]:
        """The metrics of ``part`` ("train", "evaluate", "server") from rounds of an earlier process, by round."""
        past = () if self.journal is None or not self.done else self.journal.past.finished
        return {record.round: record.metrics[part] for record in past if part in record.metrics}

    def check_some_finished(self, asked: int, before: int) -> None:
        """Raise `StrategyError` if no round has an aggregate, or no round after the first ``before`` rounds.

        Also raises it if the opened aggregates show that all apps failed in all rounds. ``asked`` is the number of
        rounds that were asked for.
        """
        finished = sum(record.unfinished is None for record in self.rounds)
        if asked > 0 and finished == 0:
            raise StrategyError(f"none of {len(self.rounds)} rounds has an aggregate; the last: {self._last_reason()}")
        if finished and all(record.all_apps_failed for record in self.rounds if record.unfinished is None):
            raise StrategyError(
                f"the apps of all clients failed in all {finished} rounds that have an aggregate, so nothing was "
                "computed; the clients' logs have the cause"
            )
        ours = self.rounds[before:]
        if before and ours and all(record.unfinished is not None for record in ours):
            raise StrategyError(
                f"none of the {len(ours)} rounds since the run was resumed has an aggregate, so its model "
                f"is unchanged; the last: {self._last_reason()}"
            )

    def check_lost(self, result: Any = None) -> None:
        """Log the run's losses. Raises `LostRoundsError`, with ``result``, if more rounds are lost than `may_lose`."""
        outcome = self.outcome
        if not outcome.lost and not outcome.losses:
            return
        liars = sorted({*self.search.found, *self.nodes.sent_false_shares})
        found = f"clients {liars} have lied and are left out" if liars else "no client is proven to have lied"
        text = outcome.text(found)
        _log.warning("%s", text)
        if len(outcome.lost) > self.setup.may_lose:
            raise LostRoundsError(
                f"{text}. With SecureStrategy(may_lose={len(outcome.lost)}), such a run counts as a success",
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
        """Run round ``index`` with these ``nodes``. Return the results of its training and of its evaluation.

        This is for a server without a strategy of its own: the mean is the next model.
        """
        self.begin_round(index, link)
        summed = self.accept_train(self._exchange("train", index, link, nodes))
        self.end_training(None)
        evaluated = None
        if evaluate and self.evaluates:
            evaluated = self.accept_evaluate(self._exchange("evaluate", index, link, nodes))
            self.end_evaluation(None)
        self.call_on_round()
        return summed, evaluated

    def _exchange(self, purpose: Purpose, index: int, link: Link, nodes: Sequence[int]) -> Iterable[Reply]:
        messages = self.ask(purpose, index, [Message(node, self.charter.types[purpose]) for node in nodes])
        return self.gather(partial(link.exchange, messages), self.timeout)
