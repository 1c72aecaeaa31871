"""The process that a cluster's other processes belong to: it starts them, again when one dies; when it ends they end.

``python -m fedcipher.cluster.supervisor FOLDER``, started by `fedcipher cluster up`. What is to run is in
``cluster.json``; that it runs shows in ``lock``, which is locked for as long as this process lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedcipher._files import create_private, is_locked, locked
from fedcipher.cluster.environment import for_flower
from fedcipher.foreign_files import MAX_INDEX, MAX_NOTE, read_file, read_json
from fedcipher.foreign_text import show
from fedcipher.schemes.base import EPHEMERAL_STATE

__all__ = ["INDEX", "LOCK", "REGISTERED", "is_running"]

INDEX = "cluster.json"
LOCK = "lock"
REGISTERED = "registered"
"""Is there once the SuperLink knows all nodes."""
_LOOK_SECONDS = 0.2
_END_SECONDS = 10.0
_GENERATIONS = 5
"""A SuperLink's, or a SuperNode's: its SuperExec, an app, and what that starts."""
_QUICK_SECONDS = 5.0
"""A program that ends sooner has not begun; for so long it is then left alone."""
_MOST_QUICK = 3
"""Of the SuperLink's, one after the other: then the cluster ends."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2)."""


def is_running(folder: Path) -> int:
    """The process id of the supervisor of ``folder``; 0 where there is none."""
    return int(read_file(folder / LOCK, MAX_NOTE) or b"0") if is_locked(folder / LOCK) else 0


def main() -> int:
    """Until SIGTERM, or until the SuperLink cannot be kept running."""
    folder = Path(sys.argv[1])
    lock = locked(folder / LOCK)
    if lock is None:
        show(f"another supervisor runs {folder}", to=sys.stderr)
        return 1
    with lock:
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        programs: list[dict[str, Any]] = read_json(folder / INDEX, MAX_INDEX)["programs"]
        # Apps have no part of the folder with which `flwr` logs in.
        environment = for_flower(folder / "apps")
        # Keys and state are in one folder.
        environment |= {"FEDCIPHER_STATE_DIR": str(folder / "state"), EPHEMERAL_STATE: "1"}
        _adopt_orphans()
        running: list[_Program] = []
        ends = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: ends.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for said in programs:
                # A SuperNode that the SuperLink does not know gives up at once.
                while running and not (folder / REGISTERED).exists() and not ends.wait(_LOOK_SECONDS):
                    running[0].look_after()
                    if running[0].quick == _MOST_QUICK:
                        ends.set()
                if ends.is_set():
                    break
                running.append(_Program(folder, said, environment))
            while not ends.wait(_LOOK_SECONDS) and running[0].quick < _MOST_QUICK:
                for program in running:
                    program.look_after()
                _kill_orphans({program.process.pid for program in running})
        finally:
            _end([program.process for program in running])
        # The lock goes with the process: who finds it free finds no process of the cluster.
        os._exit(0)


class _Program:
    """One of the cluster's programs, started again when it ends, as a service manager does."""

    def __init__(self, folder: Path, said: dict[str, Any], environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._name: str = said["name"]
        self._command: list[str] = said["command"]
        self.quick = 0
        self._again = math.inf
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._began = time.monotonic()
        with create_private(self._folder / "logs" / f"{self._name}.log", append=True) as log:
            # In a session of its own: what it starts ends with it.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
                # One thread here: nothing can be locked in the new process.
                preexec_fn=_ends_with_parent,  # noqa: PLW1509
            )

    def look_after(self) -> None:
        """Start it again if it has ended, with what it had started.

        One that ends at once is tried again and again: a SuperLink takes a SuperNode that was killed for alive, and
        refuses it a second time, until it has missed two heartbeats.
        """
        if self.process.poll() is None:
            return
        now = time.monotonic()
        if self._again == math.inf:
            _kill(self.process)
            self.quick = self.quick + 1 if now - self._began < _QUICK_SECONDS else 0
            show(f"{self._name} has ended with status {self.process.returncode}", to=sys.stderr, flush=True)
            self._again = now + (_QUICK_SECONDS if self.quick else 0)
        if now >= self._again:
            self._again, self.process = math.inf, self._started()


def _ends_with_parent() -> None:
    """In a new process: SIGTERM when the supervisor is gone, even by SIGKILL. On Linux; elsewhere nothing tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _adopt_orphans() -> None:
    """What a program that died has started becomes a child of this process. On Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _kill_orphans(known: set[int]) -> None:
    """End what a program that died has left behind in a session of its own, as a service manager does.

    A SuperLink starts its ServerApps so, and one of those that is in the middle of a call asks a SuperLink that is gone
    for ever, with the journal of its run locked.
    """
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in set(map(int, children)) - known:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """Nodes before the SuperLink, so that each says goodbye; whoever does not end is killed."""
    for process in reversed(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + _END_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
    for process in running:
        _kill(process)
    # Whose children are this process's once they are gone.
    for _ in range(_GENERATIONS):
        _kill_orphans(set())


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Also what a process has left behind that ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
