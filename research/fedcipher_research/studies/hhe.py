"""The hybrid-HE study, Fig. 6 to Fig. 8: sizes, operations and the sweep, with BFV at the study's N = 16384."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcipher._optional import load
from fedcipher._units import number, seconds, size
from fedcipher.codec import Array, Codec
from fedcipher.schemes import scheme

from fedcipher_research._optional import require
from fedcipher_research.published import Published, cell, doubt, figure, setup
from fedcipher_research.published.verdict import Better, judged, stated
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best, clocked, ledgers

__all__ = ["run"]

_PAPER = "hybrid-he"
_PARAMETERS = 8000
_CHUNK = 128
_SWEEP = (1000, 2000, 4000, _PARAMETERS, 16_000, 32_000)
# With a ciphertext for each parameter, this many are measured and scaled, because all would not fit in memory.
_SAMPLE = 64


@dataclass(frozen=True)
class _Bfv:
    """Seconds and bytes of TenSEAL's BFV, for one client and round."""

    encrypt: float
    decrypt: float
    add: float
    up: float
    down: float


@dataclass(frozen=True)
class _Pasta:
    """Seconds of a client and of the server, and bytes, of `pasta-bfv`."""

    encrypt: float
    decrypt: float
    operate: float
    up: int
    key: int
    down: int
    clients: int


