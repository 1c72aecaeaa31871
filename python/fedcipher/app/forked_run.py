"""Runs a simulation in a forked process, which Ctrl-C, SIGTERM and a closed terminal always end.

Threads and processes of Ray and JAX do not stop when their program gets a signal. In one process with them, the
program hung for minutes or died of a segmentation fault, and its keys stayed on disk. So the parent handles the
signals, and Ray and JAX run in the child.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedcipher._signals import Terminated, before_forced_exit, defer_termination, raise_on_termination
from fedcipher.errors import FedcipherError, RunError

__all__ = ["run_forked"]

_REPORT_SECONDS = 10.0
"""How long the child may write a report of the rounds so far, before it is killed."""
_POLL_SECONDS = 0.05


def run_forked(work: Callable[[], int], failed: Callable[[FedcipherError], int]) -> int:
    """Run ``work`` in a forked process and return its exit status.

    ``failed`` prints a `FedcipherError` in one line and returns the status for it. A signal that ends this process
    kills every process that ``work`` started, and then raises `Terminated`.
    """
    if not hasattr(os, "fork"):
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = 0
    with raise_on_termination(signal.SIGINT), before_forced_exit(lambda: _end_session(child)):
        try:
            # A signal after the fork and before ``child`` is set would leave a process running.
            with defer_termination():
                # The parent passes SIGINT on. The child gets it once its handler is set.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                child = os.fork()
                if child == 0:
                    _run_child(work, failed, parent, mask)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = _wait_for(child, None)
        except Terminated:
            # On SIGINT the child writes its report.
            _signal(child, signal.SIGINT)
            _wait_for(child, time.monotonic() + _REPORT_SECONDS)
            raise
        finally:
            _end_session(child)
    if code < 0:
        name = signal.Signals(-code).name
        return failed(RunError(f"the simulation was ended by {name}; give it more memory, or fewer clients at a time"))
    return code


def _run_child(work: Callable[[], int], failed: Callable[[FedcipherError], int], parent: int, mask: set[Any]) -> None:
    """Run ``work`` in the forked process; never returns."""
    status = 1
    try:
        # A new session: Ctrl-C in the terminal reaches the parent alone, which passes it on.
        os.setsid()
        signal.signal(signal.SIGINT, _interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
        status = work()
    except FedcipherError as error:
        status = failed(error)
    except KeyboardInterrupt:
        status = 130
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        # `os._exit`, because a normal exit waits for threads of Ray and JAX that do not end.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = status or 141
        os._exit(status)


def _interrupt(_: int, __: object) -> None:
    """Raise `KeyboardInterrupt`, and silence the libraries: their pages of tracebacks would hide the program's line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise KeyboardInterrupt


def _end_with_parent(parent: int) -> None:
    """Kill this process and every process that it started as soon as ``parent`` has ended, also if killed."""
    while os.getppid() == parent:
        time.sleep(1)
    _end_session(os.getpid())
    os._exit(1)


def _wait_for(child: int, until: float | None) -> int:
    """The child's exit status, below 0 for a signal; 0 if the child still runs at the time ``until``."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() >= until:
            return 0
        time.sleep(_POLL_SECONDS)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_session(session: int) -> None:
    """Kill all processes of a session except this one; Ray's processes have groups of their own in the session."""
    proc, own = Path("/proc"), os.getpid()
    if not proc.is_dir():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        return
    # Repeat until none is left: a process may start another one before the kill.
    for _ in range(20):
        found = [pid for pid in _members(proc, session) if pid != own]
        for pid in found:
            _signal(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(_POLL_SECONDS)


def _members(proc: Path, session: int) -> list[int]:
    """Running processes of a session, without zombies."""
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in brackets may be any text. After it come state, parent, group, session.
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(entry.name))
    return found
