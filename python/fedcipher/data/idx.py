"""Reads the IDX file format of MNIST and similar data sets."""

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
"""The largest ratio by which deflate expands data."""
_CHUNK = 1 << 20


def find(folder: Path, stem: str) -> Path:
    """Find the file ``<stem>-idx<dims>-ubyte`` in ``folder``, gzipped or not. Raises `ParameterError`."""
    found = sorted(folder.glob(f"{stem}-idx*-ubyte*")) if folder.is_dir() else []
    if not found:
        raise ParameterError(f"no {stem}-idx*-ubyte[.gz] in {folder}; pass --data-dir the folder of IDX files")
    return found[0]


def read(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped or not, into an array. Raises `ParameterError`, `OSError`."""
    try:
        with open_file(path, MAX_DATA_SET, follow=True) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if path.suffix != ".gz":
                return _read(path, file, size)
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                return _read(path, unpacked, size * _MAX_RATIO)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ParameterError(f"{path} is not a complete gzip file: {error}; fetch it again") from error


def _read(path: Path, file: Any, most: int) -> NDArray[np.uint8]:
    """Read a file that can unpack to ``most`` bytes. Allocates no more memory than that."""
    head: bytes = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UINT8:
        raise ParameterError(f"{path} is not an IDX file of unsigned bytes; name another file")
    dims = head[3]
    sizes: bytes = file.read(4 * dims)
    if dims == 0 or len(sizes) < 4 * dims:
        raise ParameterError(f"{path} ends in its header; fetch it again")
    shape = [int(n) for n in np.frombuffer(sizes, ">u4")]
    count = math.prod(shape)
    if count > min(most, MAX_DATA_SET):
        raise ParameterError(f"{path} cannot hold the {count} values of its header {shape}; fetch it again")
    values = bytearray()
    while part := file.read(min(_CHUNK, count + 1 - len(values))):
        values += part
    if len(values) != count:
        found = len(values) if len(values) < count else "more"
        raise ParameterError(f"{path} holds {found} values, and its header states {shape}; fetch it again")
    return np.frombuffer(values, np.uint8).reshape(shape)
