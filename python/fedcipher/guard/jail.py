"""Starts one app behind walls, and tries each wall (Linux only).

The walls themselves are in the crate ``fedcipher-jail``. A fresh Python process builds them: `start` runs this
interpreter with the native module and nothing else. The process must have one thread, which the guard does not have,
and it holds no secret that a copy of the guard's memory would hold. No program of its own is then part of a wheel.

Two processes stand between the guard and the app. The outer one waits for the guard's socket to close. The inner one is
the first process of the jail. The kernel kills the jail when either of them ends.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import marshal
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fedcipher import _native
from fedcipher._optional import require_feature
from fedcipher.errors import GuardError
from fedcipher.foreign_text import show

__all__ = ["Jail", "JailSpec", "Limits", "Wall", "check", "python_paths", "start", "walls"]

_APPS_USER = 65534
"""The user and the group that a guard of root runs apps as: ``OTHER`` of the crate."""

_START_SECONDS = 60.0
_KILL_SECONDS = 10.0

_REMEDIES = {
    "namespaces": "allow user namespaces (sysctl user.max_user_namespaces, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns), or run the guard outside of the container that refuses them",
    "network": "give the app another port, above 1023",
    "files": "list only files and folders that exist, that the guard's user can read, and that lie outside of the "
    "app's work; in a container, its /proc must not be masked",
    "privileges": "start the guard with higher limits (ulimit -H), and as root only with all capabilities",
    "landlock": "use Linux 5.13 or later, and add landlock to the kernel's parameter lsm=",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
}
"""The remedy for each wall of the crate that cannot be built."""

_STARTER = """
import marshal, os, sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
spec = ModuleSpec("_native", ExtensionFileLoader("_native", sys.argv[1]), origin=sys.argv[1])
native = spec.loader.create_module(spec)
spec.loader.exec_module(native)
guard = int(sys.argv[2])
sys.exit(native.run_in_jail(guard, *marshal.loads(os.read(guard, 1 << 24))))
"""


@dataclass(frozen=True)
class Limits:
    """Limits of the processes of a jail. All limits but ``processes`` are for each process.

    Attributes
    ----------
    memory
        Bytes of private writable memory, and of each of the jail's two file systems in memory. A process may reserve
        four times as many addresses.
    processes
        Processes and threads, all together.
    file_size
        Bytes of a file.
    open_files
        Open descriptors.
    """

    memory: int = 16 << 30
    processes: int = 4096
    file_size: int = 16 << 30
    open_files: int = 4096


@dataclass(frozen=True)
class JailSpec:
    """The files, the work folder and the limits of an app.

    Attributes
    ----------
    read_only
        Absolute paths of files and folders that the app can read, at the same paths. They must hold no socket of a
        service, because a program may connect to a UNIX socket that it can see.
    work
        The folder that the app can write to, and its working folder. If the guard is root, it becomes the property of
        the user 65534, which the app runs as, and so do the files in it.
    limits
        What the app's processes may use.
    """

    read_only: tuple[Path, ...]
    work: Path
    limits: Limits = Limits()


class Jail:
    """A running app behind walls. The end of a ``with`` block kills it.

    Attributes
    ----------
    listener
        A socket that listens on the port of 127.0.0.1 inside of the jail. The app can connect to nothing else.
    output
        The app's standard output and error, without a buffer. The reader decides how many bytes it takes. An app whose
        output is not read waits once the pipe is full.
    landlock
        The ABI of Landlock that the kernel has. Its rules on TCP need 4, those on signals and abstract sockets 6.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], guard: socket.socket, listener: socket.socket, landlock: int
    ) -> None:
        if process.stdout is None:
            raise ValueError("the process must have a pipe for its output")
        self._process, self._guard = process, guard
        self.listener, self.landlock = listener, landlock
        self.output: BinaryIO = process.stdout  # pyright: ignore[reportAttributeAccessIssue]

    def poll(self) -> int | None:
        """The app's exit status, or 128 and the number of the signal that ended it; None while it runs.

        When there is a status, no process of the jail is left.
        """
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """As `poll`, after at most ``timeout`` seconds; None if the app still runs then."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill every process of the jail and wait until none is left. Raises `GuardError` if one stays."""
        _end(self._process, self._guard)

    def close(self) -> None:
        """Kill the jail and close the listening socket and the output."""
        try:
            self.kill()
        finally:
            for opened in (self._guard, self.listener, self.output):
                opened.close()

    def __enter__(self) -> Jail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes], guard: socket.socket) -> None:
    with contextlib.suppress(OSError):
        guard.shutdown(socket.SHUT_RDWR)
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        # The kernel then kills the jail too, though this process cannot wait for its end.
        process.kill()
        process.wait()
        raise GuardError(
            "the jail of an app did not end in time; look for processes in state D, and restart the guard"
        ) from None


