"""The IDX file format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import zlib
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
    try:
        with opener(path, "rb") as file:
            raw: bytes = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ParameterError(f"{path} is no whole gzip file: {error}; fetch it again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UINT8:
        raise ParameterError(f"{path} is no IDX file of unsigned bytes")
    dims = raw[3]
    if dims == 0 or len(raw) < 4 + 4 * dims:
        raise ParameterError(f"{path} ends in its header; fetch it again")
    shape = [int(n) for n in np.frombuffer(raw, ">u4", count=dims, offset=4)]
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dims)
    if values.size != math.prod(shape):
        raise ParameterError(f"{path} holds {values.size} values where its header says {shape}; fetch it again")
    return values.reshape(shape)
