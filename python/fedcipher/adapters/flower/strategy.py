"""The strategy wrapper: any weighted-mean strategy of Flower, over ciphertexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcipher._arguments import callable_or_none, instance_of, seconds, whole_number
from fedcipher.adapters.flower import records
from fedcipher.adapters.flower.polling import Arrivals, FlowerLink, check_grid
from fedcipher.adapters.flower.records import SealedArrays, model_record, model_values
from fedcipher.adapters.flower.wrapped_strategy import WrappedStrategy
from fedcipher.codec import Array
from fedcipher.errors import StrategyError
from fedcipher.federation import messages
from fedcipher.federation.charter import MAX_ROUNDS, Purpose
from fedcipher.federation.messages import Arrays, Reply
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.outcome import Outcome
from fedcipher.federation.server.run import ServerRun, Summed
from fedcipher.federation.server.setup import RunOptions, RunSetup
from fedcipher.foreign_text import quoting_log
from fedcipher.keys.provider import ServerKeys
from fedcipher.schemes import Decryptor

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SecureResult", "SecureStrategy"]

# Flower shows its own log only; what a run is protected by belongs into it.
_shown = quoting_log("flwr")


@dataclass
class SecureResult(Result):
    """Flower's result, with what the run has lost. `SecureStrategy.start` returns it."""

    outcome: Outcome = field(default_factory=lambda: Outcome(0, {}))

    @classmethod
    def of(cls, result: Result, outcome: Outcome) -> SecureResult:
        """Flower's ``result`` with this ``outcome``."""
        return cls(**vars(result), outcome=outcome)


def _signature() -> Signature:
    """With every option of a run, for whoever asks what `SecureStrategy` takes."""
    first, *options = signature(RunSetup).parameters.values()
    return Signature([Parameter("strategy", Parameter.POSITIONAL_OR_KEYWORD, annotation="Strategy"), first, *options])


