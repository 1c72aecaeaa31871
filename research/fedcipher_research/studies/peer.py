"""The processes in the namespaces of `studies.netns`: a server that reads requests from standard input, and clients."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable

from fedcipher._addresses import host_and_port
from fedcipher.bench.link import Connection, Link
from fedcipher.errors import PeerLostError

__all__ = ["main"]

# The pacer only delays here. The kernel's filter limits the rate, so the pacer's window is made larger.
_AHEAD = 4


def main() -> int:
    """Run ``serve CLIENTS PORT`` or ``join HOST:PORT NUMBER LINK``."""
    if sys.argv[1] == "serve":
        return _serve(int(sys.argv[2]), int(sys.argv[3]))
    return _join(sys.argv[2], int(sys.argv[3]), Link(**json.loads(sys.argv[4])))


def _delayed(connection: Connection, link: Link) -> None:
    if link.latency:
        connection.shape(Link(_AHEAD * link.bandwidth, link.latency))


def _join(server: str, number: int, link: Link) -> int:
    sock = socket.create_connection(host_and_port(server), 10)
    # The next request may come after any time, so reads have no timeout.
    sock.settimeout(None)
    connection = Connection(sock)
    connection.send("hello", number=number, bandwidth=link.bandwidth, latency=link.latency)
    _delayed(connection, link)
    try:
        while True:
            request = connection.receive("go")
            connection.send("frame", bytes(int(request.facts["up"])))
            connection.receive("aggregate")
            connection.send("got")
    except PeerLostError:
        # The server has ended.
        return 0


def _serve(clients: int, port: int) -> int:
    connections: dict[int, Connection] = {}
    with socket.create_server(("0.0.0.0", port)) as listener:
        print("listening", flush=True)
        while len(connections) < clients:
            connection = Connection(listener.accept()[0])
            facts = connection.receive("hello").facts
            _delayed(connection, Link(float(facts["bandwidth"]), float(facts["latency"])))
            connections[int(facts["number"])] = connection
    print("joined", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        chosen = {k: connections[k] for k in request["clients"] or sorted(connections)}

        def up(connection: Connection, size: int = request["up"]) -> None:
            connection.send("go", up=size)
            connection.receive("frame")

        def down(connection: Connection, size: int = request["down"]) -> None:
            connection.send("aggregate", bytes(size))
            connection.receive("got")

        try:
            said: dict[str, object] = {"up": _each(chosen, up), "down": _each(chosen, down)}
        except PeerLostError as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)
    return 0


def _each(connections: dict[int, Connection], work: Callable[[Connection], None]) -> dict[int, float]:
    """Run ``work`` on all connections at once. Returns the seconds of each. Raises `PeerLostError`."""
    spent: dict[int, float] = {}
    lost: list[PeerLostError] = []
    began = time.monotonic()

    def one(number: int, connection: Connection) -> None:
        try:
            work(connection)
        except PeerLostError as error:
            lost.append(error)
        spent[number] = time.monotonic() - began

    threads = [threading.Thread(target=one, args=pair) for pair in connections.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if lost:
        raise lost[0]
    return {k: spent[k] for k in sorted(spent)}


if __name__ == "__main__":
    sys.exit(main())
