"""An ended run is read where nothing can be written: from a read-only mount, or by a user without write access."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg

CLIENTS = 3
# What may be written to is $WORK. In the second nothing else is: no copy can be made to read the journal.
MOUNTS = {
    "a read-only mount": 'mount --bind "$RUN" "$RUN"; mount -o remount,ro,bind "$RUN"',
    "a read-only machine": 'mount --bind "$WORK" "$WORK"; mount -o remount,ro,bind /',
    "no write access": 'chmod 500 "$RUN"; chmod 400 "$RUN"/*',
}
# A user with no rights but those of a file's owner.
WITHOUT_RIGHTS = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that has ended, beside its keys."""
    folder = tmp_path_factory.mktemp("ended")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
        made = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
        keys.save(made.keygen(CLIENTS), made, folder / "keys")
        goals = [[np.zeros_like(a) for a in initial()]] * CLIENTS
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder / "keys")
        sampled = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
        strategy = SecureStrategy(FedAvg(**sampled), folder / "keys", out=folder / "run")
        strategy.start(grid, record(initial()), num_rounds=2)
    return folder / "run"


class Reader:
    """Runs a command in mounts of its own."""

    def __init__(self, run, work, where):
        # Keys and state come with whoever opens the run.
        self.run, self.where = shutil.copytree(run, work.parent / "run"), where
        self.keys = shutil.copytree(run.parent / "keys", work / "keys")
        self.state = shutil.copytree(run.parent / "state", work / "state")
        self.own = {**os.environ, "RUN": str(self.run), "WORK": str(work), "FEDCIPHER_STATE_DIR": str(self.state)}

    def command(self, *arguments):
        ids = WITHOUT_RIGHTS if self.where == "no write access" else []
        script = f'set -e\n{MOUNTS[self.where]}\nexec "$@"'
        outer = [*("unshare", "--mount"), "bash", "-c", script, "reader", *ids]
        return [*outer, sys.executable, "-m", "fedcipher.cli", *map(str, arguments)]

    def __call__(self, *arguments):
        return subprocess.run(
            self.command(*arguments), env=self.own, capture_output=True, text=True, check=False, timeout=300
        )


@pytest.fixture
def reader_of(run, tmp_path):
    """A reader of a copy of the run, where nothing can be written but its own folder."""
    tried = [*("unshare", "--mount"), *WITHOUT_RIGHTS, "true"]
    if not shutil.which("unshare") or subprocess.run(tried, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody have mounts and ids of one's own")
    (tmp_path / "work").mkdir()
    yield lambda where: Reader(run, tmp_path / "work", where)
    (tmp_path / "run").chmod(0o700)


@pytest.fixture(params=MOUNTS)
def reader(request, reader_of):
    return reader_of(request.param)


def test_the_status_of_an_ended_run_is_read_where_nothing_can_be_written(reader):
    done = reader("status", reader.run)
    assert done.returncode == 0, done.stderr
    assert "2" in done.stdout and "damaged" not in done.stdout + done.stderr


def test_an_ended_run_is_opened_where_nothing_can_be_written(reader):
    out = reader.keys.parent / "model.npz"
    done = reader("open", reader.run, "--key", reader.keys / "client-0.key", "--out", out)
    assert done.returncode == 0, done.stderr
    with np.load(out) as model:
        assert all(np.abs(array).max() < 2 for array in model.values())


def test_a_dashboard_shows_an_ended_run_where_nothing_can_be_written(reader):
    command = reader.command("dashboard", reader.run, "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, env=reader.own, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
            with urllib.request.urlopen(f"{address}metrics", timeout=60) as answer:
                page = answer.read().decode()
        finally:
            process.terminate()
    assert "fedcipher" in page and "damaged" not in page


def test_a_log_beside_a_journal_is_not_passed_over_where_no_copy_can_be_written(reader_of):
    reader = reader_of("a read-only machine")
    (reader.run / "journal.db-wal").write_bytes(bytes(32))
    done = reader("status", reader.run)
    assert done.returncode == 2 and "TMPDIR" in done.stderr and "damaged" not in done.stderr, done.stderr


def test_who_may_not_read_a_run_is_told_so(reader_of):
    reader = reader_of("no write access")
    for name in ("lock", "journal.db"):
        (reader.run / name).chmod(0)
        done = subprocess.run(
            [*WITHOUT_RIGHTS, sys.executable, "-m", "fedcipher.cli", "status", str(reader.run)],
            **{"env": reader.own, "capture_output": True, "text": True, "check": False, "timeout": 300},
        )
        assert done.returncode == 2 and "ermission" in done.stderr, done.stderr
        assert "damaged" not in done.stderr and "copy its whole folder" not in done.stderr
        (reader.run / name).chmod(0o600)
