"""A server that dies goes on: after the last round that ended, with the model and the history it had."""

import gc
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from contextlib import closing
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server import journal, run_folder
from fedcipher.federation.server.model import ServerModel
from fedcipher.schemes import scheme_class
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from places import IMPORTED
from scheme_lists import hides, one_of_each_kind_of_key, schemes_and_params, ways_to_open, works

CLIENTS, ROUNDS = 4, 4
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
# A run begins with a sum of histograms.
CODEC = fedcipher.Codec(bits=16)
WEIGHTS = fedcipher.Codec(bits=16, clip=2.0, target="weights")


class Killed(BaseException):
    """As far as any code is concerned the process is gone."""


class Federation:
    """Keys, clients and goals; each `server` is as a new process has it."""

    def __init__(self, folder, rng, codec=CODEC, scheme="flashe", **options):
        made = fedcipher.scheme(scheme, clients=CLIENTS, codec=codec, **options)
        self.folder = folder / "run"
        self.keys = keys.save(made.keygen(CLIENTS), made, folder / "keys")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        self.app = make_app(self.goals, [10] * CLIENTS)
        self.asked, self.told = [], []

    def tell(self, message, reply, client):
        """Remembers which round the app says it is, and the number of every round that a client trains in."""
        # A committee's messages have no configuration.
        if "config" not in message.content:
            return reply
        self.told.append((client, message.content["config"]["server-round"]))
        if message.metadata.message_type == "train":
            self.asked.append((client, RoundSettings.parse(self.grid.sent[-1][1]["fedcipher.round"]).round))
        return reply

    def server(self, inner=FedAvg, inner_options=None, **options):
        """Clients of a new run of Flower's have no state; their keys' ledgers stay."""
        self.grid = LocalGrid(self.app, CLIENTS, self.keys, self.tell)
        options = {"out": self.folder, "resume": True, **options}
        return SecureStrategy(inner(**ALL, **(inner_options or {})), self.keys, **options)

    def run(self, rounds=ROUNDS, model=None, evaluate_fn=None, **options):
        self.strategy = self.server(**options)
        start = record(model or initial())
        return self.strategy.start(self.grid, start, num_rounds=rounds, evaluate_fn=evaluate_fn)

    def check(self, rounds=ROUNDS):
        good = [made for made in self.strategy.rounds if made.unfinished is None]
        assert [made.round for made in good] == list(range(1, rounds + 1))
        assert all(made.accepted == CLIENTS for made in good)
        numbers = [made.number for made in self.strategy.rounds]
        assert numbers == sorted(set(numbers))
        # Nobody is asked for two updates under one number.
        assert len(set(self.asked)) == len(self.asked)
        mean = [np.mean([goal[k] for goal in self.goals], axis=0) for k in range(2)]
        want = [(1 - 0.5**rounds) * m for m in mean]
        for got, expected in zip(self.model(), want, strict=True):
            np.testing.assert_allclose(got, expected, atol=rounds * 4 / 2**16)

    def model(self):
        return list(open_run(self.folder, self.keys / "client-0.key").values())


def die_at(monkeypatch, step, before):
    """The process is gone before, or just after, its ``step``-th write to the disk; the number of writes."""
    done = itertools.count(1)

    def dying(real):
        def write(*arguments, **options):
            number = next(done)
            if before and number == step:
                raise Killed
            made = real(*arguments, **options)
            if not before and number == step:
                raise Killed
            return made

        return write

    monkeypatch.setattr(run_folder, "write_whole", dying(run_folder.write_whole))
    monkeypatch.setattr(journal, "write_whole", dying(journal.write_whole))
    monkeypatch.setattr(journal.Journal, "_write", dying(journal.Journal._write))
    return done


