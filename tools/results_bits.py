"""Accuracy by bits, and bits of a whole frame: the tables of docs/bits.md (`make results-bits`).

Each training is kept in ``docs/results/bits.json`` as soon as it has ended, and is not done again. Delete the file to
measure anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fedcipher
import numpy as np
from page import written

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benches"))
from secagg import Cohort

HELD, PAGE = ROOT / "docs" / "results" / "bits.json", ROOT / "docs" / "bits.md"
BITS, REFERENCE = (2, 3, 4, 6, 12, 24), 24
VALUES = 1_200_000
FRAMES = [("flashe", {}), ("bfv", {}), ("oneshot", {"members": 5})]


def trained(bits: int, seed: int, data: Path) -> dict[str, Any]:
    """One run of `fedcipher train`: accuracy by round, and what a client sent a round."""
    with tempfile.TemporaryDirectory() as out:
        command = ["fedcipher", "train", "--scheme", "flashe", "--dataset", "mnist", "--data-dir", str(data / "mnist")]
        command += ["--bits", str(bits), "--seed", str(seed)]
        subprocess.run([sys.executable, "-m", "fedcipher.cli", *command[1:], "--out", out], check=True)
        report = json.loads((Path(out) / "report.json").read_text(encoding="utf-8"))
    accuracy = [float(each["metrics"]["accuracy"]) for each in report["rounds"]]
    shown = " ".join(command).replace(str(data), "../shared/data")
    return {"bits": bits, "seed": seed, "accuracy": accuracy, "up": report["totals"]["upload_bytes"], "command": shown}


def all_trained(data: Path, seeds: int) -> list[dict[str, Any]]:
    """Those that are kept, and what is missing of them."""
    rows: list[dict[str, Any]] = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else []
    done = {(row["bits"], row["seed"]) for row in rows}
    for seed in range(seeds):
        for bits in BITS:
            if (bits, seed) not in done:
                rows.append(trained(bits, seed, data))
                HELD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def accuracy(rows: list[dict[str, Any]]) -> str:
    """Of the last round, beside the same seeds at `REFERENCE` bits."""
    last = {(row["bits"], row["seed"]): 100 * row["accuracy"][-1] for row in rows}
    seeds = [seed for seed in range(len(rows)) if all((bits, seed) in last for bits in BITS)]
    made = fedcipher.scheme("flashe", clients=4)
    lines = ["| bits | levels | accuracy, % | points beside 24 bits, by seed | up, bytes a client and round |"]
    lines.append("|---|---|---|---|---|")
    for bits in BITS:
        found = [last[bits, seed] for seed in seeds]
        beside = [f"{last[bits, seed] - last[REFERENCE, seed]:+.2f}" for seed in seeds]
        up = max(round(row["up"]) for row in rows if row["bits"] == bits)
        lines.append(f"| {bits} | {made.levels.of(bits)} | {np.mean(found):.2f} | {', '.join(beside)} | {up:,} |")
    return "\n".join(lines)


def frames() -> str:
    """Bits of a whole frame a value, encrypted here."""
    update = [np.random.default_rng(1).uniform(-1, 1, VALUES).astype(np.float32)]
    heads = [f"`{name}`, {clients} clients" for name, _ in FRAMES for clients in (10, 100)]
    lines = [f"| bits | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for bits in (2, 3, 4, 6, 8, 12, 16):
        cells = [str(bits)]
        for name, params in FRAMES:
            for clients in (10, 100):
                made = fedcipher.scheme(name, clients=clients, codec=fedcipher.Codec(bits=bits, clip=1.0), **params)
                frame = made.encryptor(made.keygen(clients).client(0)).encrypt(update, round=1)
                cells.append(f"{8 * len(frame) / VALUES:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def others() -> str:
    """An upload of as many values by other means, beside the fewest bits that lose nothing here."""
    values = np.random.default_rng(1).uniform(-1, 1, VALUES).astype(np.float32)
    sizes = {"float32": 4 * VALUES, "bfloat16": 2 * VALUES}
    for name, bits, params in [*((name, 3, params) for name, params in FRAMES), ("ckks", 24, {})]:
        made = fedcipher.scheme(name, clients=10, codec=fedcipher.Codec(bits=bits, clip=1.0), **params)
        frame = made.encryptor(made.keygen(10).client(0)).encrypt([values], round=1)
        sizes[f"`{name}`, {bits} bits"] = len(frame)
    cohort = Cohort(10, 8)
    cohort.share()
    cohort.mask(0, [values])
    sizes["SecAgg+"] = cohort.bytes[0]
    lines = ["| upload | MB | bits a value |", "|---|---|---|"]
    lines += [f"| {what} | {size / 1e6:.2f} | {8 * size / VALUES:.2f} |" for what, size in sizes.items()]
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    rows = all_trained(asked.data, asked.seeds)
    for marker, text in (("accuracy", accuracy(rows)), ("frames", frames()), ("others", others())):
        written("`make results-bits`", text, marker, PAGE)


if __name__ == "__main__":
    main()
