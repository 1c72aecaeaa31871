"""Fetches replies from a mailbox as they arrive, one at a time, so that a round need not wait for all of them.

A reply's bytes can be freed once they are in the sum. The caller says when there are enough replies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from concurrent.futures import Future, TimeoutError, wait
from typing import Any, Protocol, TypeVar

from fedcipher.errors import StrategyError
from fedcipher.foreign_text import quoting_log

__all__ = ["Mailbox", "PolledExchange", "ReplyPoller", "wait_for_call"]

_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Shortest and longest pause, in seconds, between two looks for replies."""
_PAUSE_PER_SECOND, _PAUSE_PER_LOOK = 0.1, 4.0
"""Between these limits, the pause is this share of the time waited so far, or this multiple of the last look's time."""
_WAKE_SECONDS = 0.2
"""Seconds between two checks of a call, so that the main thread handles signals."""
_SERVER_ERROR = 500
"""The lowest HTTP status for a failure of the server itself."""
_RETRY_SECONDS = 1.0
"""Seconds before a failed call is repeated."""
_MAX_SILENCE = 600.0
"""Seconds after which a SuperLink that does not answer counts as gone."""
_MAX_PATIENCE, _MIN_PATIENCE = 2.0, 0.25
"""Seconds to wait for an announced reply: at first, and at least, after other replies did not come."""

T = TypeVar("T")
_log = quoting_log("fedcipher.federation")


class Mailbox(Protocol):
    """Delivers messages to nodes and returns their replies."""

    together: bool
    """Whether one call may ask for several replies, because this mailbox never announces a reply before it has it."""

    def push(self, message: Any) -> str | None:
        """Send a message. Return its id, or None if it could not be sent."""
        ...

    def pull(self, names: list[str]) -> Iterable[tuple[str, Any]]:
        """The replies that have arrived to the messages with the ids ``names``, each with its id."""
        ...

    def nodes(self) -> Iterable[int]:
        """The nodes that are connected now."""
        ...


