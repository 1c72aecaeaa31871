"""Sets environment variables temporarily."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["variable"]


@contextmanager
def variable(name: str, value: str) -> Generator[None]:
    """Set ``name`` to ``value`` in this block, for this process and for processes that it starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
