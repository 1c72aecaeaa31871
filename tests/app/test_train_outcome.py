"""`fedcipher train` says when a run was none, and simulates no more clients than memory holds; without a simulation."""

import argparse
import json
import math
import subprocess
import sys

import pytest
from fedcipher import cli
from fedcipher.app import memory, simulate
from fedcipher.app.layers import bits_option
from fedcipher.app.memory import at_once, available, resident
from fedcipher.app.outcome import failure
from fedcipher.app.report import RoundResult
from fedcipher.errors import ParameterError
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server.outcome import Outcome

GOOD = {"train": {"loss": 0.3}, "evaluate": {"accuracy": 0.9, "loss": 0.2}}


def record(number=1, metrics=GOOD, causes=(None, None), **more):
    clients = [ClientRecord(k, k, {}, cause) for k, cause in enumerate(causes)]
    return RoundRecord(number, clients=clients, metrics=metrics, **more)


NOBODY = record(
    2, {}, ["CodecError: it holds NaN", "StrategyError: later"], unfinished="it has 0 usable updates and needs 2"
)
AWAY = record(2, {"train": {"loss": 0.3}}, evaluations=[ClientRecord(1, 1, {}, "out of memory")])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (NOBODY, "round 2: no client succeeded; first cause: client 0: CodecError: it holds NaN"),
        (
            record(2, {}, [], unfinished="no node answered"),
            "round 2: no client succeeded; first cause: no node answered",
        ),
        (record(2, {**GOOD, "train": {"loss": math.nan}}), "round 2: training loss is nan"),
        (record(2, {"evaluate": {"accuracy": 0.1, "loss": math.inf}}), "round 2: loss is inf"),
        (
            record(2, counted={"saturated": 7.0}),
            "round 2: 7 values of a client's update are not finite numbers: the model or its training has left",
        ),
        (AWAY, "round 2: no client evaluated the model; first cause: client 1: out of memory"),
    ],
)
def test_what_fails_a_run_is_its_first_bad_round_and_its_first_cause(bad, why):
    good = [RoundResult.of(record(1)), RoundResult.of(record(3))]
    assert failure(good) == ""
    assert failure([good[0], RoundResult.of(bad), good[1], RoundResult.of(NOBODY)]).startswith(why)


def test_a_round_whose_metrics_could_not_be_opened_is_no_failure():
    assert failure([RoundResult.of(record(1, {}), not_opened="its evaluation no longer opens")]) == ""


def test_a_run_without_any_aggregate_fails_also_where_single_clients_succeeded():
    few = [record(k, GOOD, [None], unfinished=f"it has {k} usable updates and needs 2") for k in (1, 2)]
    said = failure([RoundResult.of(r) for r in few])
    assert said == (
        "2 of 2 rounds have no aggregate: [1, 2]; the model is unchanged. "
        "The last, round 2: it has 2 usable updates and needs 2"
    )
    assert failure([RoundResult.of(few[0]), RoundResult.of(record(2))]).startswith(
        "1 of 2 rounds have no aggregate: [1]. The last, round 1: it has 1 "
    )


@pytest.fixture
def simulated(monkeypatch):
    """Has `fedcipher train` go through these rounds in the place of a simulation: what its backend was told."""
    told = {}

    def use(*rounds):
        def run_simulation(*, server_app, backend_config, **_):
            told.update(backend_config)
            for made in rounds:
                server_app(made)

        monkeypatch.setattr("flwr.simulation.run_simulation", run_simulation)
        monkeypatch.setattr(simulate, "make_server_app", lambda settings, on_round, *_: on_round)
        # In this process, so that what is told is seen.
        monkeypatch.setattr("fedcipher.app.forked_run.run_forked", lambda work, failed: work())
        return told

    return use


def train(folder):
    return cli.main(["train", "--scheme", "plain", "--clients", "3", "--out", str(folder)])


