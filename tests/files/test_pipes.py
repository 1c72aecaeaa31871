"""Every argument of every command that names a file or a folder, with a pipe or a device in its place."""

import json
import os
import shutil
import subprocess

import fedcipher
import pytest
from fedcipher import cli, keys
from fedcipher.engine.local import find_program
from test_attacks_files import at_once, copied, finished

__all__ = ["copied", "finished"]

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders")

KEY = ["--key", "keys/client-0.key"]
DIGEST = "0" * 64
ROSTER = ["--scheme", "oneshot", "--equal", "--set", "corrupt_clients=0", "--set", "corrupt_members=0"]
ROSTER += ["--set", "members=3", "--member", "a", "--member", "b", "--member", "c"]
CARDS = [f"{name}.card" for name in "abcd"]
COMMANDS = [
    ["inspect", "@"],
    ["open", "@", *KEY, "--out", "model.npz"],
    ["open", "run", "--key", "@", "--out", "model.npz"],
    ["open", "run", *KEY, "--out", "@"],
    ["open", "run", "--engine", "localhost:1", "--credentials", "@", "--out", "model.npz"],
    ["open", "run", "--engine", "unix:@", "--out", "model.npz"],
    ["status", "@"],
    ["status", "run", "--key", "@"],
    ["status", "run", "--engine", "localhost:1", "--credentials", "@"],
    ["dashboard", "@", "--listen", "127.0.0.1:0"],
    ["dashboard", "run", "--key", "@", "--listen", "127.0.0.1:0"],
    ["charter", "@"],
    ["charter", "run", "--sign", "@", "--digest", DIGEST],
    ["identity", "e", "--out", "@"],
    ["roster", *ROSTER, "--out", "new.key", "@", *CARDS[1:]],
    ["roster", *ROSTER, "--out", "@", *CARDS],
    ["roster", "--check", "@", *CARDS],
    ["join", "@", "server.key", "--out", "x.key"],
    ["join", "a.identity", "@", "--out", "x.key"],
    ["join", "a.identity", "server.key", "--out", "@"],
    ["joined", "@", *CARDS],
    ["forget", "@"],
    ["keygen", "--clients", "3", "--equal", "--out", "@"],
    ["train", "--out", "@", "--rounds", "1", "--clients", "3", "--dataset", "digits"],
    ["train", "--data-dir", "@", "--dataset", "mnist", "--rounds", "1", "--clients", "3"],
    ["access", "new", "--superlink", "localhost:1", "--root-certificates", "@"],
    ["access", "@", "--superlink", "localhost:1", "--root-certificates", "a.card"],
    ["run", "app", "--access", "@"],
    ["superlink", "--control-token", "@", "--private", "private"],
    ["supernode", "--private", "@"],
    ["bench", "report", "--out", "@"],
    ["cluster", "up", "--folder", "@", "--clients", "3"],
    ["cluster", "status", "--folder", "@"],
    ["cluster", "down", "--folder", "@"],
]


@pytest.fixture
def place(copied, monkeypatch):
    """A run, its keys, and a committee's roster and cards, with the working directory there."""
    monkeypatch.chdir(copied)
    for name in "abcd":
        assert cli.main(["identity", name]) == 0
    assert cli.main(["roster", *ROSTER, "--out", "server.key", *CARDS]) == 0
    return copied


def test_no_command_hangs_at_a_pipe_or_a_device(place, capsys):
    os.mkfifo("pipe")
    kinds = {"a pipe": "pipe", "a device": "/dev/zero"}
    for kind, path in kinds.items():
        for command in COMMANDS:
            line = [word.replace("@", path) for word in command]
            with at_once(60, 4.0):
                try:
                    status = cli.main(line)
                except SystemExit as end:
                    status = end.code
            said = capsys.readouterr().err
            assert status == 2 and "Traceback" not in said and said.count("\n") < 4, (kind, line, status, said)
    assert os.path.exists("pipe") and not os.path.isfile("pipe")


ENGINE = ["serve", "--listen", "unix:socket", "--state", "engine"]
SERVICES = [
    ["fedcipher-engine", "request", "d1", "--out", "@"],
    ["fedcipher-engine", "serve", "--listen", "unix:socket", "--state", "@", "--key-file", "one.key"],
    ["fedcipher-engine", *ENGINE, "--key-file", "@"],
    ["fedcipher-engine", "serve", "--listen", "unix:@", "--state", "engine", "--key-file", "one.key"],
    ["fedcipher-engine", *ENGINE, "--authority", "localhost:1", "--credentials", "@"],
    ["fedcipher-engine", *ENGINE, "--key-file", "one.key", "--accelerator", "sim", "--accelerator-library", "@"],
    ["fedcipher-authority", "init", "--spec", "@", "--state", "authority"],
    ["fedcipher-authority", "init", "--spec", "spec.json", "--state", "@"],
    ["fedcipher-authority", "status", "--state", "@"],
    ["fedcipher-authority", "serve", "--state", "@", "--listen", "127.0.0.1:0"],
    ["fedcipher-authority", "enrol", "d1", "--state", "@", "--out", "d1"],
]


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheme = fedcipher.scheme("flashe", clients=3)
    keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    shutil.copy("keys/client-0.key", "one.key")
    (tmp_path / "spec.json").write_text(json.dumps(scheme.spec()))
    return tmp_path


def test_no_service_hangs_at_a_pipe_or_a_device(served):
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/zero"):
        for program, *line in SERVICES:
            command = [find_program(program), *[word.replace("@", path) for word in line]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 2 and "panicked" not in done.stderr, (command, done.stderr)
