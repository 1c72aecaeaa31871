"""Files and text from elsewhere: who writes a run folder, a key folder or a message gets no more than a refusal."""

import io
import json
import logging
import math
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.adapters.flower.analytics import EncryptedSum, secure_sum
from fedcipher.app.report import Report
from fedcipher.app.report_page import write_report
from fedcipher.cluster import access, local, programs
from fedcipher.data import load
from fedcipher.federation.charter import Charter
from fedcipher.federation.curves import Curves
from fedcipher.federation.policy import load_policy
from fedcipher.federation.server.journal import Journal, read_journal
from fedcipher.federation.server.liar_search import LiarSearch
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.federation.store import Store
from fedcipher.keys import roster
from fedcipher.keys.store import write_new
from fedcipher.watch.run import WatchedRun
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

CLIENTS = 3
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
EVIL = "harmless\nWARNING: client 1 has left\r\x1b]0;title\x07\x1b[2J\u202e\u2028\x9b31m\x85end"
"""A reason that forges a line of a log and commands a terminal."""
OTHER = 54321
"""Another user's id."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


class Hung(Exception):
    """What should have been refused at once is still going on."""


@contextmanager
def at_once(seconds=20, gibibyte=1.0):
    """Within so many seconds, and with so much more memory than there was."""

    def hung(*_):
        raise Hung

    had = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (had + int(gibibyte * 2**30), most))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, most))
        signal.signal(signal.SIGALRM, before)


def spoil(path, how):
    """Put something else in a file's place."""
    if how == "a link":
        moved = path.with_name(f"{path.name}.elsewhere")
        path.rename(moved)
        path.symlink_to(moved)
        return
    path.unlink(missing_ok=True)
    if how == "a pipe":
        os.mkfifo(path)
    elif how == "a link to a device":
        path.symlink_to("/dev/zero")
    elif how == "a link to a pipe":
        os.mkfifo(path.with_name(f"{path.name}.pipe"))
        path.symlink_to(path.with_name(f"{path.name}.pipe"))
    elif how == "a file without end":
        with path.open("wb") as file:
            file.truncate(1 << 42)


SPOILT = ["a pipe", "a link to a device", "a link to a pipe", "a file without end"]


