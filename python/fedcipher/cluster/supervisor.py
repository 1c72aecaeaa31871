"""Supervises a local cluster: starts its processes, restarts those that die, stops all of them on exit.

`fedcipher cluster up` starts ``python -m fedcipher.cluster.supervisor FOLDER``. The supervisor reads its programs from
``cluster.json``, and holds a lock on the file ``lock`` as long as it runs.
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
"""The name of the file that exists once all nodes are registered at the SuperLink."""
_POLL_SECONDS = 0.2
_END_SECONDS = 10.0
_GENERATIONS = 5
"""Depth of the process tree: a SuperLink or SuperNode, its SuperExec, an app, and the app's own processes."""
_QUICK_SECONDS = 5.0
"""A program that ends sooner has failed to start. The supervisor waits as long before it tries again."""
_MAX_FAILED_STARTS = 3
"""The cluster ends after so many failed starts of the SuperLink in a row."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Operations of prctl(2)."""


def is_running(folder: Path) -> int:
    """The process id of the supervisor of ``folder``; 0 if none runs."""
    return int(read_file(folder / LOCK, MAX_NOTE) or b"0") if is_locked(folder / LOCK) else 0


def main() -> int:
    """Run the cluster until SIGTERM, or until the SuperLink fails to start. Returns 1 if another supervisor runs."""
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
        # A separate Flower home, because apps must not read the login of the `flwr` command.
        environment = for_flower(folder / "apps")
        # The state is ephemeral, because it lies in one folder with the keys.
        environment |= {"FEDCIPHER_STATE_DIR": str(folder / "state"), EPHEMERAL_STATE: "1"}
        _adopt_orphans()
        running: list[_Program] = []
        ends = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: ends.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for said in programs:
                # A SuperNode that is not registered at the SuperLink ends at once, so wait for the registration.
                while running and not (folder / REGISTERED).exists() and not ends.wait(_POLL_SECONDS):
                    running[0].restart_if_ended()
                    if running[0].failed_starts == _MAX_FAILED_STARTS:
                        ends.set()
                if ends.is_set():
                    break
                running.append(_Program(folder, said, environment))
            while not ends.wait(_POLL_SECONDS) and running[0].failed_starts < _MAX_FAILED_STARTS:
                for program in running:
                    program.restart_if_ended()
                _kill_orphans({program.process.pid for program in running})
        finally:
            _end([program.process for program in running])
        # The lock is released on exit, so a free lock means that no process of the cluster is left.
        os._exit(0)


class _Program:
    """A program of the cluster, which is restarted when it ends, like by a service manager."""

    def __init__(self, folder: Path, said: dict[str, Any], environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._name: str = said["name"]
        self._command: list[str] = said["command"]
        self.failed_starts = 0
        self._next_start = math.inf
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._began = time.monotonic()
        with create_private(self._folder / "logs" / f"{self._name}.log", append=True) as log:
            # In a new session, so that the program's own processes can be ended with it.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
                # Safe, because this process has one thread: no lock can be held in the new process.
                preexec_fn=_ends_with_parent,  # noqa: PLW1509
            )

    def restart_if_ended(self) -> None:
        """If the program has ended, kill the processes that it started, and start it again.

        A program that ends at once is tried again and again. After a SuperNode was killed, the SuperLink still counts
        it as alive until it has missed two heartbeats, and refuses its second start.
        """
        if self.process.poll() is None:
            return
        now = time.monotonic()
        if self._next_start == math.inf:
            _kill(self.process)
            self.failed_starts = self.failed_starts + 1 if now - self._began < _QUICK_SECONDS else 0
            show(f"{self._name} has ended with status {self.process.returncode}", to=sys.stderr, flush=True)
            self._next_start = now + (_QUICK_SECONDS if self.failed_starts else 0)
        if now >= self._next_start:
            self._next_start, self.process = math.inf, self._started()


def _ends_with_parent() -> None:
    """In a new process: request SIGTERM when the supervisor ends, even by SIGKILL. Does nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _adopt_orphans() -> None:
    """Let this process adopt the children of programs that died. Does nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _kill_orphans(known: set[int]) -> None:
    """Kill the processes in other sessions that a dead program left behind, like a service manager does.

    A SuperLink starts each ServerApp in a session of its own. A ServerApp in the middle of a call would retry without
    end after its SuperLink has died, and would keep the journal of its run locked.
    """
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in set(map(int, children)) - known:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """End the nodes before the SuperLink, so that each node can sign off. Kill processes that do not end in time."""
    for process in reversed(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + _END_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
    for process in running:
        _kill(process)
    # After each kill the next generation of processes becomes a child of this process.
    for _ in range(_GENERATIONS):
        _kill_orphans(set())


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of ``process``, even if ``process`` itself has already ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
