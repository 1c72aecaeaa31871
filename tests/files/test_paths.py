"""A user without a home folder, links that lead in a circle, and names that no encoding has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine_harness import flashe
from fedcipher import cli, errors, keys
from fedcipher._files import make_private_folder
from fedcipher.keys import roster

NO_HOME = ("HOME", "FEDCIPHER_HOME", "FEDCIPHER_STATE_DIR", "XDG_STATE_HOME", "FLWR_HOME")
AS_NOBODY = ["unshare", "--user", "--map-user=1234567", "--map-group=1234567"]

ENCRYPTOR = """
import sys, numpy as np
from fedcipher import keys
from fedcipher.errors import FedcipherError
try:
    made, key = keys.open_client(sys.argv[1])
    made.encryptor(key).encrypt([np.ones(3, np.float32)], round=1)
except FedcipherError as error:
    print(type(error).__name__, error, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def nobody():
    """Runs Python as a user who is not in passwd, without a home folder; what it writes on standard error."""
    if not shutil.which("unshare") or subprocess.run([*AS_NOBODY, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets nobody be another user (user namespaces)")

    def run(*arguments, **settings):
        own = {name: value for name, value in os.environ.items() if name not in NO_HOME}
        command = [*AS_NOBODY, sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, env={**own, **settings}, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stderr

    return run


@pytest.fixture
def key_file(tmp_path):
    made = flashe(2)
    return keys.save(made.keygen(2), made, tmp_path / "keys") / "client-0.key"


COMMANDS = {
    "keygen": (["keygen", "--clients", "2", "--equal", "--name", "mine"], "FEDCIPHER_HOME"),
    "policy": (["policy"], "FEDCIPHER_HOME"),
    "open": (["open", "a-run", "--key", "client-0.key", "--out", "model.npz"], "FLWR_HOME"),
    "status": (["status", "a-run"], "FLWR_HOME"),
    "train": (["train", "--out", "out"], "FLWR_HOME"),
    "cluster": (["cluster", "up", "--clients", "2"], "FLWR_HOME"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_home_folder_a_command_names_the_setting_that_it_needs(nobody, command):
    arguments, setting = COMMANDS[command]
    said = nobody("-m", "fedcipher.cli", *arguments)
    assert "ParameterError" in said and f"set {setting} to a permanent folder" in said, said
    assert "Traceback" not in said


def test_without_a_home_folder_an_encryptor_asks_for_a_state_folder_and_works_with_one(nobody, key_file, tmp_path):
    said = nobody("-c", ENCRYPTOR, key_file)
    assert said.startswith("ParameterError") and "set FEDCIPHER_STATE_DIR" in said, said
    assert nobody("-c", ENCRYPTOR, key_file, FEDCIPHER_STATE_DIR=str(tmp_path / "state")) == ""
    assert nobody("-c", ENCRYPTOR, key_file, FEDCIPHER_STATE_DIR=str(tmp_path / "state")).startswith("NonceReuseError")


def test_without_a_home_folder_keys_have_a_name_where_a_setting_says(nobody, tmp_path):
    arguments, _ = COMMANDS["keygen"]
    assert nobody("-m", "fedcipher.cli", *arguments, FEDCIPHER_HOME=str(tmp_path / "names")) == ""
    assert list((tmp_path / "names").glob("*/mine/client-1.key"))


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path / "there"


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--out", "LOOP", "--rounds", "1"],
        ["train", "--out", "OUT", "--data-dir", "LOOP", "--rounds", "1"],
        ["train", "--out", "LOOP/deeper", "--rounds", "1"],
        ["open", "LOOP", "--key", "LOOP", "--out", "OUT"],
        ["status", "LOOP"],
    ],
    ids=" ".join,
)
def test_links_that_lead_in_a_circle_are_named(command, loop, tmp_path, capsys):
    places = {"LOOP": str(loop), "LOOP/deeper": str(loop / "deeper"), "OUT": str(tmp_path / "out")}
    assert cli.main([places.get(part, part) for part in command]) == 2
    said = capsys.readouterr().err
    assert str(loop) in said and "link" in said.replace(str(loop), ""), said


def test_a_key_file_whose_links_lead_in_a_circle_takes_nobody_in(loop):
    with pytest.raises(errors.KeyFormatError, match="symbolic links"):
        roster.add_joined(loop, [])


NAMES = {
    "made": (["keygen", "--clients", "2", "--equal", "--out", "PLACE"], 0),
    "refused": (["open", "PLACE", "--key", "PLACE", "--out", "PLACE"], 2),
    "checked": (["roster", "--check", "PLACE"], 2),
}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
@pytest.mark.parametrize("command", NAMES)
def test_a_name_that_the_outputs_encoding_lacks_is_written_as_its_numbers(command, encoding, tmp_path):
    arguments, status = NAMES[command]
    place = tmp_path / "ключи"
    done = subprocess.run(
        [sys.executable, "-m", "fedcipher.cli", *(str(place) if part == "PLACE" else part for part in arguments)],
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    said = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode == status and "Traceback" not in said, said
    assert "\\u043a\\u043b" in said, said


def test_a_folder_that_another_process_makes_meanwhile_is_no_error(tmp_path, monkeypatch):
    folder, looked = tmp_path / "a" / "b", Path.is_dir

    def looked_then_made(path):
        found = looked(path)
        if path == folder:
            os.makedirs(folder, exist_ok=True)
        return found

    monkeypatch.setattr(Path, "is_dir", looked_then_made)
    make_private_folder(folder)
    assert looked(folder)


def test_a_file_in_a_folders_place_is_an_error(tmp_path):
    (tmp_path / "a").touch()
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(NotADirectoryError):
            make_private_folder(folder)
