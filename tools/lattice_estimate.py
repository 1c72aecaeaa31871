"""Estimates the security of the parameter sets, for the figures of docs/reference/parameters.md, with a short model.

The attack is primal uSVP, in the model of Alkim et al. (New Hope, USENIX Security 2016, section 6.3) and Albrecht et
al. (ASIACRYPT 2017) under the geometric series assumption. BKZ with block size b finds the secret when
sigma sqrt(b) <= delta(b)^(2b - d - 1) vol^(1/d), for the best number of samples m (d = n + m + 1), secret and error
scaled to one size. BKZ-b then costs, in bits:

* core-SVP: 0.292 b. One call to a sieve without its lower-order terms; a lower bound by design.
* HE standard: 0.292 b + 16.4 + log2(8 d). The sieve of Becker et al. (SODA 2016), 8 d calls; the model of the
  tables of the HomomorphicEncryption.org standard (2018).
* MATZOV: gates of a sieve with list decoding, `cost_matzov` below.

The public lattice estimator (github.com/malb/lattice-estimator) has more attacks and finer optimisation.
tools/lattice_estimator.json holds the estimator's figures for the same sets, with version and command. `--check` fails
if the two differ by more than a bit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

# Centred binomials: eta = 21 in `bfv`; fhe.rs 0.1.1 has variance 10 for secret and error.
BFV_ERROR = math.sqrt(21 / 2)
FHE_RS = math.sqrt(10)
TERNARY = math.sqrt(2 / 3)
REFERENCE = Path(__file__).with_name("lattice_estimator.json")
TOLERANCE = 1.0


@dataclass(frozen=True)
class Set:
    """One ring-LWE instance; `sample` is its name in the reference file."""

    use: str
    n: int
    log_q: int
    sample: str
    secret: float
    error: float


SETS = (
    Set("bfv compact, fedbit-paper", 4096, 106, "ternary", TERNARY, BFV_ERROR),
    Set("bfv fast", 2048, 53, "ternary", TERNARY, BFV_ERROR),
    Set("pasta-bfv, 17-bit p", 16384, 408, "fhe10", FHE_RS, FHE_RS),
    Set("pasta-bfv, 33-bit p", 32768, 660, "fhe10", FHE_RS, FHE_RS),
    Set("before: compact, fedbit-paper", 4096, 109, "ternary", TERNARY, BFV_ERROR),
    Set("before: fast", 2048, 54, "ternary", TERNARY, BFV_ERROR),
    Set("before: pasta-bfv, 17-bit p", 16384, 438, "fhe10", FHE_RS, FHE_RS),
    Set("before: pasta-bfv, 17-bit p", 16384, 432, "fhe10", FHE_RS, FHE_RS),
    Set("secrets as wide as errors", 4096, 106, "error", BFV_ERROR, BFV_ERROR),
    Set("secrets as wide as errors", 4096, 109, "error", BFV_ERROR, BFV_ERROR),
    Set("secrets as wide as errors", 2048, 53, "error", BFV_ERROR, BFV_ERROR),
    Set("secrets as wide as errors", 2048, 54, "error", BFV_ERROR, BFV_ERROR),
)


def root_hermite(b: float) -> float:
    """delta of BKZ-b (Chen 2013)."""
    return ((math.pi * b) ** (1 / b) * b / (2 * math.pi * math.e)) ** (1 / (2 * (b - 1)))


def log2_margin(s: Set, b: int, m: int) -> float:
    """log2 of the right side over the left side. The attack works if the result is not negative."""
    d = s.n + m + 1
    scale = s.n * math.log2(s.error / s.secret)
    volume = (m * s.log_q + scale) / d
    return (2 * b - d - 1) * math.log2(root_hermite(b)) + volume - math.log2(s.error * math.sqrt(b))


def smallest_block(s: Set) -> tuple[int, int]:
    """(block size, dimension) of the cheapest attack."""
    low, high = 60, 2000
    samples = range(s.n // 4, 2 * s.n, 16)
    while low < high:
        b = (low + high) // 2
        if max(log2_margin(s, b, m) for m in samples) >= 0:
            high = b
        else:
            low = b + 1
    # The least dimension at which this block size still works needs the fewest calls to the sieve.
    return low, s.n + next(m for m in samples if log2_margin(s, low, m) >= 0) + 1


def cost_core(b: int, _d: int) -> float:
    """Core-SVP."""
    return 0.292 * b


def cost_standard(b: int, d: int) -> float:
    """The HE standard's model."""
    return 0.292 * b + 16.4 + math.log2(8 * d)


