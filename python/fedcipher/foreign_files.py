"""Reads files that others wrote: runs, journals, keys, cards, reports, data sets.

A user that can write such a file, or its folder, may replace the file by a link, a pipe, a device, an endless file,
or a small file that unpacks to a large one. These functions read only regular files, and no links. They check the size
before they read, and the contents before they allocate memory for them.
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
"""The output of one of Fedcipher's programs."""
MAX_KEY_FILE = 1 << 30
"""A key file; the same limit as ``key_file::MAX_BYTES``."""
MAX_JOURNAL = 1 << 30
"""A run's journal, or its write-ahead log."""
MAX_DATA_SET = 1 << 32
"""A file of a data set, compressed or not."""
MAX_MODEL = 1 << 34
"""A model, or the state of a strategy, as ``.npz``."""
MAX_FRAME = 1 << 34
"""A frame: an update or an aggregate."""

_MAX_DEPTH = 64
"""Most nested brackets in JSON."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_MAX_ARRAY_HEADER = 10_000
_OTHERS_WRITE = 0o022
_CHUNK = 1 << 20
_SQLITE_SECONDS = 30.0
_SQLITE_STEPS = 10_000
"""Steps of SQLite's virtual machine between two checks of the clock."""
_COPIES = 20
"""Attempts to copy a database while another process writes it."""

# Without O_NONBLOCK, opening a pipe waits for its other end.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


# --- files ------------------------------------------------------------------------------------------


def open_file(path: str | Path, most: int, *, follow: bool = False) -> io.BufferedReader:
    """Open the regular file at ``path`` for reading, if it has at most ``most`` bytes.

    With ``follow`` links are followed, for paths that a user has named. Raises `ForeignFileError` for any other kind of
    file or a larger one, and the system's `OSError`. (A `ForeignFileError` is an `OSError`.)
    """
    try:
        handle = os.open(path, _FLAGS | (0 if follow else _NO_LINK))
    except OSError as error:
        # O_NOFOLLOW refuses a link with ELOOP, on FreeBSD with EMLINK.
        if not follow and error.errno in (errno.ELOOP, errno.EMLINK):
            raise ForeignFileError(error.errno, "is a link, which is not followed here", str(path)) from None
        # A socket, or a device that does not exist.
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
            text = f"has {about.st_size} bytes; the limit for such a file is {most}"
            raise ForeignFileError(errno.EFBIG, text, str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


_NO_FILE = "is a device or a pipe, not a file"


def check_regular(path: str | Path, most: int) -> None:
    """Raise the errors of `open_file`, except for a file that does not exist."""
    try:
        open_file(path, most).close()
    except FileNotFoundError:
        return


def read_file(path: str | Path, most: int, *, follow: bool = False) -> bytes:
    """Read the bytes that a file has when it is opened. Raises the errors of `open_file`."""
    with open_file(path, most, follow=follow) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_trusted(path: str | Path, most: int) -> bytes:
    """Read a file with which this user permits something. Links are followed.

    Raises the errors of `open_file`, and `ForeignFileError` if another user could change or replace the file.
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
    """Read a text file in UTF-8. Raises the errors of `open_file`, and `UnicodeDecodeError`, a `ValueError`."""
    return read_file(path, most, follow=follow).decode("utf-8")


# --- JSON -------------------------------------------------------------------------------------------


def parse_json(content: str | bytes, *, parse_float: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON with at most 64 nested brackets. Raises `ValueError`."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        depth = 0
        for found in _BRACKETS.finditer(text):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth > _MAX_DEPTH:
                raise ValueError(f"more than {_MAX_DEPTH} nested brackets")
    return json.loads(text, parse_float=parse_float)


def read_json(
    path: str | Path, most: int, *, follow: bool = False, parse_float: Callable[[str], Any] | None = None
) -> Any:
    """Parse a file of JSON. Raises the errors of `open_file` and `parse_json`."""
    return parse_json(read_file(path, most, follow=follow), parse_float=parse_float)


# --- .npz -------------------------------------------------------------------------------------------


def read_npz(source: str | Path | bytes, most: int, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an ``.npz`` from `numpy.savez`, given as a path or as bytes.

    With ``names`` the file must hold exactly these arrays. Compressed members are refused (`numpy.savez` makes none),
    so arrays need no more memory than the file has bytes. Arrays of objects are refused. Raises the errors of
    `open_file`, and `ValueError` for other contents.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_file(source, most) as file:
            size = file.seek(0, os.SEEK_END)
            limit = _check_directory(file, size, None if names is None else len(names))
            with zipfile.ZipFile(file) as archive:
                return _members(archive, size, limit, names)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, RuntimeError) as error:
        raise ValueError(f"not an .npz file: {error}") from error


_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_MIN_ENTRY, _MAX_ENTRY = 46, 46 + 3 * 1024
"""Bytes of a directory's entry, without and with a name and two further fields of a kilobyte each."""
_MAX_MEMBERS = 1 << 20


def _check_directory(file: IO[bytes], size: int, members: int | None) -> int:
    """Check the number of members in an archive's end record, and return it.

    Call this before `zipfile` reads the directory, because `zipfile` does not limit these numbers.
    """
    tail = _END.size + _LOCATOR.size + _END_64.size
    file.seek(max(0, size - tail))
    end = file.read(tail)
    if len(end) < _END.size:
        raise ValueError("not an .npz file: it is cut short")
    mark, _, _, _, count, length, _, comment = _END.unpack(end[-_END.size :])
    if mark != b"PK\x05\x06" or comment:
        raise ValueError("not an .npz file: it does not end as an archive")
    if len(end) == tail and end[_END_64.size :].startswith(b"PK\x06\x07"):
        mark, _, _, _, _, _, _, count, length, _ = _END_64.unpack(end[: _END_64.size])
        if mark != b"PK\x06\x06":
            raise ValueError("not an .npz file: it does not end as an archive")
    if count > (_MAX_MEMBERS if members is None else members) or not (
        _MIN_ENTRY * count <= length <= min(size, _MAX_ENTRY * count)
    ):
        raise ValueError(
            f"not an .npz file of {members if members is not None else 'any'} arrays: its directory states {count}"
        )
    return int(count)


def _members(archive: zipfile.ZipFile, size: int, count: int, names: Collection[str] | None) -> dict[str, NDArray[Any]]:
    found = archive.infolist()
    called = [member.filename.removesuffix(".npy") for member in found]
    wanted = set(called if names is None else names)
    if len(found) != count or len(set(called)) != len(found) or set(called) != wanted:
        raise ValueError("the file does not hold the expected arrays")
    if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in found):
        raise ValueError("an array is compressed or encrypted, which numpy.savez never does")
    # Overlapping members could be larger than the file.
    if sum(member.file_size for member in found) > size or any(m.file_size != m.compress_size for m in found):
        raise ValueError("the arrays are larger than the file")
    return {name: _array(archive, member) for name, member in zip(called, found, strict=True)}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, by_columns, dtype = _array_header(file)
        if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
            raise ValueError("an array holds objects or records")
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
                raise ValueError("an array is cut short")
        return array.T if by_columns else array


