"""Turns signals that end a program into an exception, so that partial work is cleaned up.

Python raises a handler's exception wherever the main thread is. Inside a callback of a collector or of a library, the
exception is dropped, and with it the signal. So a thread reads every signal from a wake-up descriptor. Where the
exception is gone and the program goes on, the thread has it raised again. A second signal ends the process at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = [
    "Interrupted",
    "Terminated",
    "before_forced_exit",
    "defer_termination",
    "mark_handled",
    "raise_on_termination",
    "restore_defaults",
]

_TERMINATIONS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals of a service manager, and of a terminal that closes."""
_REMINDER = getattr(signal, "SIGURG", None)
"""The signal that makes the main thread raise the exception again. Programs ignore it by default."""
_CHECK_SECONDS = 0.5
"""Seconds between two checks whether the exception is still alive."""
_SAME_SECONDS = 1.0
"""Signals within this number of seconds count as one, because a closing terminal and its shell both send one."""


class Terminated(SystemExit):
    """The signal ``number`` has asked this process to end.

    A `SystemExit`, because event loops drop any other exception that a signal raises in one of their callbacks.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def report(self) -> int:
        """Print one line on standard error and return the status, as a shell reports it."""
        # Writing to a closed terminal fails.
        with suppress(OSError):
            print(f"fedcipher: {self}", file=sys.stderr, flush=True)
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"


class Interrupted(Terminated, KeyboardInterrupt):
    """`Terminated` by Ctrl-C. Programs and libraries expect a `KeyboardInterrupt` then."""


@contextmanager
def raise_on_termination(*more: signal.Signals) -> Generator[None]:
    """Make Ctrl-C, SIGTERM, SIGHUP and each of ``more`` raise `Terminated` once, so that clean-up is not interrupted.

    Signals that were already ignored (`nohup`) stay ignored, except those in ``more``. Forked children keep the earlier
    handlers. A second signal ends the process at once, see `before_forced_exit`. A lost `Terminated` is raised again;
    code that catches `Terminated` and continues must call `mark_handled`. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener.current
    if listener is not None:
        with listener.handling(more):
            yield
        return
    listener = _Listener()
    # getsignal returns None for a handler that Python did not install.
    defaults = [n for n in (*_TERMINATIONS, signal.SIGINT) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    try:
        listener.start()
        with listener.handling((*defaults, *more)):
            yield
    finally:
        late = listener.stop()
        if late:
            os.kill(os.getpid(), late)


@contextmanager
def defer_termination() -> Generator[None]:
    """Delay `Terminated` to the end of this block, for short steps that must not stop half-way."""
    listener = _Listener.current
    if listener is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    with listener.deferring():
        yield


@contextmanager
def before_forced_exit(callback: Callable[[], object]) -> Generator[None]:
    """Call ``callback``, in another thread, if a second signal ends the process in this block."""
    listener = _Listener.current
    if listener is None:
        yield
        return
    listener.callbacks.append(callback)
    try:
        yield
    finally:
        listener.callbacks.remove(callback)


def mark_handled() -> None:
    """Report that `Terminated` was caught on purpose, so that it is not raised again."""
    if _Listener.current is not None:
        _Listener.current.handled = True


def restore_defaults() -> None:
    """Let signals end this process silently, for the last steps of a program, which need no clean-up."""
    for number in (*_TERMINATIONS, signal.SIGINT):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)


