"""Is a strategy a function of its updates' mean? Tried out on made-up rounds before any client trains.

Where clients make the next model, a strategy has to be the mean, or one whose step clients make: then it must be that
step. Where the server sets the models (``SecureStrategy(sets_models=True, opener=...)``), the strategy is given the
mean in place of every update, so what it makes of the updates must not depend on more than their mean: one that
averages over rounds qualifies, a median does not.

Each is tried on copies, over two rounds of 4 and of 10 clients: momentum shows in the second round, and what trims a
tenth in the larger cohort.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcipher.errors import StrategyError
from fedcipher.federation.optimiser_step import Optimiser, Steps

__all__ = [
    "MadeUpNodes",
    "Weighting",
    "averages_by",
    "check_is_mean",
    "check_sees_only_the_mean",
    "check_step",
    "copy_of",
    "quiet",
    "trains",
]

Weighting = Literal["examples", "equal"]
_COHORTS = (4, 10)
_ROUNDS = 2
_RTOL = 1e-5
_LEAST_NODES = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")
_MOST_NODES = 1 << 18
# A strategy waits if it pauses this many seconds between two calls, or makes this many calls without a pause.
_A_WAIT, _WITHOUT_REST = 0.01, 10_000
_WAITED_FOR: dict[type[Strategy], int] = {}
_Values = dict[str, NDArray[Any]]


class MadeUpNodes:
    """A grid of nodes that are there and are never sent anything: as many as ``strategy`` waits for.

    Flower's strategies name the number. One of an app's own may keep it elsewhere, and asks until enough are there: so
    there are more each time it has waited, and for its next rounds at once.
    """

    def __init__(self, strategy: Strategy, count: int = 2) -> None:
        named = [getattr(strategy, name, 0) for name in _LEAST_NODES]
        self._of = type(strategy)
        self._count = max(count, _WAITED_FOR.get(self._of, 0), *(n for n in named if isinstance(n, int)))
        self._asked, self._last = 0, 0.0

    def get_node_ids(self) -> list[int]:
        now = time.monotonic()
        self._asked += 1
        if (self._asked > 1 and now - self._last > _A_WAIT) or self._asked % _WITHOUT_REST == 0:
            self._count *= 4
            if self._count > _MOST_NODES:
                raise StrategyError(f"it waits for more than {_MOST_NODES // 4} nodes")
            _WAITED_FOR[self._of] = self._count
        self._last = now
        return list(range(1, self._count + 1))


def _name(strategy: Strategy) -> str:
    return type(strategy).__name__


def copy_of(strategy: Strategy) -> Strategy:
    """A copy whose rounds do not touch the original; shallow where a part cannot be copied."""
    try:
        made = copy.deepcopy(strategy)
    except Exception:
        made = copy.copy(strategy)
    for hook in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        # An app's own aggregation of metrics would look for metrics that nobody made.
        if hasattr(made, hook):
            setattr(made, hook, _no_metrics)
    return made


def _no_metrics(*_: object) -> MetricRecord:
    return MetricRecord()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """What made-up rounds log would be taken for real ones, and what they draw would change whom a seed samples."""
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    loggers = [logging.getLogger("flwr"), logging.getLogger("fedcipher.flower")]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def _round(
    strategy: Strategy, number: int, model: _Values, updates: Sequence[_Values], weights: Sequence[int], key: str
) -> _Values:
    """What one round of ``strategy`` makes of ``updates``. Raises `StrategyError`."""
    try:
        grid: Any = MadeUpNodes(strategy, len(updates))
        sent = list(_configure_train(strategy)(number, _record(model), ConfigRecord(), grid))
        if not sent:
            return model
        # One message is as good as another: more replies than were sampled may be wanted.
        replies: list[Message] = []
        for update, weight in zip(updates, weights, strict=True):
            metrics = MetricRecord({key: weight, "loss": 1.0})
            replies.append(Message(RecordDict({"arrays": _record(update), "metrics": metrics}), reply_to=sent[0]))
        made, _ = strategy.aggregate_train(number, replies)
    except Exception as error:
        raise StrategyError(
            f"{_name(strategy)} cannot aggregate arrays of floats: {type(error).__name__}: {error}. Only strategies "
            "that average arrays work on ciphertexts, such as FedAvg or FedProx"
        ) from error
    if made is None:
        raise StrategyError(f"{_name(strategy)} makes nothing of {len(updates)} valid updates")
    if set(made) != set(model):
        raise StrategyError(f"{_name(strategy)} makes arrays {sorted(made)} of updates that have {sorted(model)}")
    return {name: made[name].numpy() for name in model}


def _configure_train(strategy: Strategy) -> Callable[..., Any]:
    """Flower's own part of the strategy's sampling: an app's may count its rounds where no copy reaches."""
    for cls in type(strategy).__mro__:
        found = vars(cls).get("configure_train")
        if found is not None and cls.__module__.partition(".")[0] == "flwr" and cls is not Strategy:
            return found.__get__(strategy)
    return strategy.configure_train


