"""Mutants that cargo-mutants makes of the core's guards, against the core's own tests: `make mutants-core`.

Every function's result replaced, every comparison and operator exchanged, in the files that decide what is added,
opened and asked for. There are some hundreds, of a minute each: ``MUTANTS="--shard 0/5"`` tries a fifth of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mutants import CAUGHT, CORE, ROOT, SURVIVED, Mutant, reported

FILES = ("admission.rs", "bounds.rs", "client.rs", "keys.rs", "ledger/*.rs", "mac/mod.rs", "wire.rs")
OUT = ROOT / "target"
# Some loops do not end without their guard; what is unbroken takes a tenth of it, more on a busy machine.
LIMITS = ("--minimum-test-timeout", "120", "--build-timeout", "1800")


def outcomes(folder: Path) -> Iterator[tuple[Mutant, str]]:
    """What cargo-mutants has written down; what does not compile is none."""
    for name, outcome in (("caught.txt", CAUGHT), ("timeout.txt", CAUGHT), ("missed.txt", SURVIVED)):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if found := re.fullmatch(r"([^:]+):(\d+):\d+: (.*)", line):
                yield Mutant(f"line {found[2]}: {found[3]}", found[1], "", ""), outcome


def main() -> int:
    """With the command line's words for cargo-mutants."""
    files = [word for file in FILES for word in ("--file", CORE + file)]
    command = ["cargo", "mutants", "--package", "fedcipher-core", *files, *LIMITS, "--output", str(OUT)]
    done = subprocess.run([*command, *sys.argv[1:], "--", "--lib", "--tests"], cwd=ROOT, check=False)
    # 2 and 3: some were missed, or took too long.
    if done.returncode not in (0, 2, 3):
        return done.returncode
    return reported(outcomes(OUT / "mutants.out"), "make mutants-core")


if __name__ == "__main__":
    sys.exit(main())
