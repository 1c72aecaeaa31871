"""FLASHE, Fig. 5, Fig. 12 and Fig. 13: the cost of masks when clients drop out, and the saving of masks made ahead."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from fedcipher import _native
from fedcipher._units import seconds
from fedcipher.codec import Array, Codec
from fedcipher.schemes import KeySet, Scheme, scheme

from fedcipher_research.published import doubt, figure, setup
from fedcipher_research.published.verdict import judged, stated
from fedcipher_research.studies.apps import APPLICATIONS, application_sizes
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best, clocked, ledgers

__all__ = ["double_masks", "expected_double", "expected_single", "run", "runs_of"]

_PAPER = "flashe"
_DRAWS = 50
_RATES = [Fraction(k, 10) for k in range(10)]
# Up to this many clients, every subset is counted.
_WHOLE = 10
_TURNS = 20
_BITS = 16
Masking = Literal["double", "single"]


def runs_of(present: list[int]) -> int:
    """The number of runs of consecutive clients. At both ends of a run, a mask has no neighbour that cancels it."""
    return sum(k == 0 or client != present[k - 1] + 1 for k, client in enumerate(present))


def double_masks(present: list[int]) -> int:
    """Masks for each value of a survivor under double masking: two to encrypt, and two for each run to decrypt."""
    return 2 + 2 * runs_of(present)


def expected_double(clients: int, rate: Fraction) -> Fraction:
    """Masks for each value under double masking, by Theorem 2."""
    return 2 * (-clients * rate * rate + (clients - 1) * rate + 2)


def expected_single(clients: int, rate: Fraction) -> Fraction:
    """Masks for each value under single masking, by Theorem 2: one to encrypt, and one for each survivor to decrypt."""
    return -clients * rate + clients + 1


def run(settings: StudySettings) -> Findings:
    """Count masks, time them under drop-out, and time the rest of the work if masks were made ahead."""
    found = Findings(
        "Masks of FLASHE: counted and timed under drop-out, and what to make them ahead can save",
        [],
        [
            "an AWS c5.4xlarge of 16 vCPU there; FLASHE is Python over PyCryptodome there and Rust here",
            "random updates of the sizes of the three models, no training",
        ],
    )
    _theorem(settings, found)
    with ledgers():
        _dropout(settings, found)
        _ahead(settings, found)
    return found


def _theorem(settings: StudySettings, found: Findings) -> None:
    sizes: list[int] = setup(_PAPER)["dropout_experiment"]["clients"]
    rng = np.random.default_rng(0)
    rows = [["clients", "drop-out", f"double, mean of {_DRAWS} draws", "Theorem 2", "single", "Theorem 2"]]
    crossovers: list[float] = []
    for clients in sizes:
        within = [Fraction(gone, clients) for gone in range(clients)]
        crossovers.append(
            float(max(rate for rate in within if expected_double(clients, rate) <= expected_single(clients, rate)))
        )
        for rate in _RATES:
            left = clients - round(rate * clients)
            drawn = [double_masks(_drawn(rng, clients, left)) for _ in range(_DRAWS)]
            counted = float(np.mean(drawn))
            theory = [f"{float(f(clients, rate)):.2f}" for f in (expected_double, expected_single)]
            rows.append([str(clients), f"{float(rate):.1f}", f"{counted:.2f}", theory[0], str(1 + left), theory[1]])
    found.tables.append(Table("Masks a value and surviving client", rows))
    places = [f"{c} clients: {x:.3f}" for c, x in zip(sizes, crossovers, strict=True)]
    found.figures["crossover"] = dict(zip(map(str, sizes), crossovers, strict=True))
    settings.say(f"crossover, by Theorem 2: {', '.join(places)}")
    found.notes.append(f"largest drop-out rate at which double masking takes no more masks: {', '.join(places)}")
    name = "crossover dropout rate, typical range"
    least, most = (figure(_PAPER, "Fig. 5", name, at) for at in (0, 1))
    what = f"of {len(sizes)} cohorts, crossover of Theorem 2"
    found.outcomes += [
        judged(f"lowest {what}", least, min(crossovers), better="larger", bound="over"),
        judged(f"highest {what}", most, max(crossovers), bound="at most"),
    ]
    every = [(n, left) for n in range(2, _WHOLE + 1) for left in range(1, n + 1)]
    same = all(_mean(n, left) == expected_double(n, Fraction(n - left, n)) for n, left in every)
    said = f"equal to the mean over every subset of up to {_WHOLE} clients" if same else "differs from what is counted"
    double = figure(_PAPER, "Fig. 5", "double masking, expected masks per surviving client")
    found.outcomes.append(stated("double masking, masks expected", double, said, same))


def _mean(clients: int, left: int) -> Fraction:
    subsets = list(itertools.combinations(range(clients), left))
    return Fraction(sum(double_masks(list(subset)) for subset in subsets), len(subsets))


def _drawn(rng: np.random.Generator, clients: int, left: int) -> list[int]:
    return sorted(int(c) for c in rng.permutation(clients)[:left])


@dataclass
class _Cohort:
    """Frames of one round from every client. Any of them can be added."""

    scheme: Scheme
    keys: KeySet
    frames: list[bytes]
    encrypt: float

    @classmethod
    def of(cls, clients: int, values: int, masking: Masking, runs: int) -> _Cohort:
        codec = Codec(bits=_BITS, clip=1.0)
        made = scheme("flashe", clients=clients, min_contributions=1, masking=masking, codec=codec)
        keys = made.keygen(clients)
        update: list[Array] = [np.random.default_rng(0).normal(0, 0.2, values).astype(np.float32)]
        encryptor = made.encryptor(keys.client(0))
        rounds = iter(range(1, runs + 2))
        encrypt, first = best(lambda: encryptor.encrypt(update, round=next(rounds)), runs)
        number = next(rounds) - 1
        frames = [first]
        frames += [made.encryptor(keys.client(c)).encrypt(update, round=number) for c in range(1, clients)]
        return cls(made, keys, frames, encrypt)

    def decrypt(self, present: list[int]) -> float:
        """Seconds to open the sum of these clients' frames."""
        aggregator = self.scheme.aggregator(self.keys.server())
        for client in present:
            aggregator.add(self.frames[client])
        frame = aggregator.finish()
        # A ledger refuses another set of clients of the same round, so each call gets its own ledgers.
        with ledgers():
            decryptor = self.scheme.decryptor(self.keys.client(0))
            return best(lambda: decryptor.decrypt(frame), 2)[0]


