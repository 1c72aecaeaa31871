"""FedBit, Fig. 2: two weights of three clients in one coefficient, packed, added under encryption and unpacked."""

from __future__ import annotations

import numpy as np
from fedcipher._optional import load
from fedcipher.codec import Array, Codec
from fedcipher.errors import BenchError
from fedcipher.schemes import Scheme, scheme

from fedcipher_research.published import Published, doubt, figure
from fedcipher_research.published.verdict import Outcome, judged
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import ledgers

__all__ = ["run"]

_PAPER, _PLACE = "fedbit", "Fig. 2"
_BITS, _MARGIN, _CLIENTS = 8, 2, 3
_SCHEMES = ("bfv", "bfv-lib", "paillier")


def run(settings: StudySettings) -> Findings:
    """Pack, add and unpack with the product's code, in both orders of the two weights."""
    weights = _weights()
    rows, outcomes = [["order", "one client's coefficient", "sum of three", "unpacked"]], list[Outcome]()
    figures: dict[str, object] = {"weights": weights}
    order = (doubt(_PAPER, "Fig. 2 text"),)
    for name, turned in (("the second weight shifted", False), ("the first weight shifted", True)):
        first, total, unpacked = _packed(weights, turned)
        rows.append([name, f"{first:,}", f"{total:,}", f"{unpacked[0]}, {unpacked[1]}"])
        figures[name] = {"coefficient": first, "sum": total, "unpacked": unpacked}
        for what, here in (("packed coefficient", first), ("aggregated coefficient", total)):
            printed = figure(_PAPER, _PLACE, what)
            # One of the two printed coefficients has the other order.
            because = "" if here == printed.number else "this coefficient is of the other order of the two weights"
            outcomes.append(judged(f"{name}: {what}", printed, here, because=because, doubts=order))
    for name in _SCHEMES:
        sums, means = _encrypted(name, weights)
        settings.say(f"{name}: sums {sums}, averages {means}")
        figures[name] = {"sums": sums, "averages": means}
        for what, found in (("aggregated weights", sums), ("averages", means)):
            for at, here in enumerate(found):
                outcomes.append(judged(f"{name}: {what}, w{at + 1}", figure(_PAPER, _PLACE, what, at), here))
    shown = Table("Coefficients", rows)
    given = f"weights of the three clients: {', '.join(f'({a}, {b})' for a, b in weights)}"
    return Findings(
        "Two weights of 8 bits with a margin of 2, three clients",
        outcomes,
        [
            "the other two clients' weights are not in the figure: they are halves of what its sums leave",
            "weights go in as what 8 bits of a range of 1 stand for, and come out as the sums that are decrypted",
        ],
        [shown],
        [given, "coefficients: fields of gmpy2.pack, as `paillier` packs; sums: decrypted aggregates of real schemes"],
        figures,
    )


def _weights() -> list[tuple[int, int]]:
    """The weights of each client: one whose weights the figure names, and two that share the rest."""
    named = {part[:2]: int(part[3:]) for part in str(figure(_PAPER, _PLACE, "weights packed").value).split(", ")}
    mine = (named["w1"], named["w2"])
    sums = [int(_sum(at).number) for at in range(2)]
    halves = [(sums[at] - mine[at]) // 2 for at in range(2)]
    last = [sums[at] - mine[at] - halves[at] for at in range(2)]
    return [mine, (halves[0], halves[1]), (last[0], last[1])]


def _sum(at: int) -> Published:
    return figure(_PAPER, _PLACE, "aggregated weights", at)


def _packed(weights: list[tuple[int, int]], turned: bool) -> tuple[int, int, list[int]]:
    """The first client's coefficient, the sum of all, and the unpacked sum."""
    gmpy2 = load("gmpy2")
    width = _BITS + _MARGIN
    coefficients = [int(gmpy2.pack(list(pair)[::-1] if turned else list(pair), width)) for pair in weights]
    total = sum(coefficients)
    unpacked = [int(x) for x in gmpy2.unpack(gmpy2.mpz(total), width)]
    return coefficients[0], total, unpacked[::-1] if turned else unpacked


def _encrypted(name: str, weights: list[tuple[int, int]]) -> tuple[list[int], list[float]]:
    """Sums and averages of the integers, from a decrypted aggregate."""
    codec = Codec(bits=_BITS, clip=1.0)
    made: Scheme = scheme(name, clients=_CLIENTS, codec=codec)
    middle = made.levels.of(_BITS) // 2
    with ledgers():
        keys = made.keygen(_CLIENTS)
        aggregator = made.aggregator(keys.server())
        for client, pair in enumerate(weights):
            update: list[Array] = [(np.asarray(pair, np.float64) / middle - 1).astype(np.float32)]
            aggregator.add(made.encryptor(keys.client(client)).encrypt(update, round=1))
        frame = aggregator.finish()
        sums = [int(x) for x in made.decryptor(keys.client(0)).sums(frame)]
        means = [float((x + 1) * middle) for x in made.decryptor(keys.client(0)).decrypt(frame)[0]]
    if sums != [sum(pair[at] for pair in weights) for at in range(2)]:
        raise BenchError(f"{name}: the decrypted sums are {sums}")
    return sums, means
