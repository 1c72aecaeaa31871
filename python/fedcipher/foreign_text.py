"""Shows text that others chose: errors and names of peers, contents of files, paths.

Such text may contain line ends that forge log lines, escape sequences that control a terminal, lone surrogates that
cannot be encoded, or megabytes. All such text goes through `quoted` before it is shown.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["MAX_LINE", "MAX_NAME", "MAX_TEXT", "QuotingLog", "quoted", "quoting_log", "show"]

MAX_NAME = 100
"""Most characters of a name that are shown."""
MAX_TEXT = 300
"""Most characters of a peer's error text or reason that are shown."""
MAX_LINE = 2000
"""Most characters of a printed line, or of an argument of a log line."""
_CUT = " ..."


def quoted(text: object, most: int = MAX_TEXT) -> str:
    """Return ``text`` as one line of at most ``most`` characters, with unprintable characters escaped.

    Longer text is cut. Quoting a quoted text again does not change it.
    """
    try:
        whole = str(text)
    except Exception:
        return f"({type(text).__name__} without a text)"
    shown = whole[: most + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return shown if len(shown) <= most else shown[: most - len(_CUT)] + _CUT


def show(*lines: str, to: TextIO | None = None, flush: bool = False) -> None:
    """Print each of ``lines``, quoted, as exactly one line, on standard output or ``to``."""
    stream = sys.stdout if to is None else to
    for line in lines:
        print(quoted(line, MAX_LINE), file=stream, flush=flush)


class QuotingLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that quotes every argument except numbers, so that a message stays on one line."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Like `logging.Logger.log`, with quoted arguments."""
        # Report the caller's caller as the source of the line.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *map(_argument, args), **kwargs)

    def traceback(self, what: str, error: BaseException) -> None:
        """Log the traceback of ``error`` as warnings, line by line, without the error's text."""
        for line in "".join(traceback.format_tb(error.__traceback__)).splitlines():
            self.warning("%s: %s", what, line, stacklevel=2)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments unchanged: this logger adds no fields."""
        return msg, kwargs


def _argument(value: object) -> object:
    return value if value is None or isinstance(value, (int, float)) else quoted(value, MAX_LINE)


def quoting_log(name: str) -> QuotingLog:
    """Return the logger ``name`` in a form for text that others chose."""
    return QuotingLog(logging.getLogger(name), _NOTHING)


_NOTHING: Mapping[str, object] = {}
