"""Which node is which client of the key set, and which clients are not asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fedcipher.errors import RevokedError, UnknownClientError
from fedcipher.federation.messages import Message
from fedcipher.federation.records import RoundRecord
from fedcipher.foreign_text import quoting_log

__all__ = ["NodeMap"]

_log = quoting_log("fedcipher.federation")


class NodeMap:
    """Nodes by client and clients by node, as their updates have shown."""

    def __init__(self) -> None:
        self.client_of: dict[int, int] = {}
        self.node_of: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """A new run: everybody is believed again."""
        self.accused: set[int] = set()
        """Clients that have sealed false shares."""

    def check(
        self, node: int, clients: Iterable[int], revoked: Collection[int], there: Callable[[], Collection[int]]
    ) -> None:
        """A client id belongs to the node that used it first, for as long as that is ``there``, and a node has one.

        So a node that was set up anew takes its client id with it, and nobody takes a second one, but in the place of
        one that was revoked. A frame's number is what it claims, before its signature was checked: nothing is learnt
        of it here. Raises `RevokedError` and `UnknownClientError`.
        """
        for client in clients:
            if client in revoked:
                raise RevokedError(f"client {client} has been revoked; its update is not used")
            known = self.client_of.get(node, client)
            if known != client and known not in revoked:
                raise UnknownClientError(f"node {node} sent a frame of client {client}, and has been client {known}")
            owner = self.node_of.get(client, node)
            if owner == node:
                continue
            if owner in there():
                raise UnknownClientError(f"node {node} sent a frame of client {client}, which belongs to node {owner}")

    def learn(self, node: int, client: int) -> None:
        """An update that ``client`` has signed has come from ``node``, and the aggregator has taken it."""
        before = self.node_of.get(client, node)
        if before != node:
            _log.warning("client %s is node %s now: node %s, which it was, is gone", client, node, before)
            self.client_of.pop(before, None)
        if self.client_of.get(node, client) != client:
            self.node_of.pop(self.client_of[node], None)
        self.client_of[node] = client
        self.node_of[client] = node

    def remember(self, rounds: Iterable[RoundRecord]) -> None:
        """Learn again what another process of the server had learnt in ``rounds``."""
        for record in rounds:
            for seen in (*record.clients, *record.evaluations):
                if seen.client is not None and seen.left_out is None:
                    self.learn(seen.node, seen.client)

    def clients(self, messages: Iterable[Message]) -> list[int]:
        """The clients that ``messages`` go to, as far as they are known."""
        known = (self.client_of.get(message.node) for message in messages)
        return [client for client in known if client is not None]

    def without(self, messages: list[Message], left_out: Collection[int]) -> list[Message]:
        """``messages`` without those to clients that are ``left_out``."""
        return [m for m in messages if self.client_of.get(m.node) not in left_out]
