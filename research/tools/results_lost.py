"""Fills the table of docs/explanation/bits.md on the loss of training by coding (`make results-lost`).

A run loses 1 - <m', m> / <m, m>. Here m is the model's movement in the clear, by Flower's own FedAvg in float32, and m'
the movement with the same batches under a scheme. Messages go through the client mod and `SecureStrategy`, in one
process. For comparison, one clear run starts from a model that is off by 1e-6 of each value: its loss is chaos.

Each run is stored in ``research/results/lost.json`` as soon as it has ended, and is not run again. Delete the file to
measure again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
# Set before the imports below. With one thread, sums have one order, and runs are the same to the bit.
os.environ |= {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import fedcipher
import numpy as np
from fedcipher import _native, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.codec import value_bits
from fedcipher.schemes import following_bits, scheme_names
from fedcipher_research.baselines import BASELINES, QUICK
from flower_harness import LocalGrid, record
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from lost_workloads import Model, Workload, workloads
from numpy.typing import NDArray
from page import written

HELD, PAGE = ROOT / "research" / "results" / "lost.json", ROOT / "docs" / "explanation" / "bits.md"
BESIDE = "clear, begun 1e-6 away"
SCHEMES = (*scheme_names(), *(cls.name for cls in QUICK))
Bits = int | Literal["auto"]
_COMPARED = {baseline.name for baseline in BASELINES}
RUNS: dict[str, tuple[str, Bits]] = {
    f"`{name}`": (name, 6 if name in _COMPARED else following_bits(name)) for name in SCHEMES
}
RUNS |= {f"`flashe`, {bits} bits": ("flashe", bits) for bits in (6, 3, 2)}
"""The scheme and bits of each run."""
Row = dict[str, Any]


def app_of(work: Workload, seed: int, *, secure: bool) -> ClientApp:
    """The clients' app. With ``secure``, the mod encrypts their updates."""
    app = ClientApp(mods=[client_mod] if secure else [])

    @app.train()
    def train(msg: Message, ctxt: Context) -> Message:
        model = {name: array.numpy() for name, array in msg.content.array_records["arrays"].items()}
        client = int(ctxt.node_config["partition-id"])
        made, examples = work.train(model, seed, int(msg.content["config"]["server-round"]), client)
        content = {"arrays": recorded(made), "metrics": MetricRecord({"num-examples": examples})}
        return Message(RecordDict(content), reply_to=msg)

    return app


def recorded(model: Model) -> ArrayRecord:
    return record(list(model.values()), list(model))


def averaging(work: Workload) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)