def strategy(folder, **options):
    return SecureStrategy(FedAvg(**ALL), folder / "keys", out=folder / "run", **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two rounds, its keys, its clients."""
    folder = tmp_path_factory.mktemp("finished")
    before, os.environ["FEDCIPHER_STATE_DIR"] = os.environ.get("FEDCIPHER_STATE_DIR"), str(folder / "state")
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
    keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys")
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(CLIENTS)]
    grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder / "keys")
    strategy(folder).start(grid, record(initial()), num_rounds=2)
    if before is None:
        del os.environ["FEDCIPHER_STATE_DIR"]
    else:
        os.environ["FEDCIPHER_STATE_DIR"] = before
    return folder


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """The same to spoil."""
    folder = tmp_path / "copied"
    shutil.copytree(finished, folder)
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
    return folder


def opened(folder):
    return open_run(folder / "run", folder / "keys" / "client-0.key")


# --- 28: who writes a run folder -------------------------------------------------------------


def npz(kind, arrays):
    """8 MiB or less that ask for much more."""
    packed = io.BytesIO()
    if kind == "packed":
        np.savez_compressed(packed, *[np.zeros(1 << 28, np.float32)], *arrays[1:])
    elif kind == "a head that lies":
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 28, 1 << 12)}
        )
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("arr_0.npy", head.getvalue() + bytes(64))
            archive.writestr("arr_1.npy", head.getvalue() + bytes(64))
    elif kind == "one on the other":
        # Many names for the same bytes.
        one = io.BytesIO()
        np.save(one, np.zeros(1 << 20, np.uint8))
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("arr_0.npy", one.getvalue())
            for number in range(1, 2000):
                member = zipfile.ZipInfo(f"arr_{number}.npy")
                for slot in ("header_offset", "CRC", "file_size", "compress_size", "compress_type"):
                    setattr(member, slot, getattr(archive.filelist[0], slot))
                archive.filelist.append(member)
                archive.NameToInfo[member.filename] = member
            archive._didModify = True
    elif kind == "a pickle":
        np.savez(packed, np.array([{}], object), *arrays[1:])
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["packed", "a head that lies", "one on the other", "a pickle"])
def test_attack_28_a_small_model_asks_for_no_gigabytes(copied, kind):
    content = npz(kind, initial())
    assert len(content) < 8 << 20
    (copied / "run" / "first.npz").write_bytes(content)
    with at_once(gibibyte=0.25), pytest.raises(errors.RunError, match="cannot be read"):
        opened(copied)


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", ["run.json", "first.npz", "aggregate-00000002-0000.fedc"])
def test_attack_28_open_reads_regular_files_only(copied, name, how):
    spoil(copied / "run" / name, how)
    with at_once(), pytest.raises(errors.RunError):
        opened(copied)


@pytest.mark.parametrize("name", ["run.json", "first.npz", "aggregate-00000002-0000.fedc", "journal.db"])
def test_attack_28_no_link_in_a_run_folder_is_followed(copied, name):
    spoil(copied / "run" / name, "a link")
    with pytest.raises(errors.RunError, match="link"):
        if name == "journal.db":
            read_journal(copied / "run")
        else:
            opened(copied)


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize(
    "name", ["journal.db", "journal.db-wal", "journal.db-journal", "lock", "run.json", "strategy-{}.npz"]
)
def test_attack_28_status_and_dashboard_read_regular_files_only(copied, name, how, capsys):
    last = max(read_journal(copied / "run").ended)
    spoil(copied / "run" / name.format(last), how)
    with at_once():
        status = cli.main(["status", str(copied / "run")])
    # It reads no index; of a run it shows no strategy's state.
    assert status == (0 if name == "run.json" else 2), capsys.readouterr()
    with at_once(), pytest.raises(errors.RunError):
        watched = WatchedRun(copied / "run")
        watched.report(watched.past())


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize(
    "name", ["journal.db", "journal.db-wal", "journal.db-journal", "lock", "run.json", "first.npz"]
)
def test_attack_28_resume_reads_regular_files_only(copied, name, how):
    if (name, how) == ("lock", "a file without end"):
        pytest.skip("it is locked and not read")
    spoil(copied / "run" / name, how)
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(CLIENTS)]
    grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, copied / "keys")
    with at_once(), pytest.raises(errors.FedcipherError):
        strategy(copied, resume=True).start(grid, record(initial()), num_rounds=3)


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", ["run.json", "first.npz", "aggregate-00000001-0000.fedc", "evaluation-00000001.fedc"])
def test_attack_28_a_keys_dashboard_reads_regular_files_only(copied, name, how):
    assert (copied / "run" / name).exists()
    spoil(copied / "run" / name, how)
    with at_once(), pytest.raises(errors.RunError):
        Curves(copied / "run", copied / "keys" / "client-0.key").read()


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("command", ["charter", "status --key", "open"])
def test_attack_28_commands_refuse_what_is_no_run(copied, how, command, capsys):
    key = ["--key", str(copied / "keys" / "client-0.key")]
    more = {"charter": [], "status --key": key, "open": [*key, "--out", str(copied / "model.npz")]}[command]
    spoil(copied / "run" / "run.json", how)
    with at_once():
        assert cli.main([command.split()[0], str(copied / "run"), *more]) == 2
    assert "Traceback" not in capsys.readouterr().err


def change_index(folder, change):
    path = folder / "run" / "run.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


NO_COUNTS = [math.inf, math.nan, -1, 1 << 70, 1.5, True, "1", None, [1]]


@pytest.mark.parametrize("value", [*NO_COUNTS, 0], ids=repr)
@pytest.mark.parametrize("what", ["a step's round", "a step's groups", "what a step left out", "set", "evaluated"])
def test_attack_28_an_indexs_numbers_are_numbers(copied, what, value):
    if value == 0 and what not in ("a step's round", "a step's groups"):
        pytest.skip("the first of them is 0")

    def change(said):
        if what == "set":
            said["set"] = [value]
        elif what == "evaluated":
            said["evaluations"] = {"1": value}
        else:
            at = ["a step's round", "a step's groups", "what a step left out"].index(what)
            said["steps"][0][at] = [value] if at == 2 else value

    change_index(copied, change)
    with at_once(), pytest.raises(errors.RunError, match="damaged"):
        opened(copied)


def own_model(folder, step):
    """A writer of the folder adds a model of its own."""
    np.savez(folder / "run" / f"set-{step:08d}.npz", *[np.full_like(x, 7) for x in initial()])
    change_index(folder, lambda said: said.update({"set": [step]}))


@pytest.mark.parametrize("step", [0, 1, 2])
def test_attack_28_open_takes_no_model_of_the_servers_that_the_charter_does_not_allow(copied, step):
    own_model(copied, step)
    with pytest.raises(errors.RunError, match="does not allow"):
        opened(copied)


def test_attack_28_open_takes_no_models_of_the_servers_by_a_charter_that_no_client_knows(copied):
    def forge(said):
        charter = Charter.decode(said["charter"].encode())
        said["charter"] = replace(charter, sets_models=True).encode().decode()

    own_model(copied, 2)
    change_index(copied, forge)
    with pytest.raises(errors.ModelMismatchError):
        opened(copied)


class Doubling(FedAvg):
    """A strategy that makes another model of the mean."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            arrays = ArrayRecord({name: Array(2 * array.numpy()) for name, array in arrays.items()})
        return arrays, metrics


@pytest.fixture(scope="module")
def of_the_server(tmp_path_factory):
    """A run whose models its server makes, as its charter says."""
    folder = tmp_path_factory.mktemp("of-the-server")
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
    made = scheme.keygen(CLIENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
        keys.save(made, scheme, folder / "keys")
        goals = [[np.full_like(a, (k + 1) / 10) for a in initial()] for k in range(CLIENTS)]
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder / "keys")
        opener = scheme.decryptor(made.client(0), in_memory=True)
        own = SecureStrategy(Doubling(**ALL), folder / "keys", out=folder / "run", opener=opener, sets_models=True)
        result = own.start(grid, record(initial()), num_rounds=2)
    return folder, {name: array.numpy() for name, array in result.arrays.items()}


@pytest.fixture
def of_the_server_copied(of_the_server, tmp_path, monkeypatch):
    folder = tmp_path / "copied"
    shutil.copytree(of_the_server[0], folder)
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
    return folder, of_the_server[1]


def test_open_takes_the_servers_model_where_the_charter_allows_it(of_the_server_copied):
    folder, model = of_the_server_copied
    found = opened(folder)
    assert found.keys() == model.keys() and all(np.array_equal(found[name], model[name]) for name in model)
    assert all(x.any() for x in found.values())


@pytest.mark.parametrize("kind", ["packed", "a head that lies", "one on the other", "a pickle"])
def test_attack_28_a_small_model_of_the_servers_asks_for_no_gigabytes(of_the_server_copied, kind):
    folder, _ = of_the_server_copied
    (folder / "run" / "set-00000002.npz").write_bytes(npz(kind, initial()))
    with at_once(gibibyte=0.25), pytest.raises(errors.RunError, match="cannot be read"):
        opened(folder)


def test_attack_28_a_model_of_the_servers_has_the_runs_arrays(of_the_server_copied):
    folder, _ = of_the_server_copied
    np.savez(folder / "run" / "set-00000002.npz", *[np.zeros(3) for _ in initial()])
    with pytest.raises(errors.FedcipherError, match="shapes and types"):
        opened(folder)


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS number, '{}' AS record, NULL AS ended FROM n"
)


