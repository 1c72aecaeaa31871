"""What a program does that is told to end: what it has begun is cleared away first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

__all__ = ["Told", "deaf", "heeded"]

_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""By which a service manager, and a terminal that closes, tell a program to end."""


class Told(BaseException):
    """This process has been told to end, by the signal ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def said(self) -> int:
        """Says so in a line on standard error; the status, as a shell reports it."""
        # A terminal that has closed takes nothing any more.
        with suppress(OSError):
            print(f"fedcipher: {self}", file=sys.stderr, flush=True)
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"


@contextmanager
def heeded(*more: signal.Signals) -> Generator[None]:
    """What tells this process to end, and each of ``more``, raises `Told`, once: what clears away is not interrupted.

    What whoever started this process has it ignore, as `nohup` does, stays ignored, but for ``more``. A process forked
    off ends as it would have without.
    """
    owner, numbers = os.getpid(), (*_ENDS, *more)

    def told(number: int, _: object) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise Told(number)

    with _handled(told, more):
        yield


@contextmanager
def deaf(*more: signal.Signals) -> Generator[None]:
    """Nothing of what `heeded` heeds interrupts."""
    with _handled(signal.SIG_IGN, more):
        yield


@contextmanager
def _handled(how: Callable[[int, object], None] | signal.Handlers, more: tuple[signal.Signals, ...]) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: what is not Python's.
    ends = (number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN)
    before = {number: handler for number in (*ends, *more) if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, how)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
