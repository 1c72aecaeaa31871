"""The strategy inside `SecureStrategy`: it samples clients, sets configurations and aggregates metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcipher.adapters.flower.records import content_of, model_record
from fedcipher.adapters.flower.strategy_check import (
    copy_of,
    made_up_nodes,
    mean_check,
    mean_part,
    no_metrics,
    optimiser_of,
)
from fedcipher.errors import FedcipherError, StrategyError
from fedcipher.federation import messages
from fedcipher.federation.answers import Answer, Report, Sums, part_of
from fedcipher.federation.charter import Purpose
from fedcipher.federation.curves import Aggregate
from fedcipher.federation.messages import PREFIX, to_numpy
from fedcipher.federation.optimiser_step import Optimiser
from fedcipher.federation.server.mean_check import MeanCheck, check_probe, quiet
from fedcipher.federation.server.setup import Plan
from fedcipher.federation.server.strategy_state import StrategyState
from fedcipher.federation.server.survey import survey

__all__ = ["WrappedStrategy", "aggregate_by"]

_PROBE = PREFIX + "probe"
_PROBE_SIZE = 4
_ROBUST = frozenset({"Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"})
"""Flower's strategies that select single updates. They are named, because with few clients they can equal a mean."""


class WrappedStrategy:
    """A Flower strategy inside `SecureStrategy`.

    ``opens``: the server sees the mean of each round. ``sets_models``: the server makes the next model from this mean.
    Raises `StrategyError` for an object that is not a strategy of Flower's message API.
    """

    def __init__(self, strategy: Strategy, *, opens: bool, sets_models: bool) -> None:
        if not isinstance(cast(object, strategy), Strategy):
            raise StrategyError(
                f"{type(strategy).__name__} is not a flwr.serverapp.strategy.Strategy; flwr.server.strategy is "
                "Flower's older API: use the class of the same name from flwr.serverapp.strategy"
            )
        self.strategy = strategy
        self._opens, self._sets_models = opens, sets_models
        self._weighted_by = str(getattr(strategy, "weighted_by_key", "num-examples"))
        self.optimiser: Optimiser | None = None
        """The optimiser whose step the clients apply to a mean; set by `plan`."""
        self.state = StrategyState(strategy, _arrays_of, model_record)
        """The state that the strategy keeps between rounds."""
        self._configs: dict[tuple[Purpose, int], dict[str, Any]] = {}

    @property
    def name(self) -> str:
        """The name of the strategy's class."""
        return type(self.strategy).__name__

    # --- before the first round --------------------------------------------------------------

    def plan(self, rounds: int, shown: ArrayRecord, configs: Mapping[Purpose, ConfigRecord]) -> Plan:
        """The strategy's plan for ``rounds`` rounds: which it trains and evaluates, and the clients' configurations.

        ``shown`` stands for the model. Raises `StrategyError` for a strategy that would fail or lose its model.
        """
        self._check_class()
        check = mean_check(self.strategy, self._weighted_by)
        self.state = StrategyState(self.strategy, _arrays_of, model_record)
        # Flower gives each round the same record. A strategy may change a setting in it for all later rounds.
        held = {purpose: ConfigRecord(dict(config)) for purpose, config in configs.items()}
        with quiet("flwr"):
            asked = copy_of(self.strategy)

            def configure(purpose: Purpose, index: int) -> list[messages.Message]:
                nodes = made_up_nodes(self.strategy)
                try:
                    sampled = _configured(asked, purpose, index, shown, held[purpose], nodes)
                    self._configs[purpose, index] = dict(held[purpose])
                except Exception as error:
                    raise StrategyError(
                        f"{self.name} cannot configure round {index} in advance: {type(error).__name__}: {error}. The "
                        "charter needs all settings before the first round"
                    ) from error
                return [self._without_model(message, shown) for message in sampled]

            try:
                planned = survey(self.name, configure, rounds)
            except StrategyError:
                # If the strategy is not a mean either, this error is the better explanation.
                self._check_mean(check)
                raise
        if planned.trains:
            self._check_mean(check)
        return replace(planned, optimiser=self.optimiser, weighted_by=self._weighted_by)

    def config_after(self, purpose: Purpose, rounds: int, given: ConfigRecord | None) -> ConfigRecord | None:
        """The configuration that the plan has after ``rounds`` rounds, for a run that goes on, or else ``given``."""
        held = self._configs.get((purpose, rounds))
        return given if held is None else ConfigRecord(held)

    def _check_class(self) -> None:
        cls = type(self.strategy)
        if cls.start is not Strategy.start:
            raise StrategyError(
                f"{self.name} has a start() of its own, which SecureStrategy would not call: do its work in on_round=, "
                "or in a class derived from SecureStrategy"
            )
        own = cls.aggregate_train.__module__.partition(".")[0] != "flwr"
        if not own and cls.aggregate_train.__qualname__.partition(".")[0] in _ROBUST:
            raise StrategyError(
                f"{self.name} looks at single updates, which are encrypted, so it cannot leave any out. Use a strategy "
                "that needs the mean only (FedAvg, FedProx, FedAdam, ...)"
            )
        if not self._opens and own and not getattr(self.strategy, "fedcipher_blind", False):
            raise StrategyError(
                f"{self.name} has an aggregate_train() of its own. Without opener=... it would get random numbers in "
                "place of updates and models, and could only keep or save these: pass an opener, or set "
                "fedcipher_blind = True on the strategy if it uses metrics only"
            )

    def _check_mean(self, check: MeanCheck) -> None:
        if self._sets_models:
            check.check_sees_only_the_mean()
            return
        self.optimiser = optimiser_of(self.strategy)
        if self.optimiser is None:
            check.check_is_mean()
        else:
            check.check_step(self.optimiser)

    def check_unchanged(self) -> None:
        """Raise `StrategyError` if the optimiser has changed since `plan`."""
        if self.optimiser is not None and optimiser_of(self.strategy) != self.optimiser:
            raise StrategyError(
                f"the run began with {self.optimiser}, and {self.name} has changed: clients keep the first numbers. To "
                "change the numbers between rounds the server must set the models: "
                "SecureStrategy(sets_models=True, opener=...)"
            )

    # --- in a round --------------------------------------------------------------------------

    @staticmethod
    def shown(model: ArrayRecord | None) -> ArrayRecord:
        """The model if the server may see it, otherwise small arrays in its place."""
        return ArrayRecord({_PROBE: Array(np.zeros(_PROBE_SIZE))}) if model is None else model

    def sample(
        self, purpose: Purpose, index: int, shown: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[tuple[messages.Message, Message]]:
        """The strategy's messages of a round. Each is a pair: the run's message, without the model, and Flower's."""
        sampled = _configured(self.strategy, purpose, index, shown, config, grid)
        return [(self._without_model(message, shown), message) for message in sampled]

    def _without_model(self, message: Message, shown: ArrayRecord) -> messages.Message:
        """The run's form of ``message``, without the arrays that the strategy was ``shown`` as the model."""
        node, content = message.metadata.dst_node_id, content_of(message.content)
        place = [key for key, record in message.content.array_records.items() if _equal(record, shown)]
        if len(place) != 1:
            raise StrategyError(
                f"{self.name} sends node {node} other arrays than it was given: every client trains from the same "
                "complete and unchanged model. Put further arrays of the server into another ArrayRecord"
            )
        del content[place[0]]
        return messages.Message(node, message.metadata.message_type, content, place[0])

    def on_mean(
        self,
        server_round: int,
        accepted: list[Message],
        model: ArrayRecord,
        sums: Sums | Report | None,
        answers: Sequence[Answer],
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """The result of an opened round, in which each reply has the new ``model`` and the mean answers."""
        self._answer(accepted, sums, answers)
        # A record for each reply, because a strategy may empty the records that it has read.
        records = [ArrayRecord(dict(model.items())) for _ in accepted]
        made, metrics = self._aggregate(server_round, accepted, records)
        if made is None or list(made.keys()) != list(model.keys()):
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        return made, metrics

    def on_random_arrays(
        self, server_round: int, accepted: list[Message], said: Sums | Report | None, answers: Sequence[Answer]
    ) -> MetricRecord | None:
        """Check on random arrays that the strategy averages. Returns its metrics if readers have reported answers."""
        rng = np.random.default_rng()
        probes = [rng.normal(size=_PROBE_SIZE) for _ in accepted]
        self._answer(accepted, said, answers)
        with contextlib.nullcontext() if said is not None else self._without_metrics():
            made, metrics = self._aggregate(server_round, accepted, [ArrayRecord({_PROBE: Array(p)}) for p in probes])
        if made is None or _PROBE not in made:
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        check_probe(self.name, made[_PROBE].numpy(), probes)
        return None if said is None else metrics

    @contextlib.contextmanager
    def _without_metrics(self) -> Generator[None]:
        """Disable an app's own aggregation of metrics, which would look for metrics that this server does not see."""
        hook = "train_metrics_aggr_fn"
        before = getattr(self.strategy, hook, None)
        if before is not None:
            setattr(self.strategy, hook, no_metrics)
        try:
            yield
        finally:
            if before is not None:
                setattr(self.strategy, hook, before)

    def evaluated(
        self, server_round: int, accepted: list[Message], sums: Sums | Report, answers: Sequence[Answer]
    ) -> MetricRecord | None:
        """The strategy's metrics for an evaluation, in which each client's reply has the mean answers."""
        self._answer(accepted, sums, answers)
        with self._failures("the answers of an evaluation"):
            return self.strategy.aggregate_evaluate(server_round, accepted)

    def _answer(self, accepted: list[Message], sums: Sums | Report | None, answers: Sequence[Answer]) -> None:
        """Give each reply the same metrics: the mean of an answer that is a mean, and an equal part of a sum."""
        clients, by = len(accepted), self._weighted_by
        for reply in accepted:
            reply.content["metrics"] = MetricRecord({by: 1} if sums is None else part_of(sums, answers, by, clients))

    def _aggregate(
        self, server_round: int, accepted: list[Message], records: list[ArrayRecord]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's aggregation, with ``records`` as the arrays of the replies."""
        for reply, record in zip(accepted, records, strict=True):
            key = next(iter(reply.content.array_records))
            reply.content.array_records[key] = record
        with self._failures("updates"):
            aggregate = self.strategy.aggregate_train if self.optimiser is None else mean_part(self.strategy)
            return aggregate(server_round, accepted)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Generator[None]:
        try:
            yield
        except FedcipherError:
            raise
        except Exception as error:
            raise StrategyError(f"{self.name} cannot aggregate {what}: {error}") from error


def _configured(
    strategy: Strategy, purpose: Purpose, index: int, shown: ArrayRecord, config: ConfigRecord, grid: Grid
) -> list[Message]:
    configure = strategy.configure_train if purpose == "train" else strategy.configure_evaluate
    return list(configure(index, shown, config, grid))


def aggregate_by(function: Callable[[list[RecordDict], str], MetricRecord]) -> Aggregate:
    """Make an aggregation of opened answers for `Curves` from a strategy's ``evaluate_metrics_aggr_fn``."""

    def aggregated(sums: Sums, answers: Sequence[Answer], weighted_by: str) -> dict[str, Any]:
        part = MetricRecord(part_of(sums, answers, weighted_by, sums.clients))
        return dict(function([RecordDict({"metrics": part}) for _ in range(sums.clients)], weighted_by))

    return aggregated


def _equal(a: ArrayRecord, b: ArrayRecord) -> bool:
    pairs = [[(name, x.dtype, x.shape, x.data) for name, x in record.items()] for record in (a, b)]
    return a is b or pairs[0] == pairs[1]


def _arrays_of(value: object) -> Mapping[str, NDArray[Any]] | None:
    return {k: to_numpy(cast(Any, a)) for k, a in value.items()} if isinstance(value, ArrayRecord) else None
