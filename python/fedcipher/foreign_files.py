"""Files that others wrote: runs, journals, keys, cards, reports, data sets.

Whoever could write such a file, or the folder that it is in, may have put a link, a pipe, a device, a file without end
or a small file that unpacks to a large one in its place. What is read here is a regular file, not a link, of a size
that is checked before it is read; what is in it is checked before memory is taken for it.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import sqlite3
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.errors import ForeignFileError, RunError

__all__ = [
    "MAX_CARD",
    "MAX_DATA_SET",
    "MAX_FRAME",
    "MAX_INDEX",
    "MAX_JOURNAL",
    "MAX_KEY_FILE",
    "MAX_LOG",
    "MAX_MODEL",
    "MAX_NOTE",
    "MAX_REPORT",
    "check_regular",
    "open_file",
    "open_sqlite_copy",
    "parse_json",
    "read_file",
    "read_json",
    "read_npz",
    "read_text",
    "read_trusted",
]

# Most bytes of a file, by its kind.
MAX_NOTE = 1 << 20
"""A process id, a counter, a cluster's index of programs."""
MAX_CARD = 1 << 16
"""The public keys of a party."""
MAX_INDEX = 1 << 26
"""A run's ``run.json``."""
MAX_REPORT = 1 << 28
"""A report of a training or a benchmark."""
MAX_LOG = 1 << 28
"""What a program of ours has said."""
MAX_KEY_FILE = 1 << 30
"""As ``key_file::MOST_BYTES``."""
MAX_JOURNAL = 1 << 30
"""A run's journal, and its log that is still to be worked in."""
MAX_DATA_SET = 1 << 32
"""A file of a data set, packed or not."""
MAX_MODEL = 1 << 34
"""A model, or what a strategy keeps, as ``.npz``."""
MAX_FRAME = 1 << 34
"""A frame: an update or an aggregate."""

_MAX_DEPTH = 64
"""Of JSON's brackets within brackets."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_MAX_ARRAY_HEADER = 10_000
_OTHERS_WRITE = 0o022
_CHUNK = 1 << 20
_SQLITE_SECONDS = 30.0
_SQLITE_STEPS = 10_000
"""Of SQLite's machine, between two looks at the clock."""
_CHANGES = slice(24, 28)
"""Where a database counts its changes, but for those in a write-ahead log."""
_COPIES = 20
"""Tries to copy a database that is being written."""

# Without O_NONBLOCK the opening of a pipe waits for its other end.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


# --- files ------------------------------------------------------------------------------------------


