"""Model and data, independent of encryption."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

WIDTHS = [64, 48, 10]


def make_parameters(seed=0):
    """Weights and biases by name."""
    random = np.random.default_rng(seed)
    made = {}
    for k, (rows, columns) in enumerate(pairwise(WIDTHS)):
        made[f"layer{k}.weight"] = random.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)
        made[f"layer{k}.bias"] = np.zeros(columns, np.float32)
    return made


def logits(parameters, x):
    hidden = jax.nn.relu(x @ parameters["layer0.weight"] + parameters["layer0.bias"])
    return hidden @ parameters["layer1.weight"] + parameters["layer1.bias"]


@cache
def _stepper(rate):
    optimiser = optax.adam(rate)

    @jax.jit
    def step(parameters, state, x, y):
        def loss_of(p):
            return optax.softmax_cross_entropy_with_integer_labels(logits(p, x), y).mean()

        loss, gradient = jax.value_and_grad(loss_of)(parameters)
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(parameters, change), state, loss

    return optimiser, step


def train(parameters, x, y, epochs, rate=3e-3, batch=16):
    """Train and return the parameters, in the same order, and the last loss."""
    names = list(parameters)
    optimiser, step = _stepper(rate)
    state, order, loss = optimiser.init(parameters), np.random.default_rng(0), jnp.zeros(())
    for _ in range(epochs):
        for rows in order.permutation(len(x))[: len(x) // batch * batch].reshape(-1, batch):
            parameters, state, loss = step(parameters, state, x[rows], y[rows])
    return {name: np.asarray(parameters[name]) for name in names}, float(loss)


def accuracy(parameters, x, y):
    return float((jnp.argmax(logits(parameters, x), -1) == y).mean())


def load_part(part, parts, test=False):
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    cut = len(order) // 5
    own = (order[:cut] if test else order[cut:])[part::parts]
    return (bunch.data[own] / 16).astype(np.float32), bunch.target[own]
