"""What runs in the namespaces of `studies.netns`: the server, told by its standard input, or a client."""

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

# The pacer only delays here; the kernel's filter is what limits, so the pacer's own window must not.
_AHEAD = 4


def main() -> int:
    """``serve CLIENTS PORT`` or ``join HOST:PORT NUMBER LINK``."""
    if sys.argv[1] == "serve":
        return _serve(int(sys.argv[2]), int(sys.argv[3]))
    return _join(sys.argv[2], int(sys.argv[3]), Link(**json.loads(sys.argv[4])))


def _delayed(connection: Connection, link: Link) -> None:
    if link.latency:
        connection.shape(Link(_AHEAD * link.bandwidth, link.latency))


def _join(server: str, number: int, link: Link) -> int:
    sock = socket.create_connection(host_and_port(server), 10)
    # What is waited for may take as long as others work.
    sock.settimeout(None)
    connection = Connection(sock)
    connection.send("hello", number=number, bandwidth=link.bandwidth, latency=link.latency)
    _delayed(connection, link)
    try:
        while True:
            asked = connection.receive("go")
            connection.send("frame", bytes(int(asked.facts["up"])))
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
        asked = json.loads(line)
        chosen = {k: connections[k] for k in asked["clients"] or sorted(connections)}

        def up(connection: Connection, size: int = asked["up"]) -> None:
            connection.send("go", up=size)
            connection.receive("frame")

        def down(connection: Connection, size: int = asked["down"]) -> None:
            connection.send("aggregate", bytes(size))
            connection.receive("got")

        try:
            said: dict[str, object] = {"up": _each(chosen, up), "down": _each(chosen, down)}
        except PeerLostError as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)
    return 0


def _each(connections: dict[int, Connection], work: Callable[[Connection], None]) -> dict[int, float]:
    """Seconds of each, all at once. Raises `PeerLostError`."""
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
