"""Replies from a mailbox as they arrive: each is used before the next is asked for, and a round need not wait for all.

A reply's bytes can be forgotten once they are in the sum, and whoever waits says when there are enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from concurrent.futures import Future, TimeoutError, wait
from typing import Any, Protocol, TypeVar

from fedcipher.errors import StrategyError
from fedcipher.foreign_text import quoting_log

__all__ = ["Gathering", "Mailbox", "Pulls", "answered"]

_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
"""Least and most seconds between two looks for replies."""
_LATE, _LOOKING = 0.1, 4.0
"""Between them: so much of the time there was no reply for, and so many times what the last look took."""
_WAKE = 0.2
_FAILED = 500
"""The least HTTP status by which a server says that it has failed itself."""
_PAUSE = 1.0
"""Seconds before a call that has failed is made again."""
_SILENCE = 600.0
"""Seconds after which a SuperLink that has not answered is gone."""
_PATIENCE, _LEAST = 2.0, 0.25
"""Seconds to wait for a reply that is announced: at first, and where others have been waited for in vain."""

T = TypeVar("T")
_log = quoting_log("fedcipher.federation")


class Mailbox(Protocol):
    """Where messages are left for nodes, and their replies are asked for."""

    together: bool
    """Whether replies may be asked for in one call: nothing is announced here before it is there."""

    def push(self, message: Any) -> str | None:
        """Leave a message: its id, or None where it could not be sent."""
        ...

    def pull(self, names: list[str]) -> Iterable[tuple[str, Any]]:
        """The replies that are there to the messages with these ids, with the ids."""
        ...

    def nodes(self) -> Iterable[int]:
        """The nodes that are there."""
        ...


def begun(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """A call of a mailbox, in a thread of its own, which ends with the process.

    Flower's calls ask a SuperLink that is gone for ever, and a main thread that waits in one hears neither Ctrl-C nor
    that Flower wants the app to end.
    """
    made: Future[T] = Future()

    def work() -> None:
        try:
            made.set_result(_in_spite_of_failures(call, *arguments))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return made


def _in_spite_of_failures(call: Callable[..., T], *arguments: Any) -> T:
    """What ``call`` returns, which is made again while the SuperLink fails in it.

    One that was stopped, or whose disk was busy, answers a call with HTTP 500. Flower makes a call again after some
    other statuses only, and a call has the same messages with the same ids then.
    """
    end = time.monotonic() + _SILENCE
    while True:
        try:
            return call(*arguments)
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status < _FAILED:
                raise
            if time.monotonic() >= end:
                raise StrategyError(
                    f"the SuperLink has failed for {_SILENCE:.0f} s: {error}; its log says why. Start the app again "
                    "(with resume=True the run goes on)"
                ) from error
            _log.warning("the SuperLink has failed in a call, which is made again: %s", error)
        time.sleep(_PAUSE)


def answered(call: Callable[..., T], *arguments: Any, until: float = 0.0) -> T:
    """What a mailbox's call returns; `StrategyError` ten minutes after ``until`` (`time.monotonic`), and after now."""
    end = max(until, time.monotonic()) + _SILENCE
    made = begun(call, *arguments)
    while True:
        try:
            return made.result(_WAKE)
        except TimeoutError:
            # What the call itself has raised may be of that kind.
            if made.done():
                return made.result()
            if time.monotonic() >= end:
                raise StrategyError(
                    "the SuperLink does not answer; see that it runs, and start the app again (with resume=True the "
                    "run goes on)"
                ) from None