@pytest.mark.parametrize("how", ["a view", "a trigger", "rows out of order", "another column"])
def test_attack_28_a_journal_is_the_one_table_that_we_made(copied, how):
    with closing(sqlite3.connect(copied / "run" / "journal.db")) as base, base:
        if how == "a view":
            base.execute("DROP TABLE rounds")
            base.execute(f"CREATE VIEW rounds AS {ENDLESS}")
        elif how == "a trigger":
            base.execute("CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM rounds; END")
        elif how == "another column":
            base.execute("ALTER TABLE rounds ADD COLUMN more TEXT")
        else:
            base.execute("UPDATE rounds SET number = -number")
    with at_once(), pytest.raises(errors.RunError):
        read_journal(copied / "run")
    with at_once(), pytest.raises(errors.RunError):
        Journal(copied / "run")


@pytest.mark.parametrize("name", ["run.json", "round-numbers"])
def test_attack_28_a_planted_link_overwrites_nothing_outside(copied, name, monkeypatch):
    outside = copied / "outside"
    if name == "run.json":
        target = copied / "run" / name
        target.rename(outside)
        target.symlink_to(outside)
        before = outside.read_bytes()
        goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(CLIENTS)]
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, copied / "keys")
        with pytest.raises(errors.RunError, match="link"):
            strategy(copied, resume=True).start(grid, record(initial()), num_rounds=3)
    else:
        # What has no file yet, and has a name that can be guessed.
        target = copied / "run" / "aggregate-00000003-0000.fedc"
        outside.write_bytes(before := b"outside")
        target.symlink_to(outside)
        goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(CLIENTS)]
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, copied / "keys")
        strategy(copied, resume=True).start(grid, record(initial()), num_rounds=3)
        assert not target.is_symlink()
    assert outside.read_bytes() == before


def test_attack_28_a_training_folder_names_no_run_by_a_link(copied, capsys):
    (copied / "run").rename(copied / "elsewhere")
    (copied / "train").mkdir()
    (copied / "train" / "run").symlink_to(copied / "elsewhere")
    assert cli.main(["status", str(copied / "train")]) == 2
    assert "elsewhere" not in capsys.readouterr().out


