"""Tests on made-up rounds, before any client trains, whether a strategy depends only on the mean of its updates.

If clients make the next model, a strategy must compute the mean, or exactly the optimiser step that the clients make.
If the server sets the models, the strategy gets the mean in place of every update, so its result may depend only on the
mean. A strategy that averages over rounds passes; a median does not.

Each strategy is tested on copies, over two rounds of 4 and of 10 clients. Momentum shows in the second round. A
strategy that trims a tenth of the updates shows in the larger cohort.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import StrategyError
from fedcipher.federation.optimiser_step import Optimiser, Steps

__all__ = ["MadeUpNodes", "MeanCheck", "Values", "Weighting", "check_probe", "quiet"]

Weighting = Literal["examples", "equal"]
Values = dict[str, NDArray[Any]]
Round = Callable[[int, Values, Sequence[Values], Sequence[int]], Values]
"""One round of a copy: (number, model, updates, weights) gives a model or an empty dict. Raises `StrategyError`."""
_COHORTS = (4, 10)
_ROUNDS = 2
_RTOL = 1e-5
_MAX_NODES = 1 << 18
# A strategy is waiting for nodes if it pauses this many seconds between two calls, or makes this many calls in all.
# Flower's strategies sleep 1 s. On a busy machine a strategy that does not wait can lose some tenths of a second.
_PAUSE_SECONDS, _MAX_CALLS = 0.6, 200
_NODES_NEEDED: dict[type, int] = {}


def _random_model(rng: np.random.Generator) -> Values:
    """A small model of random values."""
    return {"probe/a": rng.normal(size=(3, 2)).astype(np.float32), "probe/b": rng.normal(size=4).astype(np.float32)}


@contextlib.contextmanager
def quiet(*loggers: str) -> Generator[None]:
    """Suppress the log lines of ``loggers`` and of this package, and restore the global random generators afterwards.

    Log lines of made-up rounds would look like real ones. Their random draws would change which clients a seed samples.
    """
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    logs = [logging.getLogger(name) for name in (*loggers, "fedcipher.federation")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def check_probe(name: str, made: NDArray[Any], probes: Sequence[NDArray[Any]]) -> None:
    """Raise `StrategyError` if ``made``, the result of the strategy ``name``, is not the mean of ``probes``."""
    if not np.allclose(made, np.mean(probes, axis=0), rtol=1e-6):
        raise StrategyError(
            f"{name} does not compute a weighted mean of its updates, and ciphertexts allow nothing else; "
            "use FedAvg, FedProx or another averaging strategy"
        )


class MadeUpNodes:
    """A grid of at least ``count`` nodes that exist only as ids, for strategies of class ``of``.

    A strategy may wait until more nodes are connected than it names. The number of nodes grows each time the strategy
    waits, and later rounds start with that number. Raises `StrategyError` if the strategy waits for too many.
    """

    def __init__(self, of: type, count: int) -> None:
        self._of, self._count = of, max(count, _NODES_NEEDED.get(of, 0))
        self._asked, self._last = 0, 0.0

    def get_node_ids(self) -> list[int]:
        """The ids of all nodes, like the method of Flower's grids."""
        now = time.monotonic()
        self._asked += 1
        if (self._asked > 1 and now - self._last > _PAUSE_SECONDS) or self._asked % _MAX_CALLS == 0:
            self._count *= 4
            if self._count > _MAX_NODES:
                raise StrategyError(f"the strategy waits for more than {_MAX_NODES // 4} nodes")
            _NODES_NEEDED[self._of] = self._count
        self._last = now
        return list(range(1, self._count + 1))