def die_in_round(monkeypatch, number):
    """The process is gone as it is about to keep the sum of the run's round ``number``."""
    real = run_folder.RunFolder.append

    def append(folder, frames, at):
        if at == number:
            raise Killed
        real(folder, frames, at)

    monkeypatch.setattr(run_folder.RunFolder, "append", append)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "codec", [pytest.param(CODEC, id="delta"), pytest.param(WEIGHTS, id="weights", marks=pytest.mark.long)]
)
def test_wherever_it_dies_the_run_goes_on(tmp_path, rng, codec, before):
    """Every point between two writes: two rounds have them all."""
    for step in itertools.count(1):
        here = Federation(tmp_path / f"{step}", rng, codec)
        with pytest.MonkeyPatch.context() as patch:
            done = die_at(patch, step, before)
            try:
                here.run(2)
            except Killed:
                pass
            else:
                assert next(done) == step, "it did not die, though it wrote as often"
                break
        here.run(2)
        here.check(2)
    assert step > 10


@pytest.mark.parametrize(("scheme", "options"), schemes_and_params(hides, ways_to_open, long=works))
def test_under_every_scheme_a_run_goes_on(tmp_path, rng, scheme, options):
    codec = fedcipher.Codec(bits=14, clip=2.0) if scheme_class(scheme).info.workers else CODEC
    here = Federation(tmp_path, rng, codec, scheme, **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_in_round(patch, 2)
        here.run(2)
    here.run(2)
    good = [made.round for made in here.strategy.rounds if made.unfinished is None]
    assert good == [1, 2] and len(here.strategy.rounds) == 3
    assert len(set(here.asked)) == len(here.asked)
    mean = [np.mean([goal[k] for goal in here.goals], axis=0) for k in range(2)]
    for got, m in zip(here.model(), mean, strict=True):
        np.testing.assert_allclose(got, 0.75 * m, atol=8 / 2**12)


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_a_server_that_opens_sums_goes_on_to_the_bit(tmp_path, rng, inner):
    """Moments of an optimiser included: the model is that of a run that nobody has killed."""
    options = {"inner": inner, "opener": "client-0.key", "inner_options": {} if inner is FedAvg else {"eta": 0.05}}
    # With ranges that follow the clients' updates.
    codec = fedcipher.Codec(bits=16)
    whole = Federation(tmp_path / "whole", rng, codec)
    want = whole.run(3, **options).arrays.to_numpy_ndarrays()
    ended = 0
    for step in range(1, 40, 3):
        here = Federation(tmp_path / f"{step}", rng, codec)
        here.goals[:] = whole.goals
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, step, True)
            try:
                here.run(3, **options)
                break
            except Killed:
                pass
        got = here.run(3, **options).arrays.to_numpy_ndarrays()
        ended += 1
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    assert ended > 4


