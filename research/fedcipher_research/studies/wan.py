"""FLASHE, Fig. 1, Fig. 7, Fig. 8 and Table 4: iterations of three models over five sites, and their cost.

A client's work is measured alone. Transfers are measured in network namespaces, all clients at once, at the rate that
the paper prints for its slowest links. An iteration is the sum of both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fedcipher._units import number, seconds, size
from fedcipher.bench.link import Link
from fedcipher.codec import Array, Codec
from fedcipher.schemes import scheme

from fedcipher_research._optional import require
from fedcipher_research.published import cell, doubt, figure, setup
from fedcipher_research.published.verdict import Outcome, judged
from fedcipher_research.studies.apps import APPLICATIONS, application_sizes
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.netns import Exchange, Wan, wan
from fedcipher_research.studies.timing import best, clocked, ledgers
from fedcipher_research.studies.training import BATCHES, one_pass

__all__ = ["Iteration", "cost", "prices", "run"]

_PAPER = "flashe"
_MODES = {
    "Plain": ("plain", ""),
    "FLASHE": ("flashe", ""),
    "Pai+Bat": ("paillier", ""),
    "FV+Bat": (
        "bfv-lib",
        "N = 8192 and t = 1964769281 there; SEAL's defaults at N = 4096 and a modulus made for the sum here",
    ),
    "CKKS+Bat": (
        "ckks",
        "N = 8192 and a scale of 2^40 at both, but coeff_mod_bit_sizes None there and 60, 40, 60 here",
    ),
}
_BASELINES = {"Pai+Bat": "Paillier", "FV+Bat": "FV", "CKKS+Bat": "CKKS"}
# The (model, data set) with which the training of each application is timed.
_TRAINED = {"ResNet": ("resnet20", "cifar10"), "GRU": ("gru-0.66m", "shakespeare"), "CNN": ("cnn-1.2m", "mnist")}
# A slower baseline than the paper's makes a speed-up over the baseline larger, so such a speed-up is not comparable.
_SLOWER = "batched Paillier takes several times as long here as there (Table 2), on one core in the place of 16"
_THEIRS = "a baseline, which nothing here is to beat"
_OTHER = "training here is of other data or of a part of them, on two shared cores"
# Paillier is measured on this many values and scaled, because all ciphertexts cost the same.
_PAILLIER_VALUES = 16_384
# This many updates are added, and the time is scaled: every update after the first takes the same time.
_ADDED = 3
_PROBE = {True: 10_000_000, False: 500_000_000}
_GIB = float(1 << 30)


@dataclass(frozen=True)
class Work:
    """Seconds and bytes of a client and of the server, for one iteration."""

    encrypt: float
    decrypt: float
    add: float
    up: int
    down: int


@dataclass(frozen=True)
class Iteration:
    """One iteration at a client."""

    train: float
    crypto: float
    idle: float
    """Seconds of transfers both ways and of the server's addition."""
    up: int
    down: int

    @property
    def total(self) -> float:
        return self.train + self.crypto + self.idle

    @property
    def traffic(self) -> int:
        return self.up + self.down


def prices() -> dict[str, Any]:
    """Published prices, each with its source, and the day of the look-up."""
    return json.loads((Path(__file__).parent / "prices.json").read_text(encoding="utf-8"))


def cost(one: Iteration, iterations: int, clients: int, remote: int) -> float:
    """The cost of ``iterations`` in dollars: machines by the hour, and traffic between regions."""
    found = prices()
    hours = one.total * iterations / 3600
    machines = clients * found["client"]["price"] + found["server"]["price"]
    return hours * machines + iterations * remote * one.traffic / 1e9 * found["traffic"]["price"]


