"""Replies as they arrive: each is used before the next is asked for, and a round need not wait for all.

Flower's `Grid.send_and_receive` returns when everybody has answered, with all replies in memory. Here a reply's bytes
can be forgotten once they are in the sum, and whoever waits says when it has enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedcipher.errors import StrategyError

__all__ = ["Arrivals", "Gathering", "answered"]

_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
"""Seconds between two looks for replies: more and more of them."""
_WAKE = 0.2
_SILENCE = 600.0
"""Seconds after which a SuperLink that has not answered is gone."""

T = TypeVar("T")


def answered(call: Callable[..., T], *arguments: Any, until: float = 0.0) -> T:
    """What a call of a grid returns; `StrategyError` ten minutes after ``until`` (`time.monotonic`), and after now.

    Made in a thread of its own: Flower's calls ask a SuperLink that is gone for ever, and a main thread that waits in
    one hears neither Ctrl-C nor that Flower wants the app to end. A thread that is given up ends with the process.
    """
    made: Future[T] = Future()
    end = max(until, time.monotonic()) + _SILENCE

    def work() -> None:
        try:
            made.set_result(call(*arguments))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
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


class Gathering:
    """Messages under way; iterating it gives their replies, once.

    It ends when all have answered, at ``until`` (`time.monotonic`), or ``grace`` seconds after there are ``enough``,
    which is asked between two replies; ``grace`` is given the seconds that those took.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        kept = list(messages)
        self.asked = [message.metadata.dst_node_id for message in kept]
        """Nodes, in the order of the messages."""
        self._grid, self._until, self._enough, self._grace = grid, until, enough, grace
        self._began = time.monotonic()
        self.waiting = set(answered(grid.push_messages, kept, until=until))
        """Ids of the messages that nobody has answered."""

    def __iter__(self) -> Iterator[Message]:
        pause, until, satisfied = _FIRST_LOOK, self._until, False
        while self.waiting:
            replies = list(answered(self._grid.pull_messages, self.waiting, until=until))
            self.waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            while replies:
                # Not kept here while it is used.
                yield replies.pop(0)
            now = time.monotonic()
            if not satisfied and self._enough():
                satisfied = True
                until = min(until, now + self._grace(now - self._began))
            if now >= until:
                return
            if self.waiting:
                time.sleep(min(pause, until - now))
                pause = min(2 * pause, _LAST_LOOK)


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