class Halving(FedAvg):
    """Changes a setting for all later rounds, in the record that Flower gives to each round."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            config["lr"] = config["lr"] / 2
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("killed", [0, 2, 3, 4])
def test_a_setting_that_a_strategy_changes_for_later_rounds_stays_changed(tmp_path, rng, killed):
    """Also where another process goes on after ``killed`` - 1 rounds."""
    here, told = Federation(tmp_path, rng), []

    def run():
        strategy, sent = here.server(Halving), here.grid.sent
        try:
            strategy.start(here.grid, record(initial()), num_rounds=ROUNDS, train_config=ConfigRecord({"lr": 1.0}))
        finally:
            told.extend(content["config"] for _, content in sent if "lr" in content.get("config", {}))

    if killed:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            die_in_round(patch, killed)
            run()
    run()
    rates = {(config["server-round"], config["lr"]) for config in told}
    assert rates == {(1, 1.0), *((index, 0.5) for index in range(2, ROUNDS + 1))}


def test_what_a_strategy_keeps_is_kept_and_what_cannot_be_is_named(tmp_path, rng, caplog):
    class Counting(FedAvg):
        fedcipher_blind = True

        def __init__(self, **options):
            super().__init__(**options)
            self.seen, self.table, self.random, self.threshold = [], {}, random.Random(1), 3

        def aggregate_train(self, server_round, replies):
            self.seen.append((server_round, np.float32(0.5)))
            self.table[server_round] = np.arange(server_round)
            self.random = random.Random(2)
            return super().aggregate_train(server_round, replies)

    here = Federation(tmp_path, rng)
    here.run(2, inner=Counting)
    assert "Counting.random has a type that cannot be stored" in caplog.text and "table" not in caplog.text
    strategy = here.server(inner=Counting)
    strategy.inner.threshold = 5
    strategy.start(here.grid, record(initial()), num_rounds=3)
    kept = strategy.inner
    assert [number for number, _ in kept.seen] == [1, 2, 3] and kept.seen[0][1] == 0.5
    assert {k: v.tolist() for k, v in kept.table.items()} == {1: [0], 2: [0, 1], 3: [0, 1, 2]}
    # What the app is started with now is not what it was started with then.
    assert kept.threshold == 5


def test_history_and_round_numbers_go_on(tmp_path, rng):
    here, seen = Federation(tmp_path, rng), []

    def evaluate_fn(number, arrays):
        seen.append(number)
        return MetricRecord({"norm": float(number)})

    first = here.run(2, opener="client-0.key", evaluate_fn=evaluate_fn)
    here.told.clear()
    result = here.run(5, opener="client-0.key", evaluate_fn=evaluate_fn)
    assert seen == [0, 1, 2, 2, 3, 4, 5]
    for part in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert sorted(getattr(result, part)) == [1, 2, 3, 4, 5]
        assert all(dict(getattr(result, part)[n]) == dict(values) for n, values in getattr(first, part).items())
    assert {n: values["norm"] for n, values in result.evaluate_metrics_serverapp.items()} == {n: n for n in range(1, 6)}
    assert [number for client, number in here.told if client == 0] == [3, 3, 4, 4, 5, 5]
    here.check(5)


def test_a_run_that_has_ended_has_its_model_and_asks_nobody(tmp_path, rng):
    here = Federation(tmp_path, rng)
    here.run(2)
    before = here.model()
    here.run(2)
    assert not here.grid.sent
    for a, b in zip(here.model(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_resume_a_run_is_a_new_one(tmp_path, rng):
    here = Federation(tmp_path, rng)
    here.run(1, resume=False)
    # Rounds are numbered by the second in which a run begins.
    time.sleep(1.1)
    here.run(1, resume=False)
    assert here.strategy.run.model.folder.folder == here.folder.with_name("run-2")
    with pytest.raises(errors.StrategyError, match="pass out="):
        here.server(out=None, opener="client-0.key")
    here.folder = tmp_path / "photographs"
    here.folder.mkdir()
    (here.folder / "holiday.jpg").write_bytes(b"")
    with pytest.raises(errors.RunError, match=r"holds holiday\.jpg and no run"):
        here.run(1)


def test_a_run_goes_on_only_as_what_it_was(tmp_path, rng):
    here = Federation(tmp_path / "a", rng)
    here.run(1)
    with pytest.raises(errors.StrategyError, match="charter have changed: optimiser"):
        here.run(2, inner=FedAdam)
    with pytest.raises(errors.StrategyError, match="charter have changed: equal_weights, largest_weight"):
        here.run(2, examples_per_weight=3.0)
    with pytest.raises(errors.StrategyError, match="other shapes than initial_arrays"):
        here.run(2, model=[np.zeros((2, 3), np.float32), np.zeros(7, np.float32)])
    other = Federation(tmp_path / "b", rng, fedcipher.Codec(bits=12, clip=2.0))
    other.folder = here.folder
    with pytest.raises(errors.RunError, match="has other keys than the server"):
        other.run(2)
    here.run(2)
    here.check(2)


def test_two_servers_do_not_write_one_run(tmp_path, rng):
    here = Federation(tmp_path, rng)
    here.run(1)
    held = journal.Journal(here.folder)
    with pytest.raises(errors.RunError, match="another process is running"):
        here.run(2)
    assert journal.read_journal(here.folder).running
    held.close()
    assert not journal.read_journal(here.folder).running
    here.run(2)


def test_a_run_that_others_have_overtaken_says_so_and_does_not_end_well(tmp_path, rng, caplog):
    """Its round numbers are older than those that its clients' keys have been used for since."""
    here = Federation(tmp_path, rng)
    here.run(2)
    assert "has begun since" not in caplog.text
    here.run(2, out=tmp_path / "other", resume=False)
    with pytest.raises(errors.StrategyError, match=r"none of the 3 rounds since the run was resumed"):
        here.run(5)
    assert (
        "another run or query of this user has begun since" in caplog.text
        and "a later run ends all earlier ones" in caplog.text
    )