def change_journal(folder, change):
    with closing(sqlite3.connect(folder / "run" / "journal.db")) as base, base:
        (number, said), *_ = base.execute("SELECT number, record FROM rounds").fetchall()
        told = json.loads(said)
        change(told)
        base.execute("UPDATE rounds SET record = ? WHERE number = ?", (json.dumps(told), number))


def evil_reason(told):
    told["clients"][0]["left_out"] = EVIL
    told["unfinished"] = EVIL


def evil_metric(told):
    told["metrics"] = {"train": {EVIL: 1.0}}


@pytest.mark.parametrize("change", [evil_reason, evil_metric])
def test_attack_28_what_a_journal_says_commands_no_terminal(copied, change, capsys):
    change_journal(copied, change)
    assert cli.main(["status", str(copied / "run")]) == 0
    watched = WatchedRun(copied / "run")
    report = watched.report(watched.past())
    report.show()
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines()), shown
    assert not any(line.strip().startswith("WARNING") for line in shown.splitlines())


@pytest.mark.parametrize("field", ["round", "epoch", "number", "late", "wall_seconds", "metrics"])
def test_attack_28_a_journals_numbers_are_numbers(copied, field):
    change_journal(copied, lambda told: told.update({field: EVIL}))
    with pytest.raises(errors.RunError, match="damaged"):
        read_journal(copied / "run")


def test_attack_28_brackets_within_brackets_are_refused(copied, capsys):
    nested = "[" * 100_000 + "]" * 100_000
    (copied / "run" / "run.json").write_text(nested)
    with pytest.raises(errors.RunError):
        opened(copied)
    (copied / "report.json").write_text(nested)
    with pytest.raises(errors.ReportError):
        Report.load(copied / "report.json")
    (copied / "keys" / "server.key").write_text(nested)
    assert cli.main(["keygen", "--clients", "2", "--equal", "--out", str(copied / "keys")]) == 2
    with pytest.raises(errors.KeyFormatError):
        keys.load_server(copied / "keys")


def policy_in(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDCIPHER_POLICY", raising=False)
        return load_policy(folder / "policy.json")


def publisher_in(folder):
    return access.sign(folder, b"bundle")


FILES = {
    "policy.json": policy_in,
    "facts.json": lambda folder: Store(folder.parents[1], "x").recall(),
    "standing.bin": lambda folder: Store(folder.parents[1], "x").newest_state(),
    "publisher.key": publisher_in,
    "superlink.json": lambda folder: access.run_app(folder, "app", []),
    "control.token": lambda folder: programs._token(folder / "control.token"),
    "trusted.yaml": lambda folder: programs._check_trusted(folder / "trusted.yaml"),
    "cluster.json": local.status,
    "search.json": lambda folder: LiarSearch(folder, corrupt=1, minimum=3, seed=1),
    "server.key": lambda folder: keys.load_server(folder / "server.key"),
    "client.key": lambda folder: keys.load_client(folder / "client.key"),
    "a.identity": lambda folder: roster.join(
        folder / "a.identity", folder / "server.key", folder / "out.key", accept=lambda listed: None
    ),
    "a.card": lambda folder: roster.read_card(folder / "a.card"),
    "a.joined": lambda folder: roster.read_joined(folder / "a.joined"),
    "look.key": lambda folder: roster.look(folder / "look.key"),
    "report.json": lambda folder: Report.load(folder / "report.json"),
    "sum": lambda folder: EncryptedSum.load(folder / "sum"),
    "train-images-idx3-ubyte": lambda folder: load.__wrapped__("mnist", str(folder)),
    "train-images-idx3-ubyte.gz": lambda folder: load.__wrapped__("mnist", str(folder)),
    "train.bin": lambda folder: load.__wrapped__("cifar100", str(folder)),
    "train/a.json": lambda folder: load.__wrapped__("femnist", str(folder)),
    "input.txt": lambda folder: load.__wrapped__("shakespeare", str(folder)),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", FILES)
def test_attack_28_nothing_is_read_that_is_no_file(tmp_path, name, how):
    folder = tmp_path / "identities" / "x"
    (folder / name).parent.mkdir(mode=0o700, parents=True)
    spoil(folder / name, how)
    (folder / name).chmod(0o600) if how == "a file without end" else None
    with at_once(), pytest.raises(errors.FedcipherError):
        FILES[name](folder)


@pytest.mark.parametrize("how", SPOILT)
def test_attack_28_a_servers_memory_of_sets_is_a_file(tmp_path, monkeypatch, how):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path))
    for name, key_set in (("flashe", None), ("oneshot", "identities")):
        scheme = fedcipher.scheme(name, clients=5)
        key = scheme.keygen(5).server()
        spoil(tmp_path / f"sets-{key_set or key.fingerprint}-queries.bin", how)
        with at_once(), pytest.raises(errors.RunError):
            ServerSets("queries", scheme, key)