def test_a_relative_folder_is_the_callers_and_no_earlier_model_stays_beside_another_runs_report(
    monkeypatch, simulated, tmp_path
):
    """Flower's own relative folders are in the home."""
    monkeypatch.chdir(tmp_path)
    simulated(record(1), NOBODY)
    told = []
    monkeypatch.setattr(simulate, "make_server_app", lambda settings, on_round, *_: told.append(settings) or on_round)
    out = tmp_path / "runs" / "one"
    out.mkdir(parents=True)
    (out / "model.npz").write_bytes(b"of another run")
    assert train("runs/one") == 2
    assert told[0].out == str(out / "run") and (out / "report.json").exists()
    assert not (out / "model.npz").exists()


def test_a_run_that_was_none_ends_with_a_status_and_its_first_cause_and_leaves_the_report(simulated, tmp_path, capsys):
    simulated(record(1), NOBODY)
    assert train(tmp_path) == 2
    said = capsys.readouterr()
    assert "fedcipher: RunError: round 2: no client succeeded; first cause: client 0: CodecError" in said.err
    assert (tmp_path / "report.json").exists() and "report: " in said.out
    simulated(record(1), record(2))
    assert train(tmp_path / "good") == 0


def test_what_the_memory_does_not_hold_is_not_simulated_at_once(simulated, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulate, "resident", lambda: 3 << 30)
    monkeypatch.setattr(simulate, "available", lambda: 10 << 30)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    told = simulated(record(1))
    assert train(tmp_path) == 0
    assert told["init_args"]["num_cpus"] == 2
    assert "a client needs 3.22 GB or more and 10.7 GB are free, so 2 of 3 clients" in capsys.readouterr().out
    monkeypatch.setattr(simulate, "available", lambda: 100 << 30)
    assert train(tmp_path) == 0
    assert told["init_args"]["num_cpus"] == 3
    assert "memory:" not in capsys.readouterr().out


# --- bits of each layer ------------------------------------------------------------------------

TENSORS = [
    "batch_stats/BatchNorm_0/mean",
    *(f"params/{layer}/{part}" for layer in ("Conv_0", "Conv_1", "Dense_0", "Dense_1") for part in ("bias", "kernel")),
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("conv1=8,fc=12", [16, 8, 8, 16, 16, 12, 12, 12, 12]),
        ("conv1=8,conv=6,fc2=7,10", [10, 8, 8, 6, 6, 10, 10, 7, 7]),
        ("conv=6,conv1=8,bn=24,Dense_1=5", [24, 8, 8, 6, 6, 16, 16, 5, 5]),
    ],
)
def test_bits_by_layer(text, found):
    assert bits_option(text).of(TENSORS, 16) == found


@pytest.mark.parametrize(
    "text", ["conv1", "conv1=", "conv1=1", "conv1=8,conv1=9", "conv1=8,9,10", "=8", "0", "conv 1=8"]
)
def test_bits_that_are_none_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        bits_option(text)


def test_a_layer_that_the_model_lacks_is_refused_with_those_it_has():
    with pytest.raises(ParameterError, match="conv3=8: the model's layers are bn1, conv1, conv2, fc1, fc2"):
        bits_option("conv3=8").of(TENSORS, 16)
    assert bits_option("12") == 12


