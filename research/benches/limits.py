"""How far each path is from what this machine's AES, transforms and memory allow.

`make limits` writes docs/evidence/limits.md.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from typing import Any

import fedcipher
import gmpy2
import numpy as np
from cases import LENET5, gaussian
from fedcipher import _native
from fedcipher.schemes import Scheme
from measure import ROOT, in_own_process, machine, median_seconds
from report import into_page, ms, table

# Bytes of arrays that are copied: up to what no cache holds ten of.
_SIZES = [1 << k for k in range(16, 27)]
# Of PCIe 4.0 with 16 lanes, bytes a second each way.
_LINK = 16e9 / 8 * 16 * 128 / 130
_VALUES, _CLIENTS, _N, _PRIMES = 1_200_000, 10, 4096, 2


def rates() -> dict[str, Any]:
    """The speed of a core in each kind of work: bytes of AES and of memory a second, seconds a transform."""
    forward, inverse = min(_native.bench_ntt(2000) for _ in range(5))
    below = min(_native.bench_ntt(2000, _prime_below(50)) for _ in range(5))
    return {
        "aes128": max(_native.bench_aes(512, False) for _ in range(5)),
        "aes256": max(_native.bench_aes(512, True) for _ in range(5)),
        "memory": {str(size): _copying(size) for size in _SIZES},
        "forward": forward,
        "inverse": inverse,
        "forward50": below[0],
        "inverse50": below[1],
    }


def _copying(size: int) -> float:
    """Bytes read and written a second at best, of ten arrays of so many bytes copied into one in turn."""
    sources = itertools.cycle([np.ones(size, np.uint8) for _ in range(_CLIENTS)])
    target = np.zeros(size, np.uint8)
    least = min(median_seconds(lambda: np.copyto(target, next(sources)), repeats=2 * _CLIENTS) for _ in range(5))
    return 2 * size / least


def _memory(rates: dict[str, float], moved: float) -> float:
    """The rate of the largest arrays no larger than what is moved: caches hold the rest as they hold a path's."""
    fitting = [rate for size, rate in rates.items() if 2 * int(size) <= moved]
    return fitting[-1] if fitting else max(rates.values())


def _prime_below(bits: int) -> int:
    """The largest prime of so many bits that has transforms of N = 4096."""
    return next(p for k in itertools.count(1) if gmpy2.is_prime(p := (1 << bits) - k * 2 * _N + 1))  # pyright: ignore


def paths() -> dict[str, Any]:
    """Seconds of each path through the Python API, one core, and how large what it works on is."""
    update = [np.random.default_rng(0).uniform(-1, 1, _VALUES).astype(np.float32)]
    flashe = fedcipher.scheme("flashe", clients=_CLIENTS, codec=fedcipher.Codec(bits=16, clip=1.0))
    bfv = fedcipher.scheme("bfv", clients=_CLIENTS, codec=fedcipher.Codec(bits=12, clip=0.5))
    return {
        "fields": int(bfv.describe()["fields of 12 bits"].split()[0]),
        "flashe": _round(flashe, update),
        "bfv": _round(bfv, gaussian(LENET5)),
        "ledger": _round(flashe, [np.zeros(1, np.float32)]),
    }


def _round(scheme: Scheme, values: list[np.ndarray]) -> dict[str, float]:
    keys = scheme.keygen(_CLIENTS)
    encryptor, decryptor = scheme.encryptor(keys.client(0)), scheme.decryptor(keys.client(0))
    numbers = itertools.count(1)
    encrypt = median_seconds(lambda: encryptor.encrypt(values, round=next(numbers)), repeats=21)
    frames = [scheme.encryptor(keys.client(j)).encrypt(values, round=10**6) for j in range(_CLIENTS)]
    aggregator = scheme.aggregator(keys.server())
    aggregator.add(frames[0])
    more = iter(frames[1:])
    add = median_seconds(lambda: aggregator.add(next(more)), repeats=_CLIENTS - 2)
    total = aggregator.finish()
    return {
        "encrypt": encrypt,
        "add": add,
        "decrypt": median_seconds(lambda: decryptor.decrypt(total), repeats=21),
        "up": len(frames[0]),
        "down": len(total),
        "values": sum(v.size for v in values),
    }


