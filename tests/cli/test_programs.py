"""`fedcipher engine` and `fedcipher authority` become the programs of a wheel, wherever pip has put them."""

import signal
import subprocess
import sys
import sysconfig

import pytest
from fedcipher import cli
from fedcipher.engine import local
from fedcipher.errors import EngineError

FEDCIPHER = [sys.executable, "-m", "fedcipher.cli"]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder of programs where nothing else is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    return folder


def program(folder, name, text="#!/bin/sh\n"):
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("name", ["engine", "authority"])
@pytest.mark.parametrize("words", [["--help"], ["--state", "a b", "serve", "--", "-x"], [], ["--", "--version"]])
def test_a_program_gets_every_word_as_it_stands(name, words, programs, monkeypatch, executed):
    file = program(programs, f"fedcipher-{name}")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(SystemExit):
        cli.main([name, *words])
    assert executed == [(str(file), [f"fedcipher {name}", *words])]


@pytest.mark.parametrize("place", ["beside Python", "scripts", "the user's scripts", "path"])
def test_a_program_is_found_where_pip_puts_it(place, programs, monkeypatch):
    file = program(programs, "fedcipher-engine")
    with pytest.raises(EngineError):
        local.find_program("fedcipher-engine")
    user = sysconfig.get_preferred_scheme("user")
    if place == "beside Python":
        monkeypatch.setattr(sys, "executable", str(programs / "python3"))
    elif place == "path":
        monkeypatch.setenv("PATH", str(programs))
    else:
        asked = ("scripts",) if place == "scripts" else ("scripts", user)
        monkeypatch.setattr(sysconfig, "get_path", lambda *of: str(programs if of == asked else programs.parent))
    assert local.find_program("fedcipher-engine") == str(file)


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("linux", "fedcipher-engine is not installed: install a wheel for Linux or, in a checkout, run "),
        ("darwin", "fedcipher-engine runs on Linux only: run it on a Linux machine, and connect to it from here"),
    ],
)
def test_a_program_that_is_not_there_is_missed_in_one_sentence(system, said, programs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", system)
    assert cli.main(["engine", "serve"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedcipher: EngineError: {said}")


def test_a_program_takes_the_place_of_its_python_with_the_signals_of_a_shell(tmp_path):
    """A disk quota or a file-size limit ends it as it would have without Python; its process id is the one started."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ignored = "#!/bin/sh\necho $$\ngrep SigIgn /proc/self/status\n"
    program(folder, "fedcipher-engine", ignored)
    run = f"import sys; sys.executable = {str(folder / 'python3')!r}\nfrom fedcipher.cli import main\nmain(['engine'])"
    process = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True)
    said = process.communicate()[0].splitlines()
    assert int(said[0]) == process.pid
    assert not int(said[1].split()[1], 16) & 1 << (signal.SIGXFSZ - 1)


@pytest.mark.parametrize("name", ["engine", "authority"])
def test_both_programs_say_their_own_name_and_version(name):
    plain = subprocess.run([local.find_program(f"fedcipher-{name}"), "--version"], capture_output=True, text=True)
    ours = subprocess.run([*FEDCIPHER, name, "--version"], capture_output=True, text=True)
    assert ours.stdout == plain.stdout
    usage = subprocess.run([*FEDCIPHER, name, "--help"], capture_output=True, text=True).stdout
    assert f"Usage: fedcipher {name} " in usage


def test_the_engines_file_is_the_authority_too(tmp_path):
    """A wheel has one file for both."""
    engine = local.find_program("fedcipher-engine")
    said = subprocess.run([engine, "authority", "--version"], capture_output=True, text=True)
    assert said.stdout.startswith("fedcipher-authority ")
    status = [engine, "authority", "--state", str(tmp_path / "none"), "status"]
    refused = subprocess.run(status, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("fedcipher-authority: ")
