"""Runs the public lattice estimator on every parameter set and updates tools/lattice_estimator.json.

The program needs Sage and a checkout of the estimator, which Fedcipher does not depend on. Run in a virtual environment
of their own:

    pip install passagemath-standard passagemath-symbolics
    git clone https://github.com/malb/lattice-estimator
    python tools/lattice_estimator_run.py lattice-estimator

Figures in the file are kept if they come from the same version. Delete the file to run all again (half an hour of
processor time).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import math
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# (N, log q) and distributions: `ternary` is bfv, `fhe10` is fhe.rs (pasta-bfv), `error` is a secret like bfv's error.
SMALL = [(n, q, s) for s in ("ternary", "error") for n, q in ((4096, 109), (4096, 106), (2048, 54), (2048, 53))]
LARGE = [(n, q, "fhe10") for n, q in ((16384, 438), (16384, 432), (16384, 408), (32768, 660))]
ATTACKS = ("usvp", "dual", "dual_hybrid", "bdd")
# The estimator's default; the HE standard's; core-SVP.
MODELS = ("MATZOV", "BDGL16", "ADPS16")
FILE = Path(__file__).with_name("lattice_estimator.json")
KEYS = ("n", "log_q", "sample", "model", "attack")

# N, log q, sample, model, attack.
Job = tuple[int, int, str, str, str]


def estimate(estimator_path: str, job: Job) -> dict[str, Any]:
    """One attack on one set under one cost model."""
    n, log_q, sample, model, attack = job
    if estimator_path not in sys.path:
        sys.path.insert(0, estimator_path)
    sage: Any = importlib.import_module("sage.all")
    e: Any = importlib.import_module("estimator")
    error = e.ND.CenteredBinomial(20 if sample == "fhe10" else 21)
    secret = e.ND.Uniform(-1, 1) if sample == "ternary" else error
    cost = getattr(e.RC, model)
    run = {
        "usvp": e.LWE.primal_usvp,
        "bdd": e.LWE.primal_bdd,
        "bdd_hybrid": lambda p, red_cost_model: e.LWE.primal_hybrid(  # pyright: ignore
            p, red_cost_model=red_cost_model, mitm=False, babai=False
        ),
        "dual": e.LWE.dual,
        "dual_hybrid": e.LWE.dual_hybrid,
    }[attack]
    row: dict[str, Any] = {"n": n, "log_q": log_q, "sample": sample, "model": model, "attack": attack}
    # Samples are unlimited. The estimator's dual_hybrid fails on some sets with that, and then gets 4 n samples.
    for samples in (sage.oo, 4 * n):
        parameters = e.LWE.Parameters(n=n, q=sage.ZZ(2) ** log_q, Xs=secret, Xe=error, m=samples)
        try:
            result = run(parameters, red_cost_model=cost)
        except Exception as reason:
            row["failed"] = f"{type(reason).__name__}: {reason}"
            continue
        row.pop("failed", None)
        return row | {"bits": round(math.log2(result["rop"]), 1), "block": int(result["beta"])}
    return row


def write(head: dict[str, str], rows: dict[Job, dict[str, Any]], order: list[Job]) -> None:
    """Write the file, with a line for each figure."""
    body = ",\n".join("  " + json.dumps(rows[job]) for job in order if job in rows)
    FILE.write_text(json.dumps(head, indent=1)[:-2] + f',\n "results": [\n{body}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    """Run what is missing. Each figure is written as soon as it is there."""
    path = sys.argv[1]
    commit = subprocess.run(["git", "-C", path, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    head = {
        "tool": f"github.com/malb/lattice-estimator {commit.stdout.strip()}",
        "sage": f"passagemath-standard {importlib.metadata.version('passagemath-standard')}",
        "command": f"python tools/{Path(__file__).name} lattice-estimator",
    }
    # bdd takes minutes at N = 16384 and above, so there it runs last and under the default model only.
    jobs: list[Job] = [(*s, m, a) for a in ATTACKS[:-1] for m in MODELS for s in SMALL + LARGE]
    jobs += [(*s, m, "bdd") for m in MODELS for s in SMALL]
    jobs += [(*s, "MATZOV", "bdd") for s in LARGE] + [(*s, "MATZOV", "bdd_hybrid") for s in SMALL]
    rows: dict[Job, dict[str, Any]] = {}
    if FILE.exists():
        known = json.loads(FILE.read_text(encoding="utf-8"))
        if {k: known[k] for k in head} == head:
            rows = {tuple(row[k] for k in KEYS): row for row in known["results"]}
    with ProcessPoolExecutor(3) as pool:
        running = {pool.submit(estimate, path, job): job for job in jobs if job not in rows}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            write(head, rows, jobs)


if __name__ == "__main__":
    main()
