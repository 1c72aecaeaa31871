"""A network with batch statistics on scikit-learn's digits; its state has names, as a PyTorch module's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_digits


class _CNN(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.Conv(features=8, kernel_size=(3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not training, momentum=0.9)(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(features=48)(x.reshape((x.shape[0], -1))))
        return nn.Dense(features=10)(x)


_cnn = _CNN()


class Net:
    """Parameters and running statistics of the network."""

    def __init__(self):
        self.state = _cnn.init(jax.random.PRNGKey(0), jnp.ones([1, 8, 8, 1]), training=False)

    def state_dict(self) -> dict[str, Array]:
        return {name: Array(np.asarray(value)) for name, value in flatten_dict(self.state, sep=".").items()}

    def load_state_dict(self, arrays: ArrayRecord) -> None:
        named = {name: jnp.asarray(arrays[name].numpy()) for name in flatten_dict(self.state, sep=".")}
        self.state = unflatten_dict(named, sep=".")


@jax.jit
def _step(state, momentum, lr, images, labels):
    def loss_of(params):
        logits, changed = _cnn.apply({**state, "params": params}, images, training=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed

    (loss, changed), gradient = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    params = jax.tree.map(lambda p, m: p - lr * m, state["params"], momentum)
    return {"params": params, **changed}, momentum, loss


def train(net: Net, trainset, *, epochs: int, batch_size: int, lr: float, seed: int) -> float:
    """Train with SGD and momentum, in the order of ``seed``; the mean loss."""
    images, labels = trainset
    order = np.random.default_rng(seed)
    momentum = jax.tree.map(jnp.zeros_like, net.state["params"])
    losses = []
    for _ in range(epochs):
        rows = order.permutation(len(labels))
        for part in rows[: len(rows) // batch_size * batch_size].reshape(-1, batch_size):
            net.state, momentum, loss = _step(net.state, momentum, lr, images[part], labels[part])
            losses.append(float(loss))
    return float(np.mean(losses))


def test(net: Net, testset) -> tuple[float, float]:
    """Loss and accuracy."""
    images, labels = testset
    logits = _cnn.apply(net.state, images, training=False)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return float(loss), float((jnp.argmax(logits, -1) == labels).mean())


def _digits():
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return bunch.images[order][..., None].astype(np.float32) / 16, bunch.target[order]


_HELD_BY_SERVER = 297


def load_data(partition_id: int, num_partitions: int):
    """This client's part, 80 % to train on and 20 % to test; client k has k + 1 shares, so that weights matter."""
    images, labels = _digits()
    share = (len(labels) - _HELD_BY_SERVER) // (num_partitions * (num_partitions + 1) // 2)
    first = _HELD_BY_SERVER + share * (partition_id * (partition_id + 1) // 2)
    own = slice(first, first + share * (partition_id + 1))
    images, labels = images[own], labels[own]
    cut = int(0.8 * len(labels))
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def load_centralized_dataset():
    """The server's test set."""
    images, labels = _digits()
    return images[:_HELD_BY_SERVER], labels[:_HELD_BY_SERVER]