def run(settings: StudySettings) -> Findings:
    """Measure the work and transfers of every mode and model. Raises `BenchError` without network namespaces."""
    require("fedcipher-research bench flashe-wan", "phe", "gmpy2", "tenseal")
    clients, regions = int(setup(_PAPER)["clients"]), setup(_PAPER)["hardware"]["regions"]
    rate = settings.link.bandwidth or figure(_PAPER, "Fig. 1", "tail WAN bandwidth, e.g.").number * 1e6
    link = Link(rate, settings.link.latency)
    # Each site has two clients. The server's own site is a LAN.
    local = [2 * regions.index("Ohio") + k for k in range(2)]
    links = [Link() if k in local else link for k in range(clients)]
    found = Findings(
        f"{clients} clients at {len(regions)} sites, two at the server's own; other links {link}",
        [],
        [
            "links of EC2 regions there, each as fast as it is; here `tc tbf` at the printed rate of the slowest, and "
            "the clients at the server's site unshaped",
            "16 virtual cores a client there; here two shared cores, each client's work measured by itself",
            "training: ResNet-20 on a subset of CIFAR-10 of 20,000 images, a GRU on characters of tiny "
            "Shakespeare, the CNN on MNIST; the sizes that are encrypted and sent are the paper's",
            f"batched Paillier is measured on {_PAILLIER_VALUES:,} values and scaled",
        ],
    )
    train = {name: _training(settings, name, clients) for name in APPLICATIONS}
    with ledgers(), wan(links) as net:
        _bandwidth(found, net, regions, local)
        iterations: dict[str, dict[str, Iteration]] = {}
        for name, values in application_sizes().items():
            iterations[name] = {}
            for mode, (kind, _) in _MODES.items():
                spent = _work(kind, clients, values, settings.runs)
                moved = net.exchange(Exchange(spent.up, spent.down))
                idle = max(moved["up"].values()) + spent.add + max(moved["down"].values())
                one = Iteration(train[name], spent.encrypt + spent.decrypt, idle, spent.up, spent.down)
                iterations[name][mode] = one
                found.figures[f"{name}, {mode}"] = {**vars(one), **vars(spent), "moved": moved}
                settings.say(f"{name}, {mode}: {seconds(one.total)}, {seconds(idle)} of it idle")
    _tables(found, iterations, clients, clients - len(local))
    _figure7(found, iterations)
    _figure8(found, iterations)
    _table4(found, iterations, clients, clients - len(local))
    return found


def _training(settings: StudySettings, name: str, clients: int) -> float:
    model, data = _TRAINED[name]
    batch = int(setup(_PAPER)["batch_size"])
    spent, _ = one_pass(model, data, settings.data_dir, clients=clients, batch=batch, runs=1)
    settings.say(f"{model}: a pass over a client's examples in {seconds(spent)}")
    return spent


def _work(kind: str, clients: int, values: int, runs: int) -> Work:
    measured = min(values, _PAILLIER_VALUES) if kind == "paillier" else values
    one, scale = _measured(kind, clients, measured, runs), values / measured
    up, down = (round(count * scale) for count in (one.up, one.down))
    return Work(one.encrypt * scale, one.decrypt * scale, one.add * scale, up, down)


@cache
def _measured(kind: str, clients: int, measured: int, runs: int) -> Work:
    made = scheme(kind, clients=clients, min_contributions=1, codec=Codec(bits=16, clip=1.0))
    keys = made.keygen(clients)
    update: list[Array] = [np.random.default_rng(0).normal(0, 0.2, measured).astype(np.float32)]
    # Costly schemes run once, because only other work on the machine makes runs differ.
    runs = 1 if kind in ("paillier", "ckks", "bfv-lib") else runs
    encryptor = made.encryptor(keys.client(0))
    rounds = iter(range(1, runs + 1))
    encrypt, first = best(lambda: encryptor.encrypt(update, round=next(rounds)), runs)
    aggregator = made.aggregator(keys.server())
    adding, _ = clocked(aggregator.add, first)
    others = 0.0
    for client in range(1, _ADDED):
        frame = made.encryptor(keys.client(client)).encrypt(update, round=runs)
        others += clocked(aggregator.add, frame)[0] / (_ADDED - 1)
    adding += others * (clients - 1)
    finish, opened = clocked(aggregator.finish)
    decryptor = made.decryptor(keys.client(0))
    decrypt, _ = best(lambda: decryptor.decrypt(opened), runs)
    return Work(encrypt, decrypt, adding + finish, len(first), len(opened))


