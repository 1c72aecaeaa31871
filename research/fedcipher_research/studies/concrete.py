"""TFHE with the resource study's library: Concrete, on whole numbers of 0 to 2^7, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from fedcipher._units import seconds, size
from fedcipher.errors import BenchError

from fedcipher_research.published import cell, doubt, setup
from fedcipher_research.published.verdict import judged
from fedcipher_research.studies.findings import Findings, StudySettings, Table

__all__ = ["run"]

_PAPER = "resource-study"
_PLACE = "slide: key results, scenario 2"
_ADDITIONS, _LEVELS = 32, 128
# The times on the slides add up to minutes.
_PATIENCE = 1800


def run(settings: StudySettings) -> Findings:
    """Measure scenario 2 with Concrete. ``FEDCIPHER_CONCRETE`` names a Python that has Concrete (`make concrete`)."""
    python = os.environ.get("FEDCIPHER_CONCRETE", "")
    if not python:
        raise BenchError(
            "FEDCIPHER_CONCRETE must name a Python that has Concrete: run `make concrete`, and set it to "
            "target/concrete/bin/python"
        )
    count = int(setup(_PAPER)["scenarios"][1]["ciphertexts"])
    spent = [_once(python, count) for _ in range(settings.runs)]
    least = {name: min(one[name] for one in spent) for name in spent[0]}
    bandwidth = count * (least["up"] + least["down"])
    found = Findings(
        f"Concrete: {count} values of 0 to {_LEVELS - 1} encrypted, {_ADDITIONS} additions, {count} results decrypted",
        [],
        [
            "arithmetic alone, in one process: no sockets, no frames",
            "an addition by itself needs no bootstrapping, which the slides put TFHE's time down to",
        ],
    )
    phases = ("encryption", "operation", "decryption")
    head = ["keys", *phases, "a ciphertext up", "down"]
    row = [seconds(least[name]) for name in ("keys", *phases)] + [size(least[name]) for name in ("up", "down")]
    found.tables.append(Table("Concrete", [head, row]))
    found.figures.update(least)
    reading = "the slides do not state what 32 additions are, nor how many results are decrypted"
    unclear = (doubt(_PAPER, "Operation time per addition"),)
    for phase in phases:
        printed = cell(_PAPER, _PLACE, {"phase": phase}, "TFHE")
        more = ("", ()) if phase == "encryption" else (reading, unclear)
        found.outcomes.append(judged(f"Concrete: {phase}", printed, least[phase], because=more[0], doubts=more[1]))
    printed = cell(_PAPER, "slide: resource consumption", {"resource": "bandwidth"}, "TFHE")
    found.outcomes.append(judged(f"Concrete: {count} up and {count} down", printed, bandwidth / 1e6, because=reading))
    found.notes.append(f"seconds are the least of {settings.runs}; Concrete {_version(python)}")
    return found


def _once(python: str, count: int) -> dict[str, float]:
    peer = Path(__file__).with_name("concrete_peer.py")
    # Isolated (-I), because Concrete's own imports could find modules of this folder, this one among them.
    return json.loads(_output([python, "-I", str(peer), str(count), str(_ADDITIONS), str(_LEVELS)]))


def _version(python: str) -> str:
    return _output([python, "-c", "from importlib.metadata import version; print(version('concrete-python'))"]).strip()


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"FEDCIPHER_CONCRETE={command[0]} does not run: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no error text"])[-1]
        raise BenchError(f"FEDCIPHER_CONCRETE={command[0]} ended with {done.returncode}: {last}; run `make concrete`")
    return done.stdout
