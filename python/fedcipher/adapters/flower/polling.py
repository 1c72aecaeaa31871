"""Makes Flower's Grid the link of a federation's server: replies come one by one, and a round may close early."""

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

_Exchange = Callable[..., PolledExchange]


def check_grid(grid: object) -> None:
    """Raise `ParameterError` for an object that is not a grid of Flower."""
    if not all(callable(getattr(grid, name, None)) for name in ("get_node_ids", "push_messages", "pull_messages")):
        raise ParameterError(f"grid is of type {type(grid).__name__}; give the Grid that Flower passes to the app")


class _Mailbox:
    """Sends and receives a grid's messages one by one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        # A grid in this process has each reply as soon as it announces the reply.
        self.together = any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)

    def push(self, message: Message) -> str | None:
        # None for a message that could not be sent, although Flower's types say otherwise.
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
        """Like `Link.nodes`. Raises `StrategyError` if the SuperLink does not answer."""
        return list(wait_for_call(self.pulls.mailbox.nodes))

    def exchange(self, messages: Iterable[messages.Message], **ends: Any) -> _Replies:
        """Like `Link.exchange`."""
        pairs = (
            (made.node, Message(record_dict(made.content), dst_node_id=made.node, message_type=made.type))
            for made in messages
        )
        return _Replies(PolledExchange(self.pulls, pairs, **ends))

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Like `Link.late`. Gets all replies in one call, because there may be many."""
        for name, reply in self.pulls.replies(names, until, together=True):
            yield name, reply_of(reply, reply.metadata.src_node_id)


class _Replies:
    """The replies of an exchange, as the federation's `Reply`."""

    def __init__(self, gathering: PolledExchange) -> None:
        self._gathering = gathering
        self.asked, self.waiting = gathering.asked, gathering.waiting

    def __iter__(self) -> Iterator[Reply]:
        return (reply_of(reply, node) for node, reply in self._gathering)


class Arrivals:
    """A grid whose `send_and_receive` gives replies as they arrive; all other attributes are those of the link's grid.

    ``gather`` is called with a function that sends the messages, and with the timeout in seconds.
    """

    def __init__(self, link: FlowerLink, gather: Callable[[_Exchange, float | None], PolledExchange]) -> None:
        self.link, self._gather = link, gather

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Like Flower's, but replies come one by one, and each names the node that the message was sent to."""
        pairs = ((made.metadata.dst_node_id, made) for made in messages)
        # This sends all messages now, not when the first reply is read.
        return map(_of_node, self._gather(partial(PolledExchange, self.link.pulls, pairs), timeout))

    def get_node_ids(self) -> Iterable[int]:
        """Like Flower's, but with a time limit."""
        return self.link.nodes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link.grid, name)


def _of_node(pair: tuple[int, Message]) -> Message:
    node, reply = pair
    reply.metadata.__dict__["_src_node_id"] = node
    return reply