def _array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    form = np.lib.format
    version = form.read_magic(file)
    read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array has the unknown format {version}")
    try:
        shape, by_columns, dtype = read(file, max_header_size=_MAX_ARRAY_HEADER)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("the header of an array is damaged") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"an array has the shape {shape}")
    return shape, by_columns, dtype


# --- SQLite -----------------------------------------------------------------------------------------


@contextmanager
def open_sqlite_copy(path: str | Path, most: int) -> Generator[sqlite3.Connection]:
    """Open a private copy of the database at ``path`` and its logs. Other processes may write the database meanwhile.

    SQLite itself would follow links, open pipes and write beside the database. A statement that takes longer than half
    a minute ends in `sqlite3.OperationalError`. If no copy can be written, a database without a log is read directly.
    Raises the errors of `open_file`, `sqlite3.Error`, and `RunError` if a database with a log cannot be copied.
    """
    content, logs = _read_consistent(Path(path), most)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcipher-"))
            uri = _write_copy(Path(folder) / "copy.db", content, logs)
        except OSError as error:
            if logs:
                raise RunError(
                    f"{path} has a log beside it, so reading needs a temporary copy: {error.strerror or error}; set "
                    "TMPDIR to a folder that this user may write to"
                ) from error
            uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
        base = stack.enter_context(closing(sqlite3.connect(uri, uri=True, isolation_level=None)))
        until = time.monotonic() + _SQLITE_SECONDS
        base.set_progress_handler(lambda: time.monotonic() > until, _SQLITE_STEPS)
        base.execute("PRAGMA trusted_schema=OFF")
        yield base


def _write_copy(copy: Path, content: bytes, logs: dict[str, bytes]) -> str:
    """Write a database and its logs to ``copy``, and return its URI."""
    copy.write_bytes(content)
    for ending, log in logs.items():
        copy.with_name(f"{copy.name}{ending}").write_bytes(log)
    return copy.as_uri()


def _read_consistent(path: Path, most: int) -> tuple[bytes, dict[str, bytes]]:
    """Read a database and its logs in a consistent state."""
    for _ in range(_COPIES):
        before, content = _logs_of(path, most), read_file(path, most)
        # A change that is not complete at the second look has a log. A change that was completed meanwhile has left
        # other contents, so the database is looked at last. Pages that a log replaces may differ.
        if before == _logs_of(path, most) and content == read_file(path, most):
            return content, before
        time.sleep(0.05)
    raise ForeignFileError(errno.EAGAIN, "changes too fast to be copied", str(path))


def _logs_of(path: Path, most: int) -> dict[str, bytes]:
    """The database's write-ahead log and rollback journal, if they exist and are not empty."""
    found: dict[str, bytes] = {}
    for ending in ("-wal", "-journal"):
        try:
            found[ending] = read_file(path.with_name(f"{path.name}{ending}"), most)
        except FileNotFoundError:
            continue
    return {ending: log for ending, log in found.items() if log}
