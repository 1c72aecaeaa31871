"""How a run's server reaches its nodes: the one thing that a framework has to provide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from fedcipher.federation.messages import REFUSED, Config, Message, Reply, record_in
from fedcipher.federation.refusal import reference_of

__all__ = ["Exchange", "Link", "reply_from"]


class Exchange(Protocol):
    """Messages under way. Iterating it gives their replies as they come, each once."""

    def __iter__(self) -> Iterator[Any]: ...
    @property
    def asked(self) -> list[int]:
        """Nodes, in the order of the messages."""
        ...

    @property
    def waiting(self) -> dict[str, int]:
        """The nodes that have not answered, by the ids of their messages."""
        ...


class Link(Protocol):
    """The nodes of a federation, and messages to them."""

    def nodes(self) -> Collection[int]:
        """The nodes that are there."""
        ...

    def exchange(
        self,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> Exchange:
        """Send ``messages``; iterating the exchange gives each `Reply` as it comes.

        It ends when all have answered, at ``until`` (`time.monotonic`), or ``grace`` seconds after there are ``enough``
        replies; ``grace`` is given the seconds since the first message was sent.
        """
        ...

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Replies to messages of exchanges that have ended, by the ids of their messages."""
        ...


def reply_from(node: int, message: Message) -> Reply:
    """The reply that is ``message``, from ``node``: content, or a refusal of ours."""
    refused = record_in(message.content, REFUSED, Config)
    if refused is None:
        return Reply(node, message.content)
    text = str(refused.get("text"))
    return Reply(node, error=text, reference=reference_of(text))