def open_file(path: str | Path, most: int, *, follow: bool = False) -> IO[bytes]:
    """The regular file of at most ``most`` bytes at ``path``, to read.

    ``follow``: a link is followed, for paths that a user has named. Raises `ForeignFileError` for what is no such
    file, and the system's `OSError`, of which that is one.
    """
    try:
        handle = os.open(path, _FLAGS | (0 if follow else _NO_LINK))
    except OSError as error:
        # Of a link with O_NOFOLLOW; FreeBSD says EMLINK.
        if not follow and error.errno in (errno.ELOOP, errno.EMLINK):
            raise ForeignFileError(error.errno, "is a link, which is not followed here", str(path)) from None
        # A socket, and a device that is not there.
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise ForeignFileError(error.errno, _NO_FILE, str(path)) from None
        raise
    try:
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(about.st_mode):
            raise ForeignFileError(errno.EINVAL, _NO_FILE, str(path))
        if about.st_size > most:
            text = f"has {about.st_size} bytes, more than the {most} that are read of such a file"
            raise ForeignFileError(errno.EFBIG, text, str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


_NO_FILE = "is no file but a device or a pipe"


def check_regular(path: str | Path, most: int) -> None:
    """Raises as `open_file`, but for a file that is absent."""
    try:
        open_file(path, most).close()
    except FileNotFoundError:
        return


def read_file(path: str | Path, most: int, *, follow: bool = False) -> bytes:
    """The bytes of a file, as it is when it is opened. Raises as `open_file`."""
    with open_file(path, most, follow=follow) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_trusted(path: str | Path, most: int) -> bytes:
    """The bytes of a file by which this user allows something: a link is followed. Raises as `open_file`.

    `ForeignFileError` too where another user could change the file, or put another one in its place.
    """
    with open_file(path, most, follow=True) as file:
        about = os.fstat(file.fileno())
        if hasattr(os, "geteuid") and about.st_mode & _OTHERS_WRITE:
            mode = stat.S_IMODE(about.st_mode)
            raise ForeignFileError(
                errno.EACCES, f"may be changed by other users (mode {mode:04o}): chmod go-w", str(path)
            )
        if why := _native.replaceable(path):
            raise ForeignFileError(errno.EACCES, why, str(path))
        return file.read(about.st_size)


def read_text(path: str | Path, most: int, *, follow: bool = False) -> str:
    """A file's text, UTF-8. Raises as `open_file`, and `UnicodeDecodeError`, a `ValueError`."""
    return read_file(path, most, follow=follow).decode("utf-8")


# --- JSON -------------------------------------------------------------------------------------------


def parse_json(content: str | bytes, *, parse_float: Callable[[str], Any] | None = None) -> Any:
    """What JSON of at most 64 brackets within brackets says. Raises `ValueError`."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        depth = 0
        for found in _BRACKETS.finditer(text):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth > _MAX_DEPTH:
                raise ValueError(f"more than {_MAX_DEPTH} brackets within each other")
    return json.loads(text, parse_float=parse_float)


def read_json(
    path: str | Path, most: int, *, follow: bool = False, parse_float: Callable[[str], Any] | None = None
) -> Any:
    """What a file of JSON says. Raises as `open_file` and `parse_json`."""
    return parse_json(read_file(path, most, follow=follow), parse_float=parse_float)


# --- .npz -------------------------------------------------------------------------------------------


def read_npz(source: str | Path | bytes, most: int, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` that `numpy.savez` wrote, a file or its bytes: exactly those called ``names``, or all.

    Members are not packed (`numpy.savez` packs none), so that a file asks for no more memory than it has bytes; no
    array holds objects. Raises as `open_file`, and `ValueError` for what is no such file.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_file(source, most) as file:
            size = file.seek(0, os.SEEK_END)
            limit = _check_directory(file, size, None if names is None else len(names))
            with zipfile.ZipFile(file) as archive:
                return _members(archive, size, limit, names)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, RuntimeError) as error:
        raise ValueError(f"no .npz: {error}") from error


_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_LEAST_ENTRY, _MOST_ENTRY = 46, 46 + 3 * 1024
"""Bytes of a member in a directory, with a name and further fields of a kilobyte each."""
_MAX_MEMBERS = 1 << 20


def _check_directory(file: IO[bytes], size: int, members: int | None) -> int:
    """The members that an archive says it has, before its directory is read: `zipfile` believes all that it says."""
    tail = _END.size + _LOCATOR.size + _END_64.size
    file.seek(max(0, size - tail))
    end = file.read(tail)
    if len(end) < _END.size:
        raise ValueError("no .npz: it is cut short")
    mark, _, _, _, count, length, _, comment = _END.unpack(end[-_END.size :])
    if mark != b"PK\x05\x06" or comment:
        raise ValueError("no .npz: its end is not that of an archive")
    if len(end) == tail and end[_END_64.size :].startswith(b"PK\x06\x07"):
        mark, _, _, _, _, _, _, count, length, _ = _END_64.unpack(end[: _END_64.size])
        if mark != b"PK\x06\x06":
            raise ValueError("no .npz: its end is not that of an archive")
    if count > (_MAX_MEMBERS if members is None else members) or not (
        _LEAST_ENTRY * count <= length <= min(size, _MOST_ENTRY * count)
    ):
        raise ValueError(f"no .npz of {members if members is not None else 'any'} arrays: it says that it has {count}")
    return int(count)


def _members(archive: zipfile.ZipFile, size: int, count: int, names: Collection[str] | None) -> dict[str, NDArray[Any]]:
    found = archive.infolist()
    called = [member.filename.removesuffix(".npy") for member in found]
    wanted = set(called if names is None else names)
    if len(found) != count or len(set(called)) != len(found) or set(called) != wanted:
        raise ValueError("it does not hold the arrays that it should")
    if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in found):
        raise ValueError("an array in it is packed or encrypted, which numpy.savez never does")
    # Members that lie on each other would be more than the file.
    if sum(member.file_size for member in found) > size or any(m.file_size != m.compress_size for m in found):
        raise ValueError("its arrays are larger than the file")
    return {name: _array(archive, member) for name, member in zip(called, found, strict=True)}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, by_columns, dtype = _array_header(file)
        if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
            raise ValueError("an array in it is of objects or records")
        left = member.file_size - file.tell()
        if math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"an array of shape {shape} does not fit its {left} bytes")
        array = np.empty(shape[::-1] if by_columns else shape, dtype)
        if left:
            view, at = array.reshape(-1).view(np.uint8).data, 0
            while part := file.read(_CHUNK):
                view[at : at + len(part)] = part
                at += len(part)
            if at != left:
                raise ValueError("an array in it is cut short")
        return array.T if by_columns else array


def _array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    form = np.lib.format
    version = form.read_magic(file)
    read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array in it is of format {version}")
    try:
        shape, by_columns, dtype = read(file, max_header_size=_MAX_ARRAY_HEADER)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("the head of an array in it is damaged") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, by_columns, dtype


# --- SQLite -----------------------------------------------------------------------------------------


@contextmanager
def open_sqlite_copy(path: str | Path, most: int) -> Generator[sqlite3.Connection]:
    """A private copy of the database at ``path``, with what its logs hold, while others may write it.

    SQLite itself follows links, opens pipes, and writes beside what it reads. Statements that take longer than half a
    minute end in `sqlite3.OperationalError`. Where no copy can be written, a database without a log is read in its
    place. Raises as `open_file`, `RunError` where there is a log, and `sqlite3.Error`.
    """
    whole, logs = _whole(Path(path), most)
    with ExitStack() as held:
        try:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="fedcipher-"))
            place = _written(Path(folder) / "copy.db", whole, logs)
        except OSError as error:
            if logs:
                raise RunError(
                    f"{path} has a log beside it, so a copy must be written to read it: {error.strerror or error}; set "
                    "TMPDIR to a folder that this user may write to"
                ) from error
            place = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
        base = held.enter_context(closing(sqlite3.connect(place, uri=True, isolation_level=None)))
        until = time.monotonic() + _SQLITE_SECONDS
        base.set_progress_handler(lambda: time.monotonic() > until, _SQLITE_STEPS)
        base.execute("PRAGMA trusted_schema=OFF")
        yield base


def _written(copy: Path, whole: bytes, logs: dict[str, bytes]) -> str:
    """A database of these bytes at ``copy``, as SQLite names it."""
    copy.write_bytes(whole)
    for ending, log in logs.items():
        copy.with_name(f"{copy.name}{ending}").write_bytes(log)
    return copy.as_uri()


def _whole(path: Path, most: int) -> tuple[bytes, dict[str, bytes]]:
    """What is in a database and in its logs, of one time."""
    for _ in range(_COPIES):
        before, whole = _logs_of(path, most), read_file(path, most)
        # With a write-ahead log, pages of the database change only to what the unchanged log holds; with a rollback
        # journal, only from what that holds, or between two counts of changes.
        if whole[_CHANGES] == _changes_of(path, most) and before == _logs_of(path, most):
            return whole, before
        time.sleep(0.05)
    raise ForeignFileError(errno.EAGAIN, "changes faster than it can be copied", str(path))


def _changes_of(path: Path, most: int) -> bytes:
    with open_file(path, most) as file:
        return file.read(_CHANGES.stop)[_CHANGES]


def _logs_of(path: Path, most: int) -> dict[str, bytes]:
    """The database's write-ahead log and rollback journal, as far as they are there."""
    found: dict[str, bytes] = {}
    for ending in ("-wal", "-journal"):
        try:
            found[ending] = read_file(path.with_name(f"{path.name}{ending}"), most)
        except FileNotFoundError:
            continue
    return {ending: log for ending, log in found.items() if log}
