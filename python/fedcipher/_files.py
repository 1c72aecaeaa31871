"""What to say, and do first, where the operating system may refuse a file or a folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import IO, Literal

from fedcipher.errors import ReportError, RunError

__all__ = ["drop_drafts", "is_locked", "locked", "refusal", "writable_folder", "write_whole"]

_ADVICE = {
    errno.ENOENT: "check the path",
    errno.EACCES: "ask its owner for access, or run as a user who has it",
    errno.EPERM: "ask its owner for access, or run as a user who has it",
    errno.EISDIR: "name a file in it",
    errno.ENOTDIR: "a part of the path is a file where a folder is needed; choose another path",
    errno.EEXIST: "a file stands where a folder is needed; choose another path",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOSPC: "make room, or choose another disk",
    errno.EDQUOT: "make room, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "a symbolic link leads back to itself; choose another path",
}


def refusal(error: OSError, path: str | Path | None = None) -> str:
    """One line: the path, what the system said of it, and what to do. ``path``: instead of the error's own."""
    place = path if path is not None else error.filename
    said = (error.strerror or str(error) or type(error).__name__).lower()
    advice = _ADVICE.get(error.errno or 0, "choose another path")
    # A path may hold anything, line ends too.
    return f"{str(place).replace(chr(10), ' ')}: {said}; {advice}" if place is not None else f"{said}; {advice}"


def writable_folder(folder: Path) -> None:
    """Makes ``folder`` and sees that it can be written to, before hours go into what shall be in it.

    Raises `ReportError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ReportError(f"cannot write to {refusal(error, folder)}, with --out") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of a run, whole or not at all, also where the power fails. Raises `RunError`.

    A link is followed; what is no ordinary file (a device, a pipe, a folder) is refused, and stays as it is.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.draft")
    try:
        if target.exists() and not target.is_file():
            raise RunError(f"{path} is no ordinary file, and stays as it is; name a file")
        # Not one that is there, by chance or because somebody has put it there.
        with draft.open("xb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                draft.rename(target)
                _flush(target.parent)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}; make room, or choose another place") from error


def _flush(folder: Path) -> None:
    """A file's new name is on disk when its folder is. Where a folder cannot be opened, on Windows, nothing is done."""
    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(held)
    finally:
        os.close(held)


def drop_drafts(folder: Path) -> None:
    """Remove what `write_whole` was writing in ``folder`` when its process was killed; nobody else may be writing."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.draft", path.name):
            path.unlink(missing_ok=True)


def locked(path: Path, mode: Literal["ab", "rb"] = "ab") -> IO[bytes] | None:
    """The file, locked for as long as it is open; None where another process has it. Raises `RunError`.

    Without flock(2), on Windows, two processes are not kept apart.
    """
    try:
        file = path.open(mode)
    except OSError as error:
        raise RunError(f"{path} cannot be opened: {error}; choose another place") from error
    try:
        import fcntl
    except ImportError:  # pragma: no cover: not where there is no flock
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_locked(path: Path) -> bool:
    """Whether another process has ``path`` `locked`. Raises `RunError`."""
    if not path.exists():
        return False
    file = locked(path, "rb")
    if file is not None:
        file.close()
    return file is None
