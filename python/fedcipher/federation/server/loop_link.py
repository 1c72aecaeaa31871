"""The link of a run whose network belongs to an event loop. The run itself is in another thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from fedcipher.errors import FedcipherError
from fedcipher.federation.messages import Message, Reply
from fedcipher.federation.server.link import reply_from

__all__ = ["LoopLink"]

Ask = Callable[[int, int, bytes], Coroutine[Any, Any, bytes]]
"""Sends (node, number, message) and returns the reply with that number."""


class LoopLink:
    """A `Link` whose messages ``ask`` carries in ``loop``. A node gets one message at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nodes: Collection[int], ask: Ask) -> None:
        self._loop, self._nodes, self._ask = loop, list(nodes), ask
        self._locks = {node: asyncio.Lock() for node in self._nodes}
        self._sent = 0
        self._late: SimpleQueue[tuple[str, Reply]] = SimpleQueue()

    def nodes(self) -> Collection[int]:
        """The nodes that the link was made for."""
        return self._nodes

    def exchange(
        self,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> _Exchange:
        """Like `Link.exchange`."""
        return _Exchange(self, messages, _Close(until, enough, grace))

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Like `Link.late`."""
        while True:
            try:
                name, reply = self._late.get_nowait()
            except Empty:
                return
            if name in names:
                yield name, reply

    def keep(self, name: str, reply: Reply) -> None:
        """Keep a reply that came after its exchange."""
        self._late.put((name, reply))

    def send(self, message: Message) -> tuple[str, Future[bytes]]:
        """Send ``message``. Returns its name and its reply to come."""
        self._sent += 1
        asked = self._in_turn(message.node, self._sent, message.to_bytes())
        return str(self._sent), asyncio.run_coroutine_threadsafe(asked, self._loop)

    async def _in_turn(self, node: int, number: int, raw: bytes) -> bytes:
        async with self._locks[node]:
            return await self._ask(node, number, raw)


@dataclass
class _Close:
    """When an exchange ends: see `Link.exchange`."""

    until: float
    enough: Callable[[], bool]
    grace: Callable[[float], float]


class _Exchange:
    """Messages that have been sent: see `fedcipher.federation.server.link.Exchange`."""

    def __init__(self, link: LoopLink, messages: Iterable[Message], close: _Close) -> None:
        self._link, self._close, self._began = link, close, time.monotonic()
        self._ended = False
        self._arrived: SimpleQueue[tuple[str, Reply]] = SimpleQueue()
        self.asked: list[int] = []
        self.waiting: dict[str, int] = {}
        for message in messages:
            name, reply = link.send(message)
            self.asked.append(message.node)
            self.waiting[name] = message.node
            reply.add_done_callback(self._receiver(name, message.node))

    def _receiver(self, name: str, node: int) -> Callable[[Future[bytes]], None]:
        def receive(future: Future[bytes]) -> None:
            reply = _reply(node, future)
            if self._ended:
                self._link.keep(name, reply)
            else:
                self._arrived.put((name, reply))

        return receive

    def __iter__(self) -> Iterator[Reply]:
        until, satisfied = self._close.until, False
        while self.waiting and (now := time.monotonic()) < until:
            with suppress(Empty):
                name, reply = self._arrived.get(timeout=min(until - now, 1.0))
                del self.waiting[name]
                yield reply
            if not satisfied and self._close.enough():
                satisfied, now = True, time.monotonic()
                until = min(until, now + self._close.grace(now - self._began))
        self._ended = True


def _reply(node: int, future: Future[bytes]) -> Reply:
    try:
        return reply_from(node, Message.parse(future.result(), node))
    except (FedcipherError, RuntimeError, KeyError, TypeError, ValueError, OSError) as error:
        return Reply(node, error=f"{type(error).__name__}: {error}")
