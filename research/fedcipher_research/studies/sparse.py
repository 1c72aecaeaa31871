"""FLASHE, Fig. 10 and Fig. 11: updates of the largest values only, at five levels, against Paillier and dense ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from fedcipher._units import number, seconds, size
from fedcipher.codec import Array, Codec
from fedcipher.schemes import scheme

from fedcipher_research.published import doubt, figure, setup
from fedcipher_research.published.verdict import judged, stated
from fedcipher_research.studies.apps import APPLICATIONS, application_sizes
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best, ledgers

__all__ = ["run"]

_PAPER = "flashe"
_SPARSITY = (20, 60, 80, 90, 99)
# Paillier is measured on this many values, because all ciphertexts cost the same.
_SAMPLE = 256


@dataclass(frozen=True)
class _Cost:
    """Seconds and bytes of one client."""

    encrypt: float
    decrypt: float
    up: int
    down: int


def run(settings: StudySettings) -> Findings:
    """Encrypt, add and decrypt sparse updates of the three models' sizes."""
    clients, chosen = int(setup(_PAPER)["clients"]), int(setup(_PAPER)["sparsification"]["s_percent"])
    found = Findings(
        f"Sparse updates of {clients} clients at {', '.join(map(str, _SPARSITY))} % sparsity, 16 bits",
        [],
        [
            f"Paillier, a ciphertext a value, is measured on {_SAMPLE} values and scaled to the values sent; its "
            "decryption is taken of as many as one client sends, where a sum has more coordinates",
            "random updates, whose largest values are elsewhere at each client: an aggregate has more coordinates "
            "than one of training would",
            "an AWS c5.4xlarge of 16 vCPU there, two cores here; both schemes on the same machine",
        ],
    )
    rows = [["model", "sparsity", "values sent", "scheme", "encryption", "decryption", "up", "down"]]
    ratios: list[float] = []
    cuts: list[float] = []
    blown: list[float] = []
    common: list[int] = []
    owned: list[float] = []
    with ledgers():
        a_value = _paillier(clients, settings.runs)
        for model, values in application_sizes().items():
            dense = _measured("plain", clients, values, None, settings.runs)
            rows.append([APPLICATIONS[model], "0", f"{values:,}", "plain", *_row(dense)])
            for percent in _SPARSITY:
                top = (100 - percent) / 100
                sent = int(np.ceil(top * values))
                plain = _measured("plain", clients, values, top, settings.runs)
                shared = _measured("flashe", clients, values, top, settings.runs)
                own = _measured("flashe", clients, values, top, settings.runs, own=True)
                paillier = _Cost(a_value.encrypt * sent, a_value.decrypt * sent, a_value.up * sent, a_value.down * sent)
                named = {
                    "plain, common set": plain,
                    "FLASHE, common set": shared,
                    "FLASHE, each its own": own,
                    "Paillier 2048, unpacked": paillier,
                }
                for name, cost in named.items():
                    rows.append([APPLICATIONS[model], f"{percent} %", f"{sent:,}", name, *_row(cost)])
                    found.figures[f"{model}, {percent} %, {name}"] = vars(cost)
                if percent == 100 - chosen:
                    spent = paillier.encrypt + paillier.decrypt
                    ratios.append(spent / (own.encrypt + own.decrypt))
                    cuts.append(dense.up / plain.up)
                    blown.append(paillier.up / dense.up)
                    common.append(shared.up - plain.up)
                    owned.append(own.up / plain.up)
            settings.say(f"{model}: Paillier computes {number(ratios[-1])} times as long at {chosen} % sent")
    found.tables.append(Table("One client, a round", rows))
    found.notes.append(f"seconds are the least of {settings.runs}; bytes are of whole frames")
    double = (doubt(_PAPER, "Sparsification speed-up over Paillier"),)
    for at, here in enumerate((min(ratios), max(ratios))):
        found.outcomes.append(
            judged(
                f"less computation than Paillier, {('least', 'most')[at]} of three models",
                figure(_PAPER, "Fig. 10", "less computation than Paillier", at),
                here,
                better="larger",
                because="Paillier on one core and scaled from a part, 16 processors there",
                doubts=double,
            )
        )
    mask = (doubt(_PAPER, "5x instead of 10x uplink saving"),)
    found.outcomes += [
        judged(
            "plain uplink cut, the least of three models",
            figure(_PAPER, "Fig. 11", "plaintext uplink cut by sparsification"),
            min(cuts),
            better="larger",
            because="a common set here, of which no coordinate travels; each client's own there, with its mask",
            doubts=mask,
        ),
        judged(
            "Paillier's uplink over the dense plain one, the most of three models",
            figure(_PAPER, "Fig. 11", "uplink inflation with Paillier, around"),
            max(blown),
            doubts=mask,
        ),
        stated(
            "FLASHE's uplink, a common set of coordinates",
            figure(_PAPER, "Fig. 11", "FLASHE footprint"),
            f"{max(common)} bytes more than the sparse plain one",
            max(common) <= 0,
        ),
        stated(
            "FLASHE's uplink, each client's own coordinates",
            figure(_PAPER, "Fig. 11", "FLASHE footprint"),
            f"{number(max(owned))} times the sparse plain one of a common set",
            max(owned) <= 1,
        ),
    ]
    return found


