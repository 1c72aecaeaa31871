"""Round numbers increase, whatever the clock says and whoever else asks for some."""

import subprocess
import sys
import time

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.flower import SecureStrategy, numbers
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg

CLIENTS = 3
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
HOUR = 3600.0


@pytest.fixture
def train(tmp_path, rng):
    """Runs two rounds as a server that has just been started, of clients that have seen all runs before."""
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]

    def run():
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder)
        strategy = SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "run")
        strategy.start(grid, record(initial()), num_rounds=2)
        assert [made.accepted for made in strategy.rounds] == [CLIENTS, CLIENTS]
        return [made.number for made in strategy.rounds]

    return run


@pytest.fixture
def clock(monkeypatch):
    now = [time.time()]
    monkeypatch.setattr(numbers.time, "time", lambda: now[0])
    return now


def test_a_clock_that_was_ahead_locks_nobody_out(train, clock):
    before = train()
    clock[0] += 23 * HOUR
    ahead = train()
    clock[0] -= 23 * HOUR
    after = train()
    assert before[-1] < ahead[0] and ahead[-1] < after[0]
    assert ahead[0] - before[0] > 22 * HOUR * 2**20


def test_nor_does_one_that_was_so_far_ahead_that_clients_have_refused(train, clock):
    clock[0] += 48 * HOUR
    with pytest.raises(errors.StrategyError, match="none of 2 rounds"):
        train()
    clock[0] -= 48 * HOUR
    assert train()[0] - (int(clock[0]) << 20) < 2**20


def test_two_runs_in_one_second(train, clock):
    assert train()[-1] < train()[0]


def test_without_a_place_to_keep_it_the_clock_counts_and_a_warning_says_so(clock, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "file" / "state"))
    assert numbers.reserve(5) == numbers.reserve(5) == int(clock[0]) << 20
    assert "of the clock alone" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"next": -1}', '{"next": "1"}', '{"next": 1e30}', '{"next": NaN}']
)
def test_a_damaged_file_is_named(clock, caplog, content):
    state_dir().mkdir()
    (state_dir() / "round-numbers.json").write_text(content)
    assert numbers.reserve(5) == int(clock[0]) << 20
    assert "round-numbers.json is damaged" in caplog.text


def test_processes_share_no_number():
    code = "from fedcipher.flower.numbers import reserve\nfor _ in range(100): print(reserve(3))"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    got = [int(line) for process in running for line in process.communicate(timeout=120)[0].split()]
    assert len(got) == 300 and len({number + k for number in got for k in range(3)}) == 900