class Pulls:
    """What asks a mailbox for replies: for one message at a time, each in a thread of its own.

    Flower's `pull_messages` returns when all that it found announced is there whole, and a SuperLink waits minutes for
    what a node has announced and does not send. So nobody's reply is asked for in one call with another's, unless the
    mailbox says that it may be.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._calls: dict[tuple[str, ...], Future[Iterable[tuple[str, Any]]]] = {}

    def replies(self, names: Collection[str], until: float, *, together: bool = False) -> Iterator[tuple[str, Any]]:
        """Those that are there of the answers to ``names``, ids of messages; each is used before the next is asked for.

        A call that takes longer than some seconds goes on beside the others, and a later look has what it finds; each
        that is left so makes the patience with the next less, and ``until`` ends it. ``together``: in one call, where
        nobody loses by it that the others' answers come later.
        """
        asked, wanted = {name for call in self._calls for name in call}, set(names)
        left, patience = [name for name in names if name not in asked], _PATIENCE
        for call in [tuple(left)] if left and (together or self.mailbox.together) else [(name,) for name in left]:
            made = self._calls[call] = begun(self.mailbox.pull, list(call))
            wait([made], patience if time.monotonic() < until else _LEAST)
            if not made.done():
                patience = max(patience / 2, _LEAST)
            yield from self._ended(wanted)
        yield from self._ended(wanted)

    def _under_way(self, wanted: Set[str]) -> dict[tuple[str, ...], Future[Iterable[tuple[str, Any]]]]:
        """The calls for these."""
        return {call: made for call, made in self._calls.items() if not wanted.isdisjoint(call)}

    def _ended(self, wanted: Set[str]) -> Iterator[tuple[str, Any]]:
        """The replies of calls that have ended."""
        for call in [call for call, made in self._under_way(wanted).items() if made.done()]:
            found = list(self._calls.pop(call).result())
            while found:
                yield found.pop(0)

    def last(self, names: Collection[str], until: float) -> Iterator[tuple[str, Any]]:
        """When time is up: what has been asked for in vain while the SuperLink was away, if it was."""
        wanted = set(names)
        hanging = self._under_way(wanted).values()
        if hanging:
            answered(self.mailbox.nodes, until=until)
            wait(hanging, _LEAST)
            yield from self._ended(wanted)


class Gathering:
    """Messages under way; iterating it gives (node, reply) once each, with the node that was asked.

    ``messages`` are (node, message). It ends when all have answered, at ``until`` (`time.monotonic`), or ``grace``
    seconds after there are ``enough``, which is asked between two looks for replies; ``grace`` is given the seconds
    that those took.
    """

    def __init__(
        self,
        pulls: Pulls,
        messages: Iterable[tuple[int, Any]],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self.asked: list[int] = []
        """Nodes, in the order of the messages."""
        self._until, self._enough, self._grace = until, enough, grace
        self._pulls = pulls
        self._began = time.monotonic()
        self.waiting: dict[str, int] = {}
        """The nodes that have not answered, by the ids of their messages."""
        # One after the other: not all messages of a round need be there at once.
        for node, message in messages:
            name = answered(pulls.mailbox.push, message, until=until)
            self.asked.append(node)
            if name is not None:
                self.waiting[name] = node

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        until, satisfied = self._until, False
        while self.waiting:
            looked = time.monotonic()
            # None is kept here while it is used.
            yield from self._taken(self._pulls.replies(list(self.waiting), until))
            now = time.monotonic()
            if not satisfied and self._enough():
                satisfied = True
                until = min(until, now + self._grace(now - self._began))
            if now >= until:
                yield from self._taken(self._pulls.last(list(self.waiting), until))
                return
            if self.waiting:
                # A reply is seen late by a part of what it took, and looking is a part of the time.
                pause = max(_FIRST_LOOK, _LATE * (now - self._began), _LOOKING * (now - looked))
                time.sleep(min(pause, _LAST_LOOK, until - now))

    def _taken(self, replies: Iterator[tuple[str, Any]]) -> Iterator[tuple[int, Any]]:
        """With the node that was asked: for one that has failed a framework may answer in its own name."""
        for name, reply in replies:
            node = self.waiting.pop(name, None)
            if node is not None:
                yield node, reply