@pytest.mark.parametrize("how", SPOILT)
def test_attack_28_inspect_reads_files_only(tmp_path, how, capsys):
    spoil(tmp_path / "frame", how)
    with at_once():
        assert cli.main(["inspect", str(tmp_path / "frame")]) == 2
    assert "Traceback" not in capsys.readouterr().err


# --- 29: peers' text -------------------------------------------------------------------------


def lines_of(caplog):
    return [(entry.name, entry.getMessage()) for entry in caplog.records]


def clean(caplog, own=("flwr", "fedcipher")):
    """Every line of a log that is ours, or that is made of what we handed on, is one line of printable text."""
    for name, text in lines_of(caplog):
        if name.split(".")[0] in own:
            # Flower indents its own lines.
            assert text.lstrip("\t").replace("\t", "").isprintable(), (name, text)


def test_attack_29_no_reason_of_a_client_forges_a_line_of_the_servers_log(tmp_path, rng, caplog):
    caplog.set_level(logging.DEBUG)
    scheme = fedcipher.scheme("flashe", clients=4, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(scheme.keygen(4), scheme, tmp_path / "keys")
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(4)]

    def tamper(message, reply, client):
        return Message(Error(code=7, reason=EVIL), reply_to=message) if client == 3 else reply

    grid = LocalGrid(make_app(goals, [10] * 4), 4, folder, tamper)
    inner = FedAvg(min_train_nodes=4, min_evaluate_nodes=4, min_available_nodes=4)
    made = SecureStrategy(inner, folder, out=tmp_path / "run")
    made.start(grid, record(initial()), num_rounds=1)
    assert any("harmless" in text for _, text in lines_of(caplog))
    clean(caplog)
    record_of = made.rounds[0]
    assert all(c.left_out is None or c.left_out.isprintable() for c in [*record_of.clients, *record_of.evaluations])


@pytest.mark.parametrize("what", ["array", "metric", "weight", "record"])
def test_attack_29_no_name_of_a_client_forges_a_line(tmp_path, rng, caplog, what):
    caplog.set_level(logging.DEBUG)
    scheme = fedcipher.scheme("flashe", clients=4, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(scheme.keygen(4), scheme, tmp_path / "keys")
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(4)]

    def tamper(message, reply, client):
        if client == 3 and not reply.has_error():
            if what == "array":
                for name in list(reply.content.array_records):
                    reply.content[name] = ArrayRecord({EVIL: Array(np.zeros(3, np.float32))})
            elif what == "record":
                reply.content[EVIL] = ConfigRecord({EVIL: EVIL})
            else:
                for name, metrics in list(reply.content.metric_records.items()):
                    if not name.startswith("fedcipher"):
                        metrics[EVIL if what == "metric" else "num-examples"] = -1.0
        return reply

    grid = LocalGrid(make_app(goals, [10] * 4), 4, folder, tamper)
    inner = FedAvg(min_train_nodes=4, min_evaluate_nodes=4, min_available_nodes=4)
    SecureStrategy(inner, folder, out=tmp_path / "run").start(grid, record(initial()), num_rounds=1)
    clean(caplog)


