"""The resource study's Paillier, in two scenarios: Python-Paillier on Python's integers and over gmpy2."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fedcipher._optional import load
from fedcipher._units import number, seconds, size

from fedcipher_research._optional import require
from fedcipher_research.published import cell, claim, doubt, setup
from fedcipher_research.published.verdict import Outcome, judged
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best

__all__ = ["python_integers", "run"]

_PAPER = "resource-study"
_PLACE = "slide: key results, scenario 1"
_PHASES = ("encryption", "operation", "decryption")
_KEYS = (2048, 3072, 4096)
_PYTHON = "Python's integers"
# Fresh ciphertexts of TenSEAL's vectors at these degrees, sent up and down.
_DEGREES = (4096, 8192, 16_384)


@contextmanager
def python_integers() -> Generator[None]:
    """Make Python-Paillier compute with Python's integers, like without gmpy2."""
    util = load("phe.util")
    before, util.HAVE_GMP = util.HAVE_GMP, False
    try:
        yield
    finally:
        util.HAVE_GMP = before


def run(settings: StudySettings) -> Findings:
    """Measure scenario 1 with every key length and both kinds of integers, and compute the traffic of scenario 2."""
    require("fedcipher-research bench paillier-python", "phe", "gmpy2", "tenseal")
    given = setup(_PAPER)["scenarios"][0]
    count = int(given["ciphertexts"])
    found = Findings(
        f"{count} values encrypted one by one, {count} additions, one result decrypted",
        [],
        [
            "the slides leave the key's length open for this scenario, and whether gmpy2 was there: each is measured",
            "arithmetic alone, in one process: no sockets, no frames",
            "BFV by TenSEAL with SEAL's defaults at N = 4096; the slides do not say what theirs were",
        ],
    )
    rows = [["scheme", *_PHASES, "a decryption of each"]]
    bfv = _bfv(count, settings.runs)
    rows.append(["BFV (SEAL), N = 4096", *(seconds(bfv[p]) for p in _PHASES), seconds(bfv["each"])])
    found.figures["bfv"] = bfv
    for bits in _KEYS:
        public, private = load("phe.paillier").generate_paillier_keypair(n_length=bits)
        for kind in ("gmpy2", _PYTHON):
            if kind == "gmpy2":
                spent = _phe(public, private, count, settings.runs)
            else:
                with python_integers():
                    spent = _phe(public, private, count, 1)
            label = f"Paillier {bits}, {kind}"
            settings.say(f"{label}: " + ", ".join(f"{p} {seconds(spent[p])}" for p in _PHASES))
            rows.append([label, *(seconds(spent[p]) for p in _PHASES), seconds(spent["each"])])
            found.figures[label] = spent
            found.outcomes += _compared(label, spent, bfv)
    found.tables.append(Table("Seconds", rows))
    found.notes.append(f"seconds are the least of {settings.runs} with gmpy2 and of one run without")
    _traffic(found)
    return found


def _compared(label: str, spent: dict[str, float], bfv: dict[str, float]) -> list[Outcome]:
    out: list[Outcome] = []
    rounded = (doubt(_PAPER, "Encryption factor 488x"),)
    # The slides give 4,096 bits under the other scenario, and only Python's integers take as long as they print.
    because = (
        "" if label == f"Paillier {_KEYS[-1]}, {_PYTHON}" else "the slides' times fit a longer key or Python's integers"
    )
    for phase in _PHASES:
        # The slides do not state the number of decryptions, so both readings are compared: one, and one for each
        # ciphertext.
        named = {phase: phase} if phase != "decryption" else {"decryption": "one", "each": "every ciphertext"}
        for key, text in named.items():
            what = f"{label}: {phase}" if key == phase and phase != "decryption" else f"{label}: {phase}, {text}"
            out.append(
                judged(what, cell(_PAPER, _PLACE, {"phase": phase}, "Paillier", "s"), spent[key], because=because)
            )
            factor = cell(_PAPER, _PLACE, {"phase": phase}, "printed factor", "x")
            doubts = rounded if phase == "encryption" else ()
            here = spent[key] / bfv[key]
            faster = f"BFV (SEAL) faster than {what}"
            out.append(judged(faster, factor, here, better="larger", because=because, doubts=doubts))
    return out