def start(spec: JailSpec, argv: Sequence[str], env: Mapping[str, str], port: int) -> Jail:
    """Start ``argv`` behind walls, with ``env`` as its whole environment.

    ``argv[0]`` is an absolute path. The app reaches ``port`` of 127.0.0.1, where the returned jail's socket listens.
    Raises `GuardError` if a wall cannot be built or the program does not start. The app has then not run. Raises
    `DependencyError` if the native module has no jail.
    """
    if sys.platform != "linux":
        raise GuardError("an app's walls are those of Linux; run the guard on Linux")
    require_feature("a guard", "guard")
    if not argv or not os.path.isabs(argv[0]):
        raise GuardError("an app's program must have an absolute path; give the interpreter's, such as sys.executable")
    order = marshal.dumps(
        (
            [os.fspath(path) for path in spec.read_only],
            os.fspath(spec.work),
            astuple(spec.limits),
            list(argv),
            list(env.items()),
            port,
        )
    )
    _give(spec.work)
    process, guard = _outer_process()
    listener = None
    try:
        guard.settimeout(_START_SECONDS)
        guard.sendall(order)
        listener, landlock = _reports(guard)
    except BaseException as error:
        with contextlib.suppress(GuardError):
            _end(process, guard)
        guard.close()
        output = _start_output(process)
        if isinstance(error, OSError):
            raise GuardError(f"the process that builds the walls has failed: {output or error}") from error
        raise
    return Jail(process, guard, listener, landlock)


def _give(work: Path) -> None:
    """Make root's folder, and the guard's files in it, those of the app's user."""
    try:
        if os.geteuid() == 0 and os.stat(work, follow_symlinks=False).st_uid == 0:
            for path in (*(entry.path for entry in os.scandir(work)), work):
                os.chown(path, _APPS_USER, _APPS_USER, follow_symlinks=False)
    except OSError as error:
        raise GuardError(f"the app's work folder {work}: {error.strerror}; make it before the app starts") from error


def _outer_process() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # The library path serves an interpreter whose own library lies elsewhere.
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        command = [sys.executable, "-I", "-S", "-c", _STARTER, str(_native.__file__), str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd="/",
            env=env,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, ours


def _reports(guard: socket.socket) -> tuple[socket.socket, int]:
    """The listening socket, and the ABI of Landlock, from a jail that has started."""
    listener = None
    try:
        while True:
            message, ancillary, _, _ = guard.recvmsg(1 << 16, socket.CMSG_SPACE(array.array("i").itemsize))
            kind, text = message[:1], message[1:].decode(errors="replace")
            if kind == b"L":
                listener = _received(ancillary)
            elif kind == b"S" and listener is not None:
                found, listener = listener, None
                return found, int(text)
            elif kind == b"F":
                raise _failure(text)
            else:
                raise ConnectionError("it ended without a report")
    finally:
        if listener is not None:
            listener.close()


def _received(ancillary: list[tuple[int, int, bytes]]) -> socket.socket:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return socket.socket(fileno=array.array("i", data)[0])
    raise ConnectionError("it sent no listening socket")


def _failure(text: str) -> GuardError:
    wall, _, cause = text.partition(": ")
    failure = GuardError(
        f"the wall {wall!r} around an app cannot be built: {cause}; the app has not started; {_REMEDIES[wall]}"
    )
    failure.wall = wall
    return failure


def _start_output(process: subprocess.Popen[bytes]) -> str:
    """The last line that the outer process has written, for an error of Python's."""
    if process.stdout is None:
        return ""
    with process.stdout as output:
        lines = (output.read(1 << 16) or b"").decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), "")


