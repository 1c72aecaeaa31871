"""A simulation in a process of its own, which Ctrl-C, SIGTERM and a closed terminal end whatever it is doing.

Ray and JAX run threads and processes that do not come to an end when the program is told to: it hung for minutes, or
died of a segmentation fault, and its keys stayed on disk. So whoever is told to end is not where they run.
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

__all__ = ["run_apart"]

_GRACE = 10.0
"""Seconds for a report of what there is, before the process is ended."""
_LOOK = 0.05


def run_apart(work: Callable[[], int], failed: Callable[[FedcipherError], int]) -> int:
    """The status of ``work``, done in a process forked off; ``failed`` says in a line why it did not succeed.

    A signal that ends it raises `Terminated`, once no process that ``work`` started is left.
    """
    if not hasattr(os, "fork"):
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = 0
    with raise_on_termination(signal.SIGINT), before_forced_exit(lambda: _end_session(child)):
        try:
            # A signal between the fork and its number would leave a process that nobody ends.
            with defer_termination():
                # The child is told by this one, and not before it can hear it.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                child = os.fork()
                if child == 0:
                    _work(work, failed, parent, mask)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = _waited(child, None)
        except Terminated:
            # So that it reports what there is.
            _signal(child, signal.SIGINT)
            _waited(child, time.monotonic() + _GRACE)
            raise
        finally:
            _end_session(child)
    if code < 0:
        name = signal.Signals(-code).name
        return failed(RunError(f"the simulation was ended by {name}; give it more memory, or fewer clients at a time"))
    return code


def _work(work: Callable[[], int], failed: Callable[[FedcipherError], int], parent: int, mask: set[Any]) -> None:
    """The process forked off: it never returns."""
    status = 1
    try:
        # Ctrl-C in a terminal is for the parent, which tells this one.
        os.setsid()
        signal.signal(signal.SIGINT, _interrupted)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
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
        # Not Python's end, which waits for threads that do not come to theirs.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = status or 141
        os._exit(status)


def _interrupted(_: int, __: object) -> None:
    """Raise `KeyboardInterrupt`, and silence the libraries: their pages of tracebacks would hide the program's line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise KeyboardInterrupt


def _follow(parent: int) -> None:
    """Ends this process and what it has started when ``parent`` has ended, however."""
    while os.getppid() == parent:
        time.sleep(1)
    _end_session(os.getpid())
    os._exit(1)


def _waited(child: int, until: float | None) -> int:
    """The child's status, below 0 for a signal; 0 where it has not ended ``until`` then."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() >= until:
            return 0
        time.sleep(_LOOK)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_session(session: int) -> None:
    """Kills all of a session but this process: a simulation's processes have groups of their own in it."""
    proc, own = Path("/proc"), os.getpid()
    if not proc.is_dir():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        return
    # Until none is left: one may have started another meanwhile.
    for _ in range(20):
        found = [pid for pid in _members(proc, session) if pid != own]
        for pid in found:
            _signal(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(_LOOK)


def _members(proc: Path, session: int) -> list[int]:
    """Processes of a session that are more than an entry in the list of those that have ended."""
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the name in brackets, which may hold anything: state, parent, group, session.
            state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(entry.name))
    return found