def _bandwidth(found: Findings, net: Wan, regions: list[str], local: list[int]) -> None:
    rows = [["site", "link", "up", "down"]]
    rates: dict[bool, list[float]] = {True: [], False: []}
    for at, region in enumerate(regions):
        client = 2 * at
        remote = client not in local
        count = _PROBE[remote]
        moved = net.exchange(Exchange(count, count, (client,)))
        both = [8 * count / moved[way][str(client)] for way in ("up", "down")]
        rates[remote] += both
        rows.append([region, "WAN" if remote else "LAN", *(f"{r / 1e6:,.4g} Mbit/s" for r in both)])
        found.figures[f"bandwidth, {region}"] = both
    found.tables.append(Table("Bandwidth between each site's client and the server, one at a time", rows))
    because = "the links are made here at the printed rate, not found"
    slow = float(np.mean(rates[True]))
    found.outcomes += [
        judged("slowest link", figure(_PAPER, "Fig. 1", "tail WAN bandwidth, e.g."), slow / 1e6, because=because),
        judged(
            "WAN below LAN",
            figure(_PAPER, "Fig. 1", "WAN below LAN, average"),
            float(np.mean(rates[False])) / slow,
            because=because,
        ),
    ]


def _tables(found: Findings, iterations: dict[str, dict[str, Iteration]], clients: int, remote: int) -> None:
    rows = [["model", "mode", "training", "encryption, decryption", "idle", "iteration", "up", "down"]]
    money = [["model", "mode", "iterations", "time", "traffic of a client", "cost"]]
    for name, modes in iterations.items():
        count = _iterations(name)
        for mode, one in modes.items():
            spent = [seconds(x) for x in (one.train, one.crypto, one.idle, one.total)]
            rows.append([APPLICATIONS[name], mode, *spent, size(one.up), size(one.down)])
            hours, traffic = one.total * count / 3600, one.traffic * count / _GIB
            dollars = cost(one, count, clients, remote)
            money.append(
                [APPLICATIONS[name], mode, str(count), f"{hours:.3g} h", f"{traffic:.3g} GiB", f"{dollars:.2f} $"]
            )
    found.tables.append(Table("An iteration at a client", rows))
    found.tables.append(Table("Projected to the epochs of Fig. 9, an iteration an epoch", money))
    for entry in ("client", "server", "traffic"):
        price = prices()[entry]
        said = f"price: {price['what']}, {price['region']}: {price['price']} $ ({price['source']}, {prices()['seen']})"
        found.notes.append(said)
    found.notes.append(f"training: {BATCHES} batches, scaled to a pass; adding: {_ADDED} updates, scaled to all")
    found.notes.append("idle: the slowest client's transfers both ways and the server's adding, between them")


def _iterations(name: str) -> int:
    what = {"ResNet": "ResNet-20 reached at epoch", "GRU": "GRU at epoch", "CNN": "CNN at epoch"}[name]
    return int(figure(_PAPER, "Fig. 9", what).number)


def _ends(name: str, here: list[float], what: str, place: str, **more: Any) -> list[Outcome]:
    """Compare both ends of a printed range with the least and the most of ``here``."""
    return [
        judged(f"{what}, {('least', 'most')[at]}", figure(_PAPER, place, name, at), value, **more)
        for at, value in enumerate((min(here), max(here)))
    ]