def run(settings: StudySettings) -> Findings:
    """Measure PASTA+BFV and TenSEAL's BFV in the set-up of the study's Table 1."""
    require("fedcipher-research bench hhe-sweep", "tenseal")
    given = setup(_PAPER)
    clients = int(given["clients_per_training_round"])
    degree, modulus = (int(given["parameters"][k]) for k in ("polynomial_degree_N", "plaintext_modulus_t"))
    found = Findings(
        f"{_PARAMETERS:,} parameters of 8 bits, {clients} clients a round, and a sweep",
        [],
        [
            "the study does not name PASTA's variant; PASTA-4 here",
            "the study leaves open how many ciphertexts its BFV has: each of three readings is measured",
            "a Colab machine with two virtual cores and a GPU there",
        ],
    )
    readings = {
        "packed": (1, _PARAMETERS),
        f"a ciphertext a chunk of {_CHUNK}": (-(-_PARAMETERS // _CHUNK), _CHUNK),
        "a ciphertext a parameter": (_PARAMETERS, 1),
    }
    rows = [["scheme", "ciphertexts", "encryption", "decryption", "server, a round", "up", "down"]]
    bfv: dict[str, _Bfv] = {}
    for name, (count, slots) in readings.items():
        bfv[name] = cost = _tenseal(degree, modulus, count, slots, clients, settings.runs)
        rows.append([f"BFV, N = {degree}, {name}", f"{count:,}", *_row(cost), size(cost.up), size(cost.down)])
        found.figures[f"bfv {name}"] = vars(cost)
        settings.say(f"BFV, {name}: {size(cost.up)} up")
    with ledgers():
        # The cost of one client's updates does not depend on the other clients, so one round of all of them is enough.
        sweep = {count: _pasta(count, clients if count == _PARAMETERS else 1, settings.runs) for count in _SWEEP}
    ours = sweep[_PARAMETERS]
    rows.append(["PASTA+BFV, key sent", "-", *_row(ours), size(ours.up + ours.key), size(ours.down)])
    rows.append(["PASTA+BFV, key there", "-", *_row(ours), size(ours.up), size(ours.down)])
    found.tables.append(Table("Operations and sizes", rows))
    table = [["parameters", "chunks of 128", "transciphering, one client", "a chunk", "up", "down"]]
    for count, cost in sweep.items():
        chunks, once = -(-count // _CHUNK), cost.operate / cost.clients
        texts = [seconds(once), seconds(once / chunks), size(cost.up), size(cost.down)]
        table.append([f"{count:,}", str(chunks), *texts])
        found.figures[f"pasta {count}"] = vars(cost)
    found.tables.append(Table("Transciphering against parameters", table))
    found.notes.append(f"seconds are the least of {settings.runs}; transciphering includes adding")
    found.notes.append(f"a ciphertext a parameter is measured on {_SAMPLE} of them and scaled")
    _compare(found, bfv, sweep)
    return found


def _row(cost: _Bfv | _Pasta) -> list[str]:
    server = cost.add if isinstance(cost, _Bfv) else cost.operate
    return [seconds(cost.encrypt), seconds(cost.decrypt), seconds(server)]


def _compare(found: Findings, bfv: dict[str, _Bfv], sweep: dict[int, _Pasta]) -> None:
    ours = sweep[_PARAMETERS]
    library = (doubt(_PAPER, "'PASTA speeds up decryption'"),)
    key = (doubt(_PAPER, "The BFV-encrypted PASTA key"),)

    def add(what: str, printed: Published, here: float, better: Better = "smaller", **more: Any) -> None:
        found.outcomes.append(judged(what, printed, here, better=better, **more))

    chunked = next(name for name in bfv if "chunk" in name)
    for name, cost in bfv.items():
        because = "" if name == chunked else "the study's sizes fit a ciphertext a chunk"
        for what, here, doubts in (("Encryption", cost.encrypt, ()), ("Decryption", cost.decrypt, library)):
            printed = cell(_PAPER, "Fig. 7a", {"operation": what}, "BFV", "s")
            add(f"BFV, {name}: {what.lower()}", printed, here, because=because, doubts=doubts)
        aggregation = cell(_PAPER, "Fig. 7b", {"operation": "Aggregation"}, "BFV", "s")
        add(f"BFV, {name}: aggregation", aggregation, cost.add, because=because)
        ratio = figure(_PAPER, "Fig. 6a", "BFV upload over PASTA+BFV upload, more than")
        for said, up in (("the key is there", ours.up), ("its key with it", ours.up + ours.key)):
            what = f"upload of BFV, {name}, over PASTA's, {said}"
            add(what, ratio, cost.up / up, "larger", bound="over", because=because, doubts=key)
    packed = bfv["packed"]
    same = ours.down == packed.down
    found.outcomes.append(
        stated(
            "download of PASTA+BFV beside BFV's, packed",
            figure(_PAPER, "Fig. 6b", "PASTA+BFV versus BFV download"),
            f"{size(ours.down)} and {size(packed.down)}",
            same,
            because="" if same else "a sum's modulus is switched down here before it is sent, TenSEAL's is not",
        )
    )
    spent = ours.operate / ours.clients
    add("transciphering of 8,000 parameters", figure(_PAPER, "Fig. 8", "HESD for one client, 8000 parameters"), spent)
    chunk = {count: cost.operate / cost.clients / -(-count // _CHUNK) for count, cost in sweep.items()}
    found.outcomes.append(
        stated(
            "growth of transciphering's time",
            figure(_PAPER, "Fig. 8", "growth"),
            f"a chunk takes {seconds(chunk[_SWEEP[0]])} of {_SWEEP[0]:,} and {seconds(chunk[_SWEEP[-1]])} of "
            f"{_SWEEP[-1]:,} parameters, {number(chunk[_SWEEP[0]] / chunk[_SWEEP[-1]])} times less",
            False,
            because="one evaluation covers as many blocks as a ciphertext has slots for, so time grows in steps",
        )
    )


def _tenseal(degree: int, modulus: int, count: int, slots: int, clients: int, runs: int) -> _Bfv:
    ts = load("tenseal")
    context = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=degree, plain_modulus=modulus)
    measured = min(count, _SAMPLE) if slots == 1 else count
    factor = count / measured
    values = np.random.default_rng(0).integers(0, 255, slots).tolist()
    encrypt, mine = best(lambda: [ts.bfv_vector(context, values) for _ in range(measured)], runs)
    sent = [vector.serialize() for vector in mine]

    def add() -> list[Any]:
        total = mine
        for _ in range(1, clients):
            total = [a + b for a, b in zip(total, mine, strict=True)]
        return total

    added, total = best(add, runs)
    decrypt, _ = best(lambda: [vector.decrypt() for vector in total], runs)
    down = sum(len(vector.serialize()) for vector in total)
    return _Bfv(encrypt * factor, decrypt * factor, added * factor, sum(map(len, sent)) * factor, down * factor)


def _pasta(values: int, clients: int, runs: int) -> _Pasta:
    made = scheme("pasta-bfv", clients=clients, min_contributions=1, codec=Codec(bits=8, clip=1.0))
    keys = made.keygen(clients)
    update: list[Array] = [np.random.default_rng(0).normal(0, 0.2, values).astype(np.float32)]
    encryptors = [made.encryptor(keys.client(c)) for c in range(clients)]
    encrypt = operate = decrypt = float("inf")
    key = up = down = 0
    # The server gets a client's PASTA key with the first update, so the first round is not timed for encryption.
    for number_ in range(1, runs + 2):
        frames: list[bytes] = []
        for encryptor in encryptors:
            spent, frame = clocked(encryptor.encrypt, update, round=number_)
            frames.append(frame)
            if number_ > 1:
                encrypt = min(encrypt, spent)
        key = max(key, encryptors[0].stats.setup_bytes)
        up = encryptors[0].stats.frame_bytes - encryptors[0].stats.setup_bytes
        aggregator = made.aggregator(keys.server(), round=number_)

        def whole(aggregator: Any = aggregator, frames: list[bytes] = frames) -> bytes:
            for frame in frames:
                aggregator.add(frame)
            return aggregator.finish()

        spent, opened = clocked(whole)
        operate = min(operate, spent)
        down = len(opened)
        decryptor = made.decryptor(keys.client(0))
        decrypt = min(decrypt, clocked(decryptor.decrypt, opened, round=number_)[0])
    return _Pasta(encrypt, decrypt, operate, up, key, down, clients)
