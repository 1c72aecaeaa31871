"""Is a strategy a function of its updates' mean? Tried out on made-up rounds before any client trains.

Where clients make the next model, a strategy has to be the mean, or one whose step clients make: then it must be that
step. Where the server sets the models, the strategy is given the mean in place of every update, so what it makes of the
updates must not depend on more than their mean: one that averages over rounds qualifies, a median does not.

Each is tried on copies, over two rounds of 4 and of 10 clients: momentum shows in the second round, and what trims a
tenth in the larger cohort.
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
"""A round of a copy: (number, model, updates, weights) to a model, or to nothing. Raises `StrategyError`."""
_COHORTS = (4, 10)
_ROUNDS = 2
_RTOL = 1e-5
_MOST_NODES = 1 << 18
# A strategy waits if it pauses this many seconds between two calls, or makes this many calls without a pause.
_A_WAIT, _WITHOUT_REST = 0.01, 10_000
_WAITED_FOR: dict[type, int] = {}


def _made_up(rng: np.random.Generator) -> Values:
    """A small model."""
    return {"probe/a": rng.normal(size=(3, 2)).astype(np.float32), "probe/b": rng.normal(size=4).astype(np.float32)}


@contextlib.contextmanager
def quiet(*loggers: str) -> Generator[None]:
    """Without the log lines of ``loggers`` and of this package, and with every random stream where it was.

    What made-up rounds log would be taken for real ones, and what they draw would change whom a seed samples.
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
    """Raise `StrategyError` where the strategy of this ``name`` has ``made`` something else than the mean of probes."""
    if not np.allclose(made, np.mean(probes, axis=0), rtol=1e-6):
        raise StrategyError(
            f"{name} does not compute a weighted mean of its updates, which is all that "
            "can be done on ciphertexts; use FedAvg, FedProx or another averaging strategy"
        )


class MadeUpNodes:
    """A grid of at least ``count`` nodes that are there and are never sent anything, for strategies of class ``of``.

    A strategy may wait for more nodes than it names, and asks until enough are there: so there are more each time it
    has waited, and for its next rounds at once. Raises `StrategyError` where it waits for too many.
    """

    def __init__(self, of: type, count: int) -> None:
        self._of, self._count = of, max(count, _WAITED_FOR.get(of, 0))
        self._asked, self._last = 0, 0.0

    def get_node_ids(self) -> list[int]:
        """As Flower's grids have it."""
        now = time.monotonic()
        self._asked += 1
        if (self._asked > 1 and now - self._last > _A_WAIT) or self._asked % _WITHOUT_REST == 0:
            self._count *= 4
            if self._count > _MOST_NODES:
                raise StrategyError(f"it waits for more than {_MOST_NODES // 4} nodes")
            _WAITED_FOR[self._of] = self._count
        self._last = now
        return list(range(1, self._count + 1))


class MeanCheck:
    """Tries the strategy of this ``name``; ``copy`` gives a fresh copy of its rounds."""

    def __init__(self, name: str, copy: Callable[[], Round]) -> None:
        self._name, self._copy = name, copy

    def averages_by(self) -> Weighting | None:
        """How the strategy weights the mean that it computes; None where it computes something else.

        Raises `StrategyError` where it cannot aggregate arrays at all.
        """

        def agrees(how: Weighting) -> Callable[[Round, int, list[Values], list[int]], bool]:
            def agree(tried: Round, number: int, updates: list[Values], weights: list[int]) -> bool:
                made = self._made(tried(number, updates[0], updates, weights), updates)
                return _close(_mean(updates, weights if how == "examples" else [1] * len(updates)), made)

            return agree

        choices: tuple[Weighting, ...] = ("examples", "equal")
        return next((how for how in choices if self._holds(agrees(how))), None)

    def check_is_mean(self) -> Weighting:
        """How the strategy weights; `StrategyError` where it is no mean of its updates."""
        how = self.averages_by()
        if how is None:
            raise StrategyError(
                f"{self._name} does not compute the mean of its updates in every round and cohort, which is all "
                "that clients take for the next model; use FedAvg, FedProx or another averaging strategy, or "
                "SecureStrategy(sets_models=True, opener=...) where the server may see means and set models"
            )
        return how

    def check_step(self, optimiser: Optimiser) -> None:
        """Raise `StrategyError` where it makes another step of the mean than clients would as ``optimiser``."""
        steps, model = Steps(optimiser), Values()

        def agree(tried: Round, number: int, updates: list[Values], weights: list[int]) -> bool:
            nonlocal steps, model
            # In double, because a step magnifies what an average is rounded by.
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
                f"{self._name} makes another step of the mean than {optimiser} on the clients would; "
                "SecureStrategy(sets_models=True, opener=...) where the server may see means and set models"
            )

    def check_sees_only_the_mean(self) -> Weighting:
        """How the strategy weights; `StrategyError` where more than the updates' mean matters to it."""
        choices: tuple[Weighting, ...] = ("examples", "equal")
        for how in choices:
            if self._holds(self._same_of_the_mean(how)):
                return how
        raise StrategyError(
            f"{self._name} looks at single updates, which no server sees under encryption: of two rounds with the "
            "same mean it makes different models. Use a strategy that needs the mean only (FedAvg, FedProx, FedAdam, "
            "...)"
        )

    def _same_of_the_mean(self, how: Weighting) -> Callable[[Round, int, list[Values], list[int]], bool]:
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
        """What was ``made`` of ``updates``, where that is a model. Raises `StrategyError`."""
        if not made:
            raise StrategyError(f"{self._name} makes nothing of {len(updates)} valid updates")
        if set(made) != set(updates[0]):
            raise StrategyError(f"{self._name} makes arrays {sorted(made)} of updates that have {sorted(updates[0])}")
        return made

    def _holds(self, agree: Callable[[Round, int, list[Values], list[int]], bool]) -> bool:
        """Whether ``agree`` holds in every made-up round."""
        rng = np.random.default_rng()
        for clients in _COHORTS:
            tried = self._copy()
            for number in range(1, _ROUNDS + 1):
                weights = [int(w) for w in rng.integers(1, 50, clients)]
                if not agree(tried, number, [_made_up(rng) for _ in range(clients)], weights):
                    return False
        return True


def _close(a: Values, b: Values) -> bool:
    return all(np.allclose(a[name], b[name], rtol=_RTOL, atol=_RTOL) for name in a)


def _mean(updates: Sequence[Values], weights: Sequence[int]) -> Values:
    return {name: np.average([u[name] for u in updates], axis=0, weights=weights) for name in updates[0]}