def start_call(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start a call of a mailbox in its own daemon thread.

    Flower's calls never return while the SuperLink is gone. A main thread that waits in such a call reacts neither to
    Ctrl-C nor to Flower's request to end the app.
    """
    made: Future[T] = Future()

    def work() -> None:
        try:
            made.set_result(_retried(call, *arguments))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return made


def _retried(call: Callable[..., T], *arguments: Any) -> T:
    """Return the result of ``call``, and repeat the call while the SuperLink fails.

    A SuperLink that was stopped, or whose disk is busy, answers with HTTP 500. Flower repeats calls only after other
    statuses. A repeated call has the same messages with the same ids.
    """
    end = time.monotonic() + _MAX_SILENCE
    while True:
        try:
            return call(*arguments)
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status < _SERVER_ERROR:
                raise
            if time.monotonic() >= end:
                raise StrategyError(
                    f"the SuperLink has failed for {_MAX_SILENCE:.0f} s: {error}; see its log. Start the app again "
                    "(with resume=True the run continues)"
                ) from error
            _log.warning("a call to the SuperLink has failed and is repeated: %s", error)
        time.sleep(_RETRY_SECONDS)


def wait_for_call(call: Callable[..., T], *arguments: Any, until: float = 0.0) -> T:
    """Return the result of a mailbox's call.

    Raises `StrategyError` ten minutes after ``until`` (a time of `time.monotonic`), or after now if that is later.
    """
    end = max(until, time.monotonic()) + _MAX_SILENCE
    made = start_call(call, *arguments)
    while True:
        try:
            return made.result(_WAKE_SECONDS)
        except TimeoutError:
            # The call itself may have raised a TimeoutError.
            if made.done():
                return made.result()
            if time.monotonic() >= end:
                raise StrategyError(
                    "the SuperLink does not answer; check that it runs, and start the app again (with resume=True the "
                    "run continues)"
                ) from None


class ReplyPoller:
    """Asks a mailbox for replies, one message at a time, each in its own thread.

    Flower's `pull_messages` returns when all announced replies are complete. A SuperLink waits minutes for a reply that
    a node has announced and does not send. So each call asks for one reply, unless the mailbox allows several.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._calls: dict[tuple[str, ...], Future[Iterable[tuple[str, Any]]]] = {}

    def replies(self, names: Collection[str], until: float, *, together: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield the replies that have arrived to the messages with the ids ``names``, with their ids.

        Each reply is used before the next one is asked for. A call that takes more than some seconds continues in its
        thread, and a later look takes its result. Each such call shortens the wait for the next ones, and after
        ``until`` the wait is shortest. ``together`` asks in one call, for replies that may be late.
        """
        asked, wanted = {name for call in self._calls for name in call}, set(names)
        left, patience = [name for name in names if name not in asked], _MAX_PATIENCE
        for call in [tuple(left)] if left and (together or self.mailbox.together) else [(name,) for name in left]:
            made = self._calls[call] = start_call(self.mailbox.pull, list(call))
            wait([made], patience if time.monotonic() < until else _MIN_PATIENCE)
            if not made.done():
                patience = max(patience / 2, _MIN_PATIENCE)
            yield from self._finished(wanted)
        yield from self._finished(wanted)

    def _calls_for(self, wanted: Set[str]) -> dict[tuple[str, ...], Future[Iterable[tuple[str, Any]]]]:
        """The running and finished calls for messages in ``wanted``."""
        return {call: made for call, made in self._calls.items() if not wanted.isdisjoint(call)}

    def _finished(self, wanted: Set[str]) -> Iterator[tuple[str, Any]]:
        """Yield the replies of finished calls for messages in ``wanted``."""
        for call in [call for call, made in self._calls_for(wanted).items() if made.done()]:
            found = list(self._calls.pop(call).result())
            while found:
                yield found.pop(0)

    def last(self, names: Collection[str], until: float) -> Iterator[tuple[str, Any]]:
        """At the end of the time, yield the replies of calls that hang, once the SuperLink answers again."""
        wanted = set(names)
        hanging = self._calls_for(wanted).values()
        if hanging:
            wait_for_call(self.mailbox.nodes, until=until)
            wait(hanging, _MIN_PATIENCE)
            yield from self._finished(wanted)


class PolledExchange:
    """Sends messages; iterating yields (node, reply) once for each reply, with the node that was asked.

    ``messages`` are pairs of (node, message). Iterating ends when all nodes have answered, at ``until`` (a time of
    `time.monotonic`), or ``grace`` seconds after ``enough`` returns true. ``enough`` is called between two looks for
    replies. ``grace`` is called with the seconds since the start.
    """

    def __init__(
        self,
        poller: ReplyPoller,
        messages: Iterable[tuple[int, Any]],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self.asked: list[int] = []
        """The nodes that were asked, in the order of the messages."""
        self._until, self._enough, self._grace = until, enough, grace
        self._poller = poller
        self._began = time.monotonic()
        self.waiting: dict[str, int] = {}
        """The nodes that have not answered, by message id."""
        # One after the other, so that only one message of a round is in memory.
        for node, message in messages:
            name = wait_for_call(poller.mailbox.push, message, until=until)
            self.asked.append(node)
            if name is not None:
                self.waiting[name] = node

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        until, satisfied = self._until, False
        while self.waiting:
            looked = time.monotonic()
            # This frame holds no reply while the caller uses it.
            yield from self._with_nodes(self._poller.replies(list(self.waiting), until))
            now = time.monotonic()
            if not satisfied and self._enough():
                satisfied = True
                until = min(until, now + self._grace(now - self._began))
            if now >= until:
                yield from self._with_nodes(self._poller.last(list(self.waiting), until))
                return
            if self.waiting:
                # The delay of a reply, and the time for looks, stay a small share of the time waited.
                pause = max(_MIN_PAUSE, _PAUSE_PER_SECOND * (now - self._began), _PAUSE_PER_LOOK * (now - looked))
                time.sleep(min(pause, _MAX_PAUSE, until - now))

    def _with_nodes(self, replies: Iterator[tuple[str, Any]]) -> Iterator[tuple[int, Any]]:
        """Pair each reply with the node that was asked. A framework may reply in its own name for a failed node."""
        for name, reply in replies:
            node = self.waiting.pop(name, None)
            if node is not None:
                yield node, reply