class _Listener:
    """Receives the signals of this process. Its thread receives them even while the main thread runs foreign code."""

    current: _Listener | None = None

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], object]] = []
        self.handled = False
        self._number, self._received = 0, 0.0
        self._raised: Callable[[], Terminated | None] = lambda: None
        self._deferrals = 0
        self._stopped = False
        self._previous: dict[int, Any] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to listen. Call this in the main thread."""
        _Listener.current = self
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._report_unraisable
        if _REMINDER is None:
            return
        self._main = threading.get_ident()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._reminder = signal.signal(_REMINDER, self._remind)
        self._thread = threading.Thread(target=self._listen, name="fedcipher-signals", daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop listening. Returns a signal that arrived too late to be raised, or 0."""
        self._stopped = True
        if _REMINDER is not None:
            found = signal.set_wakeup_fd(self._wakeup)
            if found not in (self._write, -1):
                # Restore the descriptor that a library has set meanwhile.
                signal.set_wakeup_fd(found)
            signal.signal(_REMINDER, self._reminder or signal.SIG_DFL)
            os.write(self._write, b"\0")
            self._thread.join()
            os.close(self._read)
            os.close(self._write)
        sys.unraisablehook = self._unraisable
        _Listener.current = None
        return self._number if self._lost() else 0

    @contextmanager
    def handling(self, numbers: tuple[signal.Signals, ...]) -> Generator[None]:
        """Handle the signals ``numbers`` in this block."""
        found = {int(n): signal.getsignal(n) for n in numbers if n not in self._previous}
        previous = {number: handler for number, handler in found.items() if handler is not None}
        self._previous.update(previous)
        for number in previous:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
                del self._previous[number]

    @contextmanager
    def deferring(self) -> Generator[None]:
        """Delay `Terminated` to the end of this block."""
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
        self._raise_lost()

    def forked(self) -> None:
        """In a child process: restore the earlier handlers."""
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        sys.unraisablehook = self._unraisable
        _Listener.current = None

    def _lost(self) -> bool:
        """Whether a signal has arrived whose exception was never raised, or is gone."""
        return bool(self._number) and not self.handled and self._raised() is None

    # --- in the main thread ------------------------------------------------------------------

    def _handle(self, number: int, _: object) -> None:
        if not self._number:
            self._number, self._received = number, time.monotonic()
            self._raise_lost()
        # Otherwise the listener's thread decides, because Python may call this handler long after the signal.
        elif self._wakeup_replaced() and time.monotonic() - self._received > _SAME_SECONDS:
            self._exit(number)

    def _wakeup_replaced(self) -> bool:
        """Whether a library has set its own wake-up descriptor, so that only this thread receives signals."""
        if _REMINDER is None:
            return True
        found = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if found != self._write:
            signal.set_wakeup_fd(found)
        return found != self._write

    def _remind(self, _: int, __: object) -> None:
        if not self._stopped:
            self._raise_lost()

    def _raise_lost(self) -> None:
        if not self._deferrals and self._lost():
            # Do not store the exception in a variable: its traceback would keep this frame, and so itself, alive.
            raise self._exception()

    def _exception(self) -> Terminated:
        made = (Interrupted if self._number == signal.SIGINT else Terminated)(self._number)
        self._raised = weakref.ref(made)
        return made

    def _report_unraisable(self, args: Any) -> None:
        # `Terminated` is raised again, so there is nothing to report.
        if not isinstance(args.exc_value, Terminated):
            self._unraisable(args)

    # --- in the listener's thread ------------------------------------------------------------

    def _listen(self) -> None:
        first = 0.0
        while True:
            numbers = self._wait(_CHECK_SECONDS if first else None)
            if self._stopped:
                return
            for number in numbers:
                # Leave signals to a library that has set its own handler.
                if number not in self._previous or signal.getsignal(number) != self._handle:
                    continue
                if not first:
                    first = time.monotonic()
                elif time.monotonic() - first > _SAME_SECONDS:
                    self._exit(number)
            # A signal just before a system call does not interrupt the call, and Python has not run the handler yet.
            if first and (not self._number or self._lost()) and _REMINDER is not None:
                signal.pthread_kill(self._main, _REMINDER)

    def _wait(self, seconds: float | None) -> bytes:
        ready, _, _ = select.select([self._read], [], [], seconds)
        return os.read(self._read, 64) if ready else b""

    def _exit(self, number: int) -> None:
        """End the process. Only the callbacks of `before_forced_exit` clean up."""
        with self._lock:
            for callback in reversed(self.callbacks):
                with suppress(Exception):
                    callback()
            with suppress(OSError):
                os.write(2, b"fedcipher: ended at once by a second signal\n")
            os._exit(128 + number)


_masks: list[set[int]] = []


def _before_fork() -> None:
    """Block signals, because the child briefly shares its parent's wake-up descriptor."""
    if _Listener.current is not None and hasattr(signal, "pthread_sigmask"):
        _masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, (*_TERMINATIONS, signal.SIGINT))))


def _after_fork() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _in_child() -> None:
    if _Listener.current is not None:
        _Listener.current.forked()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