def trains(strategy: Strategy, rounds: int) -> bool:
    """Whether ``strategy`` asks anybody to train in one of its first ``rounds``."""
    model = _record(_made_up(np.random.default_rng()))
    with quiet():
        tried = copy_of(strategy)
        grid: Any = MadeUpNodes(strategy)
        try:
            configure = _configure_train(tried)
            return any(list(configure(number, model, ConfigRecord(), grid)) for number in range(1, rounds + 1))
        except Exception:
            # It is told below what is wrong with it.
            return True


def _record(values: _Values) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in values.items()})


def _made_up(rng: np.random.Generator) -> _Values:
    return {"probe/a": rng.normal(size=(3, 2)).astype(np.float32), "probe/b": rng.normal(size=4).astype(np.float32)}


def _close(a: _Values, b: _Values) -> bool:
    return all(np.allclose(a[name], b[name], rtol=_RTOL, atol=_RTOL) for name in a)


def _mean(updates: Sequence[_Values], weights: Sequence[int]) -> _Values:
    return {name: np.average([u[name] for u in updates], axis=0, weights=weights) for name in updates[0]}


def _probed(strategy: Strategy, key: str, agree: Callable[[Strategy, int, list[_Values], list[int]], bool]) -> bool:
    rng = np.random.default_rng()
    with quiet():
        for clients in _COHORTS:
            tried = copy_of(strategy)
            for number in range(1, _ROUNDS + 1):
                weights = [int(w) for w in rng.integers(1, 50, clients)]
                if not agree(tried, number, [_made_up(rng) for _ in range(clients)], weights):
                    return False
    return True


def averages_by(strategy: Strategy, key: str) -> Weighting | None:
    """How ``strategy`` weights the mean that it computes; None where it computes something else.

    ``key`` names the metric of sample counts. Raises `StrategyError` where it cannot aggregate arrays at all.
    """

    def agrees(how: Weighting) -> Callable[[Strategy, int, list[_Values], list[int]], bool]:
        def agree(tried: Strategy, number: int, updates: list[_Values], weights: list[int]) -> bool:
            made = _round(tried, number, updates[0], updates, weights, key)
            return _close(_mean(updates, weights if how == "examples" else [1] * len(updates)), made)

        return agree

    choices: tuple[Weighting, ...] = ("examples", "equal")
    return next((how for how in choices if _probed(strategy, key, agrees(how))), None)


def check_is_mean(strategy: Strategy, key: str) -> Weighting:
    """How ``strategy`` weights; `StrategyError` where it is no mean of its updates."""
    how = averages_by(strategy, key)
    if how is None:
        raise StrategyError(
            f"{_name(strategy)} does not compute the mean of its updates in every round and cohort, which is all "
            "that clients take for the next model; use FedAvg, FedProx or another averaging strategy, or "
            "SecureStrategy(sets_models=True, opener=...) where the server may see means and set models"
        )
    return how


def check_step(strategy: Strategy, key: str, optimiser: Optimiser) -> None:
    """Raise `StrategyError` where ``strategy`` makes another step of the mean than clients would as ``optimiser``."""
    steps, model = Steps(optimiser), dict[str, NDArray[Any]]()

    def agree(tried: Strategy, number: int, updates: list[_Values], weights: list[int]) -> bool:
        nonlocal steps, model
        # In double, because a step magnifies what an average is rounded by.
        updates = [{name: value.astype(np.float64) for name, value in update.items()} for update in updates]
        if number == 1:
            steps, model = Steps(optimiser), updates[0]
        mean = _mean(updates, weights)
        stepped = steps.step(list(model.values()), [mean[name] - model[name] for name in model], number)
        made = _round(tried, number, model, updates, weights, key)
        model = dict(zip(model, stepped, strict=True))
        return _close(model, made)

    if not _probed(strategy, key, agree):
        raise StrategyError(
            f"{_name(strategy)} makes another step of the mean than {optimiser} on the clients would; "
            "SecureStrategy(sets_models=True, opener=...) where the server may see means and set models"
        )


def check_sees_only_the_mean(strategy: Strategy, key: str) -> Weighting:
    """How ``strategy`` weights; `StrategyError` where more than the updates' mean matters to it."""
    for how in ("examples", "equal"):
        twins: dict[int, Strategy] = {}

        def agree(
            tried: Strategy,
            number: int,
            updates: list[_Values],
            weights: list[int],
            how: str = how,
            twins: dict[int, Strategy] = twins,
        ) -> bool:
            if number == 1:
                twins[id(tried)] = copy_of(strategy)
            mean = _mean(updates, weights if how == "examples" else [1] * len(updates))
            same = [{name: value.astype(np.float32) for name, value in mean.items()}] * len(updates)
            one = _round(tried, number, updates[0], updates, weights, key)
            other = _round(twins[id(tried)], number, updates[0], same, weights, key)
            return _close(one, other)

        if _probed(strategy, key, agree):
            return "examples" if how == "examples" else "equal"
    raise StrategyError(
        f"{_name(strategy)} looks at single updates, which no server sees under encryption: of two rounds with the "
        "same mean it makes different models. Use a strategy that needs the mean only (FedAvg, FedProx, FedAdam, ...)"
    )
