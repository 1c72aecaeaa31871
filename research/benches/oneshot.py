"""`make bench-oneshot`: what secure aggregation without a shared key costs, with Flower's SecAgg+ in the same run.

Fills its section of docs/explanation/oneshot.md.
"""

from __future__ import annotations

import datetime
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cases import gaussian
from fedcipher import Codec
from fedcipher.schemes import KeySet, Scheme, scheme
from flwr.common import bytes_to_ndarray
from measure import Times, dumps, in_own_process, machine
from report import into_page, ms, table, verdict
from secagg import Cohort, dropped

VALUES, CLIENTS = 1_200_000, 100
LENET, MANY, AWAY = 61_706, 1000, 0.3
_REPEATS, _PEERS = 15, 9


def oneshot(clients: int, **params: Any) -> Scheme:
    """The scheme with its defaults: one of five members may lie."""
    return scheme("oneshot", clients=clients, codec=Codec(bits=12, clip=1.0), members=5, **params)


def clients_seconds(made: list[tuple[Scheme, KeySet]], values: list[np.ndarray]) -> list[tuple[Times, int]]:
    """(seconds of a client, offline and online; bytes of its message) of each scheme, which take turns."""
    encryptors = [one.encryptor(keys.client(0)) for one, keys in made]
    prekeys = [one.committee.prekeys(keys) if one.committee else [] for one, keys in made]
    seconds: list[list[float]] = [[] for _ in made]
    sizes = [0] * len(made)
    for number in range(1, _REPEATS + 2):
        for k, encryptor in enumerate(encryptors):
            began = time.perf_counter()
            encryptor.take_prekeys(prekeys[k])
            encryptor.precompute(values, round=number)
            sizes[k] = len(encryptor.encrypt(values, round=number))
            seconds[k].append(time.perf_counter() - began)
    return [(Times(found[1:]), size) for found, size in zip(seconds, sizes, strict=True)]


def client() -> dict[str, float]:
    """One client, one core: against `bfv`, and against SecAgg+ of 20 neighbours."""
    values = gaussian([(VALUES,)], 1)
    schemes = [scheme("bfv", clients=CLIENTS, codec=Codec(bits=12, clip=1.0))]
    schemes += [oneshot(CLIENTS), oneshot(CLIENTS, corrupt_clients=0, corrupt_members=0)]
    made = [(one, one.keygen(CLIENTS)) for one in schemes]
    (base, base_bytes), (seconds, size), (other, other_size) = clients_seconds(made, values)
    cohort = Cohort(CLIENTS, 20)
    cohort.share()
    for number in range(_PEERS):
        cohort.mask(number, values)
        cohort.reveal(number, set())
    ((lenet, _),) = clients_seconds([(schemes[1], schemes[1].keygen(CLIENTS))], gaussian([(LENET,)], 1))
    return {
        "bfv": base,
        "bfv_bytes": base_bytes,
        "seconds": seconds,
        "bytes": size,
        "other": other,
        "other_bytes": other_size,
        "secagg": Times([cohort.seconds[number] for number in range(_PEERS)]),
        "secagg_bytes": cohort.bytes[0],
        "lenet": lenet,
    }


def many(reveal: str) -> dict[str, float]:
    """A thousand clients, three tenths of them away after their upload would have been due: the rest of the round."""
    values = gaussian([(LENET,)], 1)
    made = oneshot(MANY, reveal=reveal)
    keys = made.keygen(MANY)
    dead = dropped(MANY, AWAY, 1)
    aggregator, prekeys = made.aggregator(keys.server(), round=1), made.committee.prekeys(keys)
    for number in range(MANY):
        if number not in dead:
            encryptor = made.encryptor(keys.client(number))
            encryptor.take_prekeys(prekeys)
            aggregator.add(encryptor.encrypt(values, round=1))
    members = {number: made.committee.member(keys.client(number)) for number in range(5)}
    began = time.perf_counter()
    requests = aggregator.committee.requests()
    asked = time.perf_counter()
    answers = [members[member].answer(request) for member, request in requests.items()]
    answered = time.perf_counter()
    for answer in answers:
        aggregator.committee.answer(answer)
    frame = aggregator.finish()
    done = time.perf_counter()
    # Equal updates: the sum is as many times one of them.
    reader = made.decryptor(keys.client(7)) if reveal == "clients" else made.committee.server_decryptor(keys.server())
    opening = time.perf_counter()
    sums = reader.sums(frame)
    opened = time.perf_counter() - opening
    one = made.codec.layout(values).quantise([values[0]], levels=made.levels)[0].astype(np.int64)
    exact = bool((sums.astype(np.int64) == (MANY - len(dead)) * one).all())
    return {
        "server": asked - began + done - answered,
        "members": answered - asked,
        "opened": opened,
        "exact": float(exact),
        "request": statistics.mean(len(r) for r in requests.values()),
        "frame": len(made.committee.for_reader(frame, 7)),
    }


