"""`make bench`: runs every case, prints the tables, writes docs/benchmarks.md."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from measure import ROOT, in_own_process, machine

# Around the section that `make bench-offload` writes.
BEGIN, END = "<!-- offload -->", "<!-- /offload -->"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def into_page(page: str, marker: str, text: str) -> None:
    """Writes ``text`` between the two comments named ``marker`` of ``docs/PAGE``."""
    path = ROOT / "docs" / page
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    old = path.read_text(encoding="utf-8")
    section = f"{begin}\n\n{text}\n\n{end}"
    path.write_text(re.sub(f"{begin}.*{end}", lambda _: section, old, flags=re.DOTALL), encoding="utf-8")


def verdict(ok: bool) -> str:
    return "reached" if ok else "missed"


def flashe() -> str:
    r = in_own_process("flashe_rate", 1)
    share = r["bytes_per_second"] / r["openssl"]
    peer = r["bytes_per_second"] / r["peer"]
    rows = [
        ["FLASHE encrypt, 16-bit lanes, double masking, one thread", f"{r['bytes_per_second'] / 1e9:.2f} GB/s", ""],
        ["`openssl speed -evp aes-128-ctr`, 16 KiB", f"{r['openssl'] / 1e9:.2f} GB/s", ""],
        ["FLASHE encrypt, share of the AES-CTR rate", f"{share:.0%}", f"at least 35%: {verdict(share >= 0.35)}"],
        [
            "FLASHE encrypt with its tag over without, 16-bit lanes, one thread",
            f"{r['tagged_share']:.0%}",
            f"at least 60%: {verdict(r['tagged_share'] >= 0.6)}",
        ],
        ["the same at w = 20", f"{r['tagged_share_w20']:.0%}", ""],
        ["PyCryptodome + numpy, the paper's formula (one PRF block a coordinate)", f"{r['peer'] / 1e6:.1f} MB/s", ""],
        ["FLASHE over PyCryptodome + numpy (the formula)", f"{peer:.0f}x", f"at least 100x: {verdict(peer >= 100)}"],
        [
            "PyCryptodome + numpy with our eight masks a block (CTR streams)",
            f"{r['peer_ctr'] / 1e6:.0f} MB/s, {r['bytes_per_second'] / r['peer_ctr']:.0f}x",
            "",
        ],
        [
            "FLASHE encrypt at w = 20 (six masks a block, lanes not byte-aligned)",
            f"{r['w20_values_per_second'] / 1e6:.0f} M values/s",
            "",
        ],
    ]
    t = in_own_process("flashe_round", 1)
    added = t["encrypt"] + t["aggregate"] + t["decrypt"]
    share = added / t["epoch"]
    rows2 = [
        ["one local epoch, cnn-1.2m, " + str(t["examples"]) + " MNIST images", f"{t['epoch']:.2f} s", ""],
        ["encode + encrypt, one client", f"{t['encrypt'] * 1e3:.1f} ms", ""],
        ["aggregate, ten clients", f"{t['aggregate'] * 1e3:.1f} ms", ""],
        ["decrypt + decode", f"{t['decrypt'] * 1e3:.1f} ms", ""],
        ["FLASHE round trip of ten clients over one local epoch", f"{share:.2%}", f"under 5%: {verdict(share < 0.05)}"],
    ]
    head = ["figure", "measured", "target"]
    return (
        "## FLASHE\n\n"
        + table(head, rows)
        + "\n\nThe limit is half the AES rate, two masks a value, of the AES in use: crate `aes` (VAES at run time)"
        " is faster than this OpenSSL, so the share can exceed 50%.\n\n"
        "### Round trip, 1.2 M parameters, 10 clients, 16-bit values (w = 20)\n\n" + table(head, rows2)
    )


def bfv() -> str:
    r = in_own_process("bfv_lenet", 1)
    c = r["compact"]
    gain = r["tenseal"] / c["online"]
    rows = [
        [
            f"`{preset}`",
            f"{r[preset]['offline'] * 1e3:.2f}",
            f"{r[preset]['online'] * 1e3:.2f}",
            f"{r[preset]['aggregate'] * 1e3:.2f}",
            f"{r[preset]['decrypt'] * 1e3:.2f}",
        ]
        for preset in ("compact", "fast", "fedbit-paper")
    ]
    rows.append(
        ["TenSEAL CKKS, 8192, [60,40,40,60]", "", f"{r['tenseal'] * 1e3:.1f}", "", f"{r['tenseal_decrypt'] * 1e3:.1f}"]
    )
    goals = [
        [
            "BFV online encryption, LeNet-5, one core",
            f"{c['online'] * 1e3:.2f} ms",
            f"under 1 ms: {verdict(c['online'] < 1e-3)}",
        ],
        [
            "BFV decryption, LeNet-5, one core",
            f"{c['decrypt'] * 1e3:.2f} ms",
            f"under 2 ms: {verdict(c['decrypt'] < 2e-3)}",
        ],
        ["TenSEAL CKKS encryption / ours online", f"{gain:.0f}x", f"at least 50x: {verdict(gain >= 50)}"],
        ["the same with our offline phase counted", f"{r['tenseal'] / (c['online'] + c['offline']):.0f}x", ""],
    ]
    sizes = in_own_process("bfv_sizes", 2)
    size_rows = [
        [
            f"`{s['preset']}`",
            str(s["clients"]),
            f"{s['packed']:,.0f}",
            f"{s['up']:,} ({s['up'] / s['packed']:.3f}x)",
            f"{s['down']:,} ({s['down'] / s['packed']:.3f}x)",
            f"{s['up'] / s['raw']:.2f}x",
            verdict(max(s["up"], s["down"]) <= 1.25 * s["packed"]) if s["preset"] == "compact" else "",
        ]
        for s in sizes
    ]
    derive = in_own_process("bfv_derive", 1)
    derive_rows = [
        [
            f"{d['clients']:.0f}",
            f"{d['seconds'] * 1e3:.2f}",
            f"{d['total'] * 1e3:.2f}",
        ]
        for d in derive
    ]
    large: dict[int, Any] = {threads: in_own_process("bfv_large", threads) for threads in (1, 2)}
    ratio = large[2]["peak_bytes"] / large[2]["frame_bytes"]
    large_rows = [
        ["BFV online rate, 11 M parameters, one core", f"{large[1]['rate'] / 1e9:.2f} GB/s of packed plaintext", ""],
        [
            "BFV online rate, 11 M parameters, two cores",
            f"{large[2]['rate'] / 1e9:.2f} GB/s of packed plaintext",
            f"at least 1.5 GB/s: {verdict(large[2]['rate'] >= 1.5e9)}",
        ],
        ["BFV peak memory over the ciphertext's size", f"{ratio:.2f}x", f"under 3x: {verdict(ratio < 3)}"],
    ]
    return (
        f"## BFV, LeNet-5 ({r['weights']:,} weights), 12 bits, 10 clients, one core, milliseconds\n\n"
        + table(["preset", "offline", "online encrypt", "aggregate 10", "decrypt"], rows)
        + "\n\n"
        + table(["figure", "measured", "target"], goals)
        + "\n\n### Bytes up and down, whole frames\n\nPacked plaintext: 12 bits plus the head-room the sum needs.\n\n"
        + table(
            ["preset", "clients", "packed plaintext", "up", "down", "up over 12 bits", "1.25x target"],
            size_rows,
        )
        + "\n\n### c1 from the cohort's seeds\n\n24,576 weights of 8 bits, one core; the last column adds the"
        " download at 100 Mbit/s.\n\n"
        + table(
            ["clients", "decrypt (ms)", "with download (ms)"],
            derive_rows,
        )
        + "\n\n### 11 M parameters, 12 bits, 10 clients, `compact`\n\n"
        + table(["figure", "measured", "target"], large_rows)
    )


def transforms() -> str:
    """The two NTT crates, from criterion's own estimates of the run before this."""
    folder = ROOT / "target" / "criterion" / "ntt-forward-4096"
    seconds = {}
    for crate in ("tfhe-ntt", "fhe-math"):
        estimates = json.loads((folder / crate / "new" / "estimates.json").read_text())
        seconds[crate] = estimates["median"]["point_estimate"] / 1e9
    rows = [
        ["tfhe-ntt (BSD-3-Clause-Clear, default)", f"{seconds['tfhe-ntt'] * 1e6:.1f} us"],
        ["fhe-math (MIT, feature `ntt-fhe-math`)", f"{seconds['fhe-math'] * 1e6:.1f} us"],
        ["ratio", f"{seconds['fhe-math'] / seconds['tfhe-ntt']:.1f}x"],
    ]
    return "## NTT crates, forward, N = 4096, 54-bit prime\n\n" + table(["crate", "median"], rows)


def main() -> None:
    parts = [
        "# Benchmarks",
        f"Written by `make bench` on {datetime.date.today()}: {machine()}. Medians; ratios within one run.",
        flashe(),
        bfv(),
        transforms(),
        "More kernels (masks by width, ciphertexts, frame parsing) are in criterion: `cargo bench -p fedcipher-core`.",
    ]
    text = "\n\n".join(parts) + "\n"
    (ROOT / "docs").mkdir(exist_ok=True)
    page = ROOT / "docs" / "benchmarks.md"
    # The section of `make bench-offload` stays as it is.
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    section = before.partition(BEGIN)[2].partition(END)[0]
    if section:
        text += f"\n{BEGIN}{section}{END}\n"
    page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
