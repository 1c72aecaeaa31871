"""The strategy wrapper: runs any weighted-mean strategy of Flower on encrypted updates."""

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
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.schemes import Decryptor

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SecureResult", "SecureStrategy"]

# Flower shows its own log only, and the log must name the run's protection.
_shown = quoting_log("flwr")


@dataclass
class SecureResult(Result):
    """Flower's result with the run's outcome: lost rounds, clients and values. Returned by `SecureStrategy.start`."""

    outcome: Outcome = field(default_factory=lambda: Outcome(0, {}))

    @classmethod
    def of(cls, result: Result, outcome: Outcome) -> SecureResult:
        """Flower's ``result`` with this ``outcome``."""
        return cls(**vars(result), outcome=outcome)


def _signature() -> Signature:
    """The signature of `SecureStrategy` with every option of a run, for `help` and `inspect`."""
    first, *options = signature(RunSetup).parameters.values()
    return Signature([Parameter("strategy", Parameter.POSITIONAL_OR_KEYWORD, annotation="Strategy"), first, *options])


class SecureStrategy(Strategy):
    """Wrap a Flower strategy whose aggregation is a weighted mean; the server sees no update.

    ``strategy`` samples clients, sets configurations and aggregates metrics (`FedAvg`, `FedProx`, your own). `start`
    tries the strategy on made-up rounds, and each round gives it small random arrays in place of updates. If its result
    is not their mean, `StrategyError` is raised. For FedAdam, FedYogi, FedAdagrad and FedAvgM this check covers the
    averaging only. The clients apply the optimiser's step (`fedcipher.federation.optimiser_step`) with the numbers that
    the strategy has at `start`. Before the first round, a copy of the strategy gives the configurations of all rounds,
    which go into the run's charter.

    ``keys`` and all ``options`` are those of `fedcipher.federation.server.setup.RunSetup`. One of two options is
    required for the model: ``opener``, a client's key file or an engine's decryptor, for a server that may see the mean
    of each round; or ``out``, a new folder for the encrypted run, for `open_run` and ``fedcipher open``.

    Updates are added as they arrive and are not kept, so the server's memory does not grow with the number of clients.
    A client that has not answered when a round closes is left out of the sum, and the `RoundRecord` lists it. A round
    with fewer updates than the scheme's ``min_contributions`` has no aggregate, because the sum of one update is that
    update. The global model does not change, clients get nothing from this round, and `RoundRecord.unfinished` gives
    the reason. `StrategyError` is raised if the first round samples too few clients, and if no round of a run has an
    aggregate.

    Without an opener, ``Result.arrays`` is a `SealedArrays`, which raises when it is read.
    """

    __signature__ = _signature()

    def __init__(self, strategy: Strategy, keys: str | Path | ServerKeys, **options: Unpack[RunOptions]) -> None:
        self.setup = setup = RunSetup(keys, **options)
        self._wrapped = WrappedStrategy(strategy, opens=setup.opener is not None, sets_models=setup.sets_models)
        self.run = ServerRun(setup, partial(_shown.info, "Fedcipher: %s"))
        """The run, independent of Flower; each `start` begins another one."""
        self._link: FlowerLink | None = None
        self._evaluates_here = False
        # The arrays that Flower passes to the next round: the last round's result, or the initial arrays.
        self._expected: list[ArrayRecord] = []
        # Arguments of `start` that go into the charter.
        self._planned = 1
        self._configs: dict[Purpose, ConfigRecord] = {"train": ConfigRecord(), "evaluate": ConfigRecord()}

    @property
    def rounds(self) -> list[RoundRecord]:
        """The server's records of the run's rounds."""
        return self.run.rounds

    @property
    def inner(self) -> Strategy:
        """The wrapped strategy."""
        return self._wrapped.strategy

    @property
    def outcome(self) -> Outcome:
        """The rounds, clients and values that the run has lost so far."""
        return self.run.outcome

    def summary(self) -> None:
        """Log the run's protection, then the wrapped strategy's summary."""
        _shown.info("Fedcipher: %s", self.setup.summary())
        if self._wrapped.optimiser is not None:
            _shown.info(
                "Fedcipher: the clients apply the step of %s after they have opened the mean", self._wrapped.optimiser
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
        """Run ``num_rounds`` rounds, like any Flower strategy. Each call is a new run.

        The result's ``outcome``, and the last line of the log, name the rounds and clients that the run has lost, and
        the sums that are not the mean. ``timeout``: seconds to wait for the replies of a round.

        Raises `StrategyError` before the first round if the run could not end with a usable model: without both
        ``opener`` and ``out``, with ``evaluate_fn`` but no opener, or with a strategy that does not average. Raises
        `StrategyError` at the end if no round had an aggregate. Raises `LostRoundsError` at the end if more rounds than
        ``may_lose`` had no aggregate; this error has the result.
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
            train, test = (self._wrapped.config_after(part, run.done, config) for part, config in given.items())
            result = super().start(streaming, self._expected[-1], left, timeout, train, test, evaluate)
            run.note_late()
        finally:
            run.close()
        self._merge_history(result)
        run.check_some_finished(num_rounds, before)
        result.arrays = self._last_model(initial_arrays)
        ended = SecureResult.of(result, self.outcome)
        run.check_lost(ended)
        return ended

    def _last_model(self, initial: ArrayRecord) -> ArrayRecord:
        """The value of ``Result.arrays``."""
        model = self.run.model
        if not self.run.plan.trains:
            return initial
        if self.setup.opener is not None:
            # Not the arrays that Flower has kept, which may come from a withdrawn sum.
            return model_record(model.by_name(model.arrays))
        for line in self.run.where_the_model_is():
            _shown.info("Fedcipher: %s", line)
        return SealedArrays(model.folder.folder)

    def _begin(self, initial: ArrayRecord) -> None:
        """Begin or resume the run. Refuses a run that cannot work before any client trains."""
        if isinstance(initial, SealedArrays):
            raise StrategyError(f"{initial!r} is not a model to start from: open it first, with `fedcipher open`")
        self.setup.check_model(list(initial.keys()))
        rounds, configs = self._planned, self._configs
        names, values = list(initial.keys()), model_values(initial)
        shown = self._wrapped.shown(None if self.setup.opener is None else initial)
        self.run.begin(names, values, rounds, self._wrapped.plan(rounds, shown, configs))
        if self.run.state is not None:
            self._wrapped.state.restore(self.run.state)
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

    def _merge_history(self, result: Result) -> None:
        """Add the metrics of rounds that another process has run, and give Flower's the run's round numbers."""
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
        """The link of ``grid``. All rounds share one link, which remembers messages without a reply."""
        if isinstance(grid, Arrivals):
            return grid.link
        if self._link is None or self._link.grid is not grid:
            self._link = FlowerLink(grid)
        return self._link

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy sample clients, then replace the model in its messages by ciphertext."""
        self._accept_arrays(arrays, "train", config)
        self._wrapped.check_unchanged()
        index = self.run.done + server_round
        self.run.begin_round(index, self._linked(grid))
        return self._messages("train", index, config, grid) if self.run.plan.trains else []

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Like `configure_train`."""
        self._accept_arrays(arrays, "evaluate", config)
        return self._messages("evaluate", self.run.done + server_round, config, grid)

    def _messages(self, purpose: Purpose, index: int, config: ConfigRecord, grid: Grid) -> Iterator[Message]:
        """The wrapped strategy's messages, with the model in place of the shown arrays, and with the run's settings."""
        if purpose == "evaluate" and not self.run.evaluates:
            return self._filled({}, self.run.ask(purpose, index, []))
        model = self.run.model
        shown = None if self.setup.opener is None else model_record(model.by_name(model.arrays))
        sampled = self._wrapped.sample(purpose, index, self._wrapped.shown(shown), config, grid)
        given = {id(made): message for made, message in sampled}
        return self._filled(given, self.run.ask(purpose, index, [made for made, _ in sampled]))

    @staticmethod
    def _filled(given: dict[int, Message], asked: Iterator[messages.Message]) -> Iterator[Message]:
        """Flower's messages with the content of the run's messages. Each one is made when it is sent."""
        for made in asked:
            message = given.pop(id(made))
            message.content = records.record_dict(made.content)
            made.content = {}
            yield message

    def _accept_arrays(self, arrays: ArrayRecord, purpose: Purpose, config: ConfigRecord) -> None:
        """Check the arrays that Flower passes to a round: the first model, or the result of the last round.

        Other arrays were changed by a strategy around this one, for example by noise for differential privacy. They
        become the model if the charter lets the server set models. Otherwise raises `StrategyError`.
        """
        if not self.run.begun:
            # Flower has not called `start`. This round's configuration then holds for all rounds.
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
        """Add the ciphertexts of all valid replies. An invalid reply is left out with a warning."""
        heard: dict[int, Message] = {}
        summed = self.run.accept_train(self._heard(replies, heard))
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if summed is not None:
            arrays, metrics = self._aggregated(self.run.record.round, summed, [heard[node] for node in summed.nodes])
        # After this the journal has the round, and another process could resume the run.
        self.run.end_training(metrics, None if arrays is None else self._wrapped.state.export())
        return arrays, metrics

    def _heard(self, replies: Iterable[Message], heard: dict[int, Message]) -> Iterator[Reply]:
        """The run's view of Flower's ``replies``, which stay in ``heard`` by node."""
        for reply in replies:
            made = records.reply_of(reply, reply.metadata.src_node_id)
            if not reply.has_error():
                # The frame goes to the run, which drops it once it is in the sum. The wrapped strategy gets an empty
                # record for arrays, and no content from a client.
                reply.content = RecordDict({self.run.charter.record: ArrayRecord()})
            heard[made.node] = reply
            yield made

    def _aggregated(
        self, index: int, summed: Summed, accepted: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The wrapped strategy's arrays and metrics for a round's sum."""
        run, answers = self.run, self.setup.answers["train"]
        if summed.model is None:
            metrics = self._wrapped.on_random_arrays(index, accepted, summed.answers, answers)
            return self._returned(records.array_record(summed.sums or Arrays())), metrics
        shown = model_record(run.model.by_name(summed.model))
        made, metrics = self._wrapped.on_mean(index, accepted, shown, summed.answers, answers)
        run.model.take_strategy_model(model_values(made), len(accepted))
        return self._returned(model_record(run.model.by_name(run.model.arrays))), metrics

    def _returned(self, record: ArrayRecord) -> ArrayRecord:
        self._expected = [self._expected[0], record]
        return record

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add the encrypted answers. The wrapped strategy gets their means if this server may see them."""
        heard: dict[int, Message] = {}
        summed, answers = self.run.accept_evaluate(self._heard(replies, heard)), self.setup.answers["evaluate"]
        metrics = None
        if summed is not None and summed.answers is not None:
            index = self.run.record.round
            metrics = self._wrapped.evaluated(index, [heard[n] for n in summed.nodes], summed.answers, answers)
        self.run.end_evaluation(metrics)
        if not self._evaluates_here:
            self.run.call_on_round()
        return metrics

    def open_model(self, decryptor: Decryptor) -> list[Array]:
        """Decrypt the current global model with the decryptor of a client."""
        return self.run.open_model(decryptor)
