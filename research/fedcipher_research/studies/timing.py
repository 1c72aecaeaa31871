"""Processor time of work: on a machine that others use too, a clock on the wall times them as well."""

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
    """Processor seconds of one call, all threads and children together, and what it made."""
    children, began = _of_children(), time.process_time()
    made = work(*args, **kwargs)
    own = time.process_time() - began
    # One that has come or gone meanwhile has no seconds of before or after to compare.
    after = _of_children()
    return own + sum(after[pid] - spent for pid, spent in children.items() if pid in after), made


def _of_children() -> dict[int, float]:
    """Seconds of each process that this one has started, and of theirs: a library may run in one, and the engine."""
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
            # It has ended, or the system does not say.
            continue
        left += below
    return found


def best(work: Callable[[], _T], runs: int) -> tuple[float, _T]:
    """Least processor seconds of ``runs`` goes, and what the last one made: what others do can only add to them."""
    least, made = clocked(work)
    for _ in range(runs - 1):
        spent, made = clocked(work)
        least = min(least, spent)
    return least, made


@contextmanager
def ledgers() -> Generator[None]:
    """Keys made here forget their rounds afterwards: what is opened or sent in a study is nobody's."""
    with (
        tempfile.TemporaryDirectory(prefix="fedcipher-study-") as folder,
        variable("FEDCIPHER_STATE_DIR", folder),
    ):
        yield
