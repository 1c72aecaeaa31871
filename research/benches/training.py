"""`fedcipher train` against the same app under Flower's own FedAvg: `make bench-train`.

Fills the table of docs/evidence/training.md.

The app without encryption is `training.py bare`: the same model, data, clients and evaluation, no mod, no strategy of
ours. Every run is a process of its own, and the runs take turns.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from fedcipher.schemes import every_scheme
from fedcipher_research.baselines import QUICK
from measure import ROOT, machine
from report import into_page, table

# Of those whose sums are more than additions a run takes an hour.
_SCHEMES = (
    *(v.name for v in every_scheme() if v.first and not v.info.workers),
    *(cls.name for cls in QUICK),
)
_BARE = "Flower's FedAvg"
_TURNS = 3
_CLIENTS, _PER_ROUND, _ROUNDS = 12, 4, 10


def bare(data_dir: str, out: Path) -> None:
    """One run under FedAvg; ``out`` has the seconds that each round with its evaluation took."""
    warnings.filterwarnings("ignore")
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    from fedcipher.app.answers import pool_evaluations
    from fedcipher.app.client_app import make_client_app
    from fedcipher.app.settings import Settings
    from fedcipher.data import load
    from fedcipher.models import Learner
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    chosen = Settings(
        keys="", dataset="mnist", data_dir=data_dir, clients=_CLIENTS, per_round=_PER_ROUND, rounds=_ROUNDS
    )
    server, ends = ServerApp(), []

    class Timed(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            found = super().aggregate_evaluate(server_round, replies)
            ends.append((time.perf_counter(), found["accuracy"]))
            return found

    @server.main()
    def main(grid, context):
        random.seed(chosen.seed)
        data = load(chosen.dataset, chosen.data_dir)
        learner = Learner(chosen.model, data.classes, data.train_x[0])
        initial = learner.initial(chosen.seed)
        strategy = Timed(
            fraction_train=chosen.per_round / chosen.clients,
            fraction_evaluate=chosen.per_round / chosen.clients,
            min_train_nodes=chosen.per_round,
            min_evaluate_nodes=chosen.per_round,
            min_available_nodes=chosen.clients,
            evaluate_metrics_aggr_fn=pool_evaluations,
        )
        arrays = ArrayRecord({n: Array(p) for n, p in zip(learner.names, initial, strict=True)})
        ends.append((time.perf_counter(), 0.0))
        strategy.start(grid, arrays, num_rounds=chosen.rounds)

    run_simulation(
        server_app=server,
        client_app=make_client_app(chosen, mods=()),
        num_supernodes=chosen.clients,
        backend_config={
            "init_args": {"num_cpus": os.cpu_count(), "log_to_driver": False, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    rounds = [end - begin for (begin, _), (end, _) in itertools.pairwise(ends)]
    out.write_text(json.dumps({"rounds": rounds, "accuracy": ends[-1][1]}), encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """Wall seconds of one process."""

    total: float
    rounds: list[float]
    accuracy: float

    @property
    def outside(self) -> float:
        """Before the first round and after the last."""
        return self.total - sum(self.rounds)


def one(kind: str, data_dir: str, out: Path) -> Run:
    if kind == _BARE:
        command = [sys.executable, __file__, "bare", data_dir, str(out / "bare.json")]
    else:
        command = [
            str(Path(sys.executable).with_name("fedcipher-research")),
            "train",
            "--scheme",
            kind,
            "--dataset",
            "mnist",
        ]
        command += ["--data-dir", data_dir, "--rounds", str(_ROUNDS), "--clients", str(_CLIENTS)]
        command += ["--per-round", str(_PER_ROUND), "--out", str(out)]
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    total = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr[-2000:]}")
    if kind == _BARE:
        found = json.loads((out / "bare.json").read_text(encoding="utf-8"))
        return Run(total, found["rounds"], found["accuracy"])
    found = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return Run(total, [r["wall_seconds"] for r in found["rounds"]], found["totals"]["accuracy"])


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def report(data_dir: str) -> str:
    kinds = (_BARE, *_SCHEMES)
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for turn in range(_TURNS):
        # Each begins a turn once in a while: what a machine does in between meets all.
        for kind in (*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]):
            with tempfile.TemporaryDirectory() as scratch:
                runs[kind].append(one(kind, data_dir, Path(scratch)))
            print(f"{turn + 1} of {_TURNS}: {kind}, {runs[kind][-1].total:.1f} s", file=sys.stderr, flush=True)
    later = {kind: [statistics.median(run.rounds[1:]) for run in found] for kind, found in runs.items()}
    floor, ceiling = min(later[_BARE]), max(later[_BARE])
    rows = []
    for kind, found in runs.items():
        middle = statistics.median(later[kind])
        noise = (
            ""
            if kind == _BARE
            else "yes"
            if middle <= ceiling
            else f"no, {middle / statistics.median(later[_BARE]):.2f}x"
        )
        rows.append(
            [
                kind if kind == _BARE else f"`{kind}`",
                spread([run.total for run in found]),
                spread([run.outside for run in found]),
                spread([run.rounds[0] for run in found]),
                f"{middle:.2f} ({min(later[kind]):.2f} to {max(later[kind]):.2f})",
                noise,
                f"{statistics.median([run.accuracy for run in found]):.2%}",
            ]
        )
    spread_of = "later rounds within FedAvg's spread"
    head = ["seconds", "all", "outside rounds", "first round", "a later round", spread_of, "accuracy"]
    return (
        f"Written by `make bench-train` on {datetime.date.today()}: {machine()}. MNIST, `cnn-8k`, {_CLIENTS} clients,"
        f" {_PER_ROUND} a round, {_ROUNDS} rounds, as many evaluating each; {_TURNS} runs of each, in turns; median"
        " (least to most), of later rounds each run's median. FedAvg's later rounds took"
        f" {floor:.2f} to {ceiling:.2f} s.\n\n" + table(head, rows)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        bare(sys.argv[2], Path(sys.argv[3]))
    else:
        folder = Path(os.environ.get("DATA", ROOT.parent / "shared" / "data")) / "mnist"
        into_page("evidence/training.md", "training", report(str(folder.resolve())))
