# pyright: basic
"""Trains and evaluates one model on one client's data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedcipher.codec import Array
from fedcipher.errors import ParameterError
from fedcipher.models.zoo import MODELS

__all__ = ["OPTIMISERS", "Evaluation", "Learner"]

OPTIMISERS = ("nadam", "adam")
_VARIANCE = re.compile("^batch_stats/.*/var$")


@dataclass(frozen=True)
class Evaluation:
    """Mean loss, and counts by (true class, predicted class), of shape (classes, classes)."""

    loss: float
    confusion: NDArray[np.int64]


class Learner:
    """A model with Nadam or Adam. Its parameters are a list of arrays with ``names``.

    Batch-norm statistics are part of the parameters, and are averaged like weights.
    """

    passes = 0
    """The number of passes that the last `fit` made."""

    def __init__(
        self,
        model: str,
        classes: int,
        example: Array,
        *,
        learning_rate: float = 1e-3,
        batch: int = 64,
        optimiser: str = "nadam",
    ) -> None:
        if model not in MODELS:
            raise ParameterError(f"model {model!r} is not one of {', '.join(MODELS)}")
        if optimiser not in OPTIMISERS:
            raise ParameterError(f"optimiser {optimiser!r} is not one of {', '.join(OPTIMISERS)}")
        self.batch = batch
        self._example = np.asarray(example)
        self._rate = learning_rate
        self._kernels = _kernels(model, classes, optimiser)
        self._classes = classes
        shapes = jax.eval_shape(self._kernels.init, jax.random.key(0), self._example[None])
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(shapes)
        self.names = ["/".join(str(p.key) for p in path) for path, _ in leaves]

    def initial(self, seed: int = 0) -> list[Array]:
        """Freshly initialised parameters."""
        return self._flatten(self._kernels.init(jax.random.key(seed), self._example[None]))

    def fit(
        self,
        parameters: list[Array],
        x: Array,
        y: Array,
        *,
        epochs: int,
        seed: int,
        learning_rate: float | None = None,
        held_out: tuple[Array, Array] | None = None,
        patience: int = 1,
    ) -> tuple[list[Array], float]:
        """Train for ``epochs`` passes. Returns new parameters and the mean training loss of the last pass.

        With examples ``held_out``, training stops if the loss on these has not fallen for ``patience`` passes. The
        parameters are then from the pass with the smallest such loss.
        """
        rate = jnp.float32(self._rate if learning_rate is None else learning_rate)
        best: tuple[float, int, list[Array]] | None = None
        variables = self._unflatten(parameters)
        trained, rest = variables["params"], {k: v for k, v in variables.items() if k != "params"}
        state = self._kernels.optimiser.init(trained)
        rng, key = np.random.default_rng(seed), jax.random.key(seed)
        loss = 0.0
        for self.passes in range(1, epochs + 1):
            order = rng.permutation(len(x))
            # Use whole batches only, for a single compiled shape. The last batch is filled from the front.
            order = np.resize(order, -(-len(order) // self.batch) * self.batch)
            losses = []
            for at in np.split(order, len(order) // self.batch):
                key, dropout = jax.random.split(key)
                trained, rest, state, step = self._kernels.step(trained, rest, state, (x[at], y[at]), dropout, rate)
                losses.append(step)
            loss = float(np.mean(jax.device_get(losses)))
            if held_out is not None:
                reached = self._flatten({"params": trained, **rest})
                found = self.evaluate(reached, *held_out).loss
                if best is None or found < best[0]:
                    best = (found, self.passes, reached)
                elif self.passes - best[1] >= patience:
                    break
        return best[2] if best is not None else self._flatten({"params": trained, **rest}), loss

    def evaluate(self, parameters: list[Array], x: Array, y: Array, *, batch: int = 256) -> Evaluation:
        """Compute loss and confusion counts on ``x``, ``y``."""
        variables = self._unflatten(parameters)
        loss, confusion = 0.0, np.zeros((self._classes, self._classes), np.int64)
        for start in range(0, len(x), batch):
            part_x, part_y = x[start : start + batch], y[start : start + batch]
            at = np.resize(np.arange(len(part_x)), batch)
            losses, predicted = jax.device_get(self._kernels.predict(variables, part_x[at], part_y[at]))
            loss += float(np.sum(losses[: len(part_x)]))
            np.add.at(confusion, (part_y.ravel(), predicted[: len(part_x)].ravel()), 1)
        return Evaluation(loss / max(1, int(confusion.sum())), confusion)

    def _flatten(self, variables: Any) -> list[Array]:
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(variables)]

    def _unflatten(self, parameters: list[Array]) -> Any:
        # Noise or rounding of a sum can make a small variance negative, which has no square root.
        named = zip(self.names, parameters, strict=True)
        arrays = [jnp.maximum(p, 0) if _VARIANCE.match(name) else jnp.asarray(p) for name, p in named]
        return jax.tree_util.tree_unflatten(self._tree, arrays)


@dataclass(frozen=True)
class _Kernels:
    init: Any
    optimiser: Any
    step: Any
    predict: Any


@lru_cache(maxsize=8)
def _kernels(model: str, classes: int, optimiser_name: str) -> _Kernels:
    """Compile the model's functions once in a process, for all clients. The learning rate is an argument of theirs."""
    module = MODELS[model](classes)
    optimiser = optax.scale_by_adam(nesterov=optimiser_name == "nadam")

    @jax.jit
    def init(key: Any, x: Any) -> Any:
        return module.init(key, x, train=False)

    @jax.jit
    def step(trained: Any, rest: Any, state: Any, batch: tuple[Any, Any], dropout: Any, rate: Any) -> Any:
        x, y = batch

        def objective(p: Any) -> Any:
            logits, updated = module.apply(
                {"params": p, **rest}, x, train=True, mutable=list(rest), rngs={"dropout": dropout}
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), updated

        (loss, updated), gradient = jax.value_and_grad(objective, has_aux=True)(trained)
        change, state = optimiser.update(gradient, state, trained)
        change = jax.tree_util.tree_map(lambda c: -rate * c, change)
        return optax.apply_updates(trained, change), updated, state, loss

    @jax.jit
    def predict(variables: Any, x: Any, y: Any) -> Any:
        logits: Any = module.apply(variables, x, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses, logits.argmax(-1)

    return _Kernels(init, optimiser, step, predict)
