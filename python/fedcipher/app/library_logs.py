"""Writes the logs of Flower and Ray to a file if a simulation fails.

These logs are pages of tracebacks, with the cause several times in the middle. The terminal gets one line with the
cause.
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

__all__ = ["capture_library_logs"]

_LIBRARIES = {"flwr": logging.ERROR, "ray": logging.WARNING}
_MAX_RECORDS = 1000
_ADVICE = (
    "Ray starts the clients. Ray needs a temporary folder that it may write to (RAY_TMPDIR), room in /dev/shm, "
    "8192 open files (ulimit -n) and some GB of memory; it gives up on a machine that is too busy"
)


@contextmanager
def capture_library_logs(log: Path) -> Generator[None]:
    """Hold back the libraries' logs during the block. Write the logs to ``log`` if the block fails.

    If a `FedcipherError` is among the causes of the failure, at any depth, this error is raised and ``log`` is not
    written. Otherwise raises a `RunError` that names the cause and ``log``.
    """
    captured = BufferingHandler(_MAX_RECORDS)
    before = {name: _capture(name, captured) for name in _LIBRARIES}
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        ours = next((cause for cause in causes if isinstance(cause, FedcipherError)), None)
        if ours is not None:
            raise ours from error
        write_whole(log, "\n".join(_lines(captured, error)).encode("utf-8", "backslashreplace"))
        cause = str(causes[-1]) or type(causes[-1]).__name__
        raise RunError(f"the simulation failed: {cause}. {_ADVICE}. The libraries' logs are in {log}") from error
    finally:
        for name, (handlers, level, propagates) in before.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.level, logger.propagate = handlers, level, propagates


def _capture(name: str, handler: logging.Handler) -> tuple[list[logging.Handler], int, bool]:
    """Give the library's logger this handler alone; return the logger's handlers, level and propagation from before."""
    logger = logging.getLogger(name)
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.level, logger.propagate = [handler], _LIBRARIES[name], False
    return before


def _causes(error: BaseException) -> list[BaseException]:
    """``error``, and the chain of errors that it was raised from."""
    found = [error]
    while (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _lines(captured: BufferingHandler, error: BaseException) -> list[str]:
    formatter = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    return [*map(formatter.format, captured.buffer), *traceback.format_exception(error), ""]
