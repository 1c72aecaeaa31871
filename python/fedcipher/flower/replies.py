"""Replies as they arrive: each is used before the next is asked for, and a round need not wait for all.

Flower's `Grid.send_and_receive` returns when everybody has answered, with all replies in memory. Here a reply's bytes
can be forgotten once they are in the sum, and whoever waits says when it has enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from concurrent.futures import Future, TimeoutError, wait
from typing import Any, TypeVar, cast

from flwr.app import Message
from flwr.serverapp import Grid

from fedcipher.errors import ParameterError, StrategyError
from fedcipher.foreign_text import quoting_log

__all__ = ["Arrivals", "Gathering", "Pulls", "answered"]

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
_log = quoting_log("fedcipher.flower")


def check_grid(grid: object) -> None:
    """Raise `ParameterError` for what is no grid of Flower's."""
    if not all(callable(getattr(grid, name, None)) for name in ("get_node_ids", "push_messages", "pull_messages")):
        raise ParameterError(f"grid is of type {type(grid).__name__}; give what Flower calls the app's main with")


def begun(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """A call of a grid, in a thread of its own, which ends with the process.

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
    """What a call of a grid returns; `StrategyError` ten minutes after ``until`` (`time.monotonic`), and after now."""
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
    """What asks a grid for replies: for one message at a time, each in a thread of its own.

    Flower's `pull_messages` returns when all that it found announced is there whole, and a SuperLink waits minutes for
    what a node has announced and does not send. So nobody's reply is asked for in one call with another's. In a grid of
    this process, where nothing is announced before it is there, all are.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._together = any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)
        self._calls: dict[tuple[str, ...], Future[Iterable[Message]]] = {}

    def replies(self, names: Collection[str], until: float, *, together: bool = False) -> Iterator[Message]:
        """Those that are there of the answers to ``names``, ids of messages; each is used before the next is asked for.

        A call that takes longer than some seconds goes on beside the others, and a later look has what it finds; each
        that is left so makes the patience with the next less, and ``until`` ends it. ``together``: in one call, where
        nobody loses by it that the others' answers come later.
        """
        asked, wanted = {name for call in self._calls for name in call}, set(names)
        left, patience = [name for name in names if name not in asked], _PATIENCE
        for call in [tuple(left)] if left and (together or self._together) else [(name,) for name in left]:
            made = self._calls[call] = begun(self.grid.pull_messages, list(call))
            wait([made], patience if time.monotonic() < until else _LEAST)
            if not made.done():
                patience = max(patience / 2, _LEAST)
            yield from self._ended(wanted)
        yield from self._ended(wanted)

    def _under_way(self, wanted: Set[str]) -> dict[tuple[str, ...], Future[Iterable[Message]]]:
        """The calls for these."""
        return {call: made for call, made in self._calls.items() if not wanted.isdisjoint(call)}

    def _ended(self, wanted: Set[str]) -> Iterator[Message]:
        """The replies of calls that have ended."""
        for call in [call for call, made in self._under_way(wanted).items() if made.done()]:
            found = list(self._calls.pop(call).result())
            while found:
                yield found.pop(0)

    def last(self, names: Collection[str], until: float) -> Iterator[Message]:
        """When time is up: what has been asked for in vain while the SuperLink was away, if it was."""
        wanted = set(names)
        hanging = self._under_way(wanted).values()
        if hanging:
            answered(self.grid.get_node_ids, until=until)
            wait(hanging, _LEAST)
            yield from self._ended(wanted)


class Gathering:
    """Messages under way; iterating it gives their replies, once, each as of the node that was asked.

    It ends when all have answered, at ``until`` (`time.monotonic`), or ``grace`` seconds after there are ``enough``,
    which is asked between two looks for replies; ``grace`` is given the seconds that those took.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
        pulls: Pulls | None = None,
    ) -> None:
        self.asked: list[int] = []
        """Nodes, in the order of the messages."""
        self._until, self._enough, self._grace = until, enough, grace
        self._pulls = pulls or Pulls(grid)
        self._began = time.monotonic()
        self.waiting: dict[str, int] = {}
        """Whom the messages went to that nobody has answered, by their ids."""
        for message in messages:
            self._push(grid, message)

    def _push(self, grid: Grid, message: Message) -> None:
        """Send one: not all messages of a round need be there at once."""
        node = message.metadata.dst_node_id
        # None for a message that could not be sent, whatever Flower's types say.
        (name,) = cast(Iterable[str | None], answered(grid.push_messages, [message], until=self._until))
        self.asked.append(node)
        if name is not None:
            self.waiting[name] = node

    def __iter__(self) -> Iterator[Message]:
        until, satisfied = self._until, False
        while self.waiting:
            looked = time.monotonic()
            # None is kept here while it is used.
            yield from filter(None, map(self._taken, self._pulls.replies(list(self.waiting), until)))
            now = time.monotonic()
            if not satisfied and self._enough():
                satisfied = True
                until = min(until, now + self._grace(now - self._began))
            if now >= until:
                yield from filter(None, map(self._taken, self._pulls.last(list(self.waiting), until)))
                return
            if self.waiting:
                # A reply is seen late by a part of what it took, and looking is a part of the time.
                pause = max(_FIRST_LOOK, _LATE * (now - self._began), _LOOKING * (now - looked))
                time.sleep(min(pause, _LAST_LOOK, until - now))

    def _taken(self, reply: Message) -> Message | None:
        """The reply as of the node that was asked: for one that has failed the SuperLink answers in its own name."""
        node = self.waiting.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            return None
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


class Arrivals:
    """A grid whose `send_and_receive` gives replies as they arrive; all else is the grid's.

    ``gather`` makes the `Gathering` of some messages with so many seconds.
    """

    def __init__(self, grid: Grid, gather: Callable[[Iterable[Message], float | None], Iterable[Message]]) -> None:
        self._grid, self._gather = grid, gather

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's, but not all at once."""
        return self._gather(messages, timeout)

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's, but not for ever."""
        return answered(self._grid.get_node_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
