"""FedNIC, Table 3 and Fig. 3 to Fig. 7: its CNN, two clients; plain, encrypted on the host, encrypted in the engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcipher import _native
from fedcipher._optional import require
from fedcipher._units import number, seconds, size
from fedcipher.codec import Array, Codec
from fedcipher.data import load
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import start_engines
from fedcipher.errors import BenchError
from fedcipher.published import cell, doubt, figure, setup
from fedcipher.published.verdict import judged, stated
from fedcipher.schemes import Decryptor, Encryptor, Scheme, scheme
from fedcipher.schemes.apart import running
from fedcipher.studies.findings import Asked, Findings, Table
from fedcipher.studies.netns import Exchange, wan
from fedcipher.studies.timing import best, clocked, ledgers

__all__ = ["run"]

_PAPER = "fednic"
_MODEL, _CLASSES = "cnn-1.2m", 62
# Paillier's cost is a ciphertext's times their number.
# Why a round of ours is not one of the paper's.
_OTHER = "another scheme than the paper's CKKS, of values of 12 bits"
_SAMPLE = 64
_HOST = ("ckks", "bfv", "flashe")
_ENGINE = ("bfv", "flashe")


@dataclass(frozen=True)
class _Round:
    """Seconds of a client and the server, bytes of a client."""

    train: float
    encrypt: float
    decrypt: float
    add: float
    up: int
    down: int
    network: float = 0.0
    """Both ways, the slower client's."""
    hop: float = 0.0
    """What the engine adds to encryption and decryption in this process."""
    host: float = 0.0
    """Processor time of encryption and decryption in this process and in those that a library works in for it."""

    @property
    def communication(self) -> float:
        return self.network + self.hop

    @property
    def workflow(self) -> float:
        return self.train + self.encrypt + self.decrypt + self.add + self.network


def run(asked: Asked) -> Findings:
    """Train once, then measure each way to send the update. Raises `BenchError` without network namespaces."""
    require("fedcipher bench fednic", "baselines", "tenseal", "phe", "gmpy2")
    given = setup(_PAPER)
    clients = int(given["clients"])
    found = Findings(
        f"The CNN of FedNIC with {clients} clients: plain, encrypted on the host, encrypted in the engine",
        [],
        [
            "FEMNIST was not at hand: images of MNIST, a model of 62 classes as there",
            "one round is timed, and each of its parts as often as is said below; 50 rounds there",
            "the engine is a process of the same machine, over a Unix socket; a SmartNIC there",
            "CKKS by TenSEAL on the host: Palisade is not kept any more, and OpenFHE, which took its place, has wheels "
            "for other versions of Python than this machine's; the engine has no library schemes, so BFV and FLASHE "
            "stand for encryption in it",
            "plain is float32 here; there every weight is a Python object",
            f"the network: {asked.link}; its speed is not given there, and the faster it is, the more weighs the hop",
        ],
    )
    update, train = _training(asked, given)
    values = sum(x.size for x in update)
    asked.say(f"{_MODEL}: {values:,} weights, a round's training {seconds(train)}")
    rounds: dict[str, _Round] = {}
    with ledgers(), wan([asked.link] * clients) as net:
        raw = 4 * values
        add, _ = best(lambda: [np.mean([x] * clients, axis=0) for x in update], asked.runs)
        measured = {"plain": _Round(train, 0.0, 0.0, add, raw, raw)}
        for name in _HOST:
            measured[f"{name} on the host"] = _host(name, update, clients, train, asked.runs)
        for name in _ENGINE:
            measured[f"{name} in the engine"] = _engine(
                name, update, clients, measured[f"{name} on the host"], asked.runs
            )
        for name, one in measured.items():
            moved = [net.exchange(Exchange(one.up, one.down)) for _ in range(asked.runs)]
            network = min(max(m["up"].values()) + max(m["down"].values()) for m in moved)
            rounds[name] = replace(one, network=network)
            found.figures[name] = vars(rounds[name])
            asked.say(f"{name}: {seconds(rounds[name].workflow)} a round")
        paillier = _paillier(clients, values, asked.runs)
    found.figures["paillier"] = paillier
    _table(found, rounds, paillier, asked)
    _compare(found, rounds, paillier, values, raw)
    return found


