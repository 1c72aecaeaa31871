"""Maps nodes to clients of the key set, and knows which clients are not asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fedcipher.errors import RevokedError, UnknownClientError
from fedcipher.federation.messages import Message
from fedcipher.federation.records import RoundRecord
from fedcipher.foreign_text import quoting_log

__all__ = ["NodeMap"]

_log = quoting_log("fedcipher.federation")


class NodeMap:
    """Nodes by client and clients by node, learnt from verified updates."""

    def __init__(self) -> None:
        self.client_of: dict[int, int] = {}
        self.node_of: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """Start a new run: no client is excluded."""
        self.sent_false_shares: set[int] = set()
        """Clients that have sent false shares to the committee."""

    def check(
        self, node: int, clients: Iterable[int], revoked: Collection[int], connected: Callable[[], Collection[int]]
    ) -> None:
        """Check that ``node`` may send frames of ``clients``.

        A client id belongs to the node that used it first, as long as ``connected`` returns that node.
        So a node that was set up again can take its client id along. A node has one client id, and gets a second one
        only after the first was revoked. The frame's signature is not verified yet, so this check stores nothing.
        Raises `RevokedError` and `UnknownClientError`.
        """
        for client in clients:
            if client in revoked:
                raise RevokedError(f"client {client} has been revoked; its update is not used")
            known = self.client_of.get(node, client)
            if known != client and known not in revoked:
                raise UnknownClientError(f"node {node} sent a frame of client {client}, but is known as client {known}")
            owner = self.node_of.get(client, node)
            if owner == node:
                continue
            if owner in connected():
                raise UnknownClientError(f"node {node} sent a frame of client {client}, which belongs to node {owner}")

    def learn(self, node: int, client: int) -> None:
        """Record that ``node`` sent an update of ``client`` that the aggregator has accepted."""
        before = self.node_of.get(client, node)
        if before != node:
            _log.warning("client %s is now node %s; its earlier node %s is gone", client, node, before)
            self.client_of.pop(before, None)
        if self.client_of.get(node, client) != client:
            self.node_of.pop(self.client_of[node], None)
        self.client_of[node] = client
        self.node_of[client] = node

    def remember(self, rounds: Iterable[RoundRecord]) -> None:
        """Restore the map from ``rounds`` of an earlier process of the server."""
        for record in rounds:
            for seen in (*record.clients, *record.evaluations):
                if seen.client is not None and seen.left_out is None:
                    self.learn(seen.node, seen.client)

    def clients(self, messages: Iterable[Message]) -> list[int]:
        """The known clients that ``messages`` go to."""
        known = (self.client_of.get(message.node) for message in messages)
        return [client for client in known if client is not None]

    def without(self, messages: list[Message], left_out: Collection[int]) -> list[Message]:
        """``messages``, except those to clients in ``left_out``."""
        return [m for m in messages if self.client_of.get(m.node) not in left_out]
