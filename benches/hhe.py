"""`make bench-hhe`: transciphering against block-by-block evaluation; writes docs/benchmarks-hhe.md."""

from __future__ import annotations

import datetime
import json

from measure import ROOT, in_own_process, machine
from report import table, verdict


def seal() -> list[list[str]]:
    """The library's operations (criterion's estimates of this run) beside SEAL's at the same parameters."""
    folder = ROOT / "target" / "criterion" / "hybrid-operations"
    ours = {}
    for name in ("encode", "rotate", "row-swap", "multiply-relinearise", "dot-product-of-8"):
        estimates = json.loads((folder / name / "new" / "estimates.json").read_text())
        ours[name] = estimates["median"]["point_estimate"] / 1e9
    theirs = in_own_process("seal_operations", 1)
    rows = []
    for name, seconds in ours.items():
        peer = theirs.get(name)
        text = f"{peer * 1e3:.2f} ms" if peer else ""
        rows.append([name, f"{seconds * 1e3:.2f} ms", text, f"{peer / seconds:.1f}x" if peer else ""])
    return rows


def main() -> None:
    block = in_own_process("hhe_block", 1)
    one = in_own_process("hhe_rounds", 2)
    cipher = in_own_process("hhe_client", 1)
    per_block = block["seconds"] / 32
    first, four = one["1"], one["4"]
    alone = per_block / (one["full"] / 8192)
    # The published configuration trains four clients a round.
    ratio = per_block / (four / 4 / 8000)
    further = (four - first) / 3 / first
    head = ["figure", "measured", "target"]
    rows = [
        ["one block of 32 words, one thread", f"{block['seconds']:.2f} s", ""],
        ["8,192 parameters at once, two cores", f"{one['full']:.2f} s", ""],
        [
            "cheaper per parameter, a round of four clients as published",
            f"{ratio:.0f}x",
            f"at least 400x: {verdict(ratio >= 400)}",
        ],
        ["cheaper per parameter, a round of one client", f"{alone:.0f}x", ""],
        [
            "one client, 8,000 parameters, diagonals included, two cores",
            f"{first:.2f} s",
            f"at most 2.5 s: {verdict(first <= 2.5)}",
        ],
        ["each further client over the first", f"{further:.0%}", f"at most 70%: {verdict(further <= 0.7)}"],
        ["seconds per million parameters, one client", f"{one['full'] / 8192 * 1e6:.0f} s", ""],
        ["the block-by-block time for 8,000 parameters, scaled", f"{per_block * 8000:.0f} s", ""],
        [
            "client encryption, 8,000 parameters, one core",
            f"{cipher['encrypt'] * 1e3:.1f} ms",
            f"under 20 ms: {verdict(cipher['encrypt'] < 0.02)}",
        ],
        ["client decryption of the aggregate", f"{cipher['decrypt'] * 1e3:.1f} ms", ""],
        [
            "upload per round and parameter, whole frame",
            f"{cipher['upload']:.3f} bytes",
            f"under 2.2: {verdict(cipher['upload'] < 2.2)}",
        ],
        ["upload once a key epoch", f"{cipher['setup'] / 1e3:.0f} kB", ""],
        ["download, whole frame", f"{cipher['download'] / 1e3:.0f} kB", ""],
        [
            "un-switched ciphertext over it (7 primes to 1, computed)",
            f"{cipher['switch']:.1f}x",
            f"at least 3x: {verdict(cipher['switch'] >= 3)}",
        ],
        ["peak memory of the server process, one client", f"{one['peak'] / 1e6:.0f} MB", ""],
        ["server key (Galois and relinearisation keys)", f"{one['server_key'] / 1e6:.0f} MB", ""],
    ]
    wide = in_own_process("hhe_variants", 2)
    variant_rows = [[v["name"], f"{v['seconds']:.2f} s", str(v["spare"])] for v in wide]
    text = "\n\n".join(
        [
            "# Benchmarks of hybrid HE",
            f"Written by `make bench-hhe` on {datetime.date.today()}: {machine()}. PASTA-4, p = 65537, N = 16384 unless"
            " another variant is named.",
            table(head, rows),
            "## Variants: one client, 8,000 parameters, two cores, diagonals included",
            table(["variant", "server time", "noise bits to spare after a fold"], variant_rows),
            "## The HE library, one thread",
            table(["operation", "fhe.rs 0.1.1", "SEAL (TenSEAL's), same N, primes and p", "SEAL / fhe.rs"], seal()),
        ]
    )
    (ROOT / "docs" / "benchmarks-hhe.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