class MeanCheck:
    """Tests the strategy of this ``name``; ``copy`` returns a fresh copy that runs rounds."""

    def __init__(self, name: str, copy: Callable[[], Round]) -> None:
        self._name, self._copy = name, copy

    def averages_by(self) -> Weighting | None:
        """How the strategy weights the mean that it computes; None if it does not compute a mean.

        Raises `StrategyError` if the strategy cannot aggregate arrays.
        """

        def agrees(how: Weighting) -> Callable[[Round, int, list[Values], list[int]], bool]:
            def agree(tried: Round, number: int, updates: list[Values], weights: list[int]) -> bool:
                made = self._made(tried(number, updates[0], updates, weights), updates)
                return _close(_mean(updates, weights if how == "examples" else [1] * len(updates)), made)

            return agree

        choices: tuple[Weighting, ...] = ("examples", "equal")
        return next((how for how in choices if self._holds(agrees(how))), None)

    def check_is_mean(self) -> Weighting:
        """How the strategy weights its updates. Raises `StrategyError` if it does not compute their mean."""
        how = self.averages_by()
        if how is None:
            raise StrategyError(
                f"{self._name} does not compute the mean of its updates in every round and cohort, and clients accept "
                "no other next model; use FedAvg, FedProx or another averaging strategy, or "
                "SecureStrategy(sets_models=True, opener=...) if the server may see means and set models"
            )
        return how

    def check_step(self, optimiser: Optimiser) -> None:
        """Raise `StrategyError` if the strategy's step from the mean differs from the step of ``optimiser``."""
        steps, model = Steps(optimiser), Values()

        def agree(tried: Round, number: int, updates: list[Values], weights: list[int]) -> bool:
            nonlocal steps, model
            # In float64, because a step magnifies the rounding error of an average.
            updates = [{name: value.astype(np.float64) for name, value in update.items()} for update in updates]
            if number == 1:
                steps, model = Steps(optimiser), updates[0]
            mean = _mean(updates, weights)
            stepped = steps.step(list(model.values()), [mean[name] - model[name] for name in model], number)
            made = self._made(tried(number, model, updates, weights), updates)
            model = dict(zip(model, stepped, strict=True))
            return _close(model, made)

        if not self._holds(agree):
            raise StrategyError(
                f"{self._name} makes a different step from the mean than {optimiser} on the clients; use "
                "SecureStrategy(sets_models=True, opener=...) if the server may see means and set models"
            )

    def check_sees_only_the_mean(self) -> Weighting:
        """How the strategy weights its updates. Raises `StrategyError` if it depends on more than their mean."""
        choices: tuple[Weighting, ...] = ("examples", "equal")
        for how in choices:
            if self._holds(self._same_for_equal_means(how)):
                return how
        raise StrategyError(
            f"{self._name} needs single updates, which encryption hides from the server: it makes different models "
            "from two rounds with the same mean. Use a strategy that needs only the mean (FedAvg, FedProx, FedAdam, "
            "...)"
        )

    def _same_for_equal_means(self, how: Weighting) -> Callable[[Round, int, list[Values], list[int]], bool]:
        twins: dict[int, Round] = {}

        def agree(tried: Round, number: int, updates: list[Values], weights: list[int]) -> bool:
            if number == 1:
                twins[id(tried)] = self._copy()
            mean = _mean(updates, weights if how == "examples" else [1] * len(updates))
            same = [{name: value.astype(np.float32) for name, value in mean.items()}] * len(updates)
            one = self._made(tried(number, updates[0], updates, weights), updates)
            other = self._made(twins[id(tried)](number, updates[0], same, weights), same)
            return _close(one, other)

        return agree

    def _made(self, made: Values, updates: Sequence[Values]) -> Values:
        """Return ``made``. Raises `StrategyError` if it is not a model with the arrays of ``updates``."""
        if not made:
            raise StrategyError(f"{self._name} returns no model for {len(updates)} valid updates")
        if set(made) != set(updates[0]):
            raise StrategyError(
                f"{self._name} returns arrays {sorted(made)} for updates with arrays {sorted(updates[0])}"
            )
        return made

    def _holds(self, agree: Callable[[Round, int, list[Values], list[int]], bool]) -> bool:
        """Whether ``agree`` holds in every made-up round."""
        rng = np.random.default_rng()
        for clients in _COHORTS:
            tried = self._copy()
            for number in range(1, _ROUNDS + 1):
                weights = [int(w) for w in rng.integers(1, 50, clients)]
                if not agree(tried, number, [_random_model(rng) for _ in range(clients)], weights):
                    return False
        return True


def _close(a: Values, b: Values) -> bool:
    return all(np.allclose(a[name], b[name], rtol=_RTOL, atol=_RTOL) for name in a)


def _mean(updates: Sequence[Values], weights: Sequence[int]) -> Values:
    return {name: np.average([u[name] for u in updates], axis=0, weights=weights) for name in updates[0]}
