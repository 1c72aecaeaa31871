"""Loads data sets: digits (bundled with scikit-learn), folders of files, or `flwr-datasets`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.data import foreign, idx
from fedcipher.errors import DependencyError, ParameterError
from fedcipher.foreign_files import MAX_DATA_SET, read_text

__all__ = ["DATASETS", "Dataset", "load"]

DATASETS = ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "femnist", "shakespeare"]
_HUB = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
_SEQUENCE = 64
_CLASSES = {"cifar100": 100, "femnist": 62}
_DEFAULT_CLASSES = 10
_SHAPES = {"mnist": (28, 28, 1), "fashion-mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
# Fewest symbols of a text, so that each part has a sequence.
_MIN_TEXT = 20 * _SEQUENCE
_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Dataset:
    """A data set as arrays for training.

    ``train_x``, ``test_x``: float32 images (n, height, width, channels) in [0, 1], or int32 token
    sequences (n, length). ``train_y``, ``test_y``: int32 labels (n,), or next tokens (n, length).
    """

    name: str
    train_x: NDArray[Any]
    train_y: NDArray[np.int32]
    test_x: NDArray[Any]
    test_y: NDArray[np.int32]
    classes: int


@lru_cache(maxsize=2)
def load(name: str, data_dir: str | None = None) -> Dataset:
    """Load a data set: from the files in ``data_dir``, or without it bundled or through `flwr-datasets`.

    Raises `ParameterError`, `DependencyError`.
    """
    if name not in DATASETS:
        raise ParameterError(f"dataset {name!r} is not one of {', '.join(DATASETS)}")
    if name == "digits":
        return _digits()
    if data_dir is None:
        return _hub(name)
    folder = Path(data_dir)
    if name == "shakespeare":
        return _text(folder)
    if name == "femnist":
        return _labelled(name, folder, *foreign.femnist(folder))
    if name == "cifar100":
        (train_x, train_y), (test_x, test_y) = foreign.cifar100(folder)
        return _labelled(name, folder, (_scaled(train_x), train_y), (_scaled(test_x), test_y))
    return _images(name, folder)


def _scaled(images: NDArray[Any]) -> NDArray[np.float32]:
    return images.astype(np.float32) / 255.0


def _labelled(
    name: str,
    folder: Path,
    train: tuple[NDArray[Any], NDArray[np.int32]],
    test: tuple[NDArray[Any], NDArray[np.int32]],
) -> Dataset:
    """Make a data set after a check of the labels' range. Raises `ParameterError`."""
    classes = _CLASSES.get(name, _DEFAULT_CLASSES)
    for stem, (_, y) in (("training", train), ("test", test)):
        if len(y) == 0 or y.min() < 0 or y.max() >= classes:
            found = f"labels from {y.min()} to {y.max()}" if len(y) else "nothing"
            raise ParameterError(f"{folder}: {found} in the {stem} labels; {name} has 0 to {classes - 1}")
    return Dataset(name, *train, *test, classes)


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DependencyError("the digits need scikit-learn; pip install 'fedcipher[demo]'") from error
    bunch: Any = load_digits()
    x = (bunch.images / 16.0).astype(np.float32)[..., None]
    y = bunch.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    test = int(len(x) * _TEST_FRACTION)
    train_at, test_at = order[test:], order[:test]
    return Dataset("digits", x[train_at], y[train_at], x[test_at], y[test_at], 10)


def _images(name: str, folder: Path) -> Dataset:
    def part(stem: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        x = idx.read(idx.find(folder, f"{stem}-images"))
        y = idx.read(idx.find(folder, f"{stem}-labels"))
        shape = _SHAPES[name]
        if x.ndim == 0 or x.shape[1:] not in (shape, shape[:2] if shape[2] == 1 else shape):
            raise ParameterError(
                f"{folder}: the {stem} images have shape {x.shape[1:]}, and {name} has {shape}; name another folder or "
                "data set"
            )
        if y.ndim != 1 or len(x) != len(y):
            raise ParameterError(f"{folder}: {len(x)} {stem} images but labels of shape {y.shape}")
        return _scaled(x[..., None] if x.ndim == 3 else x), y.astype(np.int32)

    return _labelled(name, folder, part("train"), part("t10k"))


def _text(folder: Path) -> Dataset:
    path = folder / "input.txt"
    if not path.exists():
        raise ParameterError(f"no input.txt in {folder}; pass --data-dir the folder of the text")
    try:
        text = read_text(path, MAX_DATA_SET, follow=True)
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from error
    if len(text) <= _MIN_TEXT:
        raise ParameterError(f"{path} holds {len(text)} characters; name a text of more than {_MIN_TEXT}")
    symbols = sorted(set(text))
    codes = {symbol: code for code, symbol in enumerate(symbols)}
    tokens = np.array([codes[symbol] for symbol in text], np.int32)
    count = (len(tokens) - 1) // _SEQUENCE
    x = tokens[: count * _SEQUENCE].reshape(count, _SEQUENCE)
    y = tokens[1 : count * _SEQUENCE + 1].reshape(count, _SEQUENCE)
    cut = int(count * (1 - _TEST_FRACTION / 2))
    return Dataset("shakespeare", x[:cut], y[:cut], x[cut:], y[cut:], len(symbols))


def _hub(name: str) -> Dataset:
    if name not in _HUB:
        raise ParameterError(f"{name} is read from files; pass --data-dir")
    try:
        from flwr_datasets import FederatedDataset  # pyright: ignore
    except ImportError as error:
        raise DependencyError(
            f"{name} without --data-dir is fetched through flwr-datasets; pip install 'flwr-datasets[vision]', "
            "or pass --data-dir a folder of IDX files"
        ) from error

    source: Any = FederatedDataset(dataset=_HUB[name], partitioners={"train": 1})

    def part(split: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        rows = source.load_split(split)
        image = "image" if "image" in rows.column_names else "img"
        x = np.stack([np.asarray(i, np.float32) for i in rows[image]]) / 255.0
        return (x[..., None] if x.ndim == 3 else x), np.asarray(rows["label"], np.int32)

    train_x, train_y = part("train")
    test_x, test_y = part("test")
    return Dataset(name, train_x, train_y, test_x, test_y, 10)
