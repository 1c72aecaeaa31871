"""A small GPT over bytes with LoRA adapters on its query and value projections, in plain JAX.

The base is frozen. An adapter adds ``x @ down @ up`` to a projection (Hu et al. 2022, LoRA). ``up`` begins as zeros, so
the first global model equals the base.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, RANK = 256, 64, 96, 4, 3, 4
BATCH = 16


def make_base(seed=0):
    """Random parameters by name; `lora_app.pretrain` trains them."""
    random = np.random.default_rng(seed)

    def matrix(rows, columns, scale=1.0):
        return random.normal(0, scale * rows**-0.5, (rows, columns)).astype(np.float32)

    made = {"embed": matrix(VOCABULARY, WIDTH), "place": matrix(CONTEXT, WIDTH), "head": matrix(WIDTH, VOCABULARY, 0.1)}
    for k in range(LAYERS):
        for name in ("query", "key", "value", "out"):
            made[f"{k}.{name}"] = matrix(WIDTH, WIDTH)
        made[f"{k}.up"], made[f"{k}.down"] = matrix(WIDTH, 4 * WIDTH), matrix(4 * WIDTH, WIDTH)
    return made


def make_adapters(seed=0):
    """The parameters that are sent: two thin matrices for each adapted projection."""
    random = np.random.default_rng(seed)
    made = {}
    for k in range(LAYERS):
        for name in ("query", "value"):
            made[f"{k}.{name}.down"] = random.normal(0, WIDTH**-0.5, (WIDTH, RANK)).astype(np.float32)
            made[f"{k}.{name}.up"] = np.zeros((RANK, WIDTH), np.float32)
    return made


def _norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def logits(base, adapters, tokens):
    """Logits of the next byte, of shape (batch, length, 256), for ``tokens`` of shape (batch, length)."""
    length = tokens.shape[1]
    x = base["embed"][tokens] + base["place"][:length]
    visible = jnp.tril(jnp.ones((length, length), bool))
    for k in range(LAYERS):
        normed = _norm(x)

        def project(name, k=k, normed=normed):
            made = normed @ base[f"{k}.{name}"]
            if f"{k}.{name}.down" in adapters:
                made = made + normed @ adapters[f"{k}.{name}.down"] @ adapters[f"{k}.{name}.up"]
            return made.reshape(*made.shape[:2], HEADS, WIDTH // HEADS)

        scores = jnp.einsum("bqhd,bkhd->bhqk", project("query"), project("key")) * (WIDTH // HEADS) ** -0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), -1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, project("value")).reshape(x.shape)
        x = x + mixed @ base[f"{k}.out"]
        x = x + jax.nn.gelu(_norm(x) @ base[f"{k}.up"]) @ base[f"{k}.down"]
    return _norm(x) @ base["head"]


def loss(base, adapters, tokens):
    """Mean cross-entropy in nats per byte."""
    found = logits(base, adapters, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()


mean_loss = jax.jit(loss)


@cache
def _stepper(rate, adapting):
    optimiser = optax.adam(rate)

    @jax.jit
    def step(trained, fixed, state, tokens):
        def of(values):
            return loss(fixed, values, tokens) if adapting else loss(values, {}, tokens)

        found, gradient = jax.value_and_grad(of)(trained)
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(trained, change), state, found

    return optimiser, step


def train(trained, fixed, text, *, steps, rate, seed, batch=BATCH):
    """Train adapters on the base ``fixed`` or, with ``fixed=None``, the base. Returns them and the mean loss."""
    optimiser, step = _stepper(rate, fixed is not None)
    names, state, losses = list(trained), optimiser.init(trained), []
    random = np.random.default_rng(seed)
    for _ in range(steps):
        trained, state, found = step(trained, fixed or {}, state, batches(text, random, batch))
        losses.append(float(found))
    return {name: np.asarray(trained[name]) for name in names}, float(np.mean(losses))


def batches(text, random, batch):
    """Random pieces of ``text``, an array of bytes; int32 of shape (batch, CONTEXT + 1)."""
    starts = random.integers(0, len(text) - CONTEXT - 1, batch)
    return np.stack([text[at : at + CONTEXT + 1] for at in starts]).astype(np.int32)