def test_training_takes_bits_by_layer(simulated, tmp_path, capsys):
    simulated(record(1))
    more = ("--bits", "conv1=8,fc=6,10")
    assert cli.main(["train", "--scheme", "bfv", "--clients", "3", *more, "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "report.json").read_text())
    # Two batch norms, with their statistics, before two convolutions and a dense layer of a bias and a kernel each.
    assert made["codec"]["bits"] == [10] * 8 + [8, 8, 10, 10, 6, 6]
    assert "6 to 10 bits a value" in made["threat"]
    assert cli.main(["train", "--bits", "conv7=8", "--out", str(tmp_path)]) == 2
    assert "the model's layers are bn1, bn2, conv1, conv2, fc1" in capsys.readouterr().err
    # Its layers want larger images.
    assert cli.main(["train", "--model", "lenet5", "--bits", "fc=8", "--out", str(tmp_path)]) == 2
    assert "the layers of lenet5 on digits cannot be listed: " in capsys.readouterr().err


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "clients", "each", "free", "found", "said"),
    [
        (4, 12, 1, 5, 4, ""),
        (4, 12, 1, 4, 3, "3 of 4"),
        (4, 2, 1, 3, 2, ""),
        (4, 12, 3, 2, 1, "even that may be too much"),
        (4, 12, 0, 5, 4, ""),
        (4, 12, 1, 0, 4, ""),
    ],
)
def test_clients_at_once(cores, clients, each, free, found, said):
    number, text = at_once(cores, clients, each, free)
    assert number == found and (said in text if said else not text)


TABLES = """
import numpy as np
from fedcipher.app.memory import resident
before = resident()
tables = np.ones(64 << 20, np.uint8)
print(before, resident() - before)
"""


@pytest.mark.skipif(not resident(), reason="the system does not say how much memory a process has")
def test_what_a_process_has_in_tables_counts():
    # In a process of its own: another one reuses what it has had before.
    shown = subprocess.run([sys.executable, "-c", TABLES], capture_output=True, text=True, check=True).stdout
    before, more = map(int, shown.split())
    assert before > 1 << 20 and 60 << 20 < more < 80 << 20


def test_memory_of_the_machine_and_of_a_group(tmp_path):
    proc, group = tmp_path / "proc", tmp_path / "group"
    for folder in (proc, group / "memory"):
        folder.mkdir(parents=True)
    assert available(proc, group) == 0
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert available(proc, group) == 2048 << 10
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert available(proc, group) == 2048 << 10
    (group / "memory.max").write_text("2000000\n")
    (group / "memory.current").write_text("1500000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert available(proc, group) == 600_000
    (group / "memory" / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory" / "memory.usage_in_bytes").write_text("2000\n")
    # None is left, which is not that nothing is known.
    assert available(proc, group) == 1


def test_this_machine_says_how_much_is_free():
    if memory._PROC.is_dir():
        assert available() > 0


def test_an_outcome_says_who_and_what_is_missing_from_the_sums():
    """Three clients by name, the one that was missed most first; of precision the worst round."""

    def made(number, absent, **options):
        clients = [ClientRecord(k, k, {}, f"away {number}" if k in absent else None) for k in range(8)]
        return RoundRecord(number, number, clients=clients, elements=100, **options)

    rounds = [
        made(1, [1], counted={"kept": 0.4, "clipped": 3.0}),
        made(2, [1, 2, 3], counted={"kept": 0.9, "vanished": 5.0}),
        made(3, [4, 5], counted={"kept": 0.99, "saturated": 1.0}),
        made(4, [6], unfinished="lost"),
    ]
    outcome = Outcome.of(rounds)
    assert (outcome.done, outcome.lost) == (3, {4: "lost"})
    assert outcome.losses == (
        "client 1 is missing from 2 of 3 sums (last in round 2: away 2)",
        "client 2 is missing from 1 of 3 sums (last in round 2: away 2)",
        "client 3 is missing from 1 of 3 sums (last in round 2: away 2)",
        "2 other clients are also missing from some sums",
        "2 of 3 sums keep too little of their updates (round 1: 40%)",
        "1 of 3 sums have values that were cut to their range (round 1: 3.0%)",
        "1 of 3 sums have values that were rounded to zero (first in round 2)",
        "1 of 3 sums have values that are not finite numbers (first in round 3)",
    )
    assert outcome.text() == "; ".join(
        ["1 of 4 rounds have no aggregate: [4]. The last, round 4: lost", *outcome.losses]
    )
    assert Outcome.of([made(1, []), made(2, [])]).text() == "all 2 rounds have an aggregate"