def _training(asked: Asked, given: dict[str, Any]) -> tuple[list[Array], float]:
    from fedcipher.models import Learner

    data = load("mnist", str(Path(asked.data_dir) / "mnist"))
    images, epochs = int(given["dataset"]["images_per_round_and_client"]), int(given["epochs_per_round"])
    learner = Learner(_MODEL, _CLASSES, data.train_x[0], batch=images)
    start = learner.initial()
    x, y = data.train_x[:images], data.train_y[:images]
    learner.fit(start, x, y, epochs=2, seed=0)
    spent, (trained, _) = best(lambda: learner.fit(start, x, y, epochs=epochs, seed=0), asked.runs)
    return [np.asarray(a - b, np.float32) for a, b in zip(trained, start, strict=True)], spent


def _made(name: str, clients: int) -> Scheme:
    return scheme(name, clients=clients, min_contributions=1, codec=Codec(bits=12, clip=1.0))


def _host(name: str, update: list[Array], clients: int, train: float, runs: int) -> _Round:
    made = _made(name, clients)
    keys = made.keygen(clients)
    encryptors = [made.encryptor(keys.client(c)) for c in range(clients)]
    return _measured(made, encryptors, made.decryptor(keys.client(0)), keys.server(), update, train, runs)


def _measured(
    made: Scheme,
    encryptors: list[Encryptor],
    decryptor: Decryptor,
    key: _native.ServerKey,
    update: list[Array],
    train: float,
    runs: int,
) -> _Round:
    encrypt = decrypt = add = host = float("inf")
    up = down = 0
    for round_ in range(1, runs + 1):
        began = _processor_time()
        spent, frame = clocked(encryptors[0].encrypt, update, round=round_)
        used = _processor_time() - began
        encrypt = min(encrypt, spent)
        frames = [frame, *(e.encrypt(update, round=round_) for e in encryptors[1:])]

        def whole(frames: list[bytes] = frames) -> bytes:
            aggregator = made.aggregator(key)
            for one in frames:
                aggregator.add(one)
            return aggregator.finish()

        spent, opened = clocked(whole)
        add = min(add, spent)
        began = _processor_time()
        decrypt = min(decrypt, clocked(decryptor.open, opened)[0])
        host = min(host, used + _processor_time() - began)
        up, down = len(frame), len(opened)
    return _Round(train, encrypt, decrypt, add, up, down, host=host)


def _processor_time() -> float:
    import psutil

    # Of others the kernel tells it in hundredths of a second.
    others = [psutil.Process(pid).cpu_times() for pid in running()]
    return time.process_time() + sum(times.user + times.system for times in others)


