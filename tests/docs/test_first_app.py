"""docs/tutorial/first-app.md does what it says: its commands run, its changes apply, and they print what it shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

PAGE = ROOT / "docs" / "tutorial" / "first-app.md"
BLOCK = re.compile(r"^```(sh|diff|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def shape(text):
    """A line without its numbers of training: those differ from one machine to the next."""
    return NUMBER.sub("#", text)


def environment(folder):
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("FEDCIPHER_")},
        "HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        # What `flwr run` installs for an app may be taken from this user's cache.
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
    }


def checkout(folder):
    """What a reader has after `make demo`: the repository, with its environment."""
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def shell(commands, work, home):
    """What ``commands`` print in the folder ``work``; they leave their last folder in ``home``/where."""
    script = f"set -e\n. {Path(sys.prefix)}/bin/activate\n{commands}\npwd > '{home}/where'\n"
    for _ in range(5):
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, cwd=work, env=environment(home), check=False
        )
        # Flower waits 15 s for its own program, which other tests beside this one can hold up.
        if "Failed to start local SuperLink" not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def home(tmp_path):
    """A reader's home. `flwr run` leaves a SuperLink behind for that user's next run: it ends with the test."""
    made = tmp_path / "home"
    made.mkdir()
    yield made
    subprocess.run(["pkill", "-f", f"flower-superlink .*{made}/"], check=False)


@pytest.mark.long
def test_the_first_tutorial_runs_as_it_is_written(tmp_path, home):
    for program in ("flwr", "git", "bash", "pkill"):
        if shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
            pytest.skip(f"{program} is not installed")
    pytest.importorskip("ray", reason="the extra `demo` is not installed")
    work, said = checkout(tmp_path), ""
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "text":
            missing = [line for line in text.splitlines() if shape(line) not in shape(said)]
            assert not missing, said
        elif kind == "diff":
            subprocess.run(["git", "apply", "-p1", "-"], input=text, text=True, check=True, cwd=work)
        else:
            said = shell(text, work, home)
            work = Path((home / "where").read_text().strip())