# log2 of the gates of one nearest-neighbour search in dimension b, as a straight line in b. The circuit counts are from
# Albrecht, Gheorghiu, Postlethwaite and Schanck (ASIACRYPT 2020), with the list decoding that MATZOV corrected and
# improved ("Report on the Security of LWE: Improved Dual Lattice Attack", 2022, zenodo.org/record/6412487). Slope and
# intercept are the lattice estimator's fit (estimator/reduction.py, class MATZOV, list_decoding-classical).
MATZOV_SLOPE, MATZOV_INTERCEPT = 0.29613500308205365, 20.387885985467914


def cost_matzov(b: int, d: int) -> float:
    """Progressive BKZ-b in dimension d by sieving, counted in gates.

    Sieving in dimension b needs one in b' = b - b ln(4/3) / ln(b / 2 pi e) ("dimensions for free", Ducas, EUROCRYPT
    2018). Progressive sieving, and progressive BKZ of d - b calls, each add the same geometric series.
    """
    sieved = b - max(b * math.log(4 / 3) / math.log(b / (2 * math.pi * math.e)), 0.0)
    series = -math.log2(1 - 2**-MATZOV_SLOPE)
    return MATZOV_SLOPE * sieved + MATZOV_INTERCEPT + 2 * series + math.log2(max(d - b, 1))


ATTACKS = ("usvp", "bdd", "bdd_hybrid", "dual", "dual_hybrid")
MODELS = {"ADPS16": cost_core, "BDGL16": cost_standard, "MATZOV": cost_matzov}


# N, log q, sample, model, attack.
Key = tuple[int, int, str, str, str]


def reference() -> dict[Key, float]:
    """The lattice estimator's bits, by (N, log q, sample, model, attack)."""
    rows = json.loads(REFERENCE.read_text(encoding="utf-8"))["results"]
    return {(r["n"], r["log_q"], r["sample"], r["model"], r["attack"]): r["bits"] for r in rows if "bits" in r}


def own_table(known: dict[Key, float], check: bool) -> bool:
    """Print our estimates. Returns True if each uSVP figure agrees with the lattice estimator's."""
    agree = True
    print("| set | N | log q | BKZ block | core-SVP | HE standard | MATZOV |")
    print("|---|---|---|---|---|---|---|")
    for s in SETS:
        b, d = smallest_block(s)
        bits = {model: cost(b, d) for model, cost in MODELS.items()}
        print(f"| {s.use} | {s.n} | {s.log_q} | {b} | " + " | ".join(f"{bits[m]:.1f}" for m in MODELS) + " |")
        for model, value in bits.items():
            other = known.get((s.n, s.log_q, s.sample, model, "usvp"), math.nan)
            if check and not abs(other - value) <= TOLERANCE:
                print(f"{s.use}, {model}: {value:.1f} bits here, {other:.1f} there", file=sys.stderr)
                agree = False
    return agree


def reference_table(known: dict[Key, float]) -> None:
    """Print the lattice estimator's figures: each attack under the default model, the cheapest under the others."""
    print("| set | N | log q | " + " | ".join(ATTACKS) + " | MATZOV | HE standard | core-SVP |")
    print("|---|---|---|" + "---|" * (len(ATTACKS) + 3))
    for s in SETS:
        of_set = {(m, a): bits for (n, q, x, m, a), bits in known.items() if (n, q, x) == (s.n, s.log_q, s.sample)}
        each = [f"{of_set[('MATZOV', a)]:.1f}" if ("MATZOV", a) in of_set else "" for a in ATTACKS]
        models = ("MATZOV", "BDGL16", "ADPS16")
        least = [min((bits for (m, _), bits in of_set.items() if m == model), default=math.nan) for model in models]
        cells = " | ".join([*each, *(f"{bits:.1f}" for bits in least)])
        print(f"| {s.use} | {s.n} | {s.log_q} | {cells} |")


def main() -> int:
    """Print both tables. With --check, return 1 if they do not agree."""
    parser = argparse.ArgumentParser(description="Security estimates of the parameter sets.")
    parser.add_argument("--check", action="store_true", help="compare uSVP with tools/lattice_estimator.json")
    check: bool = parser.parse_args().check
    known = reference()
    agree = own_table(known, check)
    print()
    reference_table(known)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
