"""The aggregator's side of a measurement, started by `fedcipher bench serve` or by a study."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
from typing import Any, cast

from fedcipher import _native
from fedcipher._addresses import host_and_port, joined, listening
from fedcipher._scratch import remove
from fedcipher.bench.link import Connection, Link, Message
from fedcipher.bench.sampler import Sampler
from fedcipher.errors import BenchError, FedcipherError, PeerLostError
from fedcipher.schemes import Aggregator, CommitteeRound, Scheme, from_spec

__all__ = ["end_with_parent", "serve"]

_HELLO_SECONDS = 10.0


def serve(listen: str, *, once: bool = False) -> None:
    """Serve measurements on ``host:port``, one client after the other; ``once``: end after one client.

    Prints ``listening on host:port`` when it is ready. There is no authentication: listen only on an address that no
    one else can reach. Raises `BenchError`.
    """
    where = host_and_port(listen, "--listen")
    try:
        listener = listening(*where)
    except OSError as error:
        raise BenchError(f"cannot listen on {listen}: {error}; choose another port") from error
    with listener:
        print(f"listening on {joined(*listener.getsockname()[:2])}", flush=True)
        while True:
            sock = listener.accept()[0]
            # The timeout ends a silent client, so that the next one can be served. Keepalive detects a lost client.
            sock.settimeout(_HELLO_SECONDS)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = Connection(sock)
            try:
                hello = connection.receive("hello")
                sock.settimeout(None)
                _session(connection, hello)
            except PeerLostError as error:
                print(f"fedcipher bench serve: {error}", file=sys.stderr, flush=True)
            except Exception as error:
                # One client's input must not end the service for the next.
                _report(connection, error)
            finally:
                connection.close()
            if once:
                return


def _report(connection: Connection, error: Exception) -> None:
    print(f"fedcipher bench serve: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    try:
        connection.send("error", error=type(error).__name__, message=str(error))
    except PeerLostError:
        return


def _session(connection: Connection, hello: Message) -> None:
    bandwidth, latency = _number(hello, "bandwidth"), _number(hello, "latency")
    connection.send("welcome")
    connection.shape(Link(bandwidth, latency))
    made: Scheme | None = None
    key: _native.ServerKey | None = None
    while (message := connection.receive("setup", "run", "bye")).kind != "bye":
        if message.kind == "setup":
            made = _scheme(message.facts.get("spec"))
            key = _native.ServerKey.from_bytes(message.payload)
            connection.send("ready")
        elif made is None or key is None:
            raise BenchError("the client asked for a run before it sent keys")
        else:
            _run(connection, made, key)


def _scheme(spec: Any) -> Scheme:
    try:
        return from_spec(spec)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"the client sent no valid scheme: {error}") from error


def _number(message: Message, name: str, most: float = 1e13) -> float:
    value = message.facts.get(name)
    if not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BenchError(f"{name}={value!r} is not a number from 0 to {most:g}")
    return float(value)


def _run(connection: Connection, made: Scheme, key: _native.ServerKey) -> None:
    with Sampler(connection.counters) as sampler:
        aggregator: Aggregator | None = None
        while True:
            with sampler.phase("wait"):
                message = connection.receive("plan", "frame", "close", "done")
            if message.kind == "done":
                break
            if message.kind == "plan":
                sampled = _number(message, "sampled", 1 << 20)
                connection.send("plan", made.round_plan(key, range(int(sampled))))
                continue
            if message.kind == "frame":
                if aggregator is None:
                    with sampler.phase("load key"):
                        aggregator = made.aggregator(key)
                with sampler.phase("operate"):
                    aggregator.add(message.payload)
                connection.send("added")
                continue
            if aggregator is None:
                raise BenchError("the client asked for a sum before it sent a frame")
            with sampler.phase("operate"):
                committee = aggregator.committee
                requests = {} if committee is None else committee.requests()
            for member, request in requests.items():
                with sampler.phase("send"):
                    connection.send("request", request, member=member)
                with sampler.phase("wait"):
                    answer = connection.receive("answer").payload
                with sampler.phase("operate"):
                    cast(CommitteeRound, committee).answer(answer)
            with sampler.phase("operate"):
                aggregate = aggregator.finish()
            with sampler.phase("send"):
                connection.send("aggregate", aggregate)
            aggregator = None
    connection.send("profile", json.dumps(sampler.profile.to_dict()).encode())


def end_with_parent(state: str = "") -> None:
    """End this process when its standard input is closed, which happens when its parent ends, even if killed.

    ``state``: a folder to remove at the end. The parent removes it too, unless the parent was killed.
    """
    if state:
        atexit.register(remove, state)

    def watch() -> None:
        # Reads the descriptor, because `sys.stdin` would hold its lock when the interpreter exits.
        while os.read(0, 1):
            pass
        if state:
            remove(state)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Run a study's own server: a free port, one client."""
    end_with_parent()
    try:
        serve("127.0.0.1:0", once=True)
    except FedcipherError as error:
        print(f"fedcipher bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
