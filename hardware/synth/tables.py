"""hardware/synth/README.md from reports/: nothing in it that a tool did not print or a paper did not publish."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcipher_research.published import claim, figure

# An Alveo U250's totals, which FedBit's shares are of (AMD DS962).
U250 = {"lut": 1_728_000, "dsp": 12_288, "bram36": 2_688}
CLOCK = 125e6
# PCIe 3.0 x16 after encoding and 24 bytes of overhead a packet of 256 (crates/fedcipher-accel/src/link.rs).
LINK = 8e9 * 16 / 8 * (128 / 130) * (256 / 280)
N, LOG_N = 4096, 12
LANES = (2, 4, 8, 16)
# A model of ResNet-18's size, two 12-bit values a coefficient.
RESNET = 11_200_000
# Bytes of a ciphertext to the card and from it (docs/explanation/accelerator.md's streams): a and e; m; c0 of 106 bits a coefficient.
BYTES = {
    "prepare": (16 * N + N, 0),
    "encrypt": (16 * N, N * 106 // 8),
    "decrypt": (16 * N + N * 106 // 8, 16 * N),
}
EARLIER = (
    "A figure marked `of an earlier RTL` was not taken again since the RTL, or else what decides it, has changed: its report "
    "carries another hash than that of the sources of now, or none."
)


def formula(lanes: int, coefficients: int, count: int, arrives: int | None = None) -> dict[str, int]:
    """Cycles by the architecture: what crates/fedcipher-accel/tests/device.rs holds the simulation to.

    ``arrives``: what an arrival takes, where it is not `arrival`.
    """
    transform, out = N // lanes * (LOG_N + 1), max(5, lanes)
    last = (coefficients - (count - 1) * N) * out // lanes
    steady = max(transform, arrives or arrival(lanes), N * out // lanes)
    pipeline = N + (count - 1) * steady + transform + last
    return {"prepare": pipeline, "encrypt": coefficients, "decrypt": pipeline}


def arrival(lanes: int) -> int:
    """Cycles from a ciphertext's first coefficient to the next one's, where nothing else binds: none arrives while the first
    stage reads what has arrived, and no line while the last stage writes, N/2P cycles each."""
    return N + N // lanes


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def thousands(n: float) -> str:
    return f"{n:,.0f}"


def age(report: dict[str, Any] | None) -> str:
    """What is to be said of a report that was made of other sources than those of now."""
    return " (of an earlier RTL)" if report and report["earlier"] else ""


def verdict(value: float | None, bound: float, binds: str, *, most: bool = True) -> str:
    if value is None:
        return "not run"
    if value <= bound if most else value >= bound:
        return "reached"
    return f"**missed**: {binds}"


def furthest(cycles: list[dict[str, Any]], arrives: int | None = None) -> tuple[float, dict[str, Any], str]:
    """How far a command's cycles are from the `formula` at most, at which P, and which command's."""
    return max(
        (
            (abs(found[name] / by_formula - 1), found, name)
            for found in cycles
            for name, by_formula in formula(
                found["lanes"], found["coefficients"], found["ciphertexts"], arrives
            ).items()
        ),
        key=lambda one: one[0],
    )


def targets(every: list[dict[str, Any]], xcup: dict[str, Any] | None, ecp5: dict[str, Any] | None) -> list[str]:
    """ACCELERATOR.md's, each with FedBit's figure, ours, and what binds where ours misses it."""

    def time(n: float) -> float:
        return 1000 * n / CLOCK

    def published(name: str) -> str:
        found = figure("fedbit", "Fig. 6", name)
        return f"{found.value} {found.unit}"

    (cycles,) = (found for found in every if found["lanes"] == 8)
    both = cycles["prepare"] + cycles["encrypt"]
    large = formula(cycles["lanes"], RESNET // 2, -(-RESNET // 2 // N))
    simulated = f"cycles counted by the simulated device, P = {cycles['lanes']}, at {CLOCK / 1e6:g} MHz{age(cycles)}"
    transform = f"N/P (log2 N + 1) = {thousands(N // cycles['lanes'] * (LOG_N + 1))} cycles a ciphertext: more lanes"
    stream = f"one coefficient a cycle: {thousands(cycles['coefficients'])} of {thousands(cycles['encrypt'])} cycles"
    large_s = (large["prepare"] + large["encrypt"]) / CLOCK
    lines = [row("figure", "FedBit, published", "target", "ours", "", "how ours was found"), row(*["---"] * 6)]
    encryption, decryption = published("FedBit Fashion-MNIST encryption"), published("FedBit Fashion-MNIST decryption")
    for name, theirs, bound, value, binds in (
        ("LeNet-5, preparation and encryption", encryption, 0.8, time(both), transform),
        ("its part that waits for data (encryption)", "-", 0.3, time(cycles["encrypt"]), stream),
        ("decryption", decryption, 0.8, time(cycles["decrypt"]), transform),
    ):
        lines.append(row(name, theirs, f"{bound} ms", f"{value:.3f} ms", verdict(value, bound, binds), simulated))
    theirs = published("FedBit CIFAR-10 encryption")
    name, how = "11.2 M values, preparation and encryption", "the formula below, not simulated"
    lines.append(row(name, theirs, "0.15 s", f"{large_s:.3f} s", verdict(large_s, 0.15, transform), how))
    for name, key, what, most in (
        ("LUT", "lut", "FPGA LUTs used", 60_000),
        ("DSP48E2", "dsp", "FPGA DSP slices used", 250),
        ("RAMB36", "bram36", "FPGA block RAM used, U250", 100),
    ):
        share = claim("fedbit", what).number / 100
        ours = xcup[key] if xcup else None
        lines.append(
            row(
                f"{name}, P = 8", f"{share:.0%} of a U250 = {thousands(share * U250[key])}", thousands(most),
                thousands(ours) if ours is not None else "-", verdict(ours, most, "by module below"),
                f"Yosys, UltraScale+, synthesis only{age(xcup)}",
            )
        )  # fmt: skip
    off, found, command = furthest(every)
    lanes = ", ".join(str(one["lanes"]) for one in every)
    older = max((age(one) for one in every), default="")
    lines.append(
        row(
            f"cycles against the formula, P = {lanes}", "-", "within 5%", f"{off:.2%} off at most",
            verdict(off, 0.05, "what the formula leaves out, below"), f"the table below: {command} at P = {found['lanes']}{older}",
        )
    )  # fmt: skip
    mhz = ecp5["fmax_mhz"] if ecp5 else None
    lines.append(
        row(
            "ECP5-85F, P = 2, placed and routed", "-", "100 MHz", f"{mhz} MHz" if mhz else "-",
            verdict(mhz, 100, "the path below", most=False), f"Yosys and nextpnr, speed grade 8{age(ecp5)}",
        )
    )  # fmt: skip
    return lines


def measured(cycles: list[dict[str, Any]]) -> list[str]:
    """Cycles of LeNet-5 against the formula, at each P that was simulated."""
    lines = [row("P", "command", "cycles", "formula", "off"), row(*["---"] * 5)]
    for found in cycles:
        expected = formula(found["lanes"], found["coefficients"], found["ciphertexts"])
        for name, by_formula in expected.items():
            off = f"{found[name] / by_formula - 1:+.2%}"
            lines.append(row(f"{found['lanes']}{age(found)}", name, thousands(found[name]), thousands(by_formula), off))
    return lines


def roofline(cycles: dict[str, Any]) -> list[str]:
    """Bytes of LeNet-5 against the link, cycles against the clock: the longer one binds."""
    lines = [row("command", "bytes to the card", "from it", "link", "cycles' time", "binds"), row(*["---"] * 6)]
    for name in ("prepare", "encrypt", "decrypt"):
        to, back = cycles[f"{name}_bytes"], cycles.get(f"{name}_bytes_back", 0)
        link, own = max(to, back) / LINK, cycles[name] / CLOCK
        binds = "cycles" if own > link else "link"
        lines.append(row(name, thousands(to), thousands(back), f"{1e6 * link:.0f} us", f"{1e6 * own:.0f} us", binds))
    return lines


def steady() -> list[str]:
    """What a ciphertext takes in a long command, by the formula, and the link's rate at which it would bind."""
    lines = [row("P", "command", "cycles a ciphertext", "of which", "link that would bind"), row(*["---"] * 5)]
    for lanes in LANES:
        ways = {"transform": N // lanes * (LOG_N + 1), "arrival": arrival(lanes), "leaving": N * max(5, lanes) // lanes}
        for name, (to, back) in BYTES.items():
            longest = "stream" if name == "encrypt" else max(ways, key=lambda way: ways[way])
            taken = N if name == "encrypt" else ways[longest]
            rate = max(to, back) / (taken / CLOCK) / 1e9
            lines.append(row(lanes, name, thousands(taken), longest, f"below {rate:.1f} GB/s"))
    return lines


def resources(counts: list[dict[str, Any]]) -> list[str]:
    lines = [row("P", "LUT", "FF", "DSP48E2", "RAMB36", "CARRY4"), row(*["---"] * 6)]
    for c in counts:
        figures = (thousands(c[k]) for k in ("lut", "ff", "dsp"))
        lines.append(row(f"{c['lanes']}{age(c)}", *figures, f"{c['bram36']:g}", thousands(c["carry4"])))
    lines += [
        "",
        "UltraScale+ by Yosys (`synth_xilinx -family xcup`): counts of synthesis, not of a placed design. The hierarchy "
        "stays, so nothing is optimised across modules: counts from above.",
    ]
    for c in counts:
        if c["lanes"] == 8 and c.get("lut_by_module"):
            parts = [f"`{name}` {thousands(n)}" for name, n in list(c["lut_by_module"].items())[:8]]
            lines += ["", f"LUTs as logic at P = 8, by module{age(c)}: {', '.join(parts)}."]
    missing = [str(p) for p in LANES if all(c["lanes"] != p for c in counts)]
    return [*lines, "", f"Not run yet: P = {', '.join(missing)}."] if missing else lines


def routed(ecp5: dict[str, Any], seeds: dict[str, Any] | None) -> list[str]:
    lines = [
        f"ECP5-85F at P = 2 (`ecp5_harness.sv` around it), speed grade 8: {ecp5['fmax_mhz']} MHz after routing"
        f"{age(ecp5)}; the tool was asked for {ecp5['asked_mhz']}.",
    ]
    if path := ecp5.get("critical"):
        lines += [
            "",
            f"The longest path: {path['logic_ns']} ns in {path['logic_steps']} steps of logic and {path['routing_ns']} ns of "
            f"routing, from `{path['from']}` to `{path['to']}` by {', '.join(f'`{cell}`' for cell in path['through'])}.",
        ]
    if seeds:
        tried = ", ".join(f"{seed}: {mhz} MHz" for seed, mhz in seeds["fmax_mhz"].items())
        lines += ["", f"How much of that is luck: the same netlist from the tool's seeds, {tried}{age(seeds)}."]
    lines += ["", row("resource", "used", "there are"), row("---", "---", "---")]
    return lines + [row(k, *map(thousands, v)) for k, v in sorted(ecp5["used"].items())]


def readme(reports: Path, made_of: Callable[[str], str]) -> str:
    """`made_of` gives the hash that a report of this name would carry if it were made now."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))}
    for name, report in found.items():
        report["earlier"] = report.get("made_of") != made_of(name)
    simulated = [found[f"cycles_p{p}"] for p in LANES if f"cycles_p{p}" in found]
    cycles, ecp5 = found["cycles_p8"], found.get("ecp5_p2")
    counts = [found[f"xcup_p{p}"] for p in LANES if f"xcup_p{p}" in found]
    plain, at, command = furthest(simulated, N)
    clock = claim("fedbit", "FPGA clock")
    lines = [
        "# What the accelerator takes",
        "",
        "Written by `make hardware` from `reports/`. [docs/explanation/accelerator.md](../../docs/explanation/accelerator.md) says how it works.",
        *(["", EARLIER] if any(report["earlier"] for report in found.values()) else []),
        "",
        "## Targets",
        "",
        f"LeNet-5 has {thousands(cycles['coefficients'])} coefficients in {cycles['ciphertexts']} ciphertexts under `fedbit-paper` "
        f"with 12-bit values. FedBit's figures are of a board at {clock.value} MHz, and it does not say of what its milliseconds "
        "consist; ours are of a simulation, without the link and the host, at a clock that is assumed and not a timing report's.",
        "",
        *targets(simulated, found.get("xcup_p8"), ecp5),
        "",
        "## Cycles",
        "",
        "The formula: N to fill, then the longest of a transform, N/P (log2 N + 1), of an arrival, N and N/P in which the transform "
        "has the memory that it arrives in, and of what leaves; at last a transform and `used` to leave. Encryption takes one a "
        "coefficient. The memory beside the device has 40 cycles of latency and loses 44 of 975 to refresh, which the formula "
        "leaves out.",
        "",
        *measured(simulated),
        "",
        "With an arrival of N cycles and no more, which leaves out whose turn the memory is, the furthest off would be "
        f"{plain:+.2%}: {command} at P = {at['lanes']}{age(at)}.",
        "",
        "## Roofline",
        "",
        f"The link is a model: PCIe 3.0 x16 at {LINK / 1e9:.1f} GB/s each way, its time beside the cycles and never in them. LeNet-5 "
        f"at P = {cycles['lanes']}{age(cycles)}:",
        "",
        *roofline(cycles),
        "",
        "In a long command, by the formula, and the link below whose rate a command would wait for its bytes and not for cycles:",
        "",
        *steady(),
        "",
        "Encryption takes a coefficient a cycle whatever P is: the streams' 16 bytes a cycle bind it. From P = 16 on, a ciphertext's "
        "arrival binds preparation and decryption too: more lanes would wait for `s_a`.",
        "",
        f"`a` made on the card from its seed (AES-256-CTR, as the core does) would take {thousands(16 * N)} of the "
        f"{thousands(BYTES['prepare'][0])} bytes off a preparation. It has not been built.",
        "",
        "## Resources by P",
        "",
        *(resources(counts) if counts else ["Not run yet."]),
        "",
        "## Place and route",
        "",
        *(routed(ecp5, found.get("ecp5_p2_seeds")) if ecp5 else ["Not run to its end yet."]),
    ]
    return "\n".join([*lines, ""])
