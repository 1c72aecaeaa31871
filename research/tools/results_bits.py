"""Fills the tables of docs/explanation/bits.md: accuracy by bits, and the bits of a whole frame (`make results-bits`).

Each training is stored in ``research/results/bits.json`` as soon as it has ended, and is not run again. Delete a row to
measure it again, or the file to measure all.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
from pathlib import Path
from typing import Any

import fedcipher
import numpy as np
from fedcipher.schemes import every_scheme
from readme_tables import filled

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "research" / "benches"), str(ROOT / "tools")]
from bits_tasks import REFERENCE, TASKS, Task, run
from page import written
from secagg import Cohort

HELD, PAGE, FIGURES = (
    ROOT / "research" / "results" / "bits.json",
    ROOT / "docs" / "explanation" / "bits.md",
    ROOT / "docs" / "evidence" / "figures.md",
)
VALUES, FEW = 1_200_000, 3
FRAMES: list[tuple[str, dict[str, Any]]] = [
    (v.name, {}) for v in every_scheme() if v.first and v.info.hides and not v.info.workers
]
LAST = 3
"""The rounds of the mean that is shown beside the last round, because the accuracy of one round depends on chance."""


def kept() -> list[dict[str, Any]]:
    """The stored rows, one for each run."""
    return json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else []


def keep(row: dict[str, Any]) -> None:
    """Store a row. Rows that another process stored in the meantime are kept."""
    with open(__file__, encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = HELD.with_suffix(".part")
        whole.write_text(json.dumps([*kept(), row], indent=1) + "\n", encoding="utf-8")
        whole.replace(HELD)


def train_missing(tasks: list[Task], data: Path, seeds: int) -> None:
    """Train what is missing, first the fewest bits and their reference, because this pair matters most."""
    for task in tasks:
        for bits in sorted(task.bits, key=lambda bits: bits not in (min(task.bits), REFERENCE)):
            for seed in range(seeds):
                if (task.name, bits, seed) not in {(row["task"], row["bits"], row["seed"]) for row in kept()}:
                    keep(run(task, bits, seed, data))


def points(row: dict[str, Any], last: int) -> float:
    """Accuracy in percent: the mean of the ``last`` rounds."""
    return 100 * float(np.mean(row["accuracy"][-last:]))


def beside(rows: list[dict[str, Any]], task: Task, bits: int, last: int) -> list[float]:
    """Accuracy in points above the same seed at `REFERENCE` bits, by seed."""
    found = {(row["bits"], row["seed"]): points(row, last) for row in rows if row["task"] == task.name}
    seeds = sorted(seed for width, seed in found if width == bits and (REFERENCE, seed) in found)
    return [found[bits, seed] - found[REFERENCE, seed] for seed in seeds]


def accuracy(rows: list[dict[str, Any]]) -> str:
    """The table of accuracy in the last round by task and bits, beside the same seeds at `REFERENCE` bits."""
    heads = ["task", "clients a round", "rounds", "bits", "levels", "accuracy, %", "loss"]
    heads += ["points by seed, last round", f"points by seed, mean of {LAST} rounds", "up, bytes a client and round"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for task in TASKS:
        for bits in task.bits:
            same = [row for row in rows if (row["task"], row["bits"]) == (task.name, bits)]
            if same:
                lines.append(f"| {' | '.join(accuracy_cells(rows, same, task, bits))} |")
    return "\n".join([*lines, "", spread(rows)])


def accuracy_cells(rows: list[dict[str, Any]], same: list[dict[str, Any]], task: Task, bits: int) -> list[str]:
    """The cells of a row for the runs ``same``, which differ in their seeds only."""
    levels = fedcipher.scheme("flashe", clients=task.per_round).levels.of(bits)
    cells = [task.shown, str(task.per_round), str(len(same[0]["accuracy"])), str(bits), f"{levels:,}"]
    cells.append(f"{np.mean([points(row, 1) for row in same]):.2f}")
    losses = [row["loss"][-1] for row in same if "loss" in row]
    cells.append(f"{np.mean(losses):.4f}" if losses else "")
    # The reference is not compared with itself.
    pairs = [beside(rows, task, bits, last) if bits != REFERENCE else [] for last in (1, LAST)]
    cells += [", ".join(f"{found:+.2f}" for found in pair) for pair in pairs]
    return [*cells, f"{max(round(row['up']) for row in same):,}"]


def frame_bits(name: str, params: dict[str, Any], clients: int, bits: int) -> float:
    """Bits for each value in a whole upload of `VALUES`, which is encrypted here."""
    update = [np.random.default_rng(1).uniform(-1, 1, VALUES).astype(np.float32)]
    made = fedcipher.scheme(name, clients=clients, codec=fedcipher.Codec(bits=bits, clip=1.0), **params)
    frame = made.encryptor(made.keygen(clients).client(0)).encrypt(update, round=1)
    return 8 * len(frame) / VALUES


def frames() -> str:
    """The table of bits for each value of a whole frame, by scheme, clients and bits."""
    heads = [f"`{name}`, {clients} clients" for name, _ in FRAMES for clients in (10, 100)]
    lines = [f"| bits | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for bits in (2, FEW, 4, 6, 8, 12, 16):
        cells = [f"{frame_bits(*frame, clients, bits):.2f}" for frame in FRAMES for clients in (10, 100)]
        lines.append(f"| {bits} | {' | '.join(cells)} |")
    return "\n".join(lines)


def few(rows: list[dict[str, Any]]) -> list[float]:
    """The differences in points of all runs with the fewest bits, in the last round."""
    return [found for task in TASKS for found in beside(rows, task, FEW, 1)]


def spread(rows: list[dict[str, Any]]) -> str:
    """The sentences under the table of accuracy."""
    found = few(rows)
    said = (
        f"At {FEW} bits, the last rounds of {len(found)} pairs differ by {min(found):+.2f} to {max(found):+.2f} points."
    )
    return f"{said} Their mean is {np.mean(found):+.2f}, their standard deviation {np.std(found, ddof=1):.2f}."


def cost(rows: list[dict[str, Any]]) -> str:
    """The lines of docs/evidence/figures.md."""
    (near, near_bfv), (far, far_bfv) = (
        [frame_bits(*frame, clients, FEW) for frame in FRAMES[:2]] for clients in (10, 100)
    )
    found = few(rows)
    tasks = len({task.name for task in TASKS if beside(rows, task, FEW, 1)})
    lines = [
        f"With `--bits {FEW}` and 10 clients a round, a value costs {near:.2f} bits of an upload under `flashe` and",
        f"{near_bfv:.2f} under `bfv`. With 100 clients a round it costs {far:.2f} and {far_bfv:.2f}. A float32 has 32.",
        f"In {len(found)} pairs of short runs on {tasks} tasks, accuracy at {FEW} bits ended {min(found):+.2f} to",
        f"{max(found):+.2f} points from that of the same seed at {REFERENCE} bits",
        "([each pair](../explanation/bits.md#what-few-bits-cost-in-accuracy)).",
    ]
    return "\n".join(lines)


def others() -> str:
    """The table of uploads of as many values by other means, beside frames of few bits."""
    values = np.random.default_rng(1).uniform(-1, 1, VALUES).astype(np.float32)
    sizes = {"float32": 4 * VALUES, "bfloat16": 2 * VALUES}
    for name, bits, params in [*((name, FEW, params) for name, params in FRAMES), ("ckks", 24, {})]:
        made = fedcipher.scheme(name, clients=10, codec=fedcipher.Codec(bits=bits, clip=1.0), **params)
        frame = made.encryptor(made.keygen(10).client(0)).encrypt([values], round=1)
        sizes[f"`{name}`, {bits} bits"] = len(frame)
    sizes["NVFlare's CKKS"] = nvflare(values)
    cohort = Cohort(10, 8)
    cohort.share()
    cohort.mask(0, [values])
    sizes["SecAgg+"] = cohort.bytes[0]
    lines = ["| upload | MB | bits a value |", "|---|---|---|"]
    lines += [f"| {what} | {size / 1e6:.2f} | {8 * size / VALUES:.2f} |" for what, size in sizes.items()]
    return "\n".join(lines)


def nvflare(values: np.ndarray) -> int:
    """Bytes of a vector that is encrypted like in nvflare 2.9.0.

    The parameters come from its lighter/impl/he.py, and the call from its app_opt/he/model_encryptor.py.
    """
    import tenseal

    how = {"poly_modulus_degree": 8192, "coeff_mod_bit_sizes": [60, 40, 40]}
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, **how, encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC)
    context.global_scale = 2**40
    return len(tenseal.ckks_vector(context, values.astype(np.float64)).serialize())


def main() -> None:
    """Train what is missing, and write the tables."""
    names = [task.name for task in TASKS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train-only", nargs="+", choices=names, help="train these tasks, and write no page")
    options = parser.parse_args()
    wanted = options.train_only or names
    from fedcipher_research.baselines.registered import pass_on

    pass_on()
    train_missing([task for task in TASKS if task.name in wanted], options.data, options.seeds)
    if options.train_only:
        return
    for marker, text in (("accuracy", accuracy(kept())), ("frames", frames()), ("others", others())):
        written("`make results-bits`", text, marker, PAGE)
    FIGURES.write_text(filled(FIGURES.read_text(encoding="utf-8"), "bits", cost(kept())), encoding="utf-8")


if __name__ == "__main__":
    main()
