"""Reads data sets in the formats of their publishers: CIFAR-100's binary version, and FEMNIST as LEAF's JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import ParameterError
from fedcipher.foreign_files import MAX_DATA_SET, read_file, read_json

__all__ = ["cifar100", "femnist"]

Part = tuple[NDArray[Any], NDArray[np.int32]]
"""Images (n, height, width, channels) and labels (n,)."""

# A record has the coarse label, the fine label, and the red, green and blue planes of 32 x 32 bytes.
_SIDE, _LABELS = 32, 2
_RECORD = _LABELS + 3 * _SIDE * _SIDE
_LEAF_SIDE = 28


def cifar100(folder: Path) -> tuple[Part, Part]:
    """Read ``train.bin`` and ``test.bin``: uint8 images and fine labels. Raises `ParameterError`."""
    return _cifar100(folder / "train.bin"), _cifar100(folder / "test.bin")


def _cifar100(path: Path) -> Part:
    if not path.exists():
        raise ParameterError(
            f"no {path.name} in {path.parent}; pass --data-dir the folder of CIFAR-100's binary version"
        )
    raw = np.frombuffer(read_file(path, MAX_DATA_SET, follow=True), np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise ParameterError(f"{path} holds {raw.size} bytes, not whole records of {_RECORD}; fetch it again")
    records = raw.reshape(-1, _RECORD)
    planes = records[:, _LABELS:].reshape(-1, 3, _SIDE, _SIDE)
    return planes.transpose(0, 2, 3, 1), records[:, 1].astype(np.int32)


def femnist(folder: Path) -> tuple[Part, Part]:
    """Read LEAF's ``train/*.json`` and ``test/*.json``, one writer after another, as floats from 0 to 1.

    Raises `ParameterError`.
    """
    return _femnist(folder / "train"), _femnist(folder / "test")


def _femnist(folder: Path) -> Part:
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise ParameterError(f"no *.json in {folder}; pass --data-dir the folder that has LEAF's train and test")
    images: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int32]] = []
    for path in files:
        try:
            found = read_json(path, MAX_DATA_SET, follow=True)
            for user in found["users"]:
                own = found["user_data"][user]
                x = np.asarray(own["x"], np.float32).reshape(len(own["y"]), _LEAF_SIDE, _LEAF_SIDE, 1)
                images.append(x)
                labels.append(np.asarray(own["y"], np.int32).reshape(len(x)))
        except (ValueError, KeyError, TypeError) as error:
            raise ParameterError(f"{path} is not a file of LEAF's FEMNIST: {error!r}; fetch it again") from error
    if not images:
        raise ParameterError(f"{folder} has no writer; fetch the data set again")
    x = np.concatenate(images)
    if not (np.isfinite(x).all() and x.min(initial=0.0) >= 0 and x.max(initial=0.0) <= 1):
        raise ParameterError(f"{folder} holds pixels below 0 or above 1; fetch the data set again")
    return x, np.concatenate(labels)
