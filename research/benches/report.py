"""`make bench`: runs every case, prints the tables, writes docs/evidence/benchmarks.md."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from measure import ROOT, Times, in_own_process, machine
from peers import NEIGHBOURS, OURS, SIZES

# Around the section that `make bench-offload` writes.
BEGIN, END = "<!-- offload -->", "<!-- /offload -->"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def section(page: str, marker: str) -> str:
    """The text between the two comments named ``marker`` of ``docs/PAGE``."""
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


def ms(seconds: float, digits: int = 2) -> str:
    """A median with, in brackets, the least."""
    least = f" ({seconds.least * 1e3:.{digits}f})" if isinstance(seconds, Times) else ""
    return f"{seconds * 1e3:.{digits}f} ms{least}"


def sec(seconds: float) -> str:
    """The same in seconds."""
    least = f" ({seconds.least:.2f})" if isinstance(seconds, Times) else ""
    return f"{seconds:.2f} s{least}"


def flashe() -> str:
    r = in_own_process("flashe_rate", 1)

    def rate(seconds: Times, width: int) -> str:
        def values(seconds: float) -> float:
            return r["values"] / seconds / 1e6

        most = f" ({values(seconds.least):.0f})"
        return f"{values(seconds):.0f}{most} M values/s, {values(seconds) * width / 8e3:.2f} GB/s"

    # Two masks a value, six (w = 20) or eight (w = 16) of them in a block of AES; seconds of as many values.
    limits = {width: r["values"] * 16 * 2 / (128 // width) * r["aes"] / 1e9 for width in (20, 16)}
    rows = [
        ["AES-128-CTR, crate `aes`, one thread", f"{1 / r['aes']:.2f} ({1 / r['aes'].least:.2f}) GB/s", ""],
        ["`openssl speed -evp aes-128-ctr`, 16 KiB", f"{r['openssl'] / 1e9:.2f} GB/s", ""],
    ]
    for width, what in ((20, "w = 20, ten clients of 16-bit values"), (16, "16-bit lanes")):
        tagged, bare, limit = r[f"w{width}_tagged"], r[f"w{width}"], limits[width]
        goal = f"at least 60%: {verdict(limit / tagged >= 0.6)}" if width == 16 else ""
        part = f"at least 60%: {verdict(bare / tagged >= 0.6)}" if width == 16 else ""
        rows += [
            [f"FLASHE encrypt with tag, {what}", rate(tagged, width), ""],
            [
                f"FLASHE encrypt at w = {width}, share of the limit (half of the rate of AES-128-CTR)",
                f"{limit / tagged:.0%}",
                goal,
            ],
            [f"FLASHE encrypt with tag over without, w = {width}", f"{bare / tagged:.0%}", part],
        ]
    bare = r["w16"]
    peer = r["peer"] / bare
    rows += [
        ["PyCryptodome + numpy, the paper's formula (one PRF block a coordinate)", rate(r["peer"], 16), ""],
        [
            "FLASHE without tag, w = 16, over PyCryptodome + numpy by the formula of FLASHE's paper",
            f"{peer:.0f}x",
            f"at least 100x: {verdict(peer >= 100)}",
        ],
        ["PyCryptodome + numpy, eight masks a block (CTR streams)", rate(r["peer_ctr"], 16), ""],
        ["FLASHE without tag, w = 16, over PyCryptodome + numpy by CTR streams", f"{r['peer_ctr'] / bare:.0f}x", ""],
    ]
    api_rows: list[list[str]] = []
    api = {threads: in_own_process("flashe_api", threads) for threads in (1, 2)}
    for one, two in zip(api[1], api[2], strict=True):
        reached = two["bytes"] / two["seconds"] >= 1.5e9
        api_rows.append(
            [
                f"{two['values']:,}",
                *(f"{ms(x['seconds'])}, {x['bytes'] / x['seconds'] / 1e9:.2f} GB/s" for x in (one, two)),
                f"at least 1.5 GB/s: {verdict(reached)}" if two["values"] >= 10**6 else "",
            ]
        )
    add = in_own_process("flashe_add", 1)
    speed = {who: add["bytes"] / add[who] / 1e9 for who in ("ours", "numpy", "numpy_turns")}
    share = speed["ours"] / speed["numpy"]
    add_rows = [
        [
            "FLASHE addition, frame checked and its tag added",
            f"{ms(add['ours'])}, {speed['ours']:.1f} GB/s",
            "",
        ],
        ["of it, the frame's checksum", ms(add["check"]), ""],
        ["numpy, as many bytes", f"{ms(add['numpy'])}, {speed['numpy']:.1f} GB/s", ""],
        [
            "FLASHE addition, w = 20, over numpy's of as many bytes",
            f"{share:.0%}",
            f"at least 60%: {verdict(share >= 0.6)}",
        ],
        [
            "numpy, as many bytes of ten frames in turn, as they come to a server",
            f"{ms(add['numpy_turns'])}, {speed['numpy_turns']:.1f} GB/s",
            "",
        ],
        [
            "FLASHE addition without the checksum, over that",
            f"{add['numpy_turns'] / (add['ours'] - add['check']):.0%}",
            "",
        ],
        [
            "addition by Flower's SecAgg+, as many values",
            ms(add["secagg"]),
            f"ours is faster: {verdict(add['ours'] < add['secagg'])}",
        ],
    ]
    glue = in_own_process("flower_glue", 1)
    glue_rows = [
        [
            f"a frame of {glue['bytes'] / 1e6:.1f} MB, {way}",
            ms(ours, 4),
            ms(theirs, 3),
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
        ["encode + encrypt, one client", ms(t["encrypt"], 1), ""],
        ["aggregate, ten clients", ms(t["aggregate"], 1), ""],
        ["decrypt + decode", ms(t["decrypt"], 1), ""],
        ["FLASHE round trip of ten clients over one local epoch", f"{share:.2%}", f"under 5%: {verdict(share < 0.05)}"],
    ]
    head = ["figure", "measured", "target"]
    return (
        "## FLASHE\n\nThe kernel alone, double masking, one thread.\n\n"
        + table(head, rows)
        + "\n\nThe AES of the processor sets the limit: two masks a value. Crate `aes` works on 512-bit"
        " vectors where there are VAES and AVX-512, and on 256-bit ones where there is VAES alone. The limits at"
        " w = 16: two masks are added to each value, which"
        f" leaves {limits[16] / bare:.0%} of the limit; the tag's polynomial takes the rest.\n\n"
        "### An update through the Python API, ten clients of 16-bit values (w = 20)\n\n"
        + table(["values", "one core", "two cores", "target"], api_rows)
        + "\n\nQuantising, tag, nonce ledger and the frame's checksum included. Up to some ten thousand values the"
        " ledger's writes to disk are the time.\n\n"
        "### A server's addition of one update, 1.2 M values, w = 20, one thread\n\n"
        + table(head, add_rows)
        + "\n\nMemory is the limit, since each frame comes out of it ([limits.md](limits.md)). The checksum"
        " reads every byte once more. numpy's two arrays of the first row stay in the caches, and neither numpy nor"
        " SecAgg+ checks anything.\n\n"
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
            ms(r[preset]["offline"] + r[preset]["online"]),
            *(ms(r[preset][what]) for what in ("offline", "online", "aggregate", "decrypt")),
        ]
        for preset in ("compact", "fast", "fedbit-paper")
    ]
    rows.append(
        [
            "TenSEAL CKKS, 8192, [60,40,40,60]",
            ms(r["tenseal"], 1),
            "",
            "",
            "",
            ms(r["tenseal_decrypt"], 1),
        ]
    )
    goals = [
        [
            "BFV online encryption, LeNet-5, one core",
            ms(c["online"]),
            f"under 1 ms: {verdict(c['online'] < 1e-3)}",
        ],
        [
            "BFV decryption, LeNet-5, one core",
            ms(c["decrypt"]),
            f"under 2 ms: {verdict(c['decrypt'] < 2e-3)}",
        ],
        ["TenSEAL CKKS encryption / ours, offline and online", f"{whole:.0f}x", ""],
        ["TenSEAL CKKS encryption / ours, online only", f"{gain:.0f}x", f"at least 50x: {verdict(gain >= 50)}"],
    ]
    packed, single = in_own_process("seal_lenet", 1)
    for seal, what in ((packed, "three weights a slot"), (single, "one weight a slot")):
        primes = ", ".join(map(str, seal["primes"]))
        rows.append([f"SEAL BFV, 4096, [{primes}], symmetric, {what}", ms(seal["seconds"]), "", "", "", ""])
    ours, over = c["online"] + c["offline"], "one core; SEAL's values are quantised and packed before"
    ratio = packed["seconds"] / ours
    goals += [
        [
            f"SEAL with FedBit's packing / ours, offline and online ({over})",
            f"{ratio:.1f}x",
            f"at least 5x: {verdict(ratio >= 5)}",
        ],
        ["share of packing in it: SEAL without / SEAL with", f"{single['seconds'] / packed['seconds']:.1f}x", ""],
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
            ms(d["seconds"]),
            ms(d["total"]),
            ms(d["seeds"]),
        ]
        for d in derive
    ]
    large: dict[int, Any] = {threads: in_own_process("bfv_large", threads) for threads in (1, 2)}
    ratio = large[2]["peak_bytes"] / large[2]["frame_bytes"]
    rates = {threads: large[threads]["packed"] / large[threads]["seconds"] / 1e9 for threads in (1, 2)}
    large_rows = [
        [
            f"BFV online, 11 M parameters, {cores}",
            f"{ms(large[threads]['seconds'], 1)}, {rates[threads]:.2f} GB/s of packed plaintext",
            f"at least 1.5 GB/s: {verdict(rates[threads] >= 1.5)}" if threads == 2 else "",
        ]
        for threads, cores in ((1, "one core"), (2, "two cores"))
    ]
    large_rows += [
        ["BFV peak memory over the ciphertext's size", f"{ratio:.2f}x", f"under 3x: {verdict(ratio < 3)}"],
    ]
    return (
        f"## BFV, LeNet-5 ({r['weights']:,} weights), 12 bits, 10 clients, one core\n\n"
        + table(["preset", "total", "offline", "online", "aggregate 10", "decrypt"], rows)
        + "\n\n"
        + table(["figure", "measured", "target"], goals)
        + "\n\n### Bytes up and down, whole frames\n\nPacked plaintext: 12 bits plus the head-room the sum needs.\n\n"
        + table(
            ["preset", "clients", "packed plaintext", "up", "down", "up over 12 bits", "1.25x target"],
            size_rows,
        )
        + "\n\n### c1 from the cohort's seeds\n\n24,576 weights of 8 bits, one core; the third column adds the"
        " download at 100 Mbit/s.\n\n"
        + table(
            ["clients", "decrypt", "with download", "AES-256 of the seeds alone, OpenSSL"],
            derive_rows,
        )
        + "\n\nThe server expands no seed: a client that took c1 from it could be asked for its key bit by bit"
        " ([security.md](../explanation/security.md)), so what grows with the cohort is at the client."
        + "\n\n### 11 M parameters, 12 bits, 10 clients, `compact`\n\n"
        + table(["figure", "measured", "target"], large_rows)
        + f"\n\nA core's work is the limit; two make at most twice its rate, {2 * rates[1]:.2f} GB/s."
    )


def beside_secagg() -> str:
    rows: list[list[str]] = []
    for values, clients in SIZES:
        peer = in_own_process("secagg", 1, "peers.py", values, clients)
        of = [f"{values:,}, {clients}"]
        rows.append([*of, f"SecAgg+, {NEIGHBOURS[clients]} neighbours", *_round(peer, "the server does"), "", ""])
        for name in OURS:
            found = in_own_process(name, 1, "peers.py", values, clients)
            client = peer["encrypt"] / (found["encrypt"] + found["decrypt"])
            server = peer["server"] / found["server"]
            rows.append([*of, f"`{name}`", *_round(found, ms(found["decrypt"])), f"{client:.1f}x", f"{server:.1f}x"])
    head = ["values, clients", "by", "a client encrypts", "a client opens", "the server's round, once", "up"]
    return (
        "## A round beside Flower's SecAgg+, 16 bits, one thread\n\nAll clients are present. SecAgg+'s client makes"
        " keys, shares and masks in four messages, and its server learns the sum; `flashe` and `bfv` rest on a key"
        " that clients share, `oneshot` on none, with five members whose answers are in the server's time (three open a"
        " sum; `corrupt_members=0`: all five are trusted to keep to the protocol). SecAgg+ has its workflow's defaults:"
        " values of 22 bits, which travel as int64. A client's time is a median over the clients, the server's"
        " is of one round.\n\n" + table([*head, "SecAgg+ / it: a client", "the server"], rows)
    )


def _round(found: dict[str, Any], opened: str) -> list[str]:
    return [ms(found["encrypt"]), opened, f"{found['server'] * 1e3:.1f} ms", f"{found['up'] / 1e6:.2f} MB"]


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


def without_avx512() -> str:
    """A client's paths as on processors without AVX-512, where this one has it and its CPUID traps."""
    if not {"avx512f", "cpuid_fault"} <= set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()):
        return "## Without AVX-512\n\nNot measured: this processor has none, or does not let CPUID trap."
    found = {name: in_own_process("paths", 1, "limits.py", processor=name) for name in (None, "AlderLake", "Haswell")}
    paths = {"flashe": "FLASHE, w = 20, 1.2 M values", "bfv": "BFV `compact`, LeNet-5"}
    rows: list[list[str]] = []
    for scheme, name in paths.items():
        for what in ("encrypt", "decrypt"):
            wide, vaes, aes = (seconds[scheme][what] for seconds in found.values())
            most = max(vaes, aes) / wide
            ratios = [f"{ms(took)}, {took / wide:.2f}x" for took in (vaes, aes)]
            rows.append([f"{name}: {what}", ms(wide), *ratios, f"at most 3x: {verdict(most <= 3)}"])
    head = ["path", "this processor", "AVX2 and VAES", "AVX2 and AES-NI", "target"]
    return (
        "## Without AVX-512\n\nThe same processor, which says of itself that it lacks it (`tools/without_avx512.sh`),"
        " ten clients, one core, through the Python API.\n\n" + table(head, rows)
    )


def main() -> None:
    parts = [
        "# Benchmarks",
        f"Written by `make bench` on {datetime.date.today()}: {machine()}. Medians, and in brackets the least (of rates"
        " the best); ratios are of medians of this run. A machine without AVX-512 was not at hand: this one plays it"
        " ([below](#without-avx-512)), which is tested (`make test-dispatch`).",
        flashe(),
        bfv(),
        beside_secagg(),
        transforms(),
        without_avx512(),
        "More kernels (masks by width, ciphertexts, frame parsing) are in criterion: `cargo bench -p fedcipher-core`.",
    ]
    text = "\n\n".join(parts) + "\n"
    (ROOT / "docs").mkdir(exist_ok=True)
    page = ROOT / "docs" / "evidence" / "benchmarks.md"
    # The section of `make bench-offload` stays as it is.
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    section = before.partition(BEGIN)[2].partition(END)[0]
    if section:
        text += f"\n{BEGIN}{section}{END}\n"
    page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
