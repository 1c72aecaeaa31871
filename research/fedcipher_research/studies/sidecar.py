"""A library's scheme in a process of its own, with the keys: what FedNIC's SmartNIC does for its hosts.

It is measured and nothing more: it has none of the engine's defences, and no ledger outlives it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
from fedcipher import _native
from fedcipher.bench.link import Connection
from fedcipher.codec import Array, Codec
from fedcipher.errors import BenchError, PeerLostError
from fedcipher.schemes import Scheme, scheme

from fedcipher_research.studies.timing import ledgers

__all__ = ["Client", "made", "main", "sidecar"]


def made(name: str, clients: int, **params: str) -> Scheme:
    """FedNIC's scheme here: of 12 bits where it quantises."""
    return scheme(name, clients=clients, min_contributions=1, codec=Codec(bits=12, clip=1.0), **params)


class Client:
    """One of the clients whose key the process has: encrypts and opens there."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def encrypt(self, update: Sequence[Array], *, round: int) -> bytes:
        """The frame of ``update``, which crosses as float32. Raises `PeerLostError`."""
        flat = b"".join(np.ascontiguousarray(x, np.float32).data for x in update)
        shapes = [x.shape for x in update]
        self._connection.send("encrypt", flat, client=self._number, round=round, shapes=shapes)
        return self._connection.receive("frame").payload

    def open(self, frame: bytes) -> list[Array]:
        """The mean, which crosses as float32. Raises `PeerLostError`."""
        self._connection.send("open", frame, client=self._number)
        said = self._connection.receive("opened")
        return _arrays(said.payload, said.facts["shapes"])


_MODULE = "fedcipher_research.studies.sidecar"


@contextmanager
def sidecar(name: str, clients: int, before: Sequence[str] = ()) -> Generator[tuple[list[Client], _native.ServerKey]]:
    """A process that has the keys of ``clients`` clients, started by what goes ``before``. Raises `BenchError`."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            number = theirs.fileno()
            command = [*before, sys.executable, "-m", _MODULE, name, str(clients), str(number)]
            process = subprocess.Popen(command, pass_fds=[number])
        connection = Connection(ours)
        try:
            try:
                ready = connection.receive("ready")
            except PeerLostError as error:
                raise BenchError(f"no process for {name} has started: {error}") from error
            yield [Client(connection, k) for k in range(clients)], _native.ServerKey.from_bytes(ready.payload)
        finally:
            # It ends with its connection.
            connection.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _arrays(flat: bytes, shapes: Sequence[Sequence[int]]) -> list[Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = np.split(np.frombuffer(flat, np.float32), ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def main() -> None:
    """``SCHEME CLIENTS DESCRIPTOR``; ends when whoever started it does."""
    name, clients, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with ledgers(), socket.socket(fileno=number) as sock:
        connection = Connection(sock)
        with suppress(PeerLostError):
            _serve(connection, made(name, clients), clients)


def _serve(connection: Connection, scheme: Scheme, clients: int) -> None:
    keys = scheme.keygen(clients)
    encryptors = [scheme.encryptor(keys.client(k)) for k in range(clients)]
    decryptors = [scheme.decryptor(keys.client(k)) for k in range(clients)]
    connection.send("ready", keys.server().to_bytes())
    while True:
        asked = connection.receive("encrypt", "open")
        client = int(asked.facts["client"])
        if asked.kind == "encrypt":
            update = _arrays(asked.payload, asked.facts["shapes"])
            connection.send("frame", encryptors[client].encrypt(update, round=int(asked.facts["round"])))
        else:
            mean = decryptors[client].open(asked.payload).arrays
            flat = b"".join(np.ascontiguousarray(x, np.float32).data for x in mean)
            connection.send("opened", flat, shapes=[x.shape for x in mean])


if __name__ == "__main__":
    main()
