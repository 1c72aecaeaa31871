"""Runs encrypted rounds and a query under several versions of Flower: the table of docs/how-to/porting.md.

``tools/flower_versions.py 1.21.0 1.41.0`` installs each version into a folder of its own, with its own dependencies,
and runs this file there: three rounds of four clients in one process for two schemes and both targets, and an encrypted
sum. The program prints a line for each version, and exits non-zero if a version does not work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = 4


def rounds() -> str:
    """Run everything under the installed Flower. Returns a text with the error of the models."""
    import time

    import fedcipher
    import numpy as np
    from fedcipher import keys
    from fedcipher.adapters.flower import SecureStrategy
    from fedcipher.adapters.flower.analytics import query_mod, secure_sum
    from fedcipher.schemes import every_scheme
    from flower_harness import LocalGrid, initial, make_app, record
    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    random = np.random.default_rng(1)
    goals = [[random.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
    want = initial()
    for _ in range(3):
        want = [np.mean([(a + goal[k]) / 2 for goal in goals], axis=0) for k, a in enumerate(want)]
    worst, folder = 0.0, Path()
    schemes = [v for v in every_scheme() if v.first and v.info.hides and not (v.info.committee or v.info.workers)]
    for variant in schemes:
        for target in ("weights", "delta"):
            codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
            scheme = variant.make(clients=CLIENTS, codec=codec)
            folder = keys.save(scheme.keygen(CLIENTS), scheme, Path(tempfile.mkdtemp()) / "keys")
            opener = folder / "client-0.key"
            grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder)
            strategy = SecureStrategy(
                FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS), folder, opener=opener
            )
            result = strategy.start(grid, record(initial()), num_rounds=3)
            got = result.arrays.to_numpy_ndarrays()
            worst = max(worst, *(float(np.abs(x - y).max()) for x, y in zip(got, want, strict=True)))
    if worst > 3 * 4 / (2**16 - 2):
        raise SystemExit(f"the models are off by {worst}")
    app = ClientApp(mods=[query_mod])

    @app.query()
    def query(msg: Message, ctxt: object) -> Message:
        return Message(RecordDict({"numbers": MetricRecord({"n": 7})}), reply_to=msg)

    time.sleep(1)
    asked = RecordDict({"config": ConfigRecord({"what": "n"})})
    total = secure_sum(LocalGrid(app, CLIENTS, folder), asked, folder, answers=["n"]).open(folder / "client-0.key")
    if total != {"n": 7 * CLIENTS}:
        raise SystemExit(f"the sum is {total}")
    return f"works; models off by {worst:.1e} at most, sums exact"


def main(versions: list[str]) -> int:
    """Install and try each version."""
    failed = False
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, f"flwr=={version}"]
            made = subprocess.run(install, capture_output=True, text=True, check=False)
            if made.returncode:
                print(f"{version}: cannot be installed: {made.stderr.strip().splitlines()[-1]}")
                failed = True
                continue
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([folder, str(ROOT / "python"), str(ROOT / "tests")]),
                "FEDCIPHER_STATE_DIR": f"{folder}/state",
                "FLWR_TELEMETRY_ENABLED": "0",
            }
            done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=False)
            lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
            print(f"{version}: {lines[-1] if lines else 'no output'}", flush=True)
            failed = failed or done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:]))
    print(rounds())