def in_the_clear(work: Workload, seed: int, first: Model) -> Model:
    """Train the ``first`` model with Flower's FedAvg, without encryption."""
    # FedAvg adds updates in a random order of clients. At a rate of 0.1 the order alone changes the model.
    random.seed(seed)
    grid = LocalGrid(app_of(work, seed, secure=False), work.clients, Path())
    result = averaging(work).start(grid, recorded(first), num_rounds=work.rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


def under(name: str, bits: Bits, work: Workload, seed: int, first: Model) -> tuple[Model, Row]:
    """Train the ``first`` model under a scheme. Returns the model and the counts of its rounds."""
    more = {"members": work.clients, "corrupt_clients": 1, "corrupt_members": 1} if name == "oneshot" else {}
    scheme = fedcipher.scheme(name, clients=work.clients, codec=fedcipher.Codec(bits=bits), **more)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FEDCIPHER_STATE_DIR"] = os.environ["FEDCIPHER_HOME"] = f"{scratch}/state"
        issued = scheme.keygen(work.clients)
        made = keys.save(issued, scheme, Path(scratch) / "keys", examples_per_weight=float(work.max_examples))
        opener = {} if name == "oneshot" else {"opener": made / "client-0.key"}
        strategy = SecureStrategy(averaging(work), made, out=Path(scratch) / "run", **opener)
        grid = LocalGrid(app_of(work, seed, secure=True), work.clients, made)
        strategy.start(grid, recorded(first), num_rounds=work.rounds)
        _, key = keys.load_client(made / "client-1.key")
        arrays = strategy.open_model(scheme.decryptor(key, in_memory=True))
        kept = [round_.counted["kept"] for round_ in strategy.rounds if "kept" in round_.counted]
        folder = strategy.run.model.folder
        frames = [folder.step(step)[0] for step in range(1, folder.count + 1)]
        levels = [scheme.levels.of(b) for f in frames for b in value_bits(_native.layout_of(f))]
    return dict(zip(strategy.run.charter.names, arrays, strict=True)), {"levels": levels, "kept": kept}


def away(first: Model, seed: int) -> Model:
    """The model ``first``, with each value changed by about 1e-6 of itself."""
    rng = np.random.default_rng([seed, 1])
    return {name: np.float32(x * (1 + 1e-6 * rng.standard_normal(x.shape))) for name, x in first.items()}


def moved(first: Model, last: Model) -> NDArray[np.float64]:
    return np.concatenate([(last[name].astype(np.float64) - x).ravel() for name, x in first.items()])


def measured(work: Workload, what: str, seed: int, clear: NDArray[np.float64]) -> Row:
    """Measure one run against the ``clear`` one."""
    first, began, more = work.first(seed), time.monotonic(), {}
    if what == BESIDE:
        first = away(first, seed)
        last = in_the_clear(work, seed, first)
    else:
        last, more = under(*RUNS[what], work, seed, first)
    change = moved(first, last)
    square = float(clear @ clear)
    lost = 1 - float(change @ clear) / square
    distance = float(np.linalg.norm(change - clear)) / square**0.5
    head = {"workload": work.name, "run": what, "seed": seed, "lost": lost, "distance": distance}
    return {**head, "seconds": round(time.monotonic() - began, 1), **more}


def runs_of(work: Workload) -> list[str]:
    """The runs that are measured for a workload."""
    return [BESIDE, *(what for what, (name, _) in RUNS.items() if name not in work.without)]


def all_measured(options: argparse.Namespace, keep: Callable[[list[Row]], None]) -> list[Row]:
    """The stored rows, and the missing ones, which are measured here."""
    rows: list[Row] = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else []
    done = {(row["workload"], row["run"], row["seed"]) for row in rows}
    for work in workloads(options.data):
        for seed in range(options.seeds):
            missing = [what for what in runs_of(work) if (work.name, what, seed) not in done]
            if not missing:
                continue
            first = work.first(seed)
            clear = moved(first, in_the_clear(work, seed, first))
            for what in missing:
                rows.append(measured(work, what, seed, clear))
                print(rows[-1], flush=True)
                keep(rows)
    return rows


def kept_in_file(rows: list[Row]) -> None:
    HELD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def percent(rows: list[Row]) -> str:
    """The loss in percent: the mean of all seeds, and each seed."""
    found = [100 * row["lost"] for row in sorted(rows, key=lambda row: row["seed"])]
    # Adding 0.0 turns a rounded -0.00 into 0.00.
    shown = [f"{round(each, 2) + 0.0:.2f}" for each in (np.mean(found), *found)] if found else []
    return f"{shown[0]} ({', '.join(shown[1:])})" if shown else ""


def table(rows: list[Row], works: list[Workload]) -> str:
    lines = [f"| run | {' | '.join(work.name for work in works)} |", "|---" * (1 + len(works)) + "|"]
    for what in (BESIDE, *RUNS):
        cells = [percent([row for row in rows if (row["workload"], row["run"]) == (work.name, what)]) for work in works]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    from fedcipher_research.baselines.registered import pass_on

    pass_on()
    for name in ("flwr", "fedcipher"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows = all_measured(options, kept_in_file)
    written("`make results-lost`", table(rows, workloads(options.data)), "lost", PAGE)


if __name__ == "__main__":
    main()
