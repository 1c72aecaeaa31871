"""A whole round beside Flower's SecAgg+, one thread: a case of each scheme prints one line of JSON."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import gaussian
from fedcipher import Codec
from fedcipher.schemes import Scheme, every_scheme, scheme
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition
from measure import Times, dumps
from secagg import Cohort

SIZES = [(61_706, 10), (61_706, 100), (1_200_000, 10), (1_200_000, 100)]
"""Values and clients."""
OURS = tuple(v.name for v in every_scheme() if v.first and v.info.hides and not v.info.workers)
NEIGHBOURS = {10: 8, 100: 20}
"""Shares of a SecAgg+ client, by the number of clients; Flower takes an even number around it."""
_READERS = 9


def _made(name: str, clients: int) -> Scheme:
    params: dict[str, Any] = (
        {"members": 5, "threshold": 3, "corrupt_clients": 0, "corrupt_members": 0} if name == "oneshot" else {}
    )
    return scheme(name, clients=clients, codec=Codec(bits=16, clip=1.0), **params)


def ours(name: str, values: int, clients: int) -> dict[str, Any]:
    """Seconds of a client, of the server (and of all members of a committee), and bytes of a client."""
    made, update = _made(name, clients), gaussian([(values,)], 1)
    keys = made.keygen(clients)
    sealing, opening = [], []
    aggregator = made.aggregator(keys.server(), round=1)
    server, prekeys = 0.0, (made.committee.prekeys(keys) if made.committee else [])
    for number in range(clients):
        encryptor = made.encryptor(keys.client(number))
        began = time.perf_counter()
        encryptor.take_prekeys(prekeys)
        frame = encryptor.encrypt(update, round=1)
        sealed = time.perf_counter()
        aggregator.add(frame)
        server += time.perf_counter() - sealed
        sealing.append(sealed - began)
    began = time.perf_counter()
    requests = aggregator.committee.requests() if aggregator.committee else {}
    asked = time.perf_counter()
    answers = [made.committee.member(keys.client(member)).answer(request) for member, request in requests.items()]
    answered = time.perf_counter()
    for answer in answers:
        aggregator.committee.answer(answer)
    total = aggregator.finish()
    server += asked - began + time.perf_counter() - answered
    for number in range(min(_READERS, clients)):
        decryptor = made.decryptor(keys.client(number))
        began = time.perf_counter()
        decryptor.decrypt(total, round=1)
        opening.append(time.perf_counter() - began)
    return {
        "encrypt": Times(sealing),
        "decrypt": Times(opening),
        "server": server + answered - asked,
        "up": len(frame),
    }


def secagg(values: int, clients: int) -> dict[str, Any]:
    """The same for SecAgg+ with all clients: its four stages are the client's encryption, and the server opens."""
    cohort, update = Cohort(clients, NEIGHBOURS[clients]), gaussian([(values,)], 1)
    cohort.share()
    total: list[np.ndarray] = []
    server = 0.0
    for number in range(clients):
        masked = cohort.mask(number, update)
        began = time.perf_counter()
        arrays = [bytes_to_ndarray(part) for part in masked]
        total = parameters_addition(total, arrays) if total else arrays
        server += time.perf_counter() - began
    revealed = [cohort.reveal(number, set()) for number in range(clients)]
    server += cohort.unmask(total, revealed, set())
    return {"encrypt": Times(list(cohort.seconds.values())), "server": server, "up": cohort.bytes[0]}


CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "secagg": secagg,
    **{name: lambda values, clients, name=name: ours(name, values, clients) for name in OURS},
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FEDCIPHER_STATE_DIR"] = scratch
        print(dumps(CASES[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
