"""What to say, and do first, where the operating system may refuse a file or a folder."""

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
"""What flock(2) says where the file system has no locks."""
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
"""What fsync(2) says of a folder where the file system syncs files only."""
_WAIT_SECONDS = 10.0
_CLOSED = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND

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
    errno.ELOOP: "put the file itself there, or choose another path",
    errno.EFBIG: "see that it is the right file",
}


def refusal(error: OSError, path: str | Path | None = None) -> str:
    """One line: the path, what the system said of it, and what to do. ``path``: instead of the error's own."""
    place = path if path is not None else error.filename
    said = (error.strerror or str(error) or type(error).__name__).lower()
    advice = _ADVICE.get(error.errno or 0, "choose another path")
    # A path may hold anything, line ends and half characters too.
    return f"{quoted(place, MAX_LINE)}: {said}; {advice}" if place is not None else f"{said}; {advice}"


def user_home(setting: str) -> Path:
    """This user's home folder. Raises `ParameterError`, which says what to set, where there is none."""
    try:
        return Path.home()
    except RuntimeError:
        raise ParameterError(
            f"this user has no home folder (HOME is not set, and the user has no entry in passwd): set {setting} to a "
            "folder that lasts, or HOME"
        ) from None


def resolved(path: str | Path) -> Path:
    """``path`` from the root on, with its links followed. Raises `OSError`, also for links that lead in a circle."""
    try:
        return Path(path).resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def unwritten(path: Path, error: OSError) -> RunError:
    """What to say of a file that the system does not let be written."""
    said = (error.strerror or str(error)).lower()
    full = error.errno in (errno.EFBIG, None)
    advice = (
        _ADVICE[errno.ENOSPC] if full else _ADVICE.get(error.errno or 0, "see that its disk works, or choose another")
    )
    return RunError(f"{quoted(path, MAX_LINE)} cannot be written: {said}; {advice}")


def file_system(path: Path) -> str:
    """The kind of file system that ``path`` is on and where that is mounted, in words, for an error."""
    unknown = f"the file system of {quoted(path, MAX_LINE)}"
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return unknown
    found = [(place, kind) for place, kind in map(_mount, mounts.splitlines()) if path.absolute().is_relative_to(place)]
    if not found:
        return unknown
    # Of two mounts at one place the later one is seen.
    place, kind = max(reversed(found), key=lambda mount: len(mount[0].parts))
    return f"the file system {quoted(kind)} at {quoted(place, MAX_LINE)}"


def _mount(line: str) -> tuple[Path, str]:
    """Where a file system is mounted, and its kind, of a line of ``mountinfo`` (proc(5))."""
    before, _, after = line.partition(" - ")
    place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
    return Path(place), after.split()[0]


def writable_folder(folder: Path) -> None:
    """Makes ``folder`` and sees that it can be written to, before hours go into what shall be in it.

    Raises `ReportError`.
    """
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ReportError(f"cannot write to {refusal(error, folder)}, with --out") from error


def refuse_to_replace(out: Path, inputs: Iterable[Path]) -> None:
    """Raise `ParameterError` where ``out`` is one of ``inputs``, or a file that is there in a folder among them."""
    for path in inputs:
        try:
            same = out.exists() and path.exists() and out.samefile(path) and not out.is_dir()
            inside = out.is_file() and path.is_dir() and path.resolve() in out.resolve().parents
        except (OSError, RuntimeError):
            # What cannot be looked at is an error of whoever reads or writes it.
            continue
        if same or inside:
            raise ParameterError(f"--out {out} would replace what is read from {path}; name another file")


def write_whole(path: Path, *parts: bytes | memoryview, follow: bool = False) -> None:
    """Write a file of ``parts`` that only this user can read, whole or not at all, also where the power fails.

    Raises `RunError`.

    A link at ``path`` is replaced; with ``follow``, for a path that the user has named, it is followed where it is this
    user's or root's. What is no ordinary file (a device, a pipe, a folder) is refused, and stays as it is.
    """
    try:
        target = own_target(path) if follow else path.parent / path.name
        _refuse_others(target, path)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.draft")
        # Not one that is there, by chance or because somebody has put it there.
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


