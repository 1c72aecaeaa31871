"""The IDX file format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import ParameterError
from fedcipher.foreign_files import MAX_DATA_SET, open_file

__all__ = ["find", "read"]

_UINT8 = 0x08
_MAX_RATIO = 1032
"""Of deflate."""
_CHUNK = 1 << 20


def find(folder: Path, stem: str) -> Path:
    """The file ``<stem>-idx<dims>-ubyte`` in ``folder``, gzipped or not."""
    found = sorted(folder.glob(f"{stem}-idx*-ubyte*")) if folder.is_dir() else []
    if not found:
        raise ParameterError(f"no {stem}-idx*-ubyte[.gz] in {folder}; pass --data-dir the folder of IDX files")
    return found[0]


def read(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped or not, as an array of its shape. Raises `ParameterError`, `OSError`."""
    try:
        with open_file(path, MAX_DATA_SET, follow=True) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if path.suffix != ".gz":
                return _read(path, file, size)
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                return _read(path, unpacked, size * _MAX_RATIO)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ParameterError(f"{path} is no whole gzip file: {error}; fetch it again") from error


def _read(path: Path, file: Any, most: int) -> NDArray[np.uint8]:
    """Of a file with ``most`` bytes: no more memory is taken."""
    head: bytes = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UINT8:
        raise ParameterError(f"{path} is no IDX file of unsigned bytes")
    dims = head[3]
    sizes: bytes = file.read(4 * dims)
    if dims == 0 or len(sizes) < 4 * dims:
        raise ParameterError(f"{path} ends in its header; fetch it again")
    shape = [int(n) for n in np.frombuffer(sizes, ">u4")]
    count = math.prod(shape)
    if count > min(most, MAX_DATA_SET):
        raise ParameterError(f"{path} cannot hold {count} values, as its header {shape} says; fetch it again")
    values = bytearray()
    while part := file.read(min(_CHUNK, count + 1 - len(values))):
        values += part
    if len(values) != count:
        found = len(values) if len(values) < count else "more"
        raise ParameterError(f"{path} holds {found} values where its header says {shape}; fetch it again")
    return np.frombuffer(values, np.uint8).reshape(shape)
