"""Temporary folders that a signal does not leave behind."""

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
    """A new folder that is removed at the block's end, also where a second signal ends the process.

    A child process that may be killed gets its folder from its parent, which survives it.
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
    """Remove ``folder``, also while another thread still writes into it."""
    until = time.monotonic() + _REMOVE_SECONDS
    while os.path.lexists(folder) and time.monotonic() < until:
        # It fails where there is a new file after it has listed the old ones.
        shutil.rmtree(folder, ignore_errors=True)