def same_content(path: Path, beside: Path) -> None:
    """Give a file that `write_whole` has written a second name; the next one at ``path`` leaves this one.

    Where the file system has no links it is copied. Raises `RunError`.
    """
    draft = beside.with_name(f".{beside.name}.{secrets.token_hex(8)}.draft")
    try:
        os.link(path, draft)
    except OSError:
        write_whole(beside, read_file(path, MAX_MODEL))
        return
    try:
        draft.rename(beside)
        # Renaming one name of a file to another of its names leaves both.
        draft.unlink(missing_ok=True)
        flush_folder(beside.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise unwritten(beside, error) from error


def _refuse_others(target: Path, path: Path) -> None:
    """Raises `RunError` where what is at ``target`` is neither a file nor a link."""
    try:
        kind = target.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
        raise RunError(f"{path} is no ordinary file, and stays as it is; name a file")


def own_target(path: Path) -> Path:
    """Where ``path`` leads, its links followed. Raises `RunError` at a link that another user made, but for root's."""
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
            # What is not there is made, or is an error of who makes it.
            return found.joinpath(*reversed(left))
        if not stat.S_ISLNK(about.st_mode):
            at = found
            continue
        if hasattr(os, "geteuid") and about.st_uid not in (0, os.geteuid()):
            raise RunError(f"{found} is a link of another user's, which is not followed; name the file itself")
        followed += 1
        if followed > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        left += reversed(Path(os.readlink(found)).parts)
    return at


def create_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """A file to write that only this user can read: a new one, or with ``append`` also one that is there.

    Raises `OSError`: also where ``path`` is a link, a pipe or a device.
    """
    handle = os.open(path, (_APPEND | _CLOSED) if append else _NEW, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ForeignFileError(errno.EINVAL, "is no ordinary file", str(path))
        return os.fdopen(handle, "ab" if append else "wb")
    except BaseException:
        os.close(handle)
        raise


def make_private_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above, for this user only whatever the umask. Raises `OSError`."""
    if not folder.is_dir():
        if folder.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """A file's name is on disk when its folder is; Windows' file systems see to that themselves. Raises `OSError`.

    Where the file system syncs no folders (FUSE, CIFS), everything is synced.
    """
    if os.name == "nt":
        return
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
        os.sync()
    finally:
        os.close(held)


def drop_drafts(folder: Path) -> None:
    """Remove what `write_whole` was writing in ``folder`` when its process was killed; nobody else may be writing."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.draft", path.name):
            path.unlink(missing_ok=True)


def locked(path: Path) -> IO[bytes] | None:
    """The file, locked for as long as it is open; None where another process has it. Raises `RunError`.

    Only this user can open it: whoever can open a file can lock it. A process that is forked off does not hold the
    lock. Without flock(2), on Windows, two processes are not kept apart. Where the file system has no locks, that is
    an error.
    """
    try:
        file = create_private(path, append=True)
        # One that an earlier version made, or that was copied.
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077 and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
    except OSError as error:
        raise RunError(f"{path} cannot be opened: {error}; choose another place") from error
    held = _locked(file, path)
    if held is not None:
        _held.add(held)
    return held


_held: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _let_go() -> None:
    """In a process forked off: its copies of the descriptors would hold the locks when this process has ended."""
    null = os.open(os.devnull, os.O_RDONLY)
    for file in list(_held):
        if not file.closed:
            # The object stays as it is, and closes no descriptor that is another's by then.
            os.dup2(null, file.fileno(), inheritable=False)
    _held.clear()
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def wait_locked(path: Path) -> IO[bytes]:
    """As `locked`, once another process that has the file has let go of it. Raises `RunError`."""
    until = time.monotonic() + _WAIT_SECONDS
    while (lock := locked(path)) is None:
        if time.monotonic() > until:
            raise RunError(f"{path} stays locked: end the process that has it")
        time.sleep(0.01)
    return lock


def _locked(file: IO[bytes], path: Path, *, shared: bool = False) -> IO[bytes] | None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover: not where there is no flock
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
            f"{file_system(path)} has no file locks, so that two processes could write at once; use a local disk, or "
            "mount this one with locks"
        )
    return refusal(error)


def is_locked(path: Path) -> bool:
    """Whether another process has ``path`` `locked`; none has where the file system has no locks.

    Raises `RunError`.
    """
    try:
        file = open_file(path, MAX_NOTE)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise RunError(f"{path} cannot be opened: {refusal(error)}") from error
    except OSError as error:
        raise RunError(f"{path} cannot be opened: {error}; choose another place") from error
    with file:
        try:
            # NFS has no exclusive locks of files that are open to read.
            return _locked(file, path, shared=True) is None
        except RunError:
            # Whoever only looks needs no lock, and nobody can hold one here.
            return False