@pytest.mark.parametrize("after", [1, 2])
def test_a_run_that_another_overtakes_meanwhile_fails_and_its_server_says_why(tmp_path, rng, caplog, capsys, after):
    here = Federation(tmp_path, rng)

    def overtake(finished):
        if finished.round == after:
            grid = LocalGrid(here.app, CLIENTS, here.keys, lambda message, reply, client: reply)
            SecureStrategy(FedAvg(**ALL), here.keys, out=tmp_path / "other").start(
                grid, record(initial()), num_rounds=1
            )

    with pytest.raises(errors.LostRoundsError) as raised:
        here.run(4, on_round=overtake)
    assert sorted(raised.value.lost) == list(range(after + 1, 5))
    assert "another run or query of this user has begun since" in str(raised.value)
    assert "another run or query of this user has begun since" in caplog.text
    # Who asks later is told the same.
    capsys.readouterr()
    assert cli.main(["status", str(here.folder)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{4 - after} of 4 rounds have no aggregate") and "another run or query" in last


@pytest.mark.parametrize("clients", ["old", "new"])
def test_a_run_is_not_resumed_with_new_keys_of_equal_parameters(tmp_path, rng, clients):
    here, other = Federation(tmp_path / "a", rng), Federation(tmp_path / "b", rng)
    here.run(1)
    asked = len(here.asked)
    if clients == "old":
        here.keys = other.keys
        federation = here
    else:
        other.folder = here.folder
        federation = other
    with pytest.raises(errors.StrategyError, match="the server has another key set or epoch"):
        federation.run(2)
    # Before the first message.
    assert len(federation.asked) == (asked if clients == "old" else 0)


def test_damaged_journals_are_named(tmp_path, rng):
    here = Federation(tmp_path, rng)
    here.run(1)
    path = here.folder / "journal.db"
    whole = path.read_bytes()
    with sqlite3.connect(path) as base:
        base.execute("UPDATE rounds SET record = '[]'")
    base.close()
    with pytest.raises(errors.RunError, match=r"journal\.db is damaged"):
        here.run(2)
    path.write_bytes(whole[:100] + b"\0" * 1000 + whole[1100:])
    with pytest.raises(errors.RunError, match=r"journal\.db is damaged"):
        here.run(2)
    path.write_bytes(whole)
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA user_version=9")
    base.close()
    with pytest.raises(errors.RunError, match="has format 9"):
        here.run(2)


def without_journal(folder, _):
    (folder / "journal.db").unlink()


def with_an_empty_journal(folder, _):
    (folder / "journal.db").unlink()
    journal.Journal(folder).close()


def with_an_older_journal(folder, older):
    shutil.copy(older, folder / "journal.db")


def with_a_journal_whose_rounds_have_not_ended(folder, _):
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as base:
        base.execute("UPDATE rounds SET ended = NULL")


def with_a_journal_that_lacks_its_log(folder, _):
    """As an earlier version left a folder when it was killed: with a log, in which the last rounds are."""
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as base:
        last = base.execute("SELECT * FROM rounds ORDER BY number DESC LIMIT 1").fetchone()
        base.execute("DELETE FROM rounds WHERE number = ?", last[:1])
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("INSERT INTO rounds VALUES (?, ?, ?)", last)
        copied = (folder / "journal.db").read_bytes()
    (folder / "journal.db").write_bytes(copied)


@pytest.mark.parametrize(
    "lose",
    [
        without_journal,
        with_an_empty_journal,
        with_an_older_journal,
        with_a_journal_whose_rounds_have_not_ended,
        with_a_journal_that_lacks_its_log,
    ],
)
def test_a_run_whose_journal_is_lost_is_refused_and_left_as_it_is(tmp_path, rng, lose, capsys):
    here = Federation(tmp_path, rng)
    here.run(1)
    older = shutil.copy(here.folder / "journal.db", tmp_path / "older.db")
    here.run(3)
    whole = {path.name: path.read_bytes() for path in here.folder.iterdir()}
    lose(here.folder, older)
    # What is refused may have become one file.
    left = ["journal.db"] if lose is with_a_journal_that_lacks_its_log else []
    lost = {path.name: path.read_bytes() for path in here.folder.iterdir() if path.name not in left}
    with pytest.raises(errors.RunError, match=r"[Cc]opy the whole folder(.|\n)* start a new run from the model"):
        here.run(5)
    assert {path.name: path.read_bytes() for path in here.folder.iterdir() if path.name not in left} == lost
    if lose is without_journal:
        assert cli.main(["status", str(here.folder)]) == 2
        assert "journal.db is missing, and the run has aggregates" in capsys.readouterr().err
    for name, content in whole.items():
        (here.folder / name).write_bytes(content)
    here.run(5)
    here.check(5)


def test_a_run_goes_on_whose_journal_is_copied_while_its_server_writes(tmp_path, rng):
    """One file is the whole journal, at any time between two changes of it."""
    here = Federation(tmp_path, rng)
    real, copies = journal.Journal._write, []

    def copying(self, *arguments):
        real(self, *arguments)
        copies.append((here.folder / "journal.db").read_bytes())
        assert sorted(path.name for path in here.folder.glob("journal.db*")) == ["journal.db"]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(journal.Journal, "_write", copying)
        die_in_round(patch, 3)
        here.run()
    (here.folder / "journal.db").write_bytes(copies[-1])
    here.run()
    here.check()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the files of a process")
def test_a_journal_that_is_refused_is_closed_at_once(tmp_path, rng):
    here = Federation(tmp_path, rng)
    here.run(1)
    path = here.folder / "journal.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version=9")
    # The refusal, which the caller may keep, holds what the journal was opened with.
    with pytest.raises(errors.RunError, match="has format 9") as refused:
        here.run(2)
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert refused.tb and not any(path.name in file for file in files)


def test_status_says_where_a_run_is(tmp_path, rng, capsys):
    here = Federation(tmp_path, rng)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_in_round(patch, 2)
        here.run(3)
    assert cli.main(["status", str(here.folder)]) == 0
    said = capsys.readouterr().out
    assert "not running" in said and "round 2" in said and "the server ended during this round" in said
    held = journal.Journal(here.folder)
    assert cli.main(["status", str(here.folder)]) == 0
    assert "not running" not in capsys.readouterr().out
    held.close()
    # A training's folder: of its runs the last.
    training = tmp_path / "training"
    training.mkdir()
    assert cli.main(["status", str(training)]) == 2
    assert "has no journal" in capsys.readouterr().err
    for name in ("run", "run-2", "run-10", "run-x"):
        shutil.copytree(here.folder, training / name)
    assert cli.main(["status", str(training)]) == 0
    assert str(training / "run-10") in capsys.readouterr().out
    assert cli.main(["status", str(training / "run-2")]) == 0
    assert capsys.readouterr().out.startswith(str(training / "run-2:"))


MADE = """
import os, signal, sys
from pathlib import Path
from fedcipher.federation.server import journal
from fedcipher.federation.server.run_folder import RunFolder

def killed_at(line):
    def trace(frame, event, _):
        nonlocal line
        if frame.f_code.co_filename != journal.__file__:
            return None
        line -= event == "line"
        if line == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

for line in range(1, 100):
    folder = Path(sys.argv[1]) / str(line)
    folder.mkdir()
    child = os.fork()
    if child == 0:
        sys.settrace(killed_at(line))
        journal.Journal(folder)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    assert not RunFolder.has_run(folder)
    again = journal.Journal(folder)
    assert again.past.rounds == []
    again.close()
    assert journal.read_journal(folder).rounds == []
print(line)
"""


def test_killed_at_any_line_of_making_its_journal(tmp_path):
    made = subprocess.run([sys.executable, "-c", MADE, tmp_path], capture_output=True, text=True, check=False)
    assert made.returncode == 0 and int(made.stdout) > 10, made.stderr


SERVER = """
import sys
import time
from pathlib import Path
sys.path[:0] = {tests!r}
import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg
from test_flower_resume import ALL, CLIENTS, ROUNDS
folder = Path(sys.argv[1])
goals = [[np.array(x, np.float32) for x in goal] for goal in np.load(folder / "goals.npy", allow_pickle=True)]
grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder / "keys")
strategy = SecureStrategy(FedAvg(**ALL), folder / "keys", out=folder / "run", resume=True)
print("ready", flush=True)
strategy.start(grid, record(initial()), num_rounds=3 * ROUNDS)
"""


@pytest.mark.parametrize(("ended", "codec"), [(0, CODEC), (1, CODEC), (0, fedcipher.Codec()), (1, fedcipher.Codec())])
def test_a_server_that_is_killed_in_each_try_of_a_round_goes_on(tmp_path, rng, monkeypatch, ended, codec):
    """Between fixing its sums and keeping them. Its clients may send as often as it is started."""
    here = Federation(tmp_path, rng, codec=codec)
    if ended:
        here.run(ended)
    real = ServerModel.append

    def killed(*_):
        raise Killed

    for _ in range(4):
        monkeypatch.setattr(ServerModel, "append", killed)
        with pytest.raises(Killed):
            here.run()
        # The system closes a process's files.
        here.strategy.run.journal.close()
    monkeypatch.setattr(ServerModel, "append", real)
    here.run()
    assert [made.accepted for made in here.strategy.rounds if made.unfinished is None] == [CLIENTS] * ROUNDS


def test_a_process_that_is_killed_again_and_again(tmp_path, rng):
    """SIGKILL at random times, until the run has ended: a campaign of 50 on a SuperLink is `make e2e-resume`."""
    here = Federation(tmp_path, rng)
    np.save(tmp_path / "goals.npy", np.array(here.goals, dtype=object), allow_pickle=True)
    command = [sys.executable, "-c", SERVER.format(tests=IMPORTED), str(tmp_path)]
    kills, draw = 0, random.Random(7)
    for _ in range(40):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as server:
            assert server.stdout.readline() == b"ready\n", server.stderr.read().decode()
            try:
                server.wait(draw.uniform(0.02, 0.25) if kills < 8 else 60)
                break
            except subprocess.TimeoutExpired:
                server.send_signal(signal.SIGKILL)
                server.wait()
                kills += 1
            said = server.stderr.read().decode()
    assert server.returncode == 0 and kills > 3, said
    past = journal.read_journal(here.folder)
    assert json.dumps([made.round for made in past.rounds if made.unfinished is None]) == json.dumps(
        list(range(1, 3 * ROUNDS + 1))
    )
    here.strategy, here.asked = type("Ended", (), {"rounds": past.rounds}), []
    here.check(3 * ROUNDS)


def sums_sent(monkeypatch):
    """A list that gets how many steps each message brings, by client."""
    sent, real = [], ServerModel.to_node

    def counted(model, node, party):
        brought = real(model, node, party)
        sent.append((node - 1000, len(brought.indices)))
        return brought

    monkeypatch.setattr(ServerModel, "to_node", counted)
    return sent


@pytest.mark.parametrize("reader", ["clients", "server"])
@pytest.mark.parametrize("scheme", one_of_each_kind_of_key())
@pytest.mark.parametrize("rounds", [3, 6])
def test_a_run_that_goes_on_sends_each_client_what_it_lacks(tmp_path, rng, monkeypatch, rounds, scheme, reader):
    """Whatever the number of rounds before: whoever has evaluated the last round lacks nothing."""
    opens = {"opener": "client-0.key"} if reader == "server" and scheme == "flashe" else {}
    options = {"preset": "fast", "members": 3, "reveal": reader} if scheme == "oneshot" else {}
    here = Federation(tmp_path, rng, scheme=scheme, **options)
    here.run(rounds, **opens)
    sent = sums_sent(monkeypatch)
    here.run(rounds + 2, **opens)
    here.check(rounds + 2)
    assert sorted(sent[:CLIENTS]) == [(client, 0) for client in range(CLIENTS)]
    # To evaluate, and nothing for the round after.
    assert [steps for _, steps in sent[CLIENTS:]] == [1] * CLIENTS + [0] * CLIENTS + [1] * CLIENTS


def test_a_run_that_goes_on_brings_everything_to_who_was_away_or_has_lost_it(tmp_path, rng, monkeypatch):
    """Client 1 has missed the last three rounds; client 2 has lost its state, and is sent all once it has refused."""
    here = Federation(tmp_path, rng, codec=WEIGHTS)
    real, away = here.tell, {"from": 3}

    def tell(message, reply, client):
        reply = real(message, reply, client)
        if away["from"] and client == 1 and message.content["config"]["server-round"] >= away["from"]:
            return None
        return reply

    here.tell = tell
    here.run(5, may_lose=0)
    away["from"] = 0
    here.grid.lose(2)
    sent = sums_sent(monkeypatch)
    here.run(7)
    assert sorted(sent[:CLIENTS]) == [(0, 0), (1, 3), (2, 0), (3, 0)]
    assert [made.accepted for made in here.strategy.rounds] == [CLIENTS, CLIENTS, 3, 3, 3, 3, CLIENTS]
    assert dict(sent[CLIENTS : 2 * CLIENTS]) == {0: 1, 1: 1, 2: 6, 3: 1}


def test_a_run_that_goes_on_has_the_history_of_one_message_at_a_time(tmp_path, rng, monkeypatch):
    """Clients that the server has not met are sent all sums; of those of several clients at once nothing is kept."""
    here = Federation(tmp_path, rng)
    here.run(6)
    monkeypatch.setattr(ServerModel, "remember", lambda model, rounds: None)
    made, alive, sums = [], [], []
    real = ServerModel.to_node

    def counted(model, node, party):
        brought = real(model, node, party)
        gc.collect()
        made.append(weakref.ref(brought.arrays))
        alive.append(sum(arrays() is not None for arrays in made))
        sums.append(len(brought.indices))
        return brought

    class Forgetful(LocalGrid):
        def push_messages(self, messages):
            asked = super().push_messages(messages)
            self.sent.clear()
            return asked

    monkeypatch.setattr(ServerModel, "to_node", counted)
    server = here.server()
    here.grid = Forgetful(here.app, CLIENTS, here.keys, lambda message, reply, client: reply)
    server.start(here.grid, record(initial()), num_rounds=7)
    # A sum of histograms, and six of updates. The message that is sent is there still while the next is made.
    assert sums[:CLIENTS] == [7] * CLIENTS and max(alive) <= 2
