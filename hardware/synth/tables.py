"""hardware/synth/README.md from reports/: nothing in it that a tool did not print or a paper did not publish."""

import json
from pathlib import Path

# papers' published figures (docs/study.md says where from): FedBit sections VI-B and VI-C, of a U250 at 250 MHz.
FEDBIT = {"encrypt_ms": 3.2, "decrypt_ms": 3.1, "large_s": 0.42, "lut": 0.71, "dsp": 0.07, "bram": 0.02}
# An Alveo U250's totals, which FedBit's shares are of (AMD DS962).
U250 = {"lut": 1_728_000, "dsp": 12_288, "bram36": 2_688}
CLOCK = 125e6
# PCIe 3.0 x16 after encoding and 24 bytes of overhead a packet of 256 (crates/fedcipher-accel/src/link.rs).
LINK = 8e9 * 16 / 8 * (128 / 130) * (256 / 280)
N, LOG_N = 4096, 12
# A model of ResNet-18's size, two 12-bit values a coefficient.
RESNET = 11_200_000


def formula(lanes: int, coefficients: int, count: int) -> dict[str, int]:
    """Cycles by the architecture: what crates/fedcipher-accel/tests/device.rs holds the simulation to."""
    transform, out = N // lanes * (LOG_N + 1), max(5, lanes)
    last = (coefficients - (count - 1) * N) * out // lanes
    steady = max(transform, N * out // lanes)
    pipeline = N + (count - 1) * steady + transform + last
    return {"prepare": pipeline, "encrypt": coefficients, "decrypt": pipeline}


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def thousands(n: float) -> str:
    return f"{n:,.0f}"


def targets(cycles: dict, xcup: dict | None, ecp5: dict | None) -> list[str]:
    milliseconds = lambda n: f"{1000 * n / CLOCK:.3f} ms"  # noqa: E731
    both = cycles["prepare"] + cycles["encrypt"]
    count = -(-RESNET // 2 // N)
    large = formula(cycles["lanes"], RESNET // 2, count)
    lines = [row("figure", "FedBit, published", "target", "ours", "how ours was found"), row(*["---"] * 5)]
    simulated = "cycles counted by the simulated device, at 125 MHz"
    lines += [
        row("LeNet-5, preparation and encryption", f"{FEDBIT['encrypt_ms']} ms", "0.8 ms", milliseconds(both), simulated),
        row("its part that waits for data (encryption)", "-", "0.3 ms", milliseconds(cycles["encrypt"]), simulated),
        row("decryption", f"{FEDBIT['decrypt_ms']} ms", "0.8 ms", milliseconds(cycles["decrypt"]), simulated),
        row(
            "11.2 M values, preparation and encryption", f"{FEDBIT['large_s']} s", "0.15 s",
            f"{(large['prepare'] + large['encrypt']) / CLOCK:.3f} s", "the formula below, not simulated",
        ),
    ]  # fmt: skip
    for name, key, share, most in (
        ("LUT", "lut", "lut", "60,000"),
        ("DSP48E2", "dsp", "dsp", "250"),
        ("RAMB36", "bram36", "bram", "100"),
    ):
        published = f"{FEDBIT[share]:.0%} of a U250 = {thousands(FEDBIT[share] * U250[key])}"
        ours = thousands(xcup[key]) if xcup else "not run"
        lines.append(row(f"{name}, P = 8", published, most, ours, "Yosys, UltraScale+, synthesis only"))
    fmax = f"{ecp5['fmax_mhz']} MHz" if ecp5 else "not run to its end"
    lines.append(row("ECP5-85F, P = 2, placed and routed", "-", "100 MHz", fmax, "Yosys and nextpnr, speed grade 8"))
    return lines


def roofline(cycles: dict) -> list[str]:
    lines = [
        row("command", "cycles", "formula", "off", "bytes to the card", "from it", "link", "cycles' time", "binds"),
        row(*["---"] * 9),
    ]
    expected = formula(cycles["lanes"], cycles["coefficients"], cycles["ciphertexts"])
    for name in ("prepare", "encrypt", "decrypt"):
        to, back = cycles[f"{name}_bytes"], cycles.get(f"{name}_bytes_back", 0)
        link, own = max(to, back) / LINK, cycles[name] / CLOCK
        lines.append(
            row(
                name, thousands(cycles[name]), thousands(expected[name]), f"{cycles[name] / expected[name] - 1:+.2%}",
                thousands(to), thousands(back), f"{1e6 * link:.0f} us", f"{1e6 * own:.0f} us",
                "arithmetic" if own > link else "link",
            )
        )  # fmt: skip
    return lines


def readme(reports: Path) -> str:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))}
    cycles, ecp5 = found["cycles"], found.get("ecp5_p2")
    counts = [found[f"xcup_p{p}"] for p in (2, 4, 8, 16) if f"xcup_p{p}" in found]
    lines = [
        "# What the accelerator takes",
        "",
        "Written by `make hardware` from `reports/`. [docs/accelerator.md](../../docs/accelerator.md) says how it works.",
        "",
        f"LeNet-5 has {thousands(cycles['coefficients'])} coefficients in {cycles['ciphertexts']} ciphertexts under `fedbit-paper` "
        "with 12-bit values. FedBit's figures are of a board, and it does not say of what its milliseconds consist; ours are "
        "of a simulation, without the link and the host, at a clock that is assumed and not a timing report's.",
        "",
        *targets(cycles, found.get("xcup_p8"), ecp5),
        "",
        "## Cycles and bytes",
        "",
        "The formula: N to fill, N/P (log2 N + 1) a ciphertext, `used` to leave; encryption one a coefficient. The memory beside "
        "the device has 40 cycles of latency and loses 44 of 975 to refresh, which the formula leaves out. The link is a model: "
        f"PCIe 3.0 x16 at {LINK / 1e9:.1f} GB/s, its time beside the cycles and never in them.",
        "",
        *roofline(cycles),
        "",
        "The streams of 16 bytes a cycle bind encryption: one coefficient a cycle whatever P is. From P = 16 on, a ciphertext's "
        "arrival (N cycles) binds preparation and decryption too.",
        "",
        "## Resources by P",
        "",
    ]
    if counts:
        lines += [row("P", "LUT", "FF", "DSP48E2", "RAMB36", "CARRY8"), row(*["---"] * 6)]
        lines += [
            row(
                c["lanes"], *(thousands(c[k]) for k in ("lut", "ff", "dsp")), f"{c['bram36']:g}", thousands(c["carry8"])
            )
            for c in counts
        ]
        lines += [
            "",
            "UltraScale+ by Yosys (`synth_xilinx -family xcup`): counts of synthesis, not of a placed design.",
        ]
    missing = [str(p) for p in (2, 4, 8, 16) if f"xcup_p{p}" not in found]
    if missing:
        lines += ["", f"Not run yet: P = {', '.join(missing)}."]
    if ecp5:
        lines += ["", f"ECP5-85F (P = 2, `ecp5_harness.sv` around it): {ecp5['fmax_mhz']} MHz after routing.", ""]
        lines += [row("resource", "used", "there are"), row("---", "---", "---")]
        lines += [row(k, *map(thousands, v)) for k, v in sorted(ecp5["used"].items())]
    return "\n".join([*lines, ""])