def _figure7(found: Findings, iterations: dict[str, dict[str, Iteration]]) -> None:
    ours = {name: modes["FLASHE"] for name, modes in iterations.items()}
    least = (doubt(_PAPER, "Key results give 3.2x-15.1x"),)
    gains: list[float] = []
    for mode, named in _BASELINES.items():
        factors = [iterations[name][mode].total / one.total for name, one in ours.items()]
        for name, one in ours.items():
            theirs = iterations[name][mode]
            gains.append(100 * (theirs.idle - one.idle) / (theirs.total - one.total))
        because = _SLOWER if mode == "Pai+Bat" else _MODES[mode][1]
        what = f"speed-up over {named}+Batching"
        found.outcomes += _ends(what, factors, what, "Fig. 7", better="larger", because=because, doubts=least)
    mixed = "of three baselines, two of them with other parameters than there"
    what = "share of the gain from less communication (idle)"
    found.outcomes += _ends(what, gains, what, "Fig. 7", better="larger", because=mixed)
    over = [100 * (one.total / iterations[name]["Plain"].total - 1) for name, one in ours.items()]
    found.outcomes += _ends("overhead over plaintext", over, "overhead over plaintext", "Fig. 7", because=_OTHER)
    ahead = (doubt(_PAPER, "En-/decryption at most 0.8 s"),)
    for what, here, doubts in (
        ("en-/decryption share of iteration, at most", max(100 * o.crypto / o.total for o in ours.values()), ()),
        ("en-/decryption time, at most", max(o.crypto for o in ours.values()), ahead),
        ("communication share of iteration, up to", max(100 * o.idle / o.total for o in ours.values()), ()),
    ):
        bound = "" if what.endswith("up to") else "at most"
        because = "" if what.startswith("en-/decryption time") else _OTHER
        printed = figure(_PAPER, "Fig. 7", what)
        found.outcomes.append(judged(what, printed, here, bound=bound, doubts=doubts, because=because))


def _figure8(found: Findings, iterations: dict[str, dict[str, Iteration]]) -> None:
    cuts = {
        mode: [modes[mode].traffic / modes["FLASHE"].traffic for modes in iterations.values()] for mode in _BASELINES
    }
    name = "cut against batched Paillier, FV, CKKS, around"
    for at, mode in ((0, "Pai+Bat"), (1, "CKKS+Bat")):
        here = (min, max)[at](cuts[mode])
        printed = figure(_PAPER, "Fig. 8", name, at)
        what = f"traffic cut against {_BASELINES[mode]}, {('least', 'most')[at]} of three models"
        found.outcomes.append(judged(what, printed, here, better="larger", because=_MODES[mode][1]))
    inflation = max(100 * (modes["FLASHE"].traffic / modes["Plain"].traffic - 1) for modes in iterations.values())
    found.outcomes.append(
        judged("traffic over plain", figure(_PAPER, "Fig. 8", "inflation of FLASHE against plaintext"), inflation)
    )
    found.notes.append(f"FLASHE's traffic is {number(inflation)} % above plain, of three models the most")


def _table4(found: Findings, iterations: dict[str, dict[str, Iteration]], clients: int, remote: int) -> None:
    fits = (doubt(_PAPER, "Table 2 plaintext sizes are 20 bits"),)
    for name, modes in iterations.items():
        count = _iterations(name)

        def figures(one: Iteration, count: int = count) -> tuple[float, float, float]:
            return one.total * count / 3600, one.traffic * count / _GIB, cost(one, count, clients, remote)

        plain = figures(modes["Plain"])
        for mode, one in modes.items():
            row, reason = {"model": name, "mode": mode}, _MODES[mode][1]
            for column, here, base in zip(("time", "traffic", "cost"), figures(one), plain, strict=True):
                because = reason or (_THEIRS if mode != "FLASHE" else "" if column == "traffic" else _OTHER)
                unit = {"time": "time_h", "traffic": "traffic_GB", "cost": "cost_usd"}[column]
                doubts = fits if column == "traffic" else ()
                for named, value in ((unit, here), (f"{column}_x", here / base)):
                    if mode == "Plain" and named.endswith("_x"):
                        continue
                    printed = cell(_PAPER, "Table 4", row, named)
                    what = f"{APPLICATIONS[name]}, {mode}: {named}"
                    found.outcomes.append(judged(what, printed, value, because=because, doubts=doubts))
