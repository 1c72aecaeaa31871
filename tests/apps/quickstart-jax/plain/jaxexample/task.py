"""A small CNN on scikit-learn's digits, in JAX and Flax."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits


class CNN(nn.Module):
    """Two convolutions and two dense layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(features=6, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(features=16, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=64)(x))
        return nn.Dense(features=10)(x)


def create_model(rng):
    cnn = CNN()
    return cnn, cnn.init(rng, jnp.ones([1, 8, 8, 1]))["params"]


@cache
def create_train_state(learning_rate: float) -> TrainState:
    """The same object for a rate: what is compiled for it is compiled once."""
    model, params = create_model(jax.random.PRNGKey(0))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(learning_rate, momentum=0.9))


def get_params(params) -> list[np.ndarray]:
    return [np.array(param) for param in jax.tree_util.tree_leaves(params)]


def set_params(train_state: TrainState, global_params) -> TrainState:
    structure = jax.tree_util.tree_structure(train_state.params)
    return train_state.replace(params=jax.tree_util.tree_unflatten(structure, list(global_params)))


@jax.jit
def apply_model(state: TrainState, images, labels):
    """Gradients, loss and accuracy of a batch."""

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images)
        one_hot = jax.nn.one_hot(labels, 10)
        return jnp.mean(optax.softmax_cross_entropy(logits=logits, labels=one_hot)), logits

    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return grads, loss, jnp.mean(jnp.argmax(logits, -1) == labels)


def train(state: TrainState, train_ds):
    """One epoch."""
    losses, accuracies = [], []
    for images, labels in train_ds:
        grads, loss, accuracy = apply_model(state, images, labels)
        state = state.apply_gradients(grads=grads)
        losses.append(loss)
        accuracies.append(accuracy)
    return state, float(np.mean(losses)), float(np.mean(accuracies))


def load_data(partition_id: int, num_partitions: int, batch_size: int, seed: int = 0):
    """This client's batches, 80 % to train on, in the order of ``seed``, and 20 % to test."""
    bunch = load_digits()
    own = np.random.default_rng(0).permutation(len(bunch.target))[partition_id::num_partitions]
    cut = int(0.8 * len(own))
    images, labels = bunch.images[..., None].astype(np.float32) / 16, bunch.target

    def batches(rows):
        whole = len(rows) // batch_size * batch_size
        return [(images[part], labels[part]) for part in rows[:whole].reshape(-1, batch_size)]

    return batches(np.random.default_rng(seed).permutation(own[:cut])), batches(own[cut:])
