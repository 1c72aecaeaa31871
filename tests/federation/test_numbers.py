"""Round numbers increase, whatever the clock says and whoever else asks for some."""

import os
import re
import shutil
import subprocess
import sys
import time

import fedcipher
import numpy as np
import pytest
from fedcipher import _native, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.federation.server import round_ids
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg
from places import IMPORTED

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
    monkeypatch.setattr(round_ids.time, "time", lambda: now[0])
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
    assert round_ids.reserve(5) == round_ids.reserve(5) == int(clock[0]) << 20
    assert "from the clock alone" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"next": -1}', '{"next": "1"}', '{"next": 1e30}', '{"next": NaN}']
)
def test_a_damaged_file_is_named(clock, caplog, content):
    state_dir().mkdir()
    (state_dir() / "round-numbers.json").write_text(content)
    assert round_ids.reserve(5) == int(clock[0]) << 20
    assert "round-numbers.json is damaged" in caplog.text


def test_processes_share_no_number():
    code = "from fedcipher.federation.server.round_ids import reserve\nfor _ in range(100): print(reserve(3))"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    got = [int(line) for process in running for line in process.communicate(timeout=120)[0].split()]
    assert len(got) == 300 and len({number + k for number in got for k in range(3)}) == 900


def test_the_native_module_alone_knows_how_a_number_is_made():
    first = _native.first_round(1_700_000_000)
    assert first == 1_700_000_000 << 20 and _native.first_round(1_700_000_001) - first == 1 << _native.ROUND_INDEX_BITS
    assert _native.round_date(first + 7) == 1_700_000_000
    assert _native.round_date(7) is _native.round_date((1 << 40) - 1) is None
    with pytest.raises(OverflowError, match="no round is of second"):
        _native.first_round(1 << 44)


# --- every clock was ahead once ------------------------------------------------------------------

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += atoll(getenv("AHEAD"));
    return done;
}
"""
TRAINING = """
import logging, sys
import numpy as np
from fedcipher.errors import FedcipherError
from fedcipher.adapters.flower import SecureStrategy
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg
folder, out = sys.argv[1:]
logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
grid = LocalGrid(make_app([[np.zeros_like(a) for a in initial()]] * 3, [10] * 3), 3, folder)
strategy = SecureStrategy(FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3), folder, out=out)
try:
    strategy.start(grid, record(initial()), num_rounds=1)
    print("trained")
except FedcipherError as error:
    print("server:", type(error).__name__, error)
"""


@pytest.fixture
def ahead(tmp_path):
    """Runs one round in a process in which every clock is some seconds ahead; what it says."""
    compiler = shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("a clock of one's own takes a C compiler and Linux")
    (tmp_path / "clock.c").write_text(CLOCK)
    shim = tmp_path / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "clock.c", "-ldl"], check=True)

    def run(folder, seconds, out):
        path = os.pathsep.join([*IMPORTED, os.environ.get("PYTHONPATH", "")])
        own = {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(shim), "AHEAD": str(seconds)}
        command = [sys.executable, "-c", TRAINING, str(folder), str(tmp_path / out)]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("scheme, days", [("flashe", 365), ("flashe", 3), ("bfv", 365)])
def test_after_all_clocks_were_ahead_the_error_says_how_to_go_on_and_that_helps(ahead, tmp_path, scheme, days):
    made = fedcipher.scheme(scheme, clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(made.keygen(CLIENTS), made, tmp_path / "keys")
    assert "trained" in ahead(folder, days * 86_400, "ahead")
    said = ahead(folder, 0, "after")
    (server,) = [line for line in said.splitlines() if line.startswith("server: ")]
    clients = [line for line in said.splitlines() if "NonceReuseError" in line or "CharterError" in line]
    assert clients
    for line in (server, *clients):
        assert re.search(rf"({days - 1}|{days}) days ahead|dated ahead of this machine's clock", line), line
        assert "clocks" in line and "fedcipher keygen" in line and "start a new run" in line, line
    new = keys.save(made.keygen(CLIENTS), made, tmp_path / "new")
    assert "trained" in ahead(new, 0, "new")
    # Told once, not at each start.
    assert "clock was wrong" not in ahead(new, 0, "newer")
