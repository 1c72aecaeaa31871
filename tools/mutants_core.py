"""Runs cargo-mutants on the core's guards, against the core's own tests: `make mutants-core`.

cargo-mutants replaces every function's result, and exchanges every comparison and operator, in the files that decide
what is added, decrypted and requested. There are some hundreds of mutants, of ten seconds each.
``MUTANTS="--shard 0/5"`` tries a fifth of them. ``MUTANTS=--iterate`` tries the ones again that the last run did not
catch.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mutants import CAUGHT, CORE, ROOT, SURVIVED, Mutant, reported

FILES = ("admission.rs", "bounds.rs", "keys.rs", "ledger/*.rs", "mac/mod.rs", "protocol/*.rs", "wire.rs")
COMMAND = [
    "cargo",
    "mutants",
    "--package",
    "fedcipher-core",
    *(word for file in FILES for word in ("--file", CORE + file)),
]
OUT = ROOT / "target"
# Without their guard, some loops do not end. The tests of unbroken code take a tenth of this time, more on a busy
# machine.
LIMITS = ("--minimum-test-timeout", "120", "--build-timeout", "1800")


# The mutants that do not compile: of this run, and of the runs before that this one continues.
UNVIABLE = OUT / "mutants.unviable"
FOUND = {"caught.txt": CAUGHT, "timeout.txt": CAUGHT, "previously_caught.txt": CAUGHT, "missed.txt": SURVIVED}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def outcomes(folder: Path) -> Iterator[tuple[Mutant, str]]:
    """The outcomes in cargo-mutants' files for mutants that exist now. A mutant that does not compile is left out."""
    listed = subprocess.run([*COMMAND, "--list"], cwd=ROOT, check=True, capture_output=True, text=True)
    there = set(listed.stdout.splitlines())
    none = {*lines(folder / "unviable.txt"), *lines(UNVIABLE)}
    UNVIABLE.write_text("\n".join(sorted(none)), encoding="utf-8")
    for name, outcome in FOUND.items():
        for line in lines(folder / name):
            found = re.fullmatch(r"([^:]+):(\d+:\d+): (.*)", line)
            if found and line in there and line not in none:
                yield Mutant(f"line {found[2]}: {found[3]}", found[1], "", ""), outcome


def main() -> int:
    """Run cargo-mutants with the words of the command line."""
    if "--iterate" not in sys.argv:
        UNVIABLE.unlink(missing_ok=True)
    command = [*COMMAND, *LIMITS, "--output", str(OUT)]
    done = subprocess.run([*command, *sys.argv[1:], "--", "--lib", "--tests"], cwd=ROOT, check=False)
    # Exit codes 2 and 3 mean that some mutants were missed or took too long.
    if done.returncode not in (0, 2, 3):
        return done.returncode
    return reported(outcomes(OUT / "mutants.out"), "make mutants-core")


if __name__ == "__main__":
    sys.exit(main())
