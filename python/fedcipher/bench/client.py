"""The clients' side of a measurement: encrypts, sends, decrypts, and checks every decrypted mean."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator

import numpy as np

from fedcipher._addresses import host_and_port
from fedcipher.bench.case import Case, Run
from fedcipher.bench.link import Connection, Link
from fedcipher.bench.sampler import Profile, Sampler
from fedcipher.bench.server import end_with_parent
from fedcipher.codec import Array
from fedcipher.errors import BenchError, FedcipherError, PeerLostError
from fedcipher.foreign_files import parse_json
from fedcipher.schemes import KeySet, Member, Scheme

__all__ = ["connect", "measure"]

_CONNECT_SECONDS = 10.0


def connect(server: str, link: Link) -> Connection:
    """Connect to `fedcipher bench serve` on ``host:port``; both directions are as slow as ``link``.

    Raises `PeerLostError`.
    """
    where = host_and_port(server, "--server")
    try:
        sock = socket.create_connection(where, _CONNECT_SECONDS)
    except OSError as error:
        raise PeerLostError(
            f"no connection to {server}: {error}; start `fedcipher bench serve --listen {server}` there"
        ) from error
    connection = Connection(sock)
    connection.send("hello", bandwidth=link.bandwidth, latency=link.latency)
    try:
        connection.receive("welcome")
    except PeerLostError as error:
        connection.close()
        raise PeerLostError(
            f"{server}: {error}; it is serving another client, or is not `fedcipher bench serve`: try again later"
        ) from error
    sock.settimeout(None)
    connection.shape(link)
    return connection


def measure(case: Case, connection: Connection, runs: int) -> Iterator[Run]:
    """Yield ``runs`` measured runs of ``case``, each with new keys."""
    made = case.made()
    rng = np.random.default_rng(0)
    updates: list[list[Array]] = [[rng.normal(0, 0.2, case.values).astype(np.float32)] for _ in range(case.clients)]
    mean = np.mean([update[0].clip(-1, 1) for update in updates], axis=0)
    for number in range(runs):
        began = time.perf_counter()
        keys = case.keys(made, number + 1)
        keygen = time.perf_counter() - began
        # Not measured, because keys are exchanged only once and not in every round.
        server_key = keys.server().to_bytes()
        connection.send("setup", server_key, spec=made.spec())
        connection.receive("ready")
        yield _run(case, made, keys, updates, mean, connection, keygen, len(server_key))
    connection.send("bye")


def _run(
    case: Case,
    made: Scheme,
    keys: KeySet,
    updates: list[list[Array]],
    mean: Array,
    connection: Connection,
    keygen: float,
    server_key_bytes: int,
) -> Run:
    encryptors = [made.encryptor(keys.client(k)) for k in range(case.clients)]
    decryptor = made.decryptor(keys.client(0))
    # The committee's members, which are clients; empty without a committee.
    members: dict[int, Member] = {}
    update_bytes = aggregate_bytes = 0
    connection.send("run")
    with Sampler(connection.counters) as sampler:
        committee = made.committee
        for number in range(1, case.sums + 1):
            connection.send("plan", sampled=case.clients)
            plan = connection.receive("plan").payload
            if committee is not None:
                with sampler.phase("prekeys"):
                    prekeys = committee.prekeys(keys)
                    for encryptor in encryptors:
                        encryptor.take_prekeys(prekeys)
            for encryptor, update in zip(encryptors, updates, strict=True):
                with sampler.phase("encrypt"):
                    frame = encryptor.encrypt(update, round=number, round_plan=plan)
                # One after the other: in parallel the clients would compete for this machine with the server.
                with sampler.phase("send"):
                    connection.send("frame", frame)
                    connection.receive("added")
                update_bytes = len(frame)
            connection.send("close")
            while True:
                with sampler.phase("wait"):
                    message = connection.receive("request", "aggregate")
                if message.kind == "aggregate":
                    break
                member = int(message.facts["member"])
                if member not in members:
                    if committee is None:
                        raise BenchError("the server asks a committee, which this scheme does not have")
                    members[member] = committee.member(keys.client(member))
                with sampler.phase("answer"):
                    answer = members[member].answer(message.payload)
                connection.send("answer", answer)
            aggregate = message.payload
            aggregate_bytes = len(aggregate)
            with sampler.phase("decrypt"):
                decrypted = decryptor.decrypt(aggregate, round=number)
            _check(case, 2 / made.levels.of(case.bits), decrypted[0], mean)
    connection.send("done")
    return Run(sampler.profile, _profile(connection), keygen, update_bytes, aggregate_bytes, server_key_bytes)


def _profile(connection: Connection) -> Profile:
    """Receive the profile that the server has measured. Raises `PeerLostError`."""
    payload = connection.receive("profile").payload
    try:
        return Profile.from_dict(parse_json(payload))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise PeerLostError("the other side sent a malformed profile") from None


def _check(case: Case, step: float, found: Array, mean: Array) -> None:
    worst = float(np.abs(found - mean).max())
    if worst > step:
        raise BenchError(f"{case.label}: the decrypted mean is off by {worst:.3g}, more than a level of {step:.3g}")


def main() -> int:
    """Run a study's client process: a case on standard input, a line of JSON per run on standard output."""
    asked = json.loads(sys.stdin.readline())
    end_with_parent(asked["state"])
    os.environ["FEDCIPHER_STATE_DIR"] = asked["state"]
    try:
        case = Case(**asked["case"])
        connection = connect(asked["server"], Link(**asked["link"]))
        for run in measure(case, connection, asked["runs"]):
            print(json.dumps({"run": run.to_dict()}), flush=True)
        connection.close()
    except FedcipherError as error:
        print(json.dumps({"failure": f"{type(error).__name__}: {error}"}), flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