def test_attack_29_no_answer_to_a_query_forges_a_line(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    scheme = fedcipher.scheme("bfv", clients=3, codec=fedcipher.Codec(bits=24, clip=1.0))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")

    def tamper(message, reply, client):
        return Message(Error(code=7, reason=EVIL), reply_to=message)

    grid = LocalGrid(make_app([[]] * 3, [10] * 3), 3, folder, tamper)
    with pytest.raises(errors.FedcipherError) as caught:
        secure_sum(grid, RecordDict({}), folder, answers=["count"])
    if isinstance(caught.value, errors.StrategyError):
        assert str(caught.value).isprintable()
    clean(caplog)


def test_attack_29_no_member_of_a_committee_forges_a_line(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    made = [roster.new_identity(f"party-{k}", tmp_path) for k in range(5)]
    members = [f"party-{k}" for k in range(5)]
    scheme = fedcipher.scheme("oneshot", clients=5, members=5, codec=fedcipher.Codec(bits=12, clip=2.0))
    (tmp_path / "keys").mkdir(mode=0o700)
    _, listed = roster.make([card for _, card in made], scheme, tmp_path / "keys" / "server.key", members=members)
    common = {"accept": roster.expected(listed.fingerprint), "trusts_maker": True}
    for k, (secret, _) in enumerate(made):
        roster.join(secret, tmp_path / "keys" / "server.key", tmp_path / "keys" / f"client-{k}.key", **common)
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(5)]

    def tamper(message, reply, client):
        # A member's messages have no configuration.
        if client == 4 and "config" not in message.content:
            return Message(Error(code=7, reason=EVIL), reply_to=message)
        return reply

    grid = LocalGrid(make_app(goals, [10] * 5), 5, tmp_path / "keys", tamper)
    inner = FedAvg(min_train_nodes=5, min_evaluate_nodes=5, min_available_nodes=5)
    strategy_ = SecureStrategy(inner, tmp_path / "keys", out=tmp_path / "run", committee_timeout=2)
    with caplog.at_level(logging.DEBUG):
        strategy_.start(grid, record(initial()), num_rounds=1)
    assert any("of the committee" in text for _, text in lines_of(caplog))
    clean(caplog)


def evil_charter(content):
    """The same but for the name of its record, which a server may write as it likes."""
    for settings in content.config_records.values():
        for name, value in settings.items():
            if isinstance(value, bytes) and b'"record":"arrays"' in value:
                settings[name] = value.replace(b'"record":"arrays"', b'"record":' + json.dumps(EVIL).encode())


EVIL_MESSAGES = {
    "setting": lambda content: content["config"].update({EVIL: EVIL}),
    "record": lambda content: content.config_records.update({EVIL: ConfigRecord({EVIL: EVIL})}),
    "array": lambda content: content.array_records.update(
        {name: ArrayRecord({EVIL: Array(np.zeros(3, np.float32))}) for name in content.array_records}
    ),
    "charter": evil_charter,
}


class LyingGrid(LocalGrid):
    """Changes what the server sends."""

    lie = None

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            if "config" in message.content:
                self.lie(message.content)
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.parametrize("what", EVIL_MESSAGES)
def test_attack_29_no_message_of_a_server_forges_a_line_of_a_clients_log(tmp_path, caplog, what):
    caplog.set_level(logging.DEBUG)
    scheme = fedcipher.scheme("flashe", clients=3, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(3)]
    grid = LyingGrid(make_app(goals, [10] * 3), 3, folder)
    grid.lie = EVIL_MESSAGES[what]
    with suppress(errors.FedcipherError):
        SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "run").start(grid, record(initial()), num_rounds=1)
    assert any(text.startswith("refused, reference") for _, text in lines_of(caplog))
    clean(caplog)


@pytest.mark.parametrize("how", ["raises", "answers with an error", "answers with names"])
def test_attack_29_no_app_forges_a_line_of_a_clients_log(tmp_path, caplog, how):
    caplog.set_level(logging.DEBUG)
    scheme = fedcipher.scheme("flashe", clients=3, codec=fedcipher.Codec(bits=16, clip=2.0))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(msg, ctxt):
        if how == "raises":
            raise OSError(EVIL)
        if how == "answers with an error":
            return Message(Error(code=7, reason=EVIL), reply_to=msg)
        return Message(RecordDict({EVIL: record(initial(), [EVIL, "b"])}), reply_to=msg)

    with suppress(errors.FedcipherError):
        SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "run").start(
            LocalGrid(app, 3, folder), record(initial()), num_rounds=1
        )
    assert any("do not count" in text for _, text in lines_of(caplog))
    clean(caplog)


def test_attack_29_a_traceback_is_lines_of_its_own(caplog):
    from fedcipher.adapters.flower.records import refuse

    try:
        raise OSError(EVIL)
    except OSError as error:
        refuse(Message(RecordDict({}), dst_node_id=1, message_type="train"), error)
    clean(caplog)
    assert any("test_attacks_files.py" in text for _, text in lines_of(caplog))


@pytest.mark.parametrize("name", ["line\nfedcipher: forged", "esc\x1b[2J", "half\udcff"])
@pytest.mark.parametrize("command", ["status", "inspect", "open"])
def test_attack_29_no_path_forges_a_line(tmp_path, name, command, capsys):
    more = ["--key", str(tmp_path / name), "--out", str(tmp_path / "out")] if command == "open" else []
    assert cli.main([command, str(tmp_path / name), *more]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said[:-1].isprintable(), said


def test_attack_29_a_name_that_no_encoding_has_is_shown(tmp_path):
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "fedcipher.cli",
            "keygen",
            "--clients",
            "2",
            "--equal",
            "--out",
            str(tmp_path / "ключи"),
        ],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "Traceback" not in made.stderr


