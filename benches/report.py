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


def section(page: str, marker: str) -> str:
    """What stands between the two comments named ``marker`` of ``docs/PAGE``."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"<!-- {marker} -->")[2].partition(f"<!-- /{marker} -->")[0]


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

    def rate(values: float, width: int) -> str:
        return f"{values / 1e6:.0f} M values/s, {values * width / 8e9:.2f} GB/s"

    # Two masks a value, six (w = 20) or eight (w = 16) of them in a block of AES.
    limits = {20: r["aes"] / 16 * 6 / 2, 16: r["aes"] / 16 * 8 / 2}
    rows = [
        ["AES-128-CTR, crate `aes`, one thread", f"{r['aes'] / 1e9:.2f} GB/s", ""],
        ["`openssl speed -evp aes-128-ctr`, 16 KiB", f"{r['openssl'] / 1e9:.2f} GB/s", ""],
    ]
    for width, what in ((20, "w = 20, ten clients of 16-bit values"), (16, "16-bit lanes")):
        tagged, bare, limit = r[f"w{width}_tagged"], r[f"w{width}"], limits[width]
        goal = f"at least 60%: {verdict(tagged / limit >= 0.6)}" if width == 16 else ""
        part = f"at least 60%: {verdict(tagged / bare >= 0.6)}" if width == 16 else ""
        rows += [
            [f"FLASHE encrypt with tag, {what}", rate(tagged, width), ""],
            [
                f"FLASHE encrypt at w = {width}, share of the limit, half of that AES rate",
                f"{tagged / limit:.0%}",
                goal,
            ],
            [f"FLASHE encrypt with tag over without, w = {width}", f"{tagged / bare:.0%}", part],
        ]
    peer, bare = r["w16"] / r["peer"], r["w16"]
    rows += [
        ["PyCryptodome + numpy, the paper's formula (one PRF block a coordinate)", rate(r["peer"], 16), ""],
        ["FLASHE without tag, w = 16, over that formula", f"{peer:.0f}x", f"at least 100x: {verdict(peer >= 100)}"],
        ["PyCryptodome + numpy, eight masks a block (CTR streams)", rate(r["peer_ctr"], 16), ""],
        ["FLASHE without tag, w = 16, over those", f"{bare / r['peer_ctr']:.0f}x", ""],
    ]
    api_rows: list[list[str]] = []
    api = {threads: in_own_process("flashe_api", threads) for threads in (1, 2)}
    for one, two in zip(api[1], api[2], strict=True):
        reached = two["bytes"] / two["seconds"] >= 1.5e9
        api_rows.append(
            [
                f"{two['values']:,}",
                *(f"{x['seconds'] * 1e3:.2f} ms, {x['bytes'] / x['seconds'] / 1e9:.2f} GB/s" for x in (one, two)),
                f"at least 1.5 GB/s: {verdict(reached)}" if two["values"] >= 10**6 else "",
            ]
        )
    add = in_own_process("flashe_add", 1)
    speed = {who: add["bytes"] / add[who] / 1e9 for who in ("ours", "numpy", "numpy_turns")}
    share = speed["ours"] / speed["numpy"]
    add_rows = [
        [
            "FLASHE addition, frame checked and its tag added",
            f"{add['ours'] * 1e3:.2f} ms, {speed['ours']:.1f} GB/s",
            "",
        ],
        ["of it, the frame's checksum", f"{add['check'] * 1e3:.2f} ms", ""],
        ["numpy, as many bytes", f"{add['numpy'] * 1e3:.2f} ms, {speed['numpy']:.1f} GB/s", ""],
        [
            "FLASHE addition, w = 20, over numpy's of as many bytes",
            f"{share:.0%}",
            f"at least 60%: {verdict(share >= 0.6)}",
        ],
        [
            "numpy, as many bytes of ten frames in turn, as they come to a server",
            f"{add['numpy_turns'] * 1e3:.2f} ms, {speed['numpy_turns']:.1f} GB/s",
            "",
        ],
        [
            "FLASHE addition without the checksum, over that",
            f"{add['numpy_turns'] / (add['ours'] - add['check']):.0%}",
            "",
        ],
        [
            "addition by Flower's SecAgg+, as many values",
            f"{add['secagg'] * 1e3:.2f} ms",
            f"ours is faster: {verdict(add['ours'] < add['secagg'])}",
        ],
    ]
    glue = in_own_process("flower_glue", 1)
    glue_rows = [
        [
            f"a frame of {glue['bytes'] / 1e6:.1f} MB, {way}",
            f"{ours * 1e3:.3f} ms",
            f"{theirs * 1e3:.3f} ms",
            f"at most 0.5 ms: {verdict(ours <= 0.5e-3)}",
        ]
        for way, ours, theirs in (
            ("into a Flower record", glue["into"], glue["flower_into"]),
            ("out of one", glue["out"], glue["flower_out"]),
        )
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
        "## FLASHE\n\nThe kernel alone, double masking, one thread.\n\n"
        + table(head, rows)
        + "\n\nThe limit is what the AES of the processor allows: two masks a value. Crate `aes` works on 512-bit"
        " vectors where there are VAES and AVX-512. What binds at w = 16: two masks are added to each value, which"
        f" leaves {bare / limits[16]:.0%} of the limit; the tag's polynomial takes the rest.\n\n"
        "### An update through the Python API, ten clients of 16-bit values (w = 20)\n\n"
        + table(["values", "one core", "two cores", "target"], api_rows)
        + "\n\nQuantising, tag, nonce ledger and the frame's checksum included. Up to some ten thousand values the"
        " ledger's writes to disk are the time.\n\n"
        "### A server's addition of one update, 1.2 M values, w = 20, one thread\n\n"
        + table(head, add_rows)
        + "\n\nWhat binds: a lane of 20 bits lies across words, and keeping carries in it takes about as long as memory"
        " does ([limits.md](limits.md)); the checksum reads every byte once more. numpy's two arrays of the first row"
        " stay in the caches, and neither numpy nor SecAgg+ checks anything.\n\n"
        "### Flower's records, one thread\n\n"
        + table(["figure", "measured", "Flower's own, an array of as many bytes", "target"], glue_rows)
        + "\n\n### Round trip, 1.2 M parameters, 10 clients, 16-bit values (w = 20)\n\n"
        + table(head, rows2)
    )


def bfv() -> str:
    r = in_own_process("bfv_lenet", 1)
    c = r["compact"]
    whole = r["tenseal"] / (c["online"] + c["offline"])
    gain = r["tenseal"] / c["online"]
    rows = [
        [
            f"`{preset}`",
            f"{(r[preset]['offline'] + r[preset]['online']) * 1e3:.2f}",
            f"{r[preset]['offline'] * 1e3:.2f}",
            f"{r[preset]['online'] * 1e3:.2f}",
            f"{r[preset]['aggregate'] * 1e3:.2f}",
            f"{r[preset]['decrypt'] * 1e3:.2f}",
        ]
        for preset in ("compact", "fast", "fedbit-paper")
    ]
    rows.append(
        [
            "TenSEAL CKKS, 8192, [60,40,40,60]",
            f"{r['tenseal'] * 1e3:.1f}",
            "",
            "",
            "",
            f"{r['tenseal_decrypt'] * 1e3:.1f}",
        ]
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
        ["TenSEAL CKKS encryption / ours, offline and online", f"{whole:.0f}x", ""],
        ["TenSEAL CKKS encryption / ours, online only", f"{gain:.0f}x", f"at least 50x: {verdict(gain >= 50)}"],
    ]
    packed, single = in_own_process("seal_lenet", 1)
    for seal, what in ((packed, "three weights a slot"), (single, "one weight a slot")):
        primes = ", ".join(map(str, seal["primes"]))
        rows.append([f"SEAL BFV, 4096, [{primes}], symmetric, {what}", f"{seal['seconds'] * 1e3:.2f}", "", "", "", ""])
    ours, over = c["online"] + c["offline"], "one core; SEAL's values are quantised and packed before"
    ratio = packed["seconds"] / ours
    goals += [
        [
            f"SEAL with FedBit's packing / ours, offline and online ({over})",
            f"{ratio:.1f}x",
            f"at least 5x: {verdict(ratio >= 5)}",
        ],
        ["what packing is of it: SEAL without / SEAL with", f"{single['seconds'] / packed['seconds']:.1f}x", ""],
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
        + table(["preset", "total", "offline", "online", "aggregate 10", "decrypt"], rows)
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
        + f"\n\nWhat binds: a core's work; two make at most twice its rate, {2 * large[1]['rate'] / 1e9:.2f} GB/s."
    )


def transforms() -> str:
    """The two NTT crates, each from a build of its own, from criterion's estimates of the runs before this."""

    def seconds(crate: str, which: str) -> float:
        estimates = ROOT / "target" / "criterion" / f"ntt-4096-{crate}" / which / "new" / "estimates.json"
        return json.loads(estimates.read_text())["median"]["point_estimate"] / 1e9

    crates = {"tfhe-ntt": "BSD-3-Clause-Clear, default", "fhe-math": "MIT, feature `ntt-fhe-math`"}
    both = ("forward", "inverse")
    rows = [
        [f"{crate} ({what})", *(f"{seconds(crate, which) * 1e6:.1f} us" for which in both)]
        for crate, what in crates.items()
    ]
    rows.append(["ratio", *(f"{seconds('fhe-math', which) / seconds('tfhe-ntt', which):.1f}x" for which in both)])
    return "## NTT crates, N = 4096, 54-bit prime\n\n" + table(["crate", "forward", "product and inverse"], rows)


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
