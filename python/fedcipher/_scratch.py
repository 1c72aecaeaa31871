"""Temporary folders that a signal does not leave behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from fedcipher._signals import before_forced_exit, defer_termination

__all__ = ["scratch_folder"]


@contextmanager
def scratch_folder(prefix: str) -> Generator[str]:
    """A new folder that is removed at the block's end, also where a second signal ends the process.

    A child process that may be killed gets its folder from its parent, which survives it.
    """
    folder = ""

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    try:
        with defer_termination():
            folder = tempfile.mkdtemp(prefix=prefix)
        with before_forced_exit(remove):
            yield folder
    finally:
        with defer_termination():
            if folder:
                remove()
