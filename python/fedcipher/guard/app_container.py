"""The main process of an app's container: `fedcipher guard app`. It runs the app of one message, and ends.

It is the container's first process. When a message is over, it kills every other process, then closes its connection to
the guard, and the container ends. The engine starts a fresh one. The app may be hostile: it cannot end or trace the
first process, and it finds no file that it could change for the next container, because all that it can write to lies
in memory.

The checks of this program find mistakes of the operator. To the guard they prove nothing, since the guard cannot know
which program a container runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from fedcipher._files import write_whole
from fedcipher.errors import GuardError
from fedcipher.guard.app_program import APP_PORT, app_arguments, app_environment
from fedcipher.guard.container import API_SOCKET, WORK_SOCKET

__all__ = ["check_container", "serve_one_message"]

_RETRY_SECONDS, _POLL_SECONDS = 0.5, 0.1
_MAX_ORDER = 4096
_PART = 1 << 16
_SET_DUMPABLE = 4
"""``PR_SET_DUMPABLE`` of prctl(2)."""


def serve_one_message(folder: Path) -> None:
    """Wait for a message of the guard, run its app, and kill all that is left of it.

    ``folder`` has the guard's sockets. Raises `GuardError` if the container is not one that can be thrown away.
    """
    check_container(folder)
    # Otherwise the app, which has the same user, could read and change this process.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    with _connected(folder / WORK_SOCKET) as guard:
        token = _token(guard)
        if not token:
            return
        try:
            _run(token, folder / API_SOCKET, guard)
        finally:
            _kill_all()


def check_container(folder: Path) -> None:
    """Raise `GuardError`, with the remedy, unless this process is the first of a container without network and disk."""
    others = _interfaces_with_routes()
    if others:
        raise GuardError(f"the app's container has a network ({', '.join(others)}): start it with --network none")
    if os.getpid() != 1:
        raise GuardError(
            "this program must be the first process of a container, so that nothing of an app outlives it: make it the "
            "container's command, without an init"
        )
    status = _status()
    if any(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")):
        raise GuardError("the app's container has capabilities: start it with --cap-drop ALL")
    if status["NoNewPrivs"] != "1":
        raise GuardError("an app could gain privileges: start its container with --security-opt no-new-privileges")
    for path, remedy in ((Path("/"), "--read-only"), (folder, "the option ro of its mount")):
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            raise GuardError(f"the app's container can write to {path}: start it with {remedy}")


def _status() -> dict[str, str]:
    """The kernel's account of this process, by name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _interfaces_with_routes() -> list[str]:
    """Interfaces other than the loopback's that a packet could leave by."""
    ipv4 = Path("/proc/net/route").read_text().splitlines()[1:]
    ipv6 = Path("/proc/net/ipv6_route")
    names = {line.split()[0] for line in ipv4}
    names |= {line.split()[-1] for line in (ipv6.read_text().splitlines() if ipv6.exists() else ())}
    return sorted(names - {"lo"})


def _connected(path: Path) -> socket.socket:
    """A connection to the guard, whenever it comes."""
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
            return made
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            time.sleep(_RETRY_SECONDS)
        except OSError as error:
            made.close()
            raise GuardError(
                f"{path}: {error.strerror}; run the container as the user of the guard, who owns the socket's folder"
            ) from error


def _token(guard: socket.socket) -> str:
    """The token of the next message; empty if the guard ends before there is one."""
    with guard.makefile("rb", buffering=0) as reader:
        line = reader.readline(_MAX_ORDER)
    return str(json.loads(line)["token"]) if line.endswith(b"\n") else ""


def _run(token: str, api: Path, guard: socket.socket) -> None:
    """Run the app until it ends, or until the guard ends the message."""
    _forward(socket.create_server(("127.0.0.1", APP_PORT)), str(api))
    # It ends with the container, as all of its file systems in memory do.
    work = Path(tempfile.mkdtemp(prefix="app-"))
    write_whole(work / "token", token.encode())
    environment = {**os.environ, **app_environment(work), "PATH": os.environ.get("PATH", os.defpath)}
    app = subprocess.Popen(app_arguments(work / "token"), env=environment, cwd=work, stdin=subprocess.DEVNULL)
    while app.poll() is None:
        ready, _, _ = select.select([guard], [], [], _POLL_SECONDS)
        if ready:
            return


def _kill_all() -> None:
    """Kill every other process of the container, and wait until none is left."""
    with suppress(ChildProcessError, ProcessLookupError):
        while True:
            # Also those of other sessions: the first process may signal all.
            os.kill(-1, signal.SIGKILL)
            os.wait()


def _forward(listener: socket.socket, api: str) -> None:
    """Carry connections of ``listener`` to the UNIX socket ``api``: Flower's app speaks TCP only."""

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(api)
            except OSError:
                near.close()
                far.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(_PART):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
