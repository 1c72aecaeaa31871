"""One module broken at a time: the tests or the proofs must go red. python hardware/test/mutants.py [name ...]

A mutant is a copy of rtl/ with one change, built and tried in target/hardware/mutants; nothing here is changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HARDWARE = HERE.parent
sys.path.insert(0, str(HARDWARE / "formal"))
from proofs import PROVED, REFUTED, prove

TEST = ["cargo", "test", "--release", "--quiet", "-p", "fedcipher-accel", "--features", "sim"]
BUILD = Path("target/hardware/mutants").resolve()
# Seconds, several times what the tests take where nothing is broken.
HANGS = 1200

# Name: file, text, what takes its place, and who must notice: `device` (the Rust tests of the simulated device) or a
# proof.
MUTANTS = {
    "bank": ("ntt_address.sv", "apart_swap = c[0];", "apart_swap = c[1];", "bank_conflicts:p8"),
    "bank_write": ("ntt_address.sv", "w0 = both;", "w0 = {both[TOP-1:1], 1'b0};", "bank_conflicts:p8"),
    "fold": ("fc_pkg.sv", "C_B_1 = 4;", "C_B_1 = 5;", "device"),
    "fold_sign": ("times_c.sv", "plus - minus;", "plus - minus - 1'b1;", "fold_exact:small"),
    "less": ("fold.sv", "less[K] ? twice : less", "less[K-1] ? twice : less", "fold_exact:small"),
    "garner": ("garner.sv", "apart[K] ? fc_constants_pkg::P1 : '0", "apart[K] ? fc_constants_pkg::P0 : '0", "device"),
    "stale": ("fc_top.sv", "assign quiet = rst || flush || start;", "assign quiet = rst || flush;", "device"),
    "wipe": ("ntt_limb.sv", "result0 <= wipe ? '0 : w_swap", "result0 <= w_swap", "device"),
    "offer": ("stream_out.sv", "end else if (!out_valid || out_ready) begin", "end else begin", "streams"),
    "twiddle": ("", "", "", "device"),  # a word of a table
}


def broken(name: str) -> tuple[Path, Path]:
    """Copies of rtl/ and of the tables with the mutant's change."""
    rtl, tables = BUILD / name / "rtl", BUILD / name / "tables"
    shutil.rmtree(BUILD / name, ignore_errors=True)
    shutil.copytree(HARDWARE / "rtl", rtl)
    subprocess.run([sys.executable, HARDWARE / "tools" / "constants.py", "--tables", tables], check=True)
    file, text, instead, _ = MUTANTS[name]
    if name == "twiddle":
        table = tables / "limb1_p3_lane5.hex"
        lines = table.read_text().split("\n")
        lines[300] = f"{int(lines[300], 16) ^ 1 << 20:014x}"
        table.write_text("\n".join(lines))
    else:
        path = rtl / file
        source = path.read_text()
        if source.count(text) != 1:
            raise SystemExit(f"{name}: {text!r} is in {file} {source.count(text)} times")
        path.write_text(source.replace(text, instead))
    return rtl, tables


def caught(name: str) -> bool:
    rtl, tables = broken(name)
    by = MUTANTS[name][3]
    if by != "device":
        formal = BUILD / name / "formal"
        shutil.copytree(HARDWARE / "formal", formal)
        found, said = prove(by, formal, BUILD / name / "proof")
        if found not in (PROVED, REFUTED):
            raise SystemExit(f"{name}: the proof did not run: {said[-2000:]}")
        return found == REFUTED
    out = BUILD / name / "sim"
    build = [sys.executable, HARDWARE / "sim" / "build.py", "--out", out, "--rtl", rtl, "--tables", tables]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*TEST, "--no-run"], check=True)
    environment = {**os.environ, "FC_SIM_LIBRARY": str(out / "libfc_sim.so"), "FC_SIM_TRIES": "1"}
    # Most are noticed by one test; those that are not by all the others.
    for tests in (["--", "whole_ciphertexts"], []):
        try:
            if subprocess.run([*TEST, *tests], env=environment, capture_output=True, timeout=HANGS).returncode != 0:
                return True
        except subprocess.TimeoutExpired:
            # A device that stands still does so for its own TIMEOUT, which is hours of simulation.
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MUTANTS))
    missed = []
    for name in parser.parse_args().names:
        red = caught(name)
        print(f"{name}: {'caught' if red else 'NOT caught'} by {MUTANTS[name][3]}", flush=True)
        missed += [] if red else [name]
    if missed:
        sys.exit(f"not caught: {', '.join(missed)}")


if __name__ == "__main__":
    main()