def python_paths() -> tuple[Path, ...]:
    """The files that this interpreter and its environment need to run, as existing paths for `JailSpec.read_only`."""
    prefixes = {Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)}
    known = {name: Path(path) for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))}
    wanted = [
        *(prefix for prefix in prefixes if prefix not in (Path("/"), Path("/usr"))),
        *known.values(),
        Path(sys.executable),
        Path(sys.executable).resolve(),
        *map(Path, ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/lib", "/lib64", "/usr/local/lib")),
        *map(Path, ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")),
        *map(Path, ("/etc/localtime", "/etc/nsswitch.conf", "/usr/share/zoneinfo")),
        # Numeric libraries count processors and memory nodes there.
        *map(Path, ("/sys/devices/system/cpu", "/sys/devices/system/node")),
    ]
    return tuple(dict.fromkeys(path.absolute() for path in wanted if path.exists()))


@dataclass(frozen=True)
class Wall:
    """The outcome of a program's tries to get past one wall.

    Attributes
    ----------
    name
        The wall.
    holds
        Whether every try failed.
    tried
        What the program tried; if the wall does not hold, what got past it.
    remedy
        What to do about a wall that does not hold.
    """

    name: str
    holds: bool
    tried: str
    remedy: str


_PROBE_LIMITS = Limits(memory=128 << 20, processes=32, file_size=1 << 20, open_files=64)
_PROBE_SECONDS = 60.0
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_PROBE_REMEDY = "do not run apps on this machine, and report the line with the kernel's version"


def walls() -> list[Wall]:
    """Try each wall with a hostile program in a jail on this machine.

    If a wall cannot be built, the list has that wall alone.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="fedcipher-walls-") as folder:
            return _tried(Path(folder))
    except GuardError as error:
        wall = error.wall or "start"
        return [Wall(wall, False, str(error), _REMEDIES.get(wall, _PROBE_REMEDY))]


def _tried(folder: Path) -> list[Wall]:
    work, shown = folder / "work", folder / "shown"
    for made in (work, shown):
        made.mkdir()
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.write_text("the guard's")
    secret.chmod(0o644)
    probe = Path(__file__).with_name("jail_probe.py").read_text(encoding="utf-8")
    with _targets() as (facts, victim):
        facts["namespaces"] = {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}
        facts |= {"secret": str(secret), "shown": str(shown), "work": str(work), "limits": astuple(_PROBE_LIMITS)}
        argv = [sys.executable, "-I", "-S", "-c", probe, json.dumps(facts)]
        spec = JailSpec((*python_paths(), shown), work, _PROBE_LIMITS)
        with start(spec, argv, {"PROBE": "1"}, facts["port"]) as jail:
            jail.listener.settimeout(_PROBE_SECONDS)
            found = [Wall(*entry, _PROBE_REMEDY) for entry in _answers(jail)]
            found += [_ended(jail), _alive(victim)]
    return found


@contextlib.contextmanager
def _targets() -> Generator[tuple[dict[str, Any], subprocess.Popen[bytes]]]:
    """A port, an abstract socket and a process that a program in a jail must not reach, and the port that it may."""
    name = f"fedcipher-walls-{os.getpid()}-{time.monotonic_ns()}"
    with (
        _shared_segment() as segment,
        socket.create_server(("127.0.0.1", 0)) as outside,
        socket.socket(socket.AF_UNIX) as abstract,
        subprocess.Popen(["/bin/sleep", "600"], stdout=subprocess.DEVNULL) as victim,
    ):
        abstract.bind("\0" + name)
        abstract.listen()
        port = outside.getsockname()[1]
        facts = {"outside": port, "abstract": name, "segment": segment, "victim": victim.pid}
        facts |= {"guard": os.getpid(), "uid": os.getuid()}
        try:
            # Two different ports: Landlock's rules are of ports.
            yield facts | {"port": 8765 if port != 8765 else 8766}, victim
        finally:
            victim.kill()


@contextlib.contextmanager
def _shared_segment() -> Generator[int]:
    """The key of a segment of System V shared memory that every user may read."""
    library = ctypes.CDLL(None, use_errno=True)
    key = secrets.randbelow(1 << 30) + 1
    made = library.shmget(key, 4096, 0o1000 | 0o666)
    if made < 0:
        raise GuardError(f"shared memory for a test of walls: {os.strerror(ctypes.get_errno())}; see ipcs")
    try:
        yield key
    finally:
        library.shmctl(made, 0, None)


def _answers(jail: Jail) -> list[tuple[str, bool, str]]:
    """The reports of the program in the jail, over the one connection that it may make."""
    try:
        connection, _ = jail.listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(f"{jail.landlock}\n".encode())
            found = [tuple(json.loads(line)) for line in lines]
    except (OSError, ValueError):
        found = []
    if not found or found[-1][0] != "end":
        jail.wait(1)
        jail.kill()
        said = (jail.output.read(1 << 16) or b"").decode(errors="replace").strip().rpartition("\n")[2]
        raise GuardError(
            f"the program that tries the walls ended early: {said or 'no message'}; run the check again, and report it"
        )
    return [(str(name), holds is True, str(tried)) for name, holds, tried in found[:-1]]


def _ended(jail: Jail) -> Wall:
    """Whether the child that the program has left behind is gone: it would hold the output open."""
    jail.wait(_PROBE_SECONDS)
    until = time.monotonic() + _KILL_SECONDS
    gone = False
    while not gone and time.monotonic() < until:
        ready, _, _ = select.select([jail.output], [], [], 0.2)
        gone = bool(ready) and not jail.output.read(4096)
    return Wall("children", gone, "a child in a session of its own after the app's end", _PROBE_REMEDY)


def _alive(victim: subprocess.Popen[bytes]) -> Wall:
    alive = victim.poll() is None
    return Wall("signals", alive, f"{signal.SIGKILL.name} to a process outside", _PROBE_REMEDY)


def check() -> int:
    """Print what `walls` found, a line each. Returns 0 if every wall holds, else 1."""
    found = walls()
    width = max(len(wall.name) for wall in found)
    for wall in found:
        remedy = "" if wall.holds else f"; {wall.remedy}"
        show(f"{wall.name:<{width}}  {'holds' if wall.holds else 'FAILS'}  {wall.tried}{remedy}")
    return 0 if all(wall.holds for wall in found) else 1
