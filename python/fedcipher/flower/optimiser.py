"""Which optimiser a Flower strategy is, for clients that make its step (`fedcipher.federation.optimiser_step`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import flwr.serverapp.strategy as strategies
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedcipher.errors import StrategyError
from fedcipher.federation.optimiser_step import KINDS, Optimiser

__all__ = ["mean_part", "optimiser_of"]

# What Flower's strategies keep between rounds; a strategy that has some goes on from another run.
_STATE = ("m_t", "v_t", "momentum_vector")


def optimiser_of(strategy: Strategy) -> Optimiser | None:
    """The optimiser of a strategy whose aggregation is Flower's own of that name; None for any other.

    None also for a FedAvgM that is switched off, which is FedAvg. Raises `StrategyError` for numbers out of range
    and for a strategy that brings moments of an earlier run.
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
        # FedAvgM is not in every Flower that works.
        cls: Any = getattr(strategies, name, None)
        own = "aggregate_train" in vars(strategy)
        if cls is not None and not own and type(strategy).aggregate_train is cls.aggregate_train:
            return kind
    return None


def mean_part(
    strategy: Strategy,
) -> Callable[[int, Iterable[Message]], tuple[ArrayRecord | None, MetricRecord | None]]:
    """The aggregation of ``strategy`` without its optimiser's step: the mean, and its own metrics."""
    kind = _kind_of(strategy)
    if kind is None:
        return strategy.aggregate_train
    cls: Any = getattr(strategies, KINDS[kind][0])
    return super(cls, strategy).aggregate_train