def _row(cost: _Cost) -> list[str]:
    return [seconds(cost.encrypt), seconds(cost.decrypt), size(cost.up), size(cost.down)]


@lru_cache(maxsize=1)
def _updates(clients: int, values: int) -> list[list[Array]]:
    rng = np.random.default_rng(0)
    return [[rng.normal(0, 0.2, values).astype(np.float32)] for _ in range(clients)]


def _measured(name: str, clients: int, values: int, top: float | None, runs: int, *, own: bool = False) -> _Cost:
    codec = Codec(bits=16, clip=1.0, top=None if own else top)
    params = {"per_client_top": top} if own else {}
    made = scheme(name, clients=clients, codec=codec, **params)
    keys = made.keygen(clients, epoch=1)
    updates = _updates(clients, values)
    encryptor = made.encryptor(keys.client(0))
    like: list[Array] = [np.zeros(values, np.float32)]
    rounds = iter(range(1, runs + 1))
    encrypt, first = best(lambda: encryptor.encrypt(updates[0], round=next(rounds)), runs)
    aggregator = made.aggregator(keys.server())
    aggregator.add(first)
    for client in range(1, clients):
        aggregator.add(made.encryptor(keys.client(client)).encrypt(updates[client], round=runs))
    frame = aggregator.finish()
    decryptor = made.decryptor(keys.client(0))
    decrypt, _ = best(lambda: decryptor.decrypt(frame, like=like), runs)
    return _Cost(encrypt, decrypt, len(first), len(frame))


def _paillier(clients: int, runs: int) -> _Cost:
    """The cost of one value under Paillier."""
    made = scheme("paillier", clients=clients, min_contributions=1, packing="none", codec=Codec(bits=16, clip=1.0))
    keys = made.keygen(1)
    update: list[Array] = [np.random.default_rng(0).normal(0, 0.2, _SAMPLE).astype(np.float32)]
    encryptor = made.encryptor(keys.client(0))
    rounds = iter(range(1, runs + 1))
    encrypt, frame = best(lambda: encryptor.encrypt(update, round=next(rounds)), runs)
    aggregator = made.aggregator(keys.server())
    aggregator.add(frame)
    opened = aggregator.finish()
    decryptor = made.decryptor(keys.client(0))
    decrypt, _ = best(lambda: decryptor.decrypt(opened), runs)
    return _Cost(encrypt / _SAMPLE, decrypt / _SAMPLE, len(frame) // _SAMPLE, len(opened) // _SAMPLE)
