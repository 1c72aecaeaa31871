"""Writes and locks files and folders safely, and explains refusals of the operating system."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from fedcipher.errors import ForeignFileError, ParameterError, ReportError, RunError
from fedcipher.foreign_files import MAX_MODEL, MAX_NOTE, open_file, read_file
from fedcipher.foreign_text import MAX_LINE, quoted

__all__ = [
    "create_private",
    "drop_drafts",
    "file_system",
    "flush_folder",
    "is_locked",
    "locked",
    "make_private_folder",
    "own_target",
    "refusal",
    "refuse_to_replace",
    "resolved",
    "same_content",
    "unwritten",
    "user_home",
    "wait_locked",
    "writable_folder",
    "write_whole",
]

_MAX_LINKS = 40
_MOUNTS = Path("/proc/self/mountinfo")
_NO_LOCKS = {
    getattr(errno, name) for name in ("ENOSYS", "EOPNOTSUPP", "ENOTSUP", "ENOLCK", "EINVAL") if hasattr(errno, name)
}
"""Errors of flock(2) if the file system has no locks."""
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
"""Errors of fsync(2) for a folder if the file system syncs only files."""
_WAIT_SECONDS = 10.0
_CLOSED = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND

_ADVICE = {
    errno.ENOENT: "check the path",
    errno.EACCES: "ask its owner for access, or run as a user that has access",
    errno.EPERM: "ask its owner for access, or run as a user that has access",
    errno.EISDIR: "name a file in this folder",
    errno.ENOTDIR: "a part of the path is a file where a folder is needed; choose another path",
    errno.EEXIST: "a file exists where a folder is needed; choose another path",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOSPC: "make room, or choose another disk",
    errno.EDQUOT: "make room, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "put the file itself there, or choose another path",
    errno.EFBIG: "check that this is the right file",
}


def refusal(error: OSError, path: str | Path | None = None) -> str:
    """Describe an error in one line: path, reason of the system, advice. ``path`` replaces the error's own path."""
    shown = path if path is not None else error.filename
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    advice = _ADVICE.get(error.errno or 0, "choose another path")
    # A path may contain line ends and invalid characters.
    return f"{quoted(shown, MAX_LINE)}: {reason}; {advice}" if shown is not None else f"{reason}; {advice}"


def user_home(setting: str) -> Path:
    """This user's home folder. Without one, raises `ParameterError`, with the variable ``setting`` to set instead."""
    try:
        return Path.home()
    except RuntimeError:
        raise ParameterError(
            f"this user has no home folder (HOME is not set, and the user has no entry in passwd): set {setting} to a "
            "permanent folder, or set HOME"
        ) from None


def resolved(path: str | Path) -> Path:
    """The absolute form of ``path``, with links followed. Raises `OSError`, also for a loop of links."""
    try:
        return Path(path).resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def unwritten(path: Path, error: OSError) -> RunError:
    """The error for a file that the system refuses to write."""
    reason = (error.strerror or str(error)).lower()
    full = error.errno in (errno.EFBIG, None)
    advice = (
        _ADVICE[errno.ENOSPC] if full else _ADVICE.get(error.errno or 0, "check that its disk works, or choose another")
    )
    return RunError(f"{quoted(path, MAX_LINE)} cannot be written: {reason}; {advice}")


def file_system(path: Path) -> str:
    """Describe the file system of ``path`` for an error: its kind and its mount point."""
    unknown = f"the file system of {quoted(path, MAX_LINE)}"
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return unknown
    found = [
        (mount_point, kind)
        for mount_point, kind in map(_mount, mounts.splitlines())
        if path.absolute().is_relative_to(mount_point)
    ]
    if not found:
        return unknown
    # A later mount at the same path hides an earlier one.
    mount_point, kind = max(reversed(found), key=lambda mount: len(mount[0].parts))
    return f"the file system {quoted(kind)} at {quoted(mount_point, MAX_LINE)}"


def _mount(line: str) -> tuple[Path, str]:
    """(mount point, kind of file system) from a line of ``mountinfo`` (proc(5))."""
    before, _, after = line.partition(" - ")
    mount_point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
    return Path(mount_point), after.split()[0]


def writable_folder(folder: Path) -> None:
    """Make ``folder`` and check that it is writable, before a long computation whose results go there.

    Raises `ReportError`.
    """
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ReportError(f"cannot write to {refusal(error, folder)}, with --out") from error


def refuse_to_replace(out: Path, inputs: Iterable[Path]) -> None:
    """Raise `ParameterError` if ``out`` is one of ``inputs``, or an existing file in a folder among ``inputs``."""
    for path in inputs:
        try:
            same = out.exists() and path.exists() and out.samefile(path) and not out.is_dir()
            inside = out.is_file() and path.is_dir() and path.resolve() in out.resolve().parents
        except (OSError, RuntimeError):
            # Leave this error to the code that reads or writes the path.
            continue
        if same or inside:
            raise ParameterError(f"--out {out} would replace data that is read from {path}; name another file")


def write_whole(path: Path, *parts: bytes | memoryview, follow: bool = False) -> None:
    """Write a file of ``parts`` atomically, even if the power fails. Only this user can read the file.

    A link at ``path`` is replaced. With ``follow``, for a path that the user has named, a link of this user or of root
    is followed instead. Raises `RunError`, also if ``path`` is not an ordinary file (a device, a pipe, a folder), which
    stays unchanged.
    """
    try:
        target = own_target(path) if follow else path.parent / path.name
        _refuse_special_file(target, path)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.draft")
        # O_EXCL: fail if the draft exists, by chance or because another user made it.
        with os.fdopen(os.open(draft, _NEW, 0o600), "wb") as file:
            try:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
                draft.rename(target)
                flush_folder(target.parent)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise unwritten(path, error) from error