def _dropout(settings: StudySettings, found: Findings) -> None:
    clients = max(setup(_PAPER)["dropout_experiment"]["clients"])
    rows = [["model", "drop-out", "double", "single"]]
    gaps: list[float] = []
    upto: list[float] = []
    for model, values in application_sizes().items():
        cohorts: dict[Masking, _Cohort] = {}
        for masking in ("double", "single"):
            cohorts[masking] = _Cohort.of(clients, values, masking, settings.runs)
        rng = np.random.default_rng(1)
        faster: list[float] = []
        for rate in _RATES:
            left = clients - round(rate * clients)
            draws = [_drawn(rng, clients, left) for _ in range(settings.runs)]
            spent = {
                masking: cohort.encrypt + float(np.mean([cohort.decrypt(present) for present in draws]))
                for masking, cohort in cohorts.items()
            }
            rows.append([APPLICATIONS[model], f"{float(rate):.1f}", *(seconds(s) for s in spent.values())])
            found.figures[f"{model}, drop-out {float(rate):.1f}"] = {**spent}
            if spent["double"] <= spent["single"] and len(faster) == _RATES.index(rate):
                faster.append(float(rate))
            if rate == 0:
                gaps.append(spent["single"] - spent["double"])
        upto.append(faster[-1] if faster else 0.0)
        settings.say(f"{model}: double masking is at least as fast up to a drop-out of {upto[-1]}")
    found.tables.append(Table(f"Encryption and decryption of one client, {clients} clients", rows))
    found.notes.append(
        f"a drop-out rate's decryption is the mean of {settings.runs} random draws, {_DRAWS} there; each the better of "
        "two"
    )
    printed = figure(_PAPER, "Fig. 12", "double masking faster up to dropout rate")
    for name, here in (("smallest", min(upto)), ("largest", max(upto))):
        what = f"double masking no slower up to drop-out, {name} of three models"
        found.outcomes.append(judged(what, printed, here, better="larger"))
    because = "a gap between two times that are both a fraction of those there"
    for at, here in enumerate((min(gaps), max(gaps))):
        what = f"gap without drop-out, {('smallest', 'largest')[at]} of three models"
        gap = figure(_PAPER, "Fig. 12", "gap without dropout, three applications", at)
        found.outcomes.append(judged(what, gap, here, because=because))


def _masks(values: int, width: int) -> float:
    """Seconds of the kernel for two masks a value."""
    ints = np.random.default_rng(0).integers(0, 1 << _BITS, values, np.uint32)
    turns = [[_native.bench_flashe(ints, width, 1, masked=masked) for masked in (True, False)] for _ in range(_TURNS)]
    both, none = (min(turn) for turn in zip(*turns, strict=True))
    return both - none


def _ahead(settings: StudySettings, found: Findings) -> None:
    clients = int(setup(_PAPER)["clients"])
    rows = [["model", "encryption", "masks of it", "decryption", "masks of it", "left of both", "gain, at most"]]
    left: list[float] = []
    because = "no masks are made ahead here: what that could save at most"
    for model, values in application_sizes().items():
        cohort = _Cohort.of(clients, values, "double", settings.runs)
        update: list[Array] = [np.random.default_rng(0).normal(0, 0.2, values).astype(np.float32)]
        encryptor = cohort.scheme.encryptor(cohort.keys.client(0))
        numbers = range(1000, 1000 + _TURNS)
        encrypt = min(clocked(encryptor.encrypt, update, round=number)[0] for number in numbers)
        decrypt = cohort.decrypt(list(range(clients)))
        masks = _masks(values, _BITS + (clients - 1).bit_length())
        gain = 2 * masks
        left.append(encrypt + decrypt - gain)
        times = (encrypt, masks, decrypt, masks, left[-1], gain)
        rows.append([APPLICATIONS[model], *map(seconds, times)])
        found.figures[f"{model}, ahead"] = {"encrypt": encrypt, "masks": masks, "decrypt": decrypt}
        printed = figure(_PAPER, "Fig. 13", APPLICATIONS[model])
        found.outcomes.append(
            judged(f"{APPLICATIONS[model]}: gain from masks made ahead, at most", printed, gain, because=because)
        )
    found.tables.append(Table(f"Masks made ahead, {clients} clients, no drop-out", rows))
    found.notes += [
        f"encryption: the least of {_TURNS}. Masks: what the kernel takes with two a value over what it takes with "
        "none. Without drop-out, a decryption also removes two masks a value",
        "Fedcipher makes no masks ahead: docs/explanation/architecture.md says why",
    ]
    printed = figure(_PAPER, "Fig. 13", "en-/decryption left, at most")
    doubts = (doubt(_PAPER, "En-/decryption at most 0.8 s"),)
    found.outcomes.append(
        judged(
            "encryption and decryption left, largest of three",
            printed,
            max(left),
            bound="at most",
            because=because,
            doubts=doubts,
        )
    )
