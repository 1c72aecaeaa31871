"""FLASHE, Table 2, the rows without packing: a ciphertext for each number, by Paillier, BFV and CKKS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedcipher._optional import load
from fedcipher._units import seconds, size

from fedcipher_research._optional import require
from fedcipher_research.published import Published, cell, setup
from fedcipher_research.published.verdict import judged
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best

__all__ = ["run"]

_PAPER, _PLACE = "flashe", "Table 2"
_NUMBERS = (16_384, 65_536, 262_144)
# All ciphertexts of a scheme cost the same, so this many are measured and scaled.
_SAMPLE = 32
_ADDENDS = 10
_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
# TenSEAL's contexts need a prime for key switching, which N = 2048 does not leave, and a modulus that allows batching.
_BFV_DEGREE, _BFV_MODULUS = 4096, 40_961


@dataclass(frozen=True)
class _Cost:
    """The cost of one number."""

    encrypt: float
    decrypt: float
    add: float
    """Seconds to add ten ciphertexts."""
    size: float


def run(settings: StudySettings) -> Findings:
    """Measure a few ciphertexts of each scheme and scale to the three sizes."""
    require("fedcipher-research bench flashe-unbatched", "phe", "gmpy2", "tenseal")
    given = setup(_PAPER)["parameters"]
    ckks = int(given["ckks"]["poly_modulus_degree"])
    theirs = given["fv_unbatched"]
    modulus = (
        f"N = {theirs['poly_modulus']} and t = {theirs['plain_modulus']} there, by Pyfhel; TenSEAL needs "
        f"N = {_BFV_DEGREE} and a modulus to batch with, {_BFV_MODULUS}"
    )
    schemes: dict[str, tuple[str, Callable[[int], _Cost], str]] = {
        "Pai": (f"Paillier {given['paillier']['key_bits']}", lambda runs: _paillier(given, runs), ""),
        "FV": (f"BFV, N = {_BFV_DEGREE}", lambda runs: _tenseal("BFV", _BFV_DEGREE, runs), modulus),
        "CKKS": (f"CKKS, N = {ckks}", lambda runs: _tenseal("CKKS", ckks, runs), ""),
    }
    found = Findings(
        f"A ciphertext a number: {_SAMPLE} from each scheme, scaled to {', '.join(f'{n:,}' for n in _NUMBERS)}",
        [],
        [
            "an AWS c5.4xlarge of 16 vCPU there; both in Python over a library in C",
            "CKKS has the parameters of there: TenSEAL's own moduli where none are given, a scale of 2^40",
            f"{_SAMPLE} ciphertexts are measured and scaled: what runs out of memory there is never whole here",
        ],
    )
    rows = [["scheme", "encryption of a number", "decryption", "addition of ten", "ciphertext"]]
    for scheme, (name, measure, because) in schemes.items():
        one = measure(settings.runs)
        found.figures[name] = vars(one)
        rows.append([name, *(seconds(s) for s in (one.encrypt, one.decrypt, one.add)), size(one.size)])
        settings.say(f"{name}: {seconds(one.encrypt)} a number")
        for numbers in _NUMBERS:
            row = {"numbers": numbers, "scheme": scheme}
            for what, column, here in (
                ("encryption", "encryption_s", one.encrypt),
                ("decryption", "decryption_s", one.decrypt),
                ("addition of ten", "addition_s", one.add),
                ("ciphertext", "ciphertext_size", one.size),
            ):
                printed = cell(_PAPER, _PLACE, row, column)
                if not isinstance(printed.value, str):
                    scaled = here * numbers / _unit(printed)
                    text = f"{name}, {numbers:,}: {what}"
                    found.outcomes.append(judged(text, printed, scaled, because=because))
    found.tables.append(Table("One number", rows))
    found.notes.append(f"seconds are the least of {settings.runs}, of {_SAMPLE} ciphertexts each")
    return found


def _unit(printed: Published) -> float:
    return float(_UNITS.get(printed.unit, 1))


def _cost(
    encrypt: Callable[[], list[Any]], decrypt: Callable[[Any], Any], data: Callable[[Any], int], runs: int
) -> _Cost:
    spent, made = best(encrypt, runs)

    def add() -> list[Any]:
        out: list[Any] = []
        for one in made:
            total = one
            for _ in range(_ADDENDS - 1):
                total = total + one
            out.append(total)
        return out

    added, total = best(add, runs)
    opened, _ = best(lambda: [decrypt(one) for one in total], runs)
    return _Cost(spent / _SAMPLE, opened / _SAMPLE, added / _SAMPLE, data(made[0]))


def _paillier(given: dict[str, Any], runs: int) -> _Cost:
    bits = int(given["paillier"]["key_bits"])
    public, private = load("phe.paillier").generate_paillier_keypair(n_length=bits)
    return _cost(lambda: [public.encrypt(k) for k in range(_SAMPLE)], private.decrypt, lambda _: bits // 4, runs)


def _tenseal(kind: str, degree: int, runs: int) -> _Cost:
    ts = load("tenseal")
    if kind == "BFV":
        context = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=degree, plain_modulus=_BFV_MODULUS)
        make: Callable[[int], Any] = lambda k: ts.bfv_vector(context, [k])  # noqa: E731
    else:
        context = ts.context(ts.SCHEME_TYPE.CKKS, poly_modulus_degree=degree)
        context.global_scale = 2.0**40
        make = lambda k: ts.ckks_vector(context, [float(k)])  # noqa: E731
    return _cost(
        lambda: [make(k) for k in range(_SAMPLE)],
        lambda vector: vector.decrypt(),
        lambda vector: len(vector.serialize()),
        runs,
    )
