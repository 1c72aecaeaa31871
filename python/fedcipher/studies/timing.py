"""Times of work on a machine that others use too."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

__all__ = ["best", "clocked", "ledgers"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


def clocked(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> tuple[float, _T]:
    """Seconds of one call, and what it made."""
    began = time.perf_counter()
    made = work(*args, **kwargs)
    return time.perf_counter() - began, made


def best(work: Callable[[], _T], runs: int) -> tuple[float, _T]:
    """Least seconds of ``runs`` goes, and what the last one made: what others take of the machine only adds."""
    least, made = clocked(work)
    for _ in range(runs - 1):
        spent, made = clocked(work)
        least = min(least, spent)
    return least, made


@contextmanager
def ledgers() -> Generator[None]:
    """Keys made here forget their rounds afterwards: what is opened or sent in a study is nobody's."""
    before = os.environ.get("FEDCIPHER_STATE_DIR")
    with tempfile.TemporaryDirectory(prefix="fedcipher-study-") as folder:
        os.environ["FEDCIPHER_STATE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["FEDCIPHER_STATE_DIR"]
            else:
                os.environ["FEDCIPHER_STATE_DIR"] = before
