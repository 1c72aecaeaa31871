"""Runs a library's scheme, with the keys, in a process of its own, like FedNIC's SmartNIC does for its hosts.

Use the process for measurements only. It has none of the engine's defences, and its ledgers are lost when it ends.
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
    """A scheme for FedNIC's measurements, with values of 12 bits if it quantises."""
    return scheme(name, clients=clients, min_contributions=1, codec=Codec(bits=12, clip=1.0), **params)


class Client:
    """A client whose key the process holds. It encrypts and decrypts in that process."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def encrypt(self, update: Sequence[Array], *, round: int) -> bytes:
        """Encrypt ``update``, which is sent to the process as float32. Raises `PeerLostError`."""
        flat = b"".join(np.ascontiguousarray(x, np.float32).data for x in update)
        shapes = [x.shape for x in update]
        self._connection.send("encrypt", flat, client=self._number, round=round, shapes=shapes)
        return self._connection.receive("frame").payload

    def open(self, frame: bytes) -> list[Array]:
        """Decrypt ``frame``. The process returns the mean as float32. Raises `PeerLostError`."""
        self._connection.send("open", frame, client=self._number)
        said = self._connection.receive("opened")
        return _arrays(said.payload, said.facts["shapes"])


_MODULE = "fedcipher_research.studies.sidecar"


@contextmanager
def sidecar(name: str, clients: int, before: Sequence[str] = ()) -> Generator[tuple[list[Client], _native.ServerKey]]:
    """Start a process with the keys of ``clients`` clients. ``before`` is put before its command line.

    Raises `BenchError`.
    """
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
            # The process ends when its connection is closed.
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
    """Serve ``SCHEME CLIENTS DESCRIPTOR``. The process ends with the process that started it."""
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
        request = connection.receive("encrypt", "open")
        client = int(request.facts["client"])
        if request.kind == "encrypt":
            update = _arrays(request.payload, request.facts["shapes"])
            connection.send("frame", encryptors[client].encrypt(update, round=int(request.facts["round"])))
        else:
            mean = decryptors[client].open(request.payload).arrays
            flat = b"".join(np.ascontiguousarray(x, np.float32).data for x in mean)
            connection.send("opened", flat, shapes=[x.shape for x in mean])


if __name__ == "__main__":
    main()
