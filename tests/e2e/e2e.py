"""A cluster with engines under each scheme, and every kind of process killed in mid-run: `make e2e`.

The clients note, outside of any encryption, what they were given and what they sent: each round's mean must be that of
exactly the clients that its record names, no client may send two updates under one number, the run must end, and
`cluster down` must leave no process. Minutes, so not part of the suite.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import fedcipher
import numpy as np
import pytest
from deployment_harness import BIN, processes
from fault_counts import counted
from fedcipher import errors
from fedcipher.adapters.flower import open_run
from fedcipher.federation.server.journal import read_journal
from fedcipher.schemes import scheme_class
from places import DATA, TESTS
from scheme_lists import hides, in_core, schemes_that

CLIENTS, ROUNDS = 5, 14
APP = TESTS / "e2e" / "faults_app"
# The first half runs beside the second: neither may take much longer.
SCHEMES = sorted(schemes_that(hides, in_core), key=lambda param: not scheme_class(param.id).info.workers)
BITS = 12
CLIP = 1.0
NAMES = ("weight", "bias")


class Cluster:
    """`fedcipher cluster up --engine`, one run on it, and what hurts them."""

    def __init__(self, folder, scheme):
        self.folder, self.shadow, self.out = folder / "c", folder / "shadow", folder / "run"
        self.shadow.mkdir()
        self.scheme, self.last = scheme, "none"
        self.flower = {**os.environ, "FLWR_HOME": str(self.folder / "access" / "flwr")}

    def up(self):
        options = ("--clients", CLIENTS, "--scheme", self.scheme, "--bits", BITS, "--clip", CLIP)
        said = self.fedcipher("cluster", "up", *options, "--engine")
        (keys,) = (line.split()[1] for line in said.splitlines() if line.startswith("  keys  "))
        config = {"fedcipher-keys": keys, "fedcipher-out": self.out, "shadow": self.shadow, "data-dir": DATA / "mnist"}
        self.config = " ".join(f"{name}='{value}'" for name, value in config.items())
        self.config += f" rounds={ROUNDS} clients={CLIENTS}"

    def fedcipher(self, *arguments):
        command = [str(BIN / "fedcipher"), *map(str, arguments), "--folder", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def run(self):
        """`fedcipher cluster run`, until the SuperLink takes it."""
        command = [str(BIN / "fedcipher"), "cluster", "run", str(APP), "--folder", str(self.folder)]
        command += ["--run-config", self.config, "--format", "json"]
        for _ in range(30):
            done = subprocess.run(command, env=self.flower, capture_output=True, text=True, timeout=120, check=False)
            # A SuperLink that is away is no error to it.
            said = json.loads(done.stdout) if done.returncode == 0 else {}
            if "run-id" in said:
                self.last = str(said["run-id"])
                return
            time.sleep(1)
        pytest.fail(done.stdout + done.stderr + self.logs())

    def kill(self, what):
        """One of a kind, without a word."""
        if what in ("client", "member"):
            order = self.shadow / f"kill-{what}"
            order.touch()
            self.until(lambda: not order.exists(), f"a {what} that dies")
            return
        who = random.randrange(CLIENTS)
        own = {"engine": f"engines/client-{who}.sock", "supernode": f"partition-id={who} "}.get(what, "")
        apart = what in ("engine", "authority")
        words, program = ((), f"fedcipher-{what}") if apart else ((f"fedcipher {what} ",), "")
        (found,) = processes(str(self.folder), own, *words, program=program)
        os.kill(found, signal.SIGKILL)

    def past(self):
        try:
            return read_journal(self.out)
        except errors.RunError:
            return None

    def finished(self):
        """Rounds with an aggregate."""
        past = self.past()
        return [] if past is None else [record for record in past.finished if record.unfinished is None]

    def until(self, found, what, seconds=180):
        end = time.monotonic() + seconds
        while not found():
            assert time.monotonic() < end, f"{what} has not come in {seconds} s\n{self.logs()}"
            time.sleep(0.05)

    def logs(self):
        command = [str(BIN / "flwr"), "log", self.last, "cluster", "--show"]
        done = subprocess.run(command, env=self.flower, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout[-4000:] + "\n".join(
            f"--- {p.name}\n{p.read_text()[-4000:]}" for p in sorted((self.folder / "logs").glob("*.log"))
        )


def mean_of(cluster, record):
    """What a round must have come to, from what its survivors have noted."""
    senders = [client.client for client in record.clients if client.left_out is None]
    assert len(senders) == len(set(senders)) >= 3
    notes = [np.load(cluster.shadow / f"{record.number}-{k}.npz") for k in senders]
    return [np.mean([note[f"made_{name}"] for note in notes], axis=0) for name in NAMES]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_whatever_dies_each_mean_is_that_of_its_survivors(tmp_path, scheme):
    if not (DATA / "mnist").is_dir():
        pytest.skip(f"no MNIST in {DATA}")
    began = time.monotonic()
    cluster = Cluster(tmp_path, scheme)
    kinds = ["client", "engine", "authority", "supernode", "superlink"]
    kinds.insert(3, "member") if scheme == "oneshot" else None
    try:
        cluster.up()
        up = time.monotonic() - began
        cluster.run()
        for what in kinds:
            seen = len(cluster.finished())
            # A whole round after the last that was hurt.
            cluster.until(lambda seen=seen: len(cluster.finished()) > seen + 1, "a round")
            time.sleep(random.uniform(0, 1))
            cluster.kill(what)
            if what == "superlink":
                # What it had started has ended with it; the supervisor starts it again.
                cluster.run()
        cluster.until(lambda: any(r.round == ROUNDS for r in cluster.finished()), "the last round", 300)
        device = fedcipher.engine.connect(f"unix:{cluster.folder}/engines/client-0.sock")
        model = open_run(cluster.out, device)
    finally:
        cluster.fedcipher("cluster", "down")
    assert processes(str(cluster.folder)) == {}

    good = cluster.finished()
    asked = [record.number for record in cluster.past().rounds]
    lost_rounds = [record for record in cluster.past().finished if record.unfinished is not None]
    assert asked == sorted(set(asked))
    assert sorted(record.round for record in [*good, *lost_rounds]) == list(range(1, ROUNDS + 1))
    # Where a SuperLink is new, a round may lack who is not back yet, and says so.
    assert len(lost_rounds) <= 1
    said = ("members of the committee have answered", "usable updates")
    assert all(any(words in record.unfinished for words in said) for record in lost_rounds)
    # Half a step of the codec, and what float32 rounds on the way.
    close = {"atol": CLIP / (2**BITS - 2) + 1e-6, "rtol": 0}
    means = [mean_of(cluster, record) for record in good]
    for record, mean in zip(good[1:], means, strict=False):
        for path in cluster.shadow.glob(f"{record.number}-*.npz"):
            given = np.load(path)
            for name, want in zip(NAMES, mean, strict=True):
                np.testing.assert_allclose(given[f"given_{name}"], want, **close)
    for name, want in zip(NAMES, means[-1], strict=True):
        np.testing.assert_allclose(model[name], want, **close)
    lost = sum(client.left_out is not None for record in good for client in record.clients)
    said = (
        f"{len(kinds)} kinds of process killed, {len(asked)} rounds asked for, {len(good)} ended, {lost} updates lost"
    )
    took = time.monotonic() - began
    counted(f"e2e: {scheme}", kinds, len(asked), len(good), lost, took)
    print(f"\n{scheme}: {said}; up after {up:.0f} s, {took:.0f} s in all", file=sys.stderr)
