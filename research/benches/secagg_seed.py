"""`make secagg-compare`: what mask seeds of 32 bits mean for the installed Flower's SecAgg+, and the same try on ours.

Flower folds every seed of a mask to 32 bits (`pseudo_rand_gen`, public issue flower#7522). A server that has a client's
masked update and says that this client has dropped out is given the shares of its pairwise key, which takes off all
masks but the private one; that one is meant to stay. Here its seed is searched for, in a space that is made small by
giving all but ``BITS`` of the 32 bits away; the cost of all 32 follows from the time that was measured.

Vectors are made here with Flower's own functions. Fills its section of docs/explanation/secagg-compare.md.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import time
from typing import Any

import flwr
import numpy as np
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from measure import ROOT, machine
from report import table
from secagg import MODULUS, Cohort, dropped_out

BITS = 18
VALUES = 5000
_SEEN = 8
_BEGIN, _END = "<!-- attack -->", "<!-- /attack -->"


def folded(seed: bytes) -> int:
    """The part of a seed that reaches the generator."""
    return int(np.bitwise_xor.reduce(np.frombuffer(seed, "<u4")))


def fitting(masked: np.ndarray, low: int, high: int, most: int) -> tuple[list[int], float]:
    """Seeds in a range whose mask leaves numbers as small as quantised updates are; and seconds a seed."""
    began = time.perf_counter()
    found = []
    for seed in range(low, high):
        generator = np.random.RandomState(seed)
        # The first mask is that of the weight, a number of its own.
        generator.randint(0, MODULUS - 1, (1,), dtype=np.int64)
        mask = generator.randint(0, MODULUS - 1, _SEEN, dtype=np.int64)
        if (((masked[:_SEEN] - mask) % MODULUS) <= most).all():
            found.append(seed)
    return found, (time.perf_counter() - began) / (high - low)


def attacked() -> dict[str, Any]:
    """One client's update out of its upload, by a server that says that the client has dropped out."""
    cohort = Cohort(5, 4)
    cohort.share()
    update = [np.random.default_rng(1).normal(0, 0.1, VALUES).astype(np.float32)]
    uploads = [cohort.mask(client, update) for client in range(cohort.clients)]
    masked = dropped_out(cohort, 0, uploads[0])
    true = folded(cohort.states[0].rd_seed)
    low = true >> BITS << BITS
    found, each = fitting(masked[1], low, low + (1 << BITS), cohort.most)
    assert found == [true], "the search must find the seed, or it shows nothing"
    plain = (masked[1] - pseudo_rand_gen(cohort.states[0].rd_seed, MODULUS, [(1,), (VALUES,)])[1]) % MODULUS
    error = float(np.abs(cohort.values_of(plain) - update[0]).max())
    return {"each": each, "error": error, "tried": 1 << BITS}


def report() -> str:
    r = attacked()
    years = np.log10(r["each"] / 3.15e7) + 256 * np.log10(2)
    hours = r["each"] * 2**32 / 3600
    rows = [
        ["seeds tried, with Flower's generator", f"{r['tried']:,}, one fits: the right one"],
        ["largest difference of what was read to what the client has", f"{r['error']:.1g}"],
        ["time a seed, one core, Python", f"{r['each'] * 1e6:.1f} us"],
        ["all 2^32, one core (computed)", f"{hours:.0f} hours"],
        [f"all 2^32, {os.cpu_count()} cores of this machine (computed)", f"{hours / (os.cpu_count() or 1):.0f} hours"],
        ["all 2^256 seeds of a share of `oneshot`, at this rate (computed)", f"10^{years:.0f} years"],
    ]
    stamp = f"Written by `make secagg-compare` on {datetime.date.today()}: Flower {flwr.__version__}, {machine()}."
    return f"{stamp}\n\n{table(['figure', 'measured'], rows)}"


def main() -> None:
    text = report()
    print(text)
    page = ROOT / "docs" / "explanation" / "secagg-compare.md"
    old = page.read_text(encoding="utf-8")
    page.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: f"{_BEGIN}\n\n{text}\n\n{_END}", old, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main())
