# pyright: basic
"""The examples that a client uses for training, for early stopping and for evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcipher.app.settings import Settings
from fedcipher.data import Dataset, partition
from fedcipher.errors import ParameterError

__all__ = ["Examples", "examples", "sizes", "test_examples"]

_MIN_EXAMPLES = 1


@dataclass(frozen=True)
class Examples:
    """Indices into the training examples of the data set, each at most once."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def _parts(settings: Settings, labels: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    return partition(labels, settings.clients, alpha=settings.dirichlet or None, seed=settings.seed)


def _cut(settings: Settings, own: NDArray[np.int64], client: int) -> Examples:
    if not (settings.test_share or settings.validation_share):
        return Examples(own, own[:0], own[:0])
    # The draw differs between clients and is the same in every round.
    order = np.random.default_rng((settings.seed, client)).permutation(own)
    test, rest = np.split(order, [round(settings.test_share * len(order))])
    validation, train = np.split(rest, [round(settings.validation_share * len(rest))])
    for share, part in ((settings.test_share, test), (settings.validation_share, validation), (1.0, train)):
        if share and len(part) < _MIN_EXAMPLES:
            raise ParameterError(
                f"client {client} has {len(own)} examples, too few for test_share={settings.test_share} and "
                f"validation_share={settings.validation_share}: take fewer clients or other shares"
            )
    return Examples(np.sort(train), np.sort(validation), np.sort(test))


def examples(settings: Settings, labels: NDArray[np.int32], client: int) -> Examples:
    """The examples of a client. Raises `ParameterError` if the client has too few for the shares in ``settings``."""
    return _cut(settings, _parts(settings, labels)[client], client)


def sizes(settings: Settings, labels: NDArray[np.int32]) -> list[int]:
    """The number of training examples of each client. Raises `ParameterError` like `examples`."""
    return [len(_cut(settings, own, k).train) for k, own in enumerate(_parts(settings, labels))]


def test_examples(settings: Settings, data: Dataset, client: int) -> tuple[NDArray, NDArray[np.int32]]:
    """Inputs and labels that a client evaluates on.

    With a ``test_share`` they are a share of the client's own examples, otherwise its part of the data set's test
    examples.
    """
    if settings.test_share:
        own = examples(settings, data.train_y, client).test
        return data.train_x[own], data.train_y[own]
    own = partition(data.test_y, settings.clients, seed=settings.seed)[client]
    return data.test_x[own], data.test_y[own]
