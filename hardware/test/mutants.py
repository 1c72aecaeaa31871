"""One module broken at a time: the tests or the proofs must go red. python hardware/test/mutants.py [name ...]

A mutant is a copy of rtl/ with one change, built and tried in target/hardware/mutants; nothing here is changed.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
HARDWARE = HERE.parent
sys.path.insert(0, str(HARDWARE / "formal"))
from proofs import NO_STEP, PROVED, REFUTED, prove

TEST = ["cargo", "test", "--release", "--quiet", "-p", "fedcipher-accel", "--features", "sim"]
BUILD = Path("target/hardware/mutants").resolve()
# Seconds of the processor's time, several times what the tests take where nothing is broken. Not the clock's: on a busy
# machine every mutant would pass for one that stands still.
HANGS = 60

# Name: file, text, what takes its place, and who must notice, each of them where there are several: `device` (the Rust
# tests of the simulated device; or of these the one named behind a colon), `units` (a test of cocotb's) or a proof.
MUTANTS = {
    "bank": ("ntt_address.sv", "apart_swap = c[0];", "apart_swap = c[1];", "bank_conflicts:p8"),
    "bank_write": ("ntt_address.sv", "w0 = both;", "w0 = {both[TOP-1:1], 1'b0};", "bank_conflicts:p8"),
    "fold": ("fc_pkg.sv", "C_B_1 = 4;", "C_B_1 = 5;", "units:products"),
    "fold_sign": ("times_c.sv", "plus - minus;", "plus - minus - 1'b1;", "fold_exact:small"),
    "less": ("fold.sv", "less[K] ? twice : less", "less[K-1] ? twice : less", "fold_exact:small"),
    "garner": ("garner.sv", "apart[K] ? fc_constants_pkg::P1 : '0", "apart[K] ? fc_constants_pkg::P0 : '0", "device"),
    "stale": ("fc_top.sv", "assign quiet = clear || start;", "assign quiet = clear;", "device"),
    # Zeros come the second time, when the butterflies are empty: only what is left after the first shows it.
    "wipe": ("ntt_limb.sv", "result0 <= wipe ? '0 : w_swap", "result0 <= w_swap", "wiped:p8 device:wiping"),
    "wipe_key": ("ntt_control.sv", "wipe ? wipe_key : b_key", "!wipe && b_key", "wiped:p8 device:wiping"),
    "wipe_line": ("controller.sv", "{2'b01, {LB{1'b1}}}", "{2'b01, {(LB - 1) {1'b1}}, 1'b0}", "wiped:p8"),
    "room": ("ntt_control.sv", "(last && !room);", "1'b0;", "device:slow_to_take"),
    "moving": ("ntt_control.sv", "moving <= issue;", "moving <= running;", "device:what_is_wrong"),
    "late": ("fc_top.sv", "m_out_tlast && !out_late", "m_out_tlast", "device:taken_late"),
    "forget": ("fc_top.sv", "flush || mask_late;", "flush;", "device:taken_late"),
    "astray": ("fc_top.sv", "f_valid && !to_mask", "f_valid && !preparing", "device:taken_late"),
    "broken": ("stream_out.sv", "broken <= begun;", "broken <= 1'b0;", "streams device:taken_late"),
    "offer": ("stream_out.sv", "end else if (!out_valid || out_ready) begin", "end else if (1'b1) begin", "streams"),
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


def refuted(name: str, proof: str) -> bool:
    formal = BUILD / name / "formal"
    shutil.copytree(HARDWARE / "formal", formal, dirs_exist_ok=True)
    found, said = prove(proof, formal, BUILD / name / "proof")
    if found not in (PROVED, REFUTED, NO_STEP):
        raise SystemExit(f"{name}: the proof did not run: {said[-2000:]}")
    return found != PROVED


def unit_red(name: str, rtl: Path, test: str) -> bool:
    command = [sys.executable, HARDWARE / "test" / "run.py", "units", "--rtl", rtl, "--build", BUILD / name]
    environment = {**os.environ, "COCOTB_TEST_FILTER": test, "FC_PRODUCTS": "100"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    red = "units: red" in done.stderr
    if done.returncode != 0 and not red:
        raise SystemExit(f"{name}: the test did not run: {(done.stdout + done.stderr)[-2000:]}")
    return red


def for_so_long() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (HANGS, 2 * HANGS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def device_red(name: str, rtl: Path, tables: Path, test: str) -> bool:
    out = BUILD / name / "sim"
    build = [sys.executable, HARDWARE / "sim" / "build.py", "--out", out, "--rtl", rtl, "--tables", tables]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*TEST, "--no-run"], check=True)
    environment = {**os.environ, "FC_SIM_LIBRARY": str(out / "libfc_sim.so"), "FC_SIM_TRIES": "1"}
    # Most are noticed by one test; those that are not by all the others.
    for some in (["--", test],) if test else (["--", "whole_ciphertexts"], []):
        done = subprocess.run(
            [*TEST, *some], env=environment, capture_output=True, text=True, check=False, preexec_fn=for_so_long
        )
        # A device that stands still does so for its own TIMEOUT, which is hours of simulation.
        still = re.search(rf"\(signal: {signal.SIGXCPU:d}\b", done.stderr) is not None
        if still:
            print(f"{name}: stands still", flush=True)
        red = still or "test result: FAILED" in done.stdout
        if not red and (done.returncode != 0 or not re.search(r" [1-9]\d* passed", done.stdout)):
            raise SystemExit(f"{name}: the tests did not run: {(done.stdout + done.stderr)[-2000:]}")
        if red:
            return True
    return False


def caught(name: str, rtl: Path, tables: Path, by: str) -> bool:
    kind, _, test = by.partition(":")
    if kind == "device":
        return device_red(name, rtl, tables, test)
    return unit_red(name, rtl, test) if kind == "units" else refuted(name, by)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MUTANTS))
    missed = []
    for name in parser.parse_args().names:
        rtl, tables = broken(name)
        for by in MUTANTS[name][3].split():
            began = time.monotonic()
            red = caught(name, rtl, tables, by)
            took = f"{time.monotonic() - began:.0f} s"
            print(f"{name}: {'caught' if red else 'NOT caught'} by {by} ({took})", flush=True)
            missed += [] if red else [f"{name} by {by}"]
    if missed:
        sys.exit(f"not caught: {', '.join(missed)}")


if __name__ == "__main__":
    main()
