"""The connection from a run's server to its nodes, which a framework must provide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from fedcipher.federation.messages import REFUSED, Config, Message, Reply, record_in
from fedcipher.federation.refusal import reference_of

__all__ = ["Exchange", "Link", "reply_from"]


class Exchange(Protocol):
    """Messages that have been sent. Iterating yields each reply once, as it arrives."""

    def __iter__(self) -> Iterator[Any]: ...
    @property
    def asked(self) -> list[int]:
        """The nodes that were asked, in the order of the messages."""
        ...

    @property
    def waiting(self) -> dict[str, int]:
        """The nodes that have not answered, by message id."""
        ...


class Link(Protocol):
    """The nodes of a federation, and messages to them."""

    def nodes(self) -> Collection[int]:
        """The nodes that are connected now."""
        ...

    def exchange(
        self,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> Exchange:
        """Send ``messages``; iterating the exchange yields each `Reply` as it arrives.

        The exchange ends when all nodes have answered, at ``until`` (a time of `time.monotonic`), or ``grace`` seconds
        after ``enough`` returns true. ``grace`` is called with the seconds since the first message was sent.
        """
        ...

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Replies to messages of ended exchanges, each with its message id."""
        ...


def reply_from(node: int, message: Message) -> Reply:
    """Read ``message`` from ``node`` as a reply: its content, or a refusal by Fedcipher's client."""
    refused = record_in(message.content, REFUSED, Config)
    if refused is None:
        return Reply(node, message.content)
    text = str(refused.get("text"))
    return Reply(node, error=text, reference=reference_of(text))
