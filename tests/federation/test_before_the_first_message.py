"""What cannot work is refused before a client is asked, and no command replaces what it reads."""

import argparse
import itertools
import re
import shutil
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher._files import refuse_to_replace
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.cli.program import check_output
from fedcipher.federation.server import mean_check
from flower_harness import LocalGrid, make_app, record
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

MODEL = [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)]


class Server:
    """Keys for ``clients``, and a grid of ``nodes``."""

    def __init__(self, folder, *, clients=3, nodes=3):
        self.folder, self.nodes = folder, nodes
        self.scheme = fedcipher.scheme("bfv", clients=clients, codec=fedcipher.Codec(bits=16))
        self.keys = keys.save(self.scheme.keygen(clients), self.scheme, folder / "keys")

    def start(self, *, names=("w", "b"), model=MODEL, rounds=1, train_config=None, **given):
        everybody = {"min_train_nodes": self.nodes, "min_available_nodes": self.nodes, "fraction_evaluate": 0.0}
        goals = [[np.full(x.shape, 0.25, np.float32) for x in MODEL]] * self.nodes
        self.grid = LocalGrid(make_app(goals, [10] * self.nodes), self.nodes, self.keys)
        strategy = SecureStrategy(FedAvg(**everybody), self.keys, **{"out": self.folder / "run", **given})
        return strategy.start(self.grid, record(model, list(names)), num_rounds=rounds, train_config=train_config)

    def refuses(self, error, said, **given):
        with pytest.raises(error, match=said) as caught:
            self.start(**given)
        assert not self.grid.sent, "a client was asked"
        assert len(str(caught.value)) < 600 and str(caught.value).isprintable()


ODD_NAMES = ["", "x" * 1025, "é" * 1025, "a\0b", "a\nb", "\ud800", "\x7f"]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("place", [0, 1])
def test_an_array_whose_name_no_charter_holds_is_refused_by_the_server(tmp_path, name, place):
    names = ["w", "b"]
    names[place] = name
    shown = re.escape(repr(name)[:50])
    Server(tmp_path).refuses(errors.StrategyError, f"{shown}.* in the arrays of the charter.*1 to 1024", names=names)


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("purpose", ["train_answers", "evaluate_answers"])
def test_an_answer_whose_name_no_charter_holds_is_refused_by_the_server(tmp_path, name, purpose):
    server = Server(tmp_path)
    with pytest.raises(errors.FedcipherError, match="answer"):
        server.start(**{purpose: [name]})
    assert not server.grid.sent, "a client was asked"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_setting_whose_name_no_charter_holds_is_refused_by_the_server(tmp_path, name):
    said = "in the settings of the charter|Unicode's form NFC"
    Server(tmp_path).refuses((errors.StrategyError, errors.CharterError), said, train_config=ConfigRecord({name: 1}))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_first_model_without_finite_numbers_is_refused_by_the_server(tmp_path, odd):
    Server(tmp_path).refuses(errors.CodecError, "NaN or infinity", model=[MODEL[0], np.full(3, odd, np.float32)])


def test_names_that_a_charter_holds_are_a_models(tmp_path):
    names = ["x" * 1024, "layer 1/weight-é"]
    server = Server(tmp_path)
    server.start(names=names)
    assert list(open_run(tmp_path / "run", server.keys / "client-0.key")) == names


@pytest.mark.parametrize(("clients", "nodes"), [(3, 4), (3, 6), (2, 3)])
def test_more_nodes_than_keys_are_told_to_get_keys(tmp_path, clients, nodes):
    """A larger --per-round has no use where there are no more keys."""
    server = Server(tmp_path, clients=clients, nodes=nodes)
    server.refuses(errors.StrategyError, rf"{nodes - clients} or more nodes have no key.*--clients {nodes}`")


@pytest.mark.parametrize("opener", ["client-9.key", "client0.key", "auditor"])
def test_a_misnamed_opener_is_told_which_there_are(tmp_path, opener):
    server = Server(tmp_path)
    with pytest.raises(errors.KeyFormatError, match=r"there are client-0\.key, client-1\.key, client-2\.key"):
        server.start(opener=opener)


@pytest.mark.parametrize(("clients", "fewer"), [(4, 3), (3, 3), (6, 5)])
def test_a_committee_larger_than_its_cohort_is_told_what_fits(clients, fewer, tmp_path, capsys):
    members = fewer + 2
    scheme = fedcipher.scheme("oneshot", clients=clients, members=members, corrupt_clients=0, corrupt_members=0)
    said = rf"{clients} clients are too few for a committee of {members}.*--set members={fewer}"
    with pytest.raises(errors.ParameterError, match=said):
        scheme.keygen(clients)
    line = ["keygen", "--scheme", "oneshot", "--clients", str(clients), "--equal", "--out", str(tmp_path / "keys")]
    loose = ["--set", "corrupt_clients=0", "--set", "corrupt_members=0"]
    assert cli.main([*line, *loose, "--set", f"members={members}"]) == 2
    assert f"--set members={fewer}" in capsys.readouterr().err
    # What is advised works.
    assert cli.main([*line, *loose, "--set", f"members={fewer}"]) == 0


