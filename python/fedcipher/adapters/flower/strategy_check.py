"""Tries a Flower strategy on made-up rounds, and finds out its optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flwr.serverapp.strategy as strategies
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedcipher.adapters.flower.records import model_record
from fedcipher.errors import StrategyError
from fedcipher.federation.optimiser_step import KINDS, Optimiser
from fedcipher.federation.server.mean_check import MadeUpNodes, MeanCheck, Values, quiet

__all__ = ["copy_of", "made_up_nodes", "mean_check", "mean_part", "no_metrics", "optimiser_of"]

# Attributes that Flower's strategies keep between rounds. If one is set, the strategy was used in another run.
_STATE = ("m_t", "v_t", "momentum_vector")
_MIN_NODES = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")


def made_up_nodes(strategy: Strategy, count: int = 2) -> Any:
    """A grid of nodes that never get a message: at least ``count``, and as many as ``strategy`` waits for."""
    named = [getattr(strategy, name, 0) for name in _MIN_NODES]
    return MadeUpNodes(type(strategy), max(count, *(n for n in named if isinstance(n, int))))


def copy_of(strategy: Strategy) -> Strategy:
    """A copy of a strategy, whose rounds do not change the original; a shallow copy if a deep one fails."""
    try:
        made = copy.deepcopy(strategy)
    except Exception:
        made = copy.copy(strategy)
    for hook in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        # An app's own aggregation of metrics would look for metrics that made-up rounds do not have.
        if hasattr(made, hook):
            setattr(made, hook, no_metrics)
    return made


def no_metrics(*_: object) -> MetricRecord:
    """An empty aggregation of metrics, used in place of an app's own."""
    return MetricRecord()


def mean_check(strategy: Strategy, key: str) -> MeanCheck:
    """A check of ``strategy``; ``key`` is the metric with the number of examples."""

    def copied() -> Callable[[int, Values, Sequence[Values], Sequence[int]], Values]:
        with quiet("flwr"):
            tried = copy_of(strategy)

        def one(number: int, model: Values, updates: Sequence[Values], weights: Sequence[int]) -> Values:
            with quiet("flwr"):
                return _round(tried, number, model, updates, weights, key)

        return one

    return MeanCheck(type(strategy).__name__, copied)


def _round(
    strategy: Strategy, number: int, model: Values, updates: Sequence[Values], weights: Sequence[int], key: str
) -> Values:
    """The result of one round of ``strategy`` with these ``updates``. Raises `StrategyError`."""
    try:
        grid = made_up_nodes(strategy, len(updates))
        sent = list(_configure_train(strategy)(number, model_record(model), ConfigRecord(), grid))
        if not sent:
            return model
        # All replies answer the first message, because there may be more updates than sampled clients.
        replies: list[Message] = []
        for update, weight in zip(updates, weights, strict=True):
            metrics = MetricRecord({key: weight, "loss": 1.0})
            replies.append(Message(RecordDict({"arrays": model_record(update), "metrics": metrics}), reply_to=sent[0]))
        made, _ = strategy.aggregate_train(number, replies)
    except Exception as error:
        raise StrategyError(
            f"{type(strategy).__name__} cannot aggregate arrays of floats: {type(error).__name__}: {error}. Only "
            "strategies that average arrays work on ciphertexts, such as FedAvg or FedProx"
        ) from error
    return {} if made is None else {name: array.numpy() for name, array in made.items()}


def _configure_train(strategy: Strategy) -> Callable[..., Any]:
    """The sampling of the strategy's Flower class. An app's own sampling may change state that a copy shares."""
    for cls in type(strategy).__mro__:
        found = vars(cls).get("configure_train")
        if found is not None and cls.__module__.partition(".")[0] == "flwr" and cls is not Strategy:
            return found.__get__(strategy)
    return strategy.configure_train


def optimiser_of(strategy: Strategy) -> Optimiser | None:
    """The optimiser of a strategy that uses the aggregation of Flower's FedAdam, FedYogi, FedAdagrad or FedAvgM.

    None for any other strategy, and for a FedAvgM without momentum, which is FedAvg. Raises `StrategyError` for numbers
    out of range and for a strategy with moments of an earlier run.
    """
    kind = _kind_of(strategy)
    if kind is None or (kind == "avgm" and not getattr(strategy, "server_opt", True)):
        return None
    name, attributes = KINDS[kind]
    if any(getattr(strategy, state, None) is not None for state in _STATE):
        raise StrategyError(
            f"{name} has moments of an earlier run, which clients do not have: make a new {name}(...) for this one"
        )
    try:
        return Optimiser(kind, tuple(float(getattr(strategy, a)) for a in attributes))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise StrategyError(f"{name} cannot run on the clients: {error}") from error


def _kind_of(strategy: Strategy) -> str | None:
    for kind, (name, _) in KINDS.items():
        # Some supported versions of Flower lack FedAvgM.
        cls: Any = getattr(strategies, name, None)
        own = "aggregate_train" in vars(strategy)
        if cls is not None and not own and type(strategy).aggregate_train is cls.aggregate_train:
            return kind
    return None


def mean_part(
    strategy: Strategy,
) -> Callable[[int, Iterable[Message]], tuple[ArrayRecord | None, MetricRecord | None]]:
    """The aggregation of ``strategy`` without its optimiser's step: the mean, and the strategy's metrics."""
    kind = _kind_of(strategy)
    if kind is None:
        return strategy.aggregate_train
    cls: Any = getattr(strategies, KINDS[kind][0])
    return super(cls, strategy).aggregate_train