# --- 30: other users of the machine ----------------------------------------------------------


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def open_umask():
    before = os.umask(0o000)
    yield
    os.umask(before)


def test_attack_30_what_a_client_decrypts_only_its_user_reads(copied, open_umask):
    arguments = ["--key", str(copied / "keys" / "client-0.key"), "--out", str(copied / "model.npz")]
    assert cli.main(["open", str(copied / "run"), *arguments]) == 0
    assert mode(copied / "model.npz") == 0o600


def test_attack_30_a_run_only_its_user_reads(finished, tmp_path, open_umask):
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
    keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    goals = [[np.full_like(a, k / 10) for a in initial()] for k in range(CLIENTS)]
    seen = {}

    def look(message, reply, client):
        seen.update({path.name: mode(path) for path in (tmp_path / "run").iterdir()})
        return reply

    grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, tmp_path / "keys", look)
    strategy(tmp_path).start(grid, record(initial()), num_rounds=2)
    look(None, None, 0)
    assert {"journal.db", "lock", "run.json"} <= set(seen)
    assert set(seen.values()) == {0o600}, seen


def test_attack_30_a_report_only_its_user_reads(copied, open_umask):
    watched = WatchedRun(copied / "run")
    write_report(watched.report(watched.past()), copied / "report")
    assert {path.name: mode(path) for path in (copied / "report").iterdir()} == {
        "report.html": 0o600,
        "report.json": 0o600,
    }