def secagg_many() -> dict[str, float]:
    """The same for SecAgg+: what its server does once all shares have arrived."""
    cohort = Cohort(MANY, 20)
    cohort.share()
    dead = dropped(MANY, AWAY, 1)
    alive = [number for number in range(MANY) if number not in dead]
    values = gaussian([(LENET,)], 1)
    total = [np.zeros(1, np.int64), np.zeros(LENET, np.int64)]
    for number in alive:
        total = [a + bytes_to_ndarray(b) for a, b in zip(total, cohort.mask(number, values), strict=True)]
    revealed = [cohort.reveal(number, dead) for number in alive]
    return {"server": cohort.unmask(total, revealed, dead)}


def willow_bytes(values: int, bits: int, clients: int) -> int:
    """The messages of a Willow client, without the framing of its messages and its proof.

    Willow (Bell-Clark et al., Crypto 2025, ePrint 2024/936) encrypts the packed update under a key of its own, and that
    key to a decryptor. From the parameters that its authors publish for up to 10 M values, 10 M clients and 100
    decryptors (github.com/google/secure-aggregation at 194d5b0, willow/src/shell/parameters.rs), packed as
    parameters_generation.rs does; both polynomials of the key's encryption travel (ahe.rs).
    """
    ring, plaintext_bits, modulus_bits = 1 << 14, 224, 4 * 61
    key_ring, key_modulus_bits = 1 << 12, 96
    packed = plaintext_bits // math.ceil(math.log2(clients * 2**bits + 1))
    polynomials = math.ceil(math.ceil(values / packed) / ring)
    update_bits = polynomials * ring * modulus_bits
    key_bits = ring // key_ring * 2 * key_ring * key_modulus_bits
    return (update_bits + key_bits) // 8


def report() -> str:
    cores = os.cpu_count() or 1
    c, blind, seen, peer = (
        in_own_process(case, 1 if case in ("client", "secagg") else cores, "oneshot.py") for case in CASES
    )
    added, more = c["seconds"] - c["bfv"], c["bytes"] - c["bfv_bytes"]
    faster, fewer = c["secagg"] / c["seconds"], c["secagg_bytes"] / c["bytes"]
    willow = willow_bytes(VALUES, 12, CLIENTS)
    trusting = f"{ms(c['other'])}; {(c['other_bytes'] - c['bfv_bytes']) / 1e3:.1f} kB over `bfv`"
    large = "1.2 M values, 100 clients, 5 members, `corrupt_members=1`, one core"
    rows = [
        [f"a client, {large}: `oneshot`", ms(c["seconds"]), ""],
        ["the same: `bfv`, offline and online", ms(c["bfv"]), ""],
        ["added over `bfv`", ms(added), f"at most 2 ms: {verdict(added <= 2e-3)}"],
        ["added over `bfv`, up", f"{more / 1e3:.1f} kB", f"at most 30 kB: {verdict(more <= 30e3)}"],
        ["the same with `corrupt_members=0`, and `corrupt_clients=0`", trusting, ""],
        ["SecAgg+, 20 neighbours: a client's four stages", ms(c["secagg"]), ""],
        [
            "SecAgg+: a client's four messages (`oneshot`'s one)",
            f"{c['secagg_bytes'] / 1e6:.2f} MB ({c['bytes'] / 1e6:.2f})",
            "",
        ],
        ["client time, SecAgg+ over `oneshot`", f"{faster:.0f}x", f"at least 20x: {verdict(faster >= 20)}"],
        ["bytes up, SecAgg+ over `oneshot`", f"{fewer:.1f}x", f"at least 3x: {verdict(fewer >= 3)}"],
        [
            "Willow: a client's message, computed from its published parameters",
            f"{willow / 1e6:.2f} MB ({willow / c['bytes']:.2f}x)",
            "",
        ],
        ["LeNet-5 (61,706 values), a client's total", ms(c["lenet"]), f"at most 3 ms: {verdict(c['lenet'] <= 3e-3)}"],
        *_many_rows("its readers open it", blind),
        *_many_rows("the server opens it", seen),
        ["the same round of SecAgg+, 20 neighbours: the server's unmasking alone", f"{peer['server']:.1f} s", ""],
    ]
    when = datetime.date.today()
    stamp = (
        f"Written by `make bench-oneshot` on {when}: {machine()}. A client's times are medians of {_REPEATS}, "
        f"SecAgg+'s of {_PEERS} clients, with the least beside them; the rest is once."
    )
    return f"{stamp}\n\n{table(['figure', 'measured', 'target'], rows)}"


def _many_rows(what: str, r: dict[str, float]) -> list[list[str]]:
    total = r["server"] + r["members"]
    round_ = f"1,000 clients, 30 % away, 61,706 values, {what}"
    measured = f"{total:.2f} s, of which members {r['members']:.2f}"
    return [
        [f"{round_}: server and all members after the last upload", measured, f"at most 2 s: {verdict(total <= 2)}"],
        ["opening that sum; exact", f"{ms(r['opened'])}; {'yes' if r['exact'] else 'NO'}", ""],
    ]


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "client": client,
    "many-readers": lambda: many("clients"),
    "many-server": lambda: many("server"),
    "secagg": secagg_many,
}


def main() -> None:
    text = report()
    print(text)
    into_page("explanation/oneshot.md", "bench", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fedcipher-bench-") as state:
        os.environ["FEDCIPHER_STATE_DIR"] = str(Path(state))
        print(dumps(CASES[sys.argv[1]]())) if len(sys.argv) > 1 else main()