@contextmanager
def _engines(made: Scheme, clients: int) -> Generator[tuple[list[Encryptor], Decryptor, _native.ServerKey]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcipher-study-"))
        local = stack.enter_context(start_engines(made, clients, Path(folder) / "run"))
        engines = [connect(local.target, device=f"client-{c}") for c in range(clients)]
        key = Authority(local.authority.address, local.server_credentials).current()
        yield [e.encryptor() for e in engines], engines[0].decryptor(), key


def _engine(name: str, update: list[Array], clients: int, host: _Round, runs: int) -> _Round:
    made = _made(name, clients)
    with _engines(made, clients) as (encryptors, decryptor, key):
        found = _measured(made, encryptors, decryptor, key, update, host.train, runs)
    hop = max(0.0, found.encrypt + found.decrypt - host.encrypt - host.decrypt)
    return replace(found, hop=hop)


def _paillier(clients: int, values: int, runs: int) -> dict[str, float]:
    made = scheme("paillier", clients=clients, min_contributions=1, packing="none", codec=Codec(bits=12, clip=1.0))
    keys = made.keygen(clients)
    sample: list[Array] = [np.random.default_rng(0).normal(0, 0.2, _SAMPLE).astype(np.float32)]
    encryptors = [made.encryptor(keys.client(c)) for c in range(clients)]
    one = _measured(made, encryptors, made.decryptor(keys.client(0)), keys.server(), sample, 0.0, runs)
    return {"encrypt": one.encrypt * values / _SAMPLE, "decrypt": one.decrypt * values / _SAMPLE}


def _table(found: Findings, rounds: dict[str, _Round], paillier: dict[str, float], asked: Asked) -> None:
    rows = [
        [
            "mode",
            "training",
            "encryption",
            "decryption",
            "host CPU",
            "network",
            "hop",
            "server",
            "workflow",
            "up",
            "down",
        ]
    ]
    for name, one in rounds.items():
        spent = (one.train, one.encrypt, one.decrypt, one.host, one.network, one.hop, one.add, one.workflow)
        rows.append([name, *(seconds(s) for s in spent), size(one.up), size(one.down)])
    found.tables.append(Table("A round at a client", rows))
    texts = [seconds(paillier["encrypt"]), seconds(paillier["decrypt"])]
    found.notes += [
        f"seconds are the least of {asked.runs}; network: {asked.link}, two clients in network namespaces at once",
        "hop: what encryption and decryption in the engine take more than in this process; workflow includes it once",
        "host CPU: the processor time of encryption and decryption in the client's process and in SEAL's, which opens "
        "in one of its own; an engine's is not in it",
        f"Paillier 2048, a ciphertext a weight, measured on {_SAMPLE} and scaled: encryption {texts[0]}, "
        f"decryption {texts[1]}",
    ]


def _compare(found: Findings, rounds: dict[str, _Round], paillier: dict[str, float], values: int, raw: int) -> None:
    weights = cell(_PAPER, "Table 3", {"type": "Raw"}, "parameters")
    if values != weights.number:
        raise BenchError(f"the model has {values:,} weights where {weights.named} has {weights.value:,}")
    plain = (doubt(_PAPER, "Plain weights of 28,958,160 B"),)
    found.outcomes.append(
        judged("plain weights", cell(_PAPER, "Table 3", {"type": "Raw"}, "weights_B"), raw, doubts=plain)
    )
    for name, one in rounds.items():
        if name != "plain":
            kind = "FedNIC" if "engine" in name else "FedML"
            printed = cell(_PAPER, "Table 3", {"type": kind}, "encrypted_weights_B")
            other = "" if name.startswith("ckks") else _OTHER
            found.outcomes.append(judged(f"encrypted weights, {name}", printed, one.up, because=other, doubts=plain))
    ckks, clear = rounds["ckks on the host"], rounds["plain"]
    slower = (paillier["encrypt"] + paillier["decrypt"]) / (ckks.encrypt + ckks.decrypt)
    found.outcomes.append(
        judged(
            "Paillier slower than TenSEAL's CKKS",
            figure(_PAPER, "Fig. 3", "Paillier slower (text reads against Palisade)"),
            slower,
            because="against TenSEAL's CKKS: Palisade is not here",
            doubts=(doubt(_PAPER, "'40x slower' for Paillier"),),
        )
    )
    again = (doubt(_PAPER, "46% is 'total training time'"),)
    for name in _ENGINE:
        host, engine = rounds[f"{name} on the host"], rounds[f"{name} in the engine"]
        more = 100 * (engine.communication / host.communication - 1)
        found.outcomes.append(
            judged(
                f"{name}: communication in the engine above the host's",
                figure(_PAPER, "Fig. 4", "FedNIC above FedML-HE, about"),
                more,
                because=_OTHER,
            )
        )
        for what, base in (("FedML-HE", host), ("Raw", clear)):
            found.outcomes.append(
                judged(
                    f"{name}: workflow in the engine above {what}",
                    figure(_PAPER, "Fig. 7", f"FedNIC above {what}"),
                    100 * (engine.workflow / base.workflow - 1),
                    because="nearly all of it is one training, which is timed once",
                    doubts=again,
                )
            )
        found.outcomes.append(
            stated(
                f"{name}: adding what came of the engine",
                figure(_PAPER, "Fig. 6", "FedNIC against FedML-HE"),
                f"{seconds(engine.add)}, {seconds(host.add)} of the host's; {size(engine.up)} and {size(host.up)}",
                engine.up == host.up,
            )
        )
        found.outcomes.append(
            stated(
                f"{name}: adding encrypted updates beside plain ones",
                figure(_PAPER, "Fig. 6", "both HE systems against Raw"),
                f"{number(host.add / clear.add)} times as long, CKKS {number(ckks.add / clear.add)} times",
                min(host.add, engine.add) > clear.add,
                because="the paper names no bound",
            )
        )
    found.outcomes.append(
        stated(
            "training under each mode",
            figure(_PAPER, "Fig. 5", "FedNIC against Raw and FedML-HE"),
            f"{seconds(clear.train)} in each",
            True,
            because="it is the same call in every mode and timed once; the paper names no bound",
        )
    )