def same_content(path: Path, second: Path) -> None:
    """Give a file of `write_whole` a ``second`` name. A later `write_whole` at ``path`` leaves ``second`` unchanged.

    Copies the file if the file system has no hard links. Raises `RunError`.
    """
    draft = second.with_name(f".{second.name}.{secrets.token_hex(8)}.draft")
    try:
        os.link(path, draft)
    except OSError:
        write_whole(second, read_file(path, MAX_MODEL))
        return
    try:
        draft.rename(second)
        # rename does nothing if both are names of the same file, so remove the draft.
        draft.unlink(missing_ok=True)
        flush_folder(second.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise unwritten(second, error) from error


def _refuse_special_file(target: Path, path: Path) -> None:
    """Raise `RunError` if ``target`` exists and is neither a file nor a link."""
    try:
        kind = target.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
        raise RunError(f"{path} is not an ordinary file and stays unchanged; name a file")


def own_target(path: Path) -> Path:
    """Follow the links of ``path``. Raises `RunError` for a link of a user other than this user and root."""
    left, at, followed = list(reversed(path.absolute().parts)), Path(), 0
    while left:
        part = left.pop()
        if part == os.pardir:
            at = at.parent
            continue
        found = at / part
        try:
            about = found.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # The caller creates the missing rest, or fails to.
            return found.joinpath(*reversed(left))
        if not stat.S_ISLNK(about.st_mode):
            at = found
            continue
        if hasattr(os, "geteuid") and about.st_uid not in (0, os.geteuid()):
            raise RunError(f"{found} is a link of another user, which is not followed; name the file itself")
        followed += 1
        if followed > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        left += reversed(Path(os.readlink(found)).parts)
    return at


def create_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """Open a file to write that only this user can read: a new file, or with ``append`` also an existing one.

    Raises `OSError`, also if ``path`` is a link, a pipe or a device.
    """
    handle = os.open(path, (_APPEND | _CLOSED) if append else _NEW, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ForeignFileError(errno.EINVAL, "is not an ordinary file", str(path))
        return os.fdopen(handle, "ab" if append else "wb")
    except BaseException:
        os.close(handle)
        raise


def make_private_folder(folder: Path) -> None:
    """Make ``folder`` and missing parents, accessible to this user only, for any umask. Raises `OSError`."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        try:
            # Another process may make the folder at the same time.
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Sync ``folder``, so that the names of its files are on disk. Raises `OSError`.

    If the file system cannot sync folders (FUSE, CIFS), syncs everything. On Windows this does nothing, because file
    systems there sync names themselves.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
        os.sync()
    finally:
        os.close(handle)


def drop_drafts(folder: Path) -> None:
    """Remove drafts in ``folder`` that killed processes of `write_whole` have left. No process may be writing there."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.draft", path.name):
            path.unlink(missing_ok=True)


def locked(path: Path) -> IO[bytes] | None:
    """Open and lock a file. The lock lasts while the file is open. Returns None if another process has the lock.

    Only this user can open the file, because any user that can open a file can lock it. Forked children do not hold the
    lock. Without flock(2), on Windows, the lock does not exclude other processes. Raises `RunError`, also if the file
    system has no locks.
    """
    try:
        file = create_private(path, append=True)
        # Restrict a file that an earlier version made, or that was copied.
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077 and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
    except OSError as error:
        raise RunError(f"{path} cannot be opened: {error}; choose another path") from error
    lock = _locked(file, path)
    if lock is not None:
        _locks.add(lock)
    return lock


_locks: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release locks in a forked child: its copies of the descriptors would hold the locks after the parent ends."""
    null = os.open(os.devnull, os.O_RDONLY)
    for file in list(_locks):
        if not file.closed:
            # Replace the descriptor instead of closing it, so that the object never closes a reused descriptor.
            os.dup2(null, file.fileno(), inheritable=False)
    _locks.clear()
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def wait_locked(path: Path) -> IO[bytes]:
    """Like `locked`, but waits up to 10 s for another process to release the lock. Raises `RunError`."""
    until = time.monotonic() + _WAIT_SECONDS
    while (lock := locked(path)) is None:
        if time.monotonic() > until:
            raise RunError(f"{path} stays locked: end the process that holds the lock")
        time.sleep(0.01)
    return lock


def _locked(file: IO[bytes], path: Path, *, shared: bool = False) -> IO[bytes] | None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover: tests run on systems with flock
        return file
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise RunError(f"{path} cannot be locked: {_why_no_lock(error, path)}") from error
    return file


def _why_no_lock(error: OSError, path: Path) -> str:
    if error.errno in _NO_LOCKS:
        return (
            f"{file_system(path)} has no file locks, so two processes could write at once; use a local disk, or mount "
            "this file system with locks"
        )
    return refusal(error)


def is_locked(path: Path) -> bool:
    """Whether another process has ``path`` `locked`. False if the file system has no locks. Raises `RunError`."""
    try:
        file = open_file(path, MAX_NOTE)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise RunError(f"{path} cannot be opened: {refusal(error)}") from error
    except OSError as error:
        raise RunError(f"{path} cannot be opened: {error}; choose another path") from error
    with file:
        try:
            # NFS has no exclusive locks for files that are open for reading.
            return _locked(file, path, shared=True) is None
        except RunError:
            # Without locks in this file system, no process holds one.
            return False
