"""Text that others chose: peers' errors and names, what is in a file from elsewhere, paths.

Such text may hold line ends, which forge lines of a log, escape sequences, which command a terminal, lone surrogates,
which no encoding takes, or megabytes. What is shown of it goes through `quoted`.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["MAX_LINE", "MAX_NAME", "MAX_TEXT", "QuotingLog", "quoted", "quoting_log", "show"]

MAX_NAME = 100
"""Characters that are shown of a name."""
MAX_TEXT = 300
"""Characters that are shown of a peer's error text or reason."""
MAX_LINE = 2000
"""Characters of a line that this program prints, or of an argument of a log line."""
_CUT = " ..."


def quoted(text: object, most: int = MAX_TEXT) -> str:
    """``text`` on one line of at most ``most`` characters: what cannot be printed is escaped, the rest is cut off.

    Quoting a second time changes nothing.
    """
    try:
        whole = str(text)
    except Exception:
        return f"({type(text).__name__} without a text)"
    kept = whole[: most + 1]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in kept)
    return kept if len(kept) <= most else kept[: most - len(_CUT)] + _CUT


def show(*lines: str, to: TextIO | None = None, flush: bool = False) -> None:
    """Print ``lines``, each on a line of its own whatever is in it, on standard output or ``to``."""
    stream = sys.stdout if to is None else to
    for line in lines:
        print(quoted(line, MAX_LINE), file=stream, flush=flush)


class QuotingLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines stay single lines: every argument that is no number is `quoted`."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As `logging.Logger.log`."""
        # The caller's caller is where the line comes from.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *map(_argument, args), **kwargs)

    def traceback(self, what: str, error: BaseException) -> None:
        """Warn of where ``error`` was raised, each line of it as a line of the log; without the error's own text."""
        for line in "".join(traceback.format_tb(error.__traceback__)).splitlines():
            self.warning("%s: %s", what, line, stacklevel=2)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Nothing is added."""
        return msg, kwargs


def _argument(value: object) -> object:
    return value if value is None or isinstance(value, (int, float)) else quoted(value, MAX_LINE)


def quoting_log(name: str) -> QuotingLog:
    """The logger ``name``, for lines with text that others chose."""
    return QuotingLog(logging.getLogger(name), _NOTHING)


_NOTHING: Mapping[str, object] = {}