def _phe(public: Any, private: Any, count: int, runs: int) -> dict[str, float]:
    encrypt, sent = best(lambda: [public.encrypt(k) for k in range(count)], runs)

    def add() -> Any:
        total = sent[0]
        # As many additions as ciphertexts, so the first ciphertext is added once more.
        for other in [*sent[1:], sent[0]]:
            total = total + other
        return total

    operate, total = best(add, runs)
    decrypt, _ = best(lambda: private.decrypt(total) or 1, runs)
    each, _ = best(lambda: [private.decrypt(c) for c in sent], runs)
    return {"encryption": encrypt, "operation": operate, "decryption": decrypt, "each": each}


def _bfv(count: int, runs: int) -> dict[str, float]:
    ts = load("tenseal")
    context = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=4096, plain_modulus=1032193)
    encrypt, sent = best(lambda: [ts.bfv_vector(context, [k]) for k in range(count)], runs)

    def add() -> Any:
        total = sent[0]
        for other in [*sent[1:], sent[0]]:
            total = total + other
        return total

    operate, total = best(add, runs)
    decrypt, _ = best(total.decrypt, runs)
    each, _ = best(lambda: [c.decrypt() for c in sent], runs)
    return {"encryption": encrypt, "operation": operate, "decryption": decrypt, "each": each}


def _traffic(found: Findings) -> None:
    """Compare the bandwidth of scenario 2 for several rings: 512 ciphertexts up, or 512 up and 512 down."""
    ts = load("tenseal")
    second = setup(_PAPER)["scenarios"][1]
    count = int(second["ciphertexts"])
    unclear = (doubt(_PAPER, "879.54 MB over 512 ciphertexts"),)
    rows = [["scheme", "N", "a ciphertext", f"{count} up", f"{count} up and {count} down"]]
    for name in ("BFV", "CKKS"):
        printed = cell(_PAPER, "slide: resource consumption", {"resource": "bandwidth"}, name, "MB")
        for degree in _DEGREES:
            data = _ciphertext(ts, name, degree)
            rows.append([name, f"{degree:,}", size(data), size(count * data), size(2 * count * data)])
            found.figures[f"{name}, N = {degree}"] = data
            for reading, total in ((f"{count} up", count * data), (f"{count} up and {count} down", 2 * count * data)):
                found.outcomes.append(
                    judged(
                        f"{name}, N = {degree}: {reading}",
                        printed,
                        total / 1e6,
                        because="the slides give no ring degree: this is what each would make of it",
                        doubts=unclear,
                    )
                )
    found.tables.append(Table("Traffic of scenario 2, by degree of the ring", rows))
    ratios = [o.here / o.published.number for o in found.outcomes if o.unit == "MB" and o.here]
    nearest = min(ratios, key=lambda r: max(r, 1 / r))
    (which,) = [o.what for o in found.outcomes if o.unit == "MB" and o.here and o.here / o.published.number == nearest]
    found.notes.append(f"the reading nearest to the bandwidth on the slides: {which}, {number(nearest)} times as much")
    large = claim(_PAPER, "'large ciphertexts' of BFV/CKKS, about")
    found.notes.append(f"the large ciphertexts of the slides ({large.value} {large.unit}) are the whole traffic")


def _ciphertext(ts: Any, name: str, degree: int) -> int:
    if name == "BFV":
        context = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=degree, plain_modulus=786433)
        return len(ts.bfv_vector(context, [1]).serialize())
    # SEAL's default moduli need a scale below the last prime. The size does not depend on the scale.
    context = ts.context(ts.SCHEME_TYPE.CKKS, poly_modulus_degree=degree)
    context.global_scale = 2.0**20
    return len(ts.ckks_vector(context, [1.0]).serialize())
