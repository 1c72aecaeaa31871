"""A server's work in other processes: the same aggregate, to the bit."""

import json
import subprocess
import sys

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.scale import RayWorkers
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg

# A worker of the server's: it has files, and nothing of the test's process.
WORKER = """
import json, sys
from pathlib import Path
from fedcipher import _native, schemes
folder = Path(sys.argv[1])
scheme = schemes.from_spec(json.loads((folder / "spec").read_text()))
key = _native.ServerKey.from_bytes((folder / "key").read_bytes())
common = (folder / "common").read_bytes()
for piece in sorted(folder.glob("piece-*")):
    (folder / f"done-{piece.name}").write_bytes(scheme.workers.run_work_item(key, common, piece.read_bytes()))
"""


class Summed:
    """Updates of two clients that take two ciphertexts, the second of them not full, and their aggregate."""

    def __init__(self):
        codec, rng = Codec(bits=12, clip=1.0), np.random.default_rng(0)
        self.scheme = fedcipher.scheme("pasta-bfv", codec=codec, clients=3, min_contributions=2, max_weight=2)
        self.keys = self.scheme.keygen(3)
        updates = [[rng.normal(0, 0.4, 17_000).astype(np.float32)] for _ in range(2)]
        self.frames = [
            self.scheme.encryptor(self.keys.client(j)).encrypt(update, round=1, weight=j + 1)
            for j, update in enumerate(updates)
        ]
        self.aggregate = self.aggregator().finish()

    def aggregator(self):
        aggregator = self.scheme.aggregator(self.keys.server())
        for frame in self.frames:
            aggregator.add(frame)
        return aggregator


@pytest.fixture(scope="module")
def summed():
    return Summed()


def test_another_process_does_the_work_and_the_aggregate_is_the_same(summed, tmp_path):
    aggregator = summed.aggregator()
    parts = aggregator.parted.parts()
    assert len(parts.pieces) == 2
    given = {"key": summed.keys.server().to_bytes(), "common": parts.common}
    given |= {f"piece-{number}": piece for number, piece in enumerate(parts.pieces)}
    (tmp_path / "spec").write_text(json.dumps(summed.scheme.spec()))
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], check=True, timeout=300)
    results = [path.read_bytes() for path in sorted(tmp_path.glob("done-*"))]
    for wrong in (results[:1], [results[0], results[1][:-9]], [results[0], b""], [*results, results[0]]):
        with pytest.raises(errors.FrameError):
            aggregator.parted.finish_from(wrong)
    # What was refused has cost nothing.
    assert aggregator.parted.finish_from(results) == summed.aggregate
    with pytest.raises(errors.FedcipherError):
        aggregator.parted.finish_from(results)


def test_results_that_are_not_in_order_do_not_open(summed):
    aggregator = summed.aggregator()
    parts = aggregator.parted.parts()
    results = [summed.scheme.workers.run_work_item(summed.keys.server(), parts.common, piece) for piece in parts.pieces]
    with pytest.raises(errors.FedcipherError):
        summed.scheme.decryptor(summed.keys.client(2)).decrypt(aggregator.parted.finish_from(results[::-1]))


def test_damaged_work_is_refused(summed):
    parts = summed.aggregator().parted.parts()
    common, piece = parts.common, parts.pieces[0]
    most = (2**63).to_bytes(8, "little")
    pieces = [piece[:-1], piece + b"0", b"", piece[:8] + most + piece[16:], most + piece[8:]]
    damaged = [(common, bad) for bad in pieces]
    damaged += [(bad, piece) for bad in (common[:-1], b"", common[:8] + b"\xff" * 4 + common[12:])]
    for bad in damaged:
        with pytest.raises(errors.FrameError):
            summed.scheme.workers.run_work_item(summed.keys.server(), *bad)


def test_schemes_that_only_add_hand_out_nothing():
    scheme = fedcipher.scheme("flashe", codec=Codec(bits=12, clip=1.0), clients=2, min_contributions=2)
    server = scheme.keygen(2).server()
    aggregator = scheme.aggregator(server)
    assert aggregator.parted is None and scheme.workers is None


def test_workers_are_checked_when_they_are_named():
    with pytest.raises(errors.ParameterError, match="cpus=0"):
        RayWorkers(cpus=0)
    with pytest.raises(errors.ParameterError, match="timeout=0"):
        RayWorkers(timeout=0)


class Broken(RayWorkers):
    def finish(self, scheme, key, aggregator, progress=None):
        raise errors.WorkersError("no Ray cluster")


def test_a_round_whose_workers_fail_is_finished_here(tmp_path, rng, caplog):
    scheme = fedcipher.scheme("pasta-bfv", clients=2, codec=Codec(bits=13, clip=2.0, target="delta"))
    folder = keys.save(scheme.keygen(2), scheme, tmp_path / "keys")
    goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(2)]
    strategy = SecureStrategy(FedAvg(), folder, out=tmp_path / "run", workers=Broken())
    strategy.start(LocalGrid(make_app(goals, [10, 10]), 2, folder), record(initial()), num_rounds=1)
    assert [r.accepted for r in strategy.rounds] == [2]
    assert "this process does the work of the round instead" in caplog.text


@pytest.mark.long
def test_a_ray_cluster_makes_the_same_aggregate(summed):
    import ray

    seen = []
    try:
        given = summed.scheme, summed.keys.server(), summed.aggregator()
        assert RayWorkers().finish(*given, lambda *steps: seen.append(steps)) == summed.aggregate
        assert seen[0] == (0, 2) and all(total == 2 for _, total in seen)
        with pytest.raises(errors.WorkersError, match="parts were done"):
            RayWorkers(timeout=0.001).finish(*given[:2], summed.aggregator())
    finally:
        ray.shutdown()
