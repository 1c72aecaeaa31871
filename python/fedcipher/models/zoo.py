# pyright: basic
"""The architectures, as Flax modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

__all__ = ["MODELS", "default_model"]


# Keras's default. If a coarse codec rounds a variance to zero, the layer divides by the root of this epsilon. Flax's
# own 1e-5 would enlarge the layer's output ten times as much.
_KERAS_EPSILON = 1e-3
# Convolutions crop the border of images of at least this side. Smaller images are padded.
_LARGE = 20


class Cnn8k(nn.Module):
    """The CNN of the hybrid-HE study: 8,003 trainable parameters on 28 x 28 grey images."""

    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        padding = "VALID" if x.shape[1] >= _LARGE else "SAME"
        for features in (6, 25):
            x = nn.Conv(features, (5, 5), padding=padding)(x)
            x = nn.leaky_relu(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=_KERAS_EPSILON)(x)
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.Dropout(0.25, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


class LeNet5(nn.Module):
    """LeNet-5 with ReLU: 61,706 parameters on 28 x 28 grey images."""

    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.max_pool(nn.relu(nn.Conv(6, (5, 5))(x)), (2, 2), strides=(2, 2))
        x = nn.max_pool(nn.relu(nn.Conv(16, (5, 5), padding="VALID")(x)), (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(120)(x))
        x = nn.relu(nn.Dense(84)(x))
        return nn.Dense(self.classes)(x)


class Cnn1m2(nn.Module):
    """Two convolutions and two dense layers: 1,199,882 parameters on 28 x 28 grey images of 10 classes.

    With the 62 classes of FEMNIST it has the size of FedNIC's model.
    """

    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.Dropout(0.25, deterministic=not train)(x)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(128)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR (He et al. 2015, section 4.2): 0.27 M parameters."""

    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        def norm(y: Any) -> Any:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(y)

        x = nn.relu(norm(nn.Conv(16, (3, 3), use_bias=False)(x)))
        for stage, features in enumerate((16, 32, 64)):
            for block in range(3):
                stride = 2 if stage > 0 and block == 0 else 1
                y = nn.relu(norm(nn.Conv(features, (3, 3), strides=stride, use_bias=False)(x)))
                y = norm(nn.Conv(features, (3, 3), use_bias=False)(y))
                if stride > 1:
                    # Identity shortcut with zero padding, as in the paper (option A).
                    x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, features - x.shape[-1])))
                x = nn.relu(x + y)
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


class GruLanguageModel(nn.Module):
    """Character language model: embedding, one GRU, softmax.

    On the 65 characters of tiny Shakespeare it has 45,633 parameters. With 104 features and 408 hidden units it has
    661,665, the size of FLASHE's model.
    """

    classes: int
    features: int = 32
    hidden: int = 96

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.Embed(self.classes, self.features)(x)
        x = nn.RNN(nn.GRUCell(self.hidden))(x)
        return nn.Dense(self.classes)(x)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "cnn-8k": Cnn8k,
    "lenet5": LeNet5,
    "cnn-1.2m": Cnn1m2,
    "resnet20": ResNet20,
    "gru": GruLanguageModel,
    "gru-0.66m": partial(GruLanguageModel, features=104, hidden=408),
}


def default_model(dataset: str) -> str:
    """The default model of a data set."""
    defaults = {"cifar10": "resnet20", "cifar100": "resnet20", "femnist": "cnn-1.2m", "shakespeare": "gru"}
    return defaults.get(dataset, "cnn-8k")
