"""FLASHE's sparsity levels in training: the accuracy of a model after some rounds, and the size of its updates."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedcipher._units import size
from fedcipher.errors import BenchError
from fedcipher.foreign_files import MAX_REPORT, read_json

from fedcipher_research.published import setup
from fedcipher_research.studies.findings import Findings, StudySettings, Table

__all__ = ["run"]

_PAPER = "flashe"
_SPARSITY = (20, 60, 80, 90, 99)
_ROUNDS = 10


def run(settings: StudySettings) -> Findings:
    """Train on MNIST at each level, with one set of coordinates for all clients and with one for each client."""
    clients = int(setup(_PAPER)["clients"])
    found = Findings(
        f"MNIST after {_ROUNDS} rounds of {clients} clients, 16 bits, at {', '.join(map(str, _SPARSITY))} % sparsity",
        [],
        [
            f"{clients} clients of MNIST and a CNN of 8,065 weights; there a ResNet-20, a GRU and a CNN of 1.2 M",
            f"one level for all {_ROUNDS} rounds; there the level rises in the course of a training",
            "accuracy over rounds is a plot there: no number of it is printed, so none stands beside these",
        ],
    )
    rows = [["sparsity", "coordinates", "accuracy", "best of the rounds", "up, a client and round", "down"]]
    levels: list[tuple[str, str, list[str]]] = [("0", "all", [])]
    for percent in _SPARSITY:
        top = f"{(100 - percent) / 100:g}"
        levels.append((f"{percent} %", "common set", ["--top", top]))
        levels.append((f"{percent} %", "each its own", ["--set", f"per_client_top={top}"]))
    for sparsity, coordinates, options in levels:
        report = _trained(clients, options, settings.data_dir)
        accuracy = [float(r["metrics"]["accuracy"]) for r in report["rounds"]]
        # The last round's model is downloaded for evaluation only.
        down = max(float(r["download_bytes"] or r["evaluation_download_bytes"]) for r in report["rounds"])
        up = float(report["totals"]["upload_bytes"])
        rows.append(
            [sparsity, coordinates, f"{accuracy[-1]:.1%}", f"{max(accuracy):.1%}", size(round(up)), size(round(down))]
        )
        found.figures[f"{sparsity}, {coordinates}"] = {"accuracy": accuracy, "up": up, "down": down}
        settings.say(f"{sparsity}, {coordinates}: {accuracy[-1]:.1%}")
    found.tables.append(Table("Accuracy by sparsity", rows))
    found.notes.append("one training a row, all of one seed; what is down is the largest of the rounds")
    return found


def _trained(clients: int, options: list[str], data_dir: str) -> dict[str, Any]:
    """The report of one training."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fedcipher.cli", "train", "--scheme", "flashe", "--bits", "16"]
        command += ["--dataset", "mnist", "--data-dir", str(Path(data_dir) / "mnist"), "--rounds", str(_ROUNDS)]
        command += ["--clients", str(clients), "--per-round", str(clients), "--out", out, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise BenchError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stdout[-2000:]}")
        return read_json(Path(out) / "report.json", MAX_REPORT)