LOCKS = """
import fcntl, os, sys, time
os.setgid(54321); os.setgroups([]); os.setuid(54321)
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


@as_root
def test_attack_30_another_users_lock_stops_no_run(copied, open_path):
    for folder in (copied, copied / "run"):
        folder.chmod(0o755)
    other = subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(copied / "run" / "lock")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert b"PermissionError" in other.communicate()[1] if other.stdout.readline() == b"" else False
        Journal(copied / "run").close()
    finally:
        other.kill()
        other.wait()


@as_root
def test_attack_30_no_link_of_another_user_is_written_through(copied, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    link = tmp_path / "model.npz"
    link.symlink_to(outside)
    os.lchown(link, OTHER, OTHER)
    arguments = ["--key", str(copied / "keys" / "client-0.key"), "--out", str(link)]
    assert cli.main(["open", str(copied / "run"), *arguments]) == 2
    assert outside.read_bytes() == b"mine"
    # One's own is one's own choice.
    os.lchown(link, os.geteuid(), os.getegid())
    assert cli.main(["open", str(copied / "run"), *arguments]) == 0
    assert outside.read_bytes() != b"mine" and link.is_symlink()


def key_file(folder):
    folder.mkdir(mode=0o700, parents=True)
    scheme = fedcipher.scheme("plain", clients=2)
    key = scheme.keygen(2).client(0)
    return keys.store.save_client(key, scheme, folder / "client-0.key")


def group_writable(top):
    top.chmod(0o770)


def world_writable(top):
    top.chmod(0o777)


def anothers(top):
    os.chown(top, OTHER, OTHER)


@pytest.mark.parametrize("change", [group_writable, world_writable, pytest.param(anothers, marks=as_root)])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_attack_30_keys_load_only_below_folders_of_ones_own(tmp_path, change, above):
    folder = tmp_path / "top" / "middle" / "keys"
    path = key_file(folder)
    keys.load_client(path)
    top = [folder, *folder.parents][above]
    change(top)
    with pytest.raises(errors.KeyFormatError, match=re.escape(str(top))):
        keys.load_client(path)


SECRETS = {"publisher.key": publisher_in, "control.token": lambda folder: programs._token(folder / "control.token")}


@pytest.mark.parametrize("name", SECRETS)
def test_attack_30_what_starts_runs_and_signs_apps_is_read_only_where_no_other_user_writes(tmp_path, name):
    folder = tmp_path / "above" / "access"
    folder.mkdir(mode=0o700, parents=True)
    publisher = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_new(folder / name, publisher.private_bytes(*form) if name == "publisher.key" else b"t" * 43, 0o600)
    SECRETS[name](folder)
    (folder / name).chmod(0o640)
    with pytest.raises(errors.ClusterError, match="chmod 600"):
        SECRETS[name](folder)
    (folder / name).chmod(0o600)
    for open_to_all in (folder, folder.parent):
        open_to_all.chmod(0o770)
        with pytest.raises(errors.ClusterError, match=re.escape(str(open_to_all))):
            SECRETS[name](folder)
        open_to_all.chmod(0o700)


TRUSTED = {
    "policy.json": (lambda file: load_policy(file), b'{"fedcipher_policy": 1}', errors.ParameterError),
    "trusted.yaml": (programs._check_trusted, b'{"fpk_a": "key"}', errors.ClusterError),
}


@pytest.mark.parametrize("name", TRUSTED)
@pytest.mark.parametrize("by_link", [False, True])
def test_attack_30_what_allows_runs_is_read_only_where_no_other_user_writes(tmp_path, name, by_link):
    read, content, error = TRUSTED[name]
    file = tmp_path / "above" / "own" / name
    file.parent.mkdir(mode=0o700, parents=True)
    write_new(file, content, 0o644)
    named = tmp_path / "link" if by_link else file
    if by_link:
        named.symlink_to(file)
    read(named)
    file.chmod(0o664)
    with pytest.raises(error, match=r"may be changed by other users \(mode 0664\): chmod go-w"):
        read(named)
    file.chmod(0o644)
    for open_to_all in (file.parent, file.parent.parent):
        open_to_all.chmod(0o777)
        with pytest.raises(error, match=f"may be replaced by other users, who may write to {open_to_all} "):
            read(named)
        open_to_all.chmod(0o700)
    read(named)


def test_attack_30_whatever_the_umask_nobody_else_writes_where_runs_and_keys_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "a" / "home"))
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "b" / "state"))
    before = os.umask(0)
    try:
        assert cli.main(["policy", "--write"]) == 0
        roster.new_identity("anna", tmp_path / "c" / "cards")
        scheme = fedcipher.scheme("flashe", clients=CLIENTS)
        folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "d" / "keys")
        grid = LocalGrid(make_app([[np.float32(0.01)] * 3] * CLIENTS, [1] * CLIENTS), CLIENTS, folder)
        SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "e" / "run").start(grid, record(initial()), num_rounds=1)
        with suppress(errors.FedcipherError):
            cli.main(["train", "--dataset", "nowhere", "--out", str(tmp_path / "g" / "out")])
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_dir() or path.suffix in (".key", ".json")]
    assert len(made) > 20 and not [path for path in made if path.lstat().st_mode & 0o022]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_attack_30_no_client_remembers_where_others_write(tmp_path, mode):
    """In a sticky folder another user makes what is not there yet, and puts back what a client remembers."""
    scheme = fedcipher.scheme("flashe", clients=CLIENTS)
    key_sets = scheme.keygen(CLIENTS)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(errors.StateError, match=r"other users|every user"), Store(state, "somebody").locked():
        raise AssertionError
    with pytest.raises(errors.FedcipherError, match=r"other users|every user"):
        scheme.encryptor(key_sets.clients[0])
    with pytest.raises(errors.FedcipherError, match=r"other users|every user"):
        scheme.decryptor(key_sets.clients[0])


def test_attack_30_a_policy_that_somebody_may_have_taken_away_is_not_none(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    assert load_policy(home / "policy.json")
    home.chmod(0o777)
    with pytest.raises(errors.ParameterError, match="may be replaced by other users"):
        load_policy(home / "policy.json")


@as_root
def test_attack_30_keys_of_others_do_not_load(tmp_path):
    path = key_file(tmp_path / "keys")
    os.chown(path, OTHER, OTHER)
    with pytest.raises(errors.KeyFormatError, match="belongs"):
        keys.load_client(path)


@as_root
def test_attack_30_below_a_sticky_folder_keys_are_in_a_folder_of_ones_own(tmp_path):
    shared = tmp_path / "shared"
    path = key_file(shared / "mine")
    shared.chmod(0o1777)
    keys.load_client(path)
    os.chown(shared / "mine", OTHER, OTHER)
    with pytest.raises(errors.KeyFormatError):
        keys.load_client(path)
    # A link that another user made leads wherever that user wants.
    theirs = shared / "link"
    theirs.symlink_to(key_file(tmp_path / "elsewhere").parent)
    keys.load_client(theirs / "client-0.key")
    os.lchown(theirs, OTHER, OTHER)
    with pytest.raises(errors.KeyFormatError):
        keys.load_client(theirs / "client-0.key")


def test_attack_30_a_link_leads_through_no_folder_of_others(tmp_path):
    path = key_file(tmp_path / "mine")
    open_ = tmp_path / "open"
    open_.mkdir()
    (open_ / "link").symlink_to(path)
    (tmp_path / "first").symlink_to(open_ / "link")
    keys.load_client(tmp_path / "first")
    open_.chmod(0o777)
    with pytest.raises(errors.KeyFormatError, match=re.escape(str(open_))):
        keys.load_client(tmp_path / "first")
