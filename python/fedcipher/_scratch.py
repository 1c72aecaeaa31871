"""Temporary folders that are removed even if a signal ends the process."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager

from fedcipher._signals import before_forced_exit, defer_termination

__all__ = ["remove", "scratch_folder"]

_REMOVE_SECONDS = 5.0


@contextmanager
def scratch_folder(prefix: str) -> Generator[str]:
    """Make a new folder, and remove it at the block's end, even if a second signal ends the process.

    A child process that may be killed must get its folder from its parent, which outlives the child.
    """
    folder = ""

    try:
        with defer_termination():
            folder = tempfile.mkdtemp(prefix=prefix)
        with before_forced_exit(lambda: remove(folder)):
            yield folder
    finally:
        with defer_termination():
            if folder:
                remove(folder)


def remove(folder: str) -> None:
    """Remove ``folder``, even while another thread still writes into it. Gives up after 5 s."""
    until = time.monotonic() + _REMOVE_SECONDS
    while os.path.lexists(folder) and time.monotonic() < until:
        # rmtree fails if a file appears after it has listed the folder.
        shutil.rmtree(folder, ignore_errors=True)