class SecureStrategy(Strategy):
    """Wrap a Flower strategy whose aggregation is a weighted mean; the server sees no update.

    ``strategy`` samples clients, sets configurations and aggregates metrics (`FedAvg`, `FedProx`, your own). It is
    tried on made-up rounds at `start`, and in each round it is given small random arrays in place of updates; if what
    it makes of them is not their mean, `StrategyError` is raised. Of FedAdam, FedYogi, FedAdagrad and FedAvgM that goes
    for the part that averages: clients make their step (`fedcipher.federation.optimiser_step`), with the numbers that
    they have at `start`. What it tells the clients in each round is asked of a copy before the first round, and stands
    in the run's charter.

    ``keys`` and all ``options`` are those of `fedcipher.federation.server.setup.RunSetup`. One of two says where the
    model goes: ``opener``, a client's key file or an engine's decryptor, for a server that may see the mean of each
    round; or ``out``, a new folder that keeps the run encrypted, for `open_run` and ``fedcipher open``.

    Updates are added as they arrive and are not kept: the server's memory does not grow with the number of clients. A
    client that has not answered when a round closes is left out of its sum, and its `RoundRecord` says so. A round of
    fewer updates than the scheme's ``min_contributions`` has no aggregate: the sum of one update is that update. The
    global model stays, `RoundRecord.unfinished` says so, and nobody is sent anything of it. A first round that samples
    fewer clients is refused with a `StrategyError`, and so is a whole run without any aggregate.

    Without an opener, ``Result.arrays`` is a `SealedArrays`, which raises when it is read.
    """

    __signature__ = _signature()

    def __init__(self, strategy: Strategy, keys: str | Path | ServerKeys, **options: Unpack[RunOptions]) -> None:
        self.setup = setup = RunSetup(keys, **options)
        self._inner = WrappedStrategy(strategy, opens=setup.opener is not None, sets_models=setup.sets_models)
        self.run = ServerRun(setup, partial(_shown.info, "Fedcipher: %s"))
        """The run, apart from Flower; each `start` begins another."""
        self._link: FlowerLink | None = None
        self._evaluates_here = False
        # What Flower runs the next round with, unless something around the strategy changes it: what the last round
        # returned, or what the run has begun with where none has returned anything.
        self._expected: list[ArrayRecord] = []
        # The charter's arguments that `start` is given.
        self._planned = 1
        self._configs: dict[Purpose, ConfigRecord] = {"train": ConfigRecord(), "evaluate": ConfigRecord()}

    @property
    def rounds(self) -> list[RoundRecord]:
        """What the server has seen of each round of the run."""
        return self.run.rounds

    @property
    def inner(self) -> Strategy:
        """The wrapped strategy."""
        return self._inner.strategy

    @property
    def outcome(self) -> Outcome:
        """What the rounds so far have lost."""
        return self.run.outcome

    def summary(self) -> None:
        """Log what protects the run, then the inner strategy's summary."""
        _shown.info("Fedcipher: %s", self.setup.summary())
        if self._inner.optimiser is not None:
            _shown.info(
                "Fedcipher: the clients make the step of %s, after they have opened the mean", self._inner.optimiser
            )
        self.inner.summary()

    # --- the run -----------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> SecureResult:
        """Run ``num_rounds`` rounds, as any Flower strategy does.

        Raises `StrategyError` before the first round where the run could not end with a usable model: without
        ``opener`` and ``out``, with ``evaluate_fn`` and no opener, with a strategy that is no mean; and at the end
        where no round had an aggregate. Raises `LostRoundsError` at the end where more rounds than ``may_lose`` had
        none; the error holds the result. Each call is a run of its own. The result's ``outcome`` says which rounds
        and clients the run has lost, and which sums are not the mean; so does the last line of the log.
        """
        check_grid(grid)
        instance_of(initial_arrays, ArrayRecord, "initial_arrays", "give an ArrayRecord of the model's first arrays")
        num_rounds, timeout = whole_number(num_rounds, "num_rounds", 0, MAX_ROUNDS), seconds(timeout, "timeout")
        given: dict[Purpose, ConfigRecord | None] = {"train": train_config, "evaluate": evaluate_config}
        for name, config in given.items():
            if config is not None:
                instance_of(config, ConfigRecord, f"{name}_config", "give a ConfigRecord")
        callable_or_none(evaluate_fn, "evaluate_fn")
        if evaluate_fn is not None and self.setup.opener is None:
            raise StrategyError(
                "evaluate_fn needs the model, and this server has no key: pass opener=... to SecureStrategy if the "
                "server may see the mean of each round, or evaluate on the clients (the strategy's fraction_evaluate)"
            )
        evaluate = None if evaluate_fn is None else partial(self._evaluated_here, evaluate_fn)
        self._evaluates_here = evaluate is not None
        run, link = self.run, self._linked(grid)
        run.link, run.timeout = link, timeout
        streaming = cast(Grid, Arrivals(link, run.gather))
        try:
            self._planned = max(num_rounds, 1)
            self._configs = {purpose: ConfigRecord(dict(config or {})) for purpose, config in given.items()}
            self._begin(initial_arrays)
            before, left = len(run.rounds), max(num_rounds - run.done, 0)
            run.warn_of_budget(num_rounds)
            result = super().start(
                streaming, self._expected[-1], left, timeout, train_config, evaluate_config, evaluate
            )
            run.note_late()
        finally:
            run.close()
        self._with_past(result)
        run.check_some_finished(num_rounds, before)
        result.arrays = self._last_model(initial_arrays)
        ended = SecureResult.of(result, self.outcome)
        run.check_lost(ended)
        return ended

    def _last_model(self, initial: ArrayRecord) -> ArrayRecord:
        """What ``Result.arrays`` is."""
        model = self.run.model
        if not self.run.plan.trains:
            return initial
        if self.setup.opener is not None:
            # What Flower has kept may be of a sum that was withdrawn.
            return model_record(model.by_name(model.arrays))
        for line in self.run.where_the_model_is():
            _shown.info("Fedcipher: %s", line)
        return SealedArrays(model.folder.folder)

    def _begin(self, initial: ArrayRecord) -> None:
        """Everything that can be refused before a client trains."""
        if isinstance(initial, SealedArrays):
            raise StrategyError(f"{initial!r} is no model to start from: open it first, with `fedcipher open`")
        self.setup.check_model(list(initial.keys()))
        rounds, configs = self._planned, self._configs
        names, values = list(initial.keys()), model_values(initial)
        shown = self._inner.shown(None if self.setup.opener is None else initial)
        self.run.begin(names, values, rounds, self._inner.plan(rounds, shown, configs))
        if self.run.state is not None:
            self._inner.state.restore(self.run.state)
        model = self.run.model
        self._expected = [model_record(model.by_name(model.arrays)) if model.moved else initial]

    def _evaluated_here(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None], number: int, arrays: ArrayRecord
    ) -> MetricRecord | None:
        metrics = evaluate_fn(self.run.done + number, arrays)
        if number > 0:
            self.run.record_part("server", metrics)
            self.run.call_on_round()
        return metrics

    def _with_past(self, result: Result) -> None:
        """The metrics of rounds that another process has run, and Flower's own under the run's round numbers."""
        parts = {
            "train": result.train_metrics_clientapp,
            "evaluate": result.evaluate_metrics_clientapp,
            "server": result.evaluate_metrics_serverapp,
        }
        for part, metrics in parts.items():
            moved = {self.run.done + number: values for number, values in metrics.items()}
            metrics.clear()
            metrics.update({number: MetricRecord(held) for number, held in self.run.past_metrics(part).items()})
            metrics.update(moved)

    # --- towards the clients -----------------------------------------------------------------

    def _linked(self, grid: Grid) -> FlowerLink:
        """The link of ``grid``: one for all rounds, which knows what has been asked for in vain."""
        if isinstance(grid, Arrivals):
            return grid.link
        if self._link is None or self._link.grid is not grid:
            self._link = FlowerLink(grid)
        return self._link

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy sample, then replace what it sends by ciphertext."""
        self._take(arrays, "train", config)
        self._inner.check_unchanged()
        index = self.run.done + server_round
        self.run.begin_round(index, self._linked(grid))
        return self._asked("train", index, config, grid) if self.run.plan.trains else []

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Like `configure_train`."""
        self._take(arrays, "evaluate", config)
        return self._asked("evaluate", self.run.done + server_round, config, grid)

    def _asked(self, purpose: Purpose, index: int, config: ConfigRecord, grid: Grid) -> Iterator[Message]:
        """The inner strategy's messages with the model in the place of what it was shown, and the run's settings."""
        if purpose == "evaluate" and not self.run.evaluates:
            return self._filled({}, self.run.ask(purpose, index, []))
        model = self.run.model
        shown = None if self.setup.opener is None else model_record(model.by_name(model.arrays))
        sampled = self._inner.sample(purpose, index, self._inner.shown(shown), config, grid)
        given = {id(made): message for made, message in sampled}
        return self._filled(given, self.run.ask(purpose, index, [made for made, _ in sampled]))

    @staticmethod
    def _filled(given: dict[int, Message], asked: Iterator[messages.Message]) -> Iterator[Message]:
        """Flower's messages with the content of the run's: each is made when it is sent."""
        for made in asked:
            message = given.pop(id(made))
            message.content = records.record_dict(made.content)
            made.content = {}
            yield message

    def _take(self, arrays: ArrayRecord, purpose: Purpose, config: ConfigRecord) -> None:
        """The arrays that the round is run with: the first model, or what the last round returned.

        Anything else was changed on the way, by a strategy around this one (noise for differential privacy, say):
        taken where the charter lets the server set models, refused elsewhere. Raises `StrategyError`.
        """
        if not self.run.begun:
            # Without `start`: the configuration of this round is that of all.
            self._configs[purpose] = ConfigRecord(dict(config))
            self._begin(arrays)
        if any(arrays is expected for expected in self._expected):
            return
        self.run.set_model(list(arrays.keys()), lambda: model_values(arrays))
        self._expected = [arrays]

    # --- from the clients --------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the ciphertexts of all sound replies; a reply that is garbage is left out with a warning."""
        heard: dict[int, Message] = {}
        summed = self.run.accept_train(self._heard(replies, heard))
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if summed is not None:
            arrays, metrics = self._made(self.run.record.round, summed, [heard[node] for node in summed.nodes])
        # From here on nobody needs this round's process.
        self.run.end_training(metrics, None if arrays is None else self._inner.state.export())
        return arrays, metrics

    def _heard(self, replies: Iterable[Message], heard: dict[int, Message]) -> Iterator[Reply]:
        """The run's view of Flower's ``replies``, which stay in ``heard`` by node."""
        for reply in replies:
            made = records.reply_of(reply, reply.metadata.src_node_id)
            if not reply.has_error():
                # The frame is the run's alone, and gone once it is in the sum. The wrapped strategy finds a place for
                # arrays, and nothing that a client wrote.
                reply.content = RecordDict({self.run.charter.record: ArrayRecord()})
            heard[made.node] = reply
            yield made

    def _made(
        self, index: int, summed: Summed, accepted: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of a round's sum."""
        run, answers = self.run, self.setup.answers["train"]
        if summed.model is None:
            metrics = self._inner.blind(index, accepted, summed.answers, answers)
            return self._returned(records.array_record(summed.sums or Arrays())), metrics
        shown = model_record(run.model.by_name(summed.model))
        made, metrics = self._inner.on_mean(index, accepted, shown, summed.answers, answers)
        run.model.take_strategy_model(model_values(made), len(accepted))
        return self._returned(model_record(run.model.by_name(run.model.arrays))), metrics

    def _returned(self, record: ArrayRecord) -> ArrayRecord:
        self._expected = [self._expected[0], record]
        return record

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add the encrypted answers; the inner strategy is given their means where this server may see them."""
        heard: dict[int, Message] = {}
        summed, answers = self.run.accept_evaluate(self._heard(replies, heard)), self.setup.answers["evaluate"]
        metrics = None
        if summed is not None and summed.answers is not None:
            index = self.run.record.round
            metrics = self._inner.evaluated(index, [heard[n] for n in summed.nodes], summed.answers, answers)
        self.run.end_evaluation(metrics)
        if not self._evaluates_here:
            self.run.call_on_round()
        return metrics

    def open_model(self, decryptor: Decryptor) -> list[Array]:
        """The current global model, for a holder of a client's key."""
        return self.run.open_model(decryptor)
