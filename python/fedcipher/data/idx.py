"""The IDX file format of MNIST and its relatives."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import ParameterError

__all__ = ["find", "read"]

_UINT8 = 0x08


def find(folder: Path, stem: str) -> Path:
    """The file ``<stem>-idx<dims>-ubyte`` in ``folder``, gzipped or not."""
    found = sorted(folder.glob(f"{stem}-idx*-ubyte*")) if folder.is_dir() else []
    if not found:
        raise ParameterError(f"no {stem}-idx*-ubyte[.gz] in {folder}; pass --data-dir the folder of IDX files")
    return found[0]


def read(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes as an array of its shape."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        raw: bytes = file.read()
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UINT8:
        raise ParameterError(f"{path} is no IDX file of unsigned bytes")
    dims = raw[3]
    shape = np.frombuffer(raw, ">u4", count=dims, offset=4).astype(int)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dims)
    if values.size != int(np.prod(shape)):
        raise ParameterError(f"{path} holds {values.size} values where its header says {list(shape)}")
    return values.reshape(shape)