def transciphering() -> dict[str, float]:
    """The time and the parts of one whole ciphertext, by `benches/work.rs`, one thread."""
    command = ["cargo", "bench", "--quiet", "-p", "fedcipher-core", "--features", "count", "--bench", "work"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "RAYON_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def report() -> str:
    """The page's text."""
    t = transciphering()
    r, p = in_own_process("rates", 1, "limits.py"), in_own_process("paths", 1, "limits.py")
    f, b, ledger = p["flashe"], p["bfv"], p["ledger"]
    pieces = math.ceil(b["values"] / (p["fields"] * _N))
    transforms = pieces * _PRIMES * (r["forward"] + r["inverse"])
    # Two masks a value, six values of 20 bits in a block.
    masks = 2 * f["values"] / 6 * 16
    # A polynomial is eight bytes a coefficient and prime, an error eight more.
    uniform, errors = pieces * _PRIMES * _N * 8, pieces * _N * 8
    rows: list[list[str]] = []

    def row(path: str, work: str, computed: float, moved: float, took: float, least: float = 0.0) -> None:
        bound, by = max((computed, "computing"), (moved / _memory(r["memory"], moved), "memory"))
        # For an update of one value: the costs of the ledger and of the call.
        factor = f"{(took - least) / bound:.1f}x"
        rows.append([path, work, f"{bound * 1e3:.2f}", by, ms(took), ms(least), factor])

    devices: list[list[str]] = []

    def device(path: str, received: float, sent: float, took: float, least: float) -> None:
        link = max(received, sent) / _LINK
        devices.append([path, f"{link * 1e3:.3f} ms", ms(took), f"{took / (least + link):.1f}x"])

    values = 4 * f["values"]
    device("FLASHE, w = 20, 1.2 M values: encrypt", values, f["up"], f["encrypt"], ledger["encrypt"])
    device("the same: decrypt", f["down"], values, f["decrypt"], ledger["decrypt"])
    device("BFV `compact`, LeNet-5: encrypt", 4 * b["values"], b["up"], b["encrypt"], ledger["encrypt"])
    device("the same: decrypt", b["down"], 4 * b["values"], b["decrypt"], ledger["decrypt"])
    row(
        "FLASHE, w = 20, 1.2 M values: encrypt",
        f"{masks / 16:,.0f} AES-128 blocks",
        masks / r["aes128"],
        values + f["up"],
        f["encrypt"],
        ledger["encrypt"],
    )
    row("the same: a server's addition", "none but adding", 0.0, f["up"] + 2 * f["down"], f["add"])
    row(
        "the same: decrypt, clients side by side",
        f"{masks / 16:,.0f} AES-128 blocks",
        masks / r["aes128"],
        f["down"] + values,
        f["decrypt"],
        ledger["decrypt"],
    )
    row(
        "BFV `compact`, LeNet-5: encrypt, offline and online",
        f"{2 * _PRIMES * pieces} transforms, {(uniform + errors) / 16:,.0f} AES-256 blocks",
        transforms + (uniform + errors) / r["aes256"],
        4 * b["values"] + b["up"],
        b["encrypt"],
        ledger["encrypt"],
    )
    # Sums are held as 128-bit numbers.
    row("the same: a server's addition", "none but adding", 0.0, b["up"] + 2 * 16 * pieces * _N, b["add"])
    row(
        f"the same: decrypt, {_CLIENTS} clients",
        f"{2 * _PRIMES * pieces} transforms, {_CLIENTS * uniform / 16:,.0f} AES-256 blocks",
        transforms + _CLIENTS * uniform / r["aes256"],
        b["down"] + 4 * b["values"],
        b["decrypt"],
        ledger["decrypt"],
    )
    # Rows of plaintexts and keys are read once each: together they are larger than a cache.
    row(
        f"PASTA-4, {t['values']:,} values transciphered, diagonals included",
        f"{t['transforms']:,} transforms of N = {t['degree']:,}, {t['multipliers']:,} rows multiplied",
        t["transforms"] * t["transform"],
        8 * t["degree"] * t["multipliers"],
        t["seconds"],
    )
    measured = [
        ["AES-128 in counter mode", f"{r['aes128'] / 1e9:.1f} GB/s"],
        ["AES-256 in counter mode", f"{r['aes256'] / 1e9:.1f} GB/s"],
        *(
            [f"copying ten arrays of {int(size) >> 10:,} KiB in turn, bytes read and written", f"{rate / 1e9:.1f} GB/s"]
            for size, rate in r["memory"].items()
            if int(size) in (_SIZES[0], 1 << 20, 1 << 22, _SIZES[-1])
        ),
        ["transform, N = 4096, 53-bit prime", f"{r['forward'] * 1e6:.1f} us"],
        ["product and inverse transform", f"{r['inverse'] * 1e6:.1f} us"],
        [f"transform, N = {t['degree']:,}, transciphering's primes", f"{t['transform'] * 1e6:.1f} us"],
        ["both with a 50-bit prime", f"{r['forward50'] * 1e6:.1f} us, {r['inverse50'] * 1e6:.1f} us"],
    ]
    when = datetime.datetime.now(datetime.timezone.utc).date()
    faster = (r["forward"] + r["inverse"]) / (r["forward50"] + r["inverse50"])
    saved = transforms * (1 - 1 / faster) / (b["encrypt"] - ledger["encrypt"])
    return "\n\n".join(
        [
            f"Written by `make limits` on {when}: {machine()}. One core; medians, rates the best of five. "
            "Memory is taken at the rate of arrays as large as what a path moves.",
            table(["of this machine, one core", "measured"], measured),
            table(
                [
                    "path",
                    "work",
                    "limit, ms",
                    "by",
                    "took",
                    "of it at one value",
                    "factor of the rest",
                ],
                rows,
            ),
            "With 50-bit primes, which the transforms' crate handles by AVX-512-IFMA where that is, transforms are "
            f"{faster:.2f}x as fast: {saved:.0%} of what BFV's encryption takes beside the ledger.",
            "A device, a GPU or another, that did all the work in no time would still have the update and the frame on "
            f"its link at once, one each way: PCIe 4.0 with 16 lanes, {_LINK / 1e9:.1f} GB/s (16 GT/s a lane, 128 of "
            "130 bits). With the ledger, which stays here, that is the most that it could gain:",
            table(["path", "link", "took", "at most so many times as fast"], devices),
        ]
    )


CASES = {"rates": rates, "paths": paths}


def main() -> None:
    """Measure, print, and write the page's section."""
    text = report()
    print(text)
    into_page("evidence/limits.md", "limits", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FEDCIPHER_STATE_DIR"] = scratch
        print(json.dumps(CASES[sys.argv[1]]())) if len(sys.argv) > 1 else main()
