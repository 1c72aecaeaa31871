"""Measures processor time. On a shared machine, a wall clock would also count the work of other users."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from fedcipher._environment import variable

__all__ = ["best", "clocked", "ledgers"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


def clocked(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> tuple[float, _T]:
    """Call ``work``. Returns the processor seconds of all threads and children, and the result."""
    children, began = _of_children(), time.process_time()
    made = work(*args, **kwargs)
    own = time.process_time() - began
    # A child that started or ended during the call is left out: its seconds before or after are unknown.
    after = _of_children()
    return own + sum(after[pid] - spent for pid, spent in children.items() if pid in after), made


def _of_children() -> dict[int, float]:
    """Processor seconds of each descendant process. A library and the engine may run in such processes."""
    found: dict[int, float] = {}
    left = [os.getpid()]
    while left:
        pid = left.pop()
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            below = [int(child) for task in tasks for child in (task / "children").read_text().split()]
            if pid != os.getpid():
                nanoseconds = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
                found[pid] = nanoseconds / 1e9
        except (OSError, ValueError, IndexError):
            # The process has ended, or the system has no such files.
            continue
        left += below
    return found


def best(work: Callable[[], _T], runs: int) -> tuple[float, _T]:
    """Call ``work`` ``runs`` times. Returns the least processor seconds, and the last result.

    The least is taken because other work on the machine can only add to the time.
    """
    least, made = clocked(work)
    for _ in range(runs - 1):
        spent, made = clocked(work)
        least = min(least, spent)
    return least, made


@contextmanager
def ledgers() -> Generator[None]:
    """Keep ledgers in a temporary folder and delete them afterwards. Studies encrypt no real data."""
    with (
        tempfile.TemporaryDirectory(prefix="fedcipher-study-") as folder,
        variable("FEDCIPHER_STATE_DIR", folder),
    ):
        yield
