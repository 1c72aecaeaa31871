"""Keeps the logs of Flower and Ray in a file where a simulation fails.

They are pages of tracebacks, with the cause several times in the middle. The terminal gets one line with the cause.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path

from fedcipher._files import write_whole
from fedcipher.errors import FedcipherError, RunError

__all__ = ["backstage"]

_LIBRARIES = {"flwr": logging.ERROR, "ray": logging.WARNING}
_KEPT = 1000
_ADVICE = (
    "Ray, which starts the clients, needs a temporary folder that it may write to (RAY_TMPDIR), room in /dev/shm, "
    "8192 open files (ulimit -n) and some GB of memory; it gives up where the machine is too busy for it"
)


@contextmanager
def backstage(log: Path) -> Generator[None]:
    """Keep the libraries' logs. They are written to ``log`` where the block fails by an error that is not Fedcipher's.

    Raises the `FedcipherError` that was the cause, however deep, and else a `RunError`.
    """
    kept = BufferingHandler(_KEPT)
    before = {name: _capture(name, kept) for name in _LIBRARIES}
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        ours = next((cause for cause in causes if isinstance(cause, FedcipherError)), None)
        if ours is not None:
            raise ours from error
        write_whole(log, "\n".join(_lines(kept, error)).encode("utf-8", "backslashreplace"))
        cause = str(causes[-1]) or type(causes[-1]).__name__
        raise RunError(f"the simulation failed: {cause}. {_ADVICE}. The libraries' logs are in {log}") from error
    finally:
        for name, (handlers, level, propagates) in before.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.level, logger.propagate = handlers, level, propagates


def _capture(name: str, handler: logging.Handler) -> tuple[list[logging.Handler], int, bool]:
    """Give the library's logger this handler alone; return how it was."""
    logger = logging.getLogger(name)
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.level, logger.propagate = [handler], _LIBRARIES[name], False
    return before


def _causes(error: BaseException) -> list[BaseException]:
    """``error``, and what it was raised from."""
    found = [error]
    while (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _lines(kept: BufferingHandler, error: BaseException) -> list[str]:
    said = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    return [*map(said.format, kept.buffer), *traceback.format_exception(error), ""]
