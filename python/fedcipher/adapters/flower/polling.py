"""Flower's Grid as the link of a federation's server: replies as they arrive, and a round need not wait for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

from fedcipher.adapters.flower.records import record_dict, reply_of
from fedcipher.errors import ParameterError
from fedcipher.federation import messages
from fedcipher.federation.messages import Reply
from fedcipher.federation.server.polling import PolledExchange, ReplyPoller, wait_for_call

__all__ = ["Arrivals", "FlowerLink", "check_grid"]


def check_grid(grid: object) -> None:
    """Raise `ParameterError` for what is no grid of Flower's."""
    if not all(callable(getattr(grid, name, None)) for name in ("get_node_ids", "push_messages", "pull_messages")):
        raise ParameterError(f"grid is of type {type(grid).__name__}; give what Flower calls the app's main with")


class _Mailbox:
    """A grid's messages, one by one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        # A grid of this process: nothing is announced before it is there.
        self.together = any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)

    def push(self, message: Message) -> str | None:
        # None for a message that could not be sent, whatever Flower's types say.
        (name,) = cast(Iterable[str | None], self._grid.push_messages([message]))
        return name

    def pull(self, names: list[str]) -> list[tuple[str, Message]]:
        return [(reply.metadata.reply_to_message_id, reply) for reply in self._grid.pull_messages(names)]

    def nodes(self) -> Iterable[int]:
        return self._grid.get_node_ids()


class FlowerLink:
    """The `fedcipher.federation.server.link.Link` of a grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.pulls = ReplyPoller(_Mailbox(grid))

    def nodes(self) -> Collection[int]:
        """As `Link.nodes`. Raises `StrategyError` where the SuperLink does not answer."""
        return list(wait_for_call(self.pulls.mailbox.nodes))

    def exchange(self, messages: Iterable[messages.Message], **ends: Any) -> _Replies:
        """As `Link.exchange`."""
        pairs = (
            (made.node, Message(record_dict(made.content), dst_node_id=made.node, message_type=made.type))
            for made in messages
        )
        return _Replies(PolledExchange(self.pulls, pairs, **ends))

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """As `Link.late`, all in one call: there may be many."""
        for name, reply in self.pulls.replies(names, until, together=True):
            yield name, reply_of(reply, reply.metadata.src_node_id)


class _Replies:
    """An exchange whose replies are the federation's."""

    def __init__(self, gathering: PolledExchange) -> None:
        self._gathering = gathering
        self.asked, self.waiting = gathering.asked, gathering.waiting

    def __iter__(self) -> Iterator[Reply]:
        return (reply_of(reply, node) for node, reply in self._gathering)


class Arrivals:
    """A grid whose `send_and_receive` gives replies as they arrive; all else is the grid's.

    ``gather`` is given what sends the messages, and the seconds that they have.
    """

    def __init__(
        self, link: FlowerLink, gather: Callable[[Callable[..., PolledExchange], float | None], PolledExchange]
    ) -> None:
        self.link, self._gather = link, gather

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's, but not all at once; each reply is of the node that was asked."""
        pairs = ((made.metadata.dst_node_id, made) for made in messages)
        # All are sent now, and not when the first reply is asked for.
        return map(_of_node, self._gather(partial(PolledExchange, self.link.pulls, pairs), timeout))

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's, but not for ever."""
        return self.link.nodes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link.grid, name)


def _of_node(pair: tuple[int, Message]) -> Message:
    node, reply = pair
    reply.metadata.__dict__["_src_node_id"] = node
    return reply