def test_a_run_is_opened_by_the_name_that_the_command_takes(tmp_path, monkeypatch):
    """docs/how-to/model.md: in a folder where no such path is."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("FEDCIPHER_HOME", str(home))
    monkeypatch.chdir(elsewhere)
    server = Server(tmp_path)
    server.start(out="my-run")
    key = server.keys / "client-0.key"
    shutil.copytree(home / "runs" / "my-run", tmp_path / "training" / "run")
    for named in ("my-run", Path("my-run"), home / "runs" / "my-run", tmp_path / "training"):
        assert list(open_run(named, key)) == ["w", "b"]
    line = ["open", "my-run", "--key", str(key), "--out", "model.npz"]
    assert cli.main(line) == 0 and (elsewhere / "model.npz").exists()
    for absent in ("no-run", elsewhere / "none"):
        with pytest.raises(errors.RunError):
            open_run(absent, key)


# --- outputs ------------------------------------------------------------------------------------


def test_open_replaces_neither_the_key_nor_the_run(tmp_path, capsys):
    server = Server(tmp_path)
    server.start()
    key, run = server.keys / "client-0.key", tmp_path / "run"
    link, same = tmp_path / "link", tmp_path / "same.key"
    link.symlink_to(key)
    same.hardlink_to(key)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in (key, link, same, run / "run.json", run / "journal.db"):
        assert cli.main(["open", str(run), "--key", str(key), "--out", str(out)]) == 2, out
        assert "would replace data that is read" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())
    assert cli.main(["open", str(run), "--key", str(key), "--out", str(tmp_path / "model.npz")]) == 0


def commands_with_outputs(parser, line=()):
    """Each command with ``--out``, and its other options of files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from commands_with_outputs(inner, (*line, name))
    found = [action for action in parser._actions if action.type is Path]
    if any(action.dest == "out" for action in found):
        yield " ".join(line), [action for action in found if action.dest != "out"]


OUTPUTS = list(commands_with_outputs(cli.parser()))
INPUTS = [pytest.param(a, id=f"{line} {a.dest}") for line, inputs in OUTPUTS for a in inputs]


def test_the_walk_over_commands_finds_those_with_an_output():
    assert {"open", "keygen", "identity", "roster", "join", "train"} <= {line for line, _ in OUTPUTS}
    assert len(INPUTS) > 6


@pytest.mark.parametrize("action", INPUTS)
def test_no_command_writes_to_a_file_that_it_is_to_read(tmp_path, action):
    given = tmp_path / "given"
    given.write_text("somebody's")
    several = action.nargs in ("*", "+")
    options = argparse.Namespace(out=given, **{action.dest: [tmp_path / "other", given] if several else given})
    with pytest.raises(errors.ParameterError, match="would replace data that is read from"):
        check_output(options)
    options.out = tmp_path / "new"
    check_output(options)


def test_an_output_is_compared_with_files_and_not_with_their_names(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "folder" / "file"
    folder.mkdir()
    file.write_text("somebody's")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for out in (file, folder / ".." / "folder" / "file"):
        for read in (file, folder):
            with pytest.raises(errors.ParameterError):
                refuse_to_replace(out, [tmp_path / "none", read])
    for out, read in ((folder / "new", folder), (folder, folder), (loop, loop), (tmp_path / "new", file)):
        refuse_to_replace(out, [read])


def test_a_busy_machine_is_no_strategy_that_waits(monkeypatch):
    """Nodes that one check makes up are remembered for the next: pauses of the machine would add up to a refusal."""
    now = itertools.count(0, 0.3)
    monkeypatch.setattr(mean_check.time, "monotonic", lambda: next(now))
    for _ in range(100):
        nodes = mean_check.MadeUpNodes(object, 4)
        assert [len(nodes.get_node_ids()) for _ in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("pause", [1.0, 0.001])
def test_a_strategy_that_waits_gets_more_nodes_until_the_limit(monkeypatch, pause):
    monkeypatch.setattr(mean_check, "_NODES_NEEDED", {})
    now = itertools.count(0, pause)
    monkeypatch.setattr(mean_check.time, "monotonic", lambda: next(now))
    nodes = mean_check.MadeUpNodes(object, 4)
    while len(nodes.get_node_ids()) < 1000:
        pass
    assert len(mean_check.MadeUpNodes(object, 4).get_node_ids()) >= 1000
    with pytest.raises(errors.StrategyError, match="waits for more than 65536 nodes"):
        while True:
            nodes.get_node_ids()
