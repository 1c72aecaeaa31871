"""File systems that lack something, and disks that fail: another way at once, or an error with the cause."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from engine_harness import flashe
from fedcipher import _files, cli
from fedcipher.engine.local import find_program, new_authority
from fedcipher.federation.server import journal
from fedcipher.watch.run import WatchedRun
from places import TESTS
from test_flower_resume import Federation


@pytest.fixture(scope="session")
def lacking(tmp_path_factory):
    """The environment of a process that sees another file system: see file_system.c."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler (cc)")
    library = tmp_path_factory.mktemp("shim") / "file_system.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, TESTS / "file_system.c"], check=True)
    paths = os.pathsep.join([str(TESTS), *sys.path])

    def environment(**said):
        return {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(library), **{k: str(v) for k, v in said.items()}}

    return environment


JOURNAL = "import sys; from pathlib import Path; from fedcipher.federation.server.journal import Journal"


def python(code, *arguments, env):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


RUN = """
import sys
from pathlib import Path
import numpy as np
from test_flower_resume import Federation
here = Federation(Path(sys.argv[1]), np.random.default_rng(0))
for rounds in map(int, sys.argv[2:]):
    here.run(rounds)
    here.check(rounds)
"""


@pytest.mark.parametrize("lack", ["links", "folder-sync", "shared-maps"])
def test_a_run_begins_and_goes_on_where_a_file_system_lacks_something(lack, lacking, tmp_path):
    done = python(RUN, tmp_path, 1, 2, env=lacking(LACKS=lack))
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in (tmp_path / "run").glob("*journal*")) == ["journal.db"]


def test_a_run_of_an_earlier_version_goes_on_without_shared_maps(lacking, tmp_path):
    here = journal.Journal(tmp_path)
    here.close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as base:
        base.execute("PRAGMA journal_mode=WAL")
    code = f"{JOURNAL}; Journal(Path(sys.argv[1]))"
    done = python(code, tmp_path, env=lacking(LACKS="shared-maps"))
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_locks_a_run_is_refused_with_the_file_system_and_readers_read(lacking, tmp_path):
    made = python(RUN, tmp_path, 1, env=lacking())
    assert made.returncode == 0, made.stderr[-2000:]
    code = f"{JOURNAL}; Journal(Path(sys.argv[1]))"
    done = python(code, tmp_path / "run", env=lacking(LACKS="locks"))
    said = done.stderr.splitlines()[-1]
    assert "RunError" in said and "has no file locks" in said and "use a local disk" in said, said
    assert "another process" not in said and " at /" in said
    code = "import sys; from fedcipher.cli import main; sys.exit(main(['status', sys.argv[1]]))"
    read = python(code, tmp_path / "run", env=lacking(LACKS="locks"))
    assert read.returncode == 0, read.stderr


@pytest.fixture
def read_only(tmp_path):
    """Makes a copy of a folder on a file system that is mounted read-only."""
    place = tmp_path / "read-only"
    place.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False).returncode
    ):
        pytest.skip("file systems are mounted by root only")

    def copied(folder):
        copy = shutil.copytree(folder, place / folder.name)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        return copy

    yield copied
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_readers_need_no_write_access(mode, read_only, tmp_path, rng, capsys):
    here = Federation(tmp_path, rng)
    here.run(1)
    if mode == "WAL":
        # Of an earlier version.
        with closing(sqlite3.connect(here.folder / "journal.db")) as base:
            base.execute("PRAGMA journal_mode=WAL")
    run = read_only(here.folder)
    key = here.keys / "client-0.key"
    assert cli.main(["status", str(run)]) == 0
    assert cli.main(["open", str(run), "--key", str(key), "--out", str(tmp_path / "model.npz")]) == 0
    watched = WatchedRun(run)
    watched.report(watched.past())
    assert "damaged" not in capsys.readouterr().err


MAKE = """
import sys
from pathlib import Path
from fedcipher.errors import RunError
from fedcipher.federation.server.journal import Journal
try:
    Journal(Path(sys.argv[1])).close()
except RunError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_journal_whose_disk_fails_at_any_write_is_not_there_and_is_made_later(error, lacking, tmp_path):
    for number in range(1, 100):
        env = lacking(FAILS_AT=number, FAILS_IN="journal.db", FAILS_WITH=error)
        done = python(MAKE, tmp_path, env=env)
        if done.returncode == 0:
            break
        assert done.returncode == 3, done.stderr[-2000:]
        assert "cannot be written" in done.stdout and "damaged" not in done.stdout, done.stdout
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert number > 3
    journal.Journal(tmp_path).close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/run/lock", "fuse.sshfs at /data"),
        ("/data/a b/lock", "nfs4 at /data/a b"),
        ("/twice/x", "exfat at /twice"),
        ("/else", "ext4 at /"),
    ],
)
def test_an_error_names_the_file_system_of_a_path(path, kind, tmp_path, monkeypatch):
    mounts = [
        ("/", "ext4"),
        ("/data", "fuse.sshfs"),
        (r"/data/a\040b", "nfs4"),
        ("/twice", "ext4"),
        ("/twice", "exfat"),
    ]
    lines = [f"{n} 1 0:{n} / {place} rw,relatime shared:1 - {kind} none rw" for n, (place, kind) in enumerate(mounts)]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(_files, "_MOUNTS", tmp_path / "mountinfo")
    assert _files.file_system(Path(path)) == f"the file system {kind}"


FORKS = """
import os, sys, time
from pathlib import Path
from fedcipher._files import locked
lock = locked(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_killed_server_has_forked_off_does_not_hold_its_lock(tmp_path):
    command = [sys.executable, "-c", FORKS, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        child = int(server.stdout.readline())
        try:
            assert _files.locked(tmp_path / "lock") is None
            server.kill()
            server.wait()
            os.kill(child, 0)
            with _files.locked(tmp_path / "lock") as lock:
                assert lock is not None
        finally:
            os.kill(child, signal.SIGKILL)


# --- the authority's store -----------------------------------------------------------------------


def authority(folder, *arguments, env=None):
    command = [find_program("fedcipher-authority"), "--state", folder, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def spec(tmp_path):
    new_authority(flashe(), 1, tmp_path / "one")
    return tmp_path / "one" / "spec.json"


def test_an_authority_that_is_killed_at_any_step_of_its_beginning_begins_again(lacking, spec, tmp_path):
    for step in range(1, 200):
        folder = tmp_path / str(step)
        killed = authority(folder, "init", "--spec", spec, env=lacking(DIES_AT=step))
        if killed.returncode == 0:
            break
        assert killed.returncode == 137, killed.stderr
        if not (folder / "authority.db").exists():
            said = authority(folder, "status").stderr
            assert "`init`" in said and "run again" in said, (step, said)
            again = authority(folder, "init", "--spec", spec)
            assert again.returncode == 0, (step, again.stderr)
        assert authority(folder, "status").returncode == 0, step
        assert not [path.name for path in folder.rglob(".*")], step
        enrolled = authority(folder, "enrol", "d1", "--out", folder / "d1")
        assert enrolled.returncode == 0, enrolled.stderr
    assert step > 8


def test_a_store_that_is_lost_is_no_new_authority(spec, tmp_path):
    folder = tmp_path / "one" / "authority"
    (folder / "authority.db").unlink()
    for command in [("init", "--spec", spec), ("status",), ("enrol", "x", "--out", tmp_path / "x")]:
        said = authority(folder, *command)
        assert said.returncode == 2 and "authority.db: it is missing" in said.stderr and "backup" in said.stderr
    assert not (folder / "authority.db").exists() and (folder / "service").exists()


@pytest.mark.parametrize("lack", ["links", "folder-sync", "shared-maps", "links,folder-sync,shared-maps"])
def test_an_authority_works_where_a_file_system_lacks_something(lack, lacking, spec, tmp_path):
    folder, env = tmp_path / "other", lacking(LACKS=lack)
    for command in [("init", "--spec", spec), ("enrol", "d1", "--out", tmp_path / "d1"), ("rotate",), ("status",)]:
        done = authority(folder, "--allow-swap", *command, env=env)
        assert done.returncode == 0, done.stderr
    assert "epoch 1: current" in done.stdout
    assert {path.name for path in folder.iterdir()} <= {"authority.db", "service"}
    again = authority(folder, "enrol", "d2", "--out", tmp_path / "d1", env=env)
    assert again.returncode == 2 and "it exists; choose another folder" in again.stderr


def test_an_authority_moved_to_where_maps_are_not_shared_is_refused_with_the_cause(lacking, spec, tmp_path):
    said = authority(tmp_path / "one" / "authority", "status", env=lacking(LACKS="shared-maps")).stderr
    assert "no maps that processes share" in said and "local disk" in said and "damaged" not in said, said


@pytest.mark.parametrize("name", ["*.x", "a" * 10_000, "a..b", "-a"])
def test_a_certificate_is_for_no_pattern_and_no_name_that_nobody_has(name, spec, tmp_path):
    said = authority(tmp_path / "new", "init", "--spec", spec, f"--name={name}")
    assert said.returncode == 2 and "give the name of one machine" in said.stderr, said.stderr
    assert not (tmp_path / "new" / "authority.db").exists()
    said = authority(tmp_path / "one" / "authority", "enrol", "d", "--out", tmp_path / "d", f"--name={name}")
    assert said.returncode == 2 and not (tmp_path / "d").exists()


def test_where_a_file_is_in_a_folders_place_the_remedy_is_said(spec, tmp_path):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    state = tmp_path / "one" / "authority"
    for place in ("file", "pipe", "file/below"):
        for said in (
            authority(tmp_path / place, "init", "--spec", spec),
            authority(state, "enrol", "d1", "--out", tmp_path / place),
            subprocess.run(
                [find_program("fedcipher-engine"), "request", "d1", "--out", tmp_path / place],
                capture_output=True,
                text=True,
                check=False,
            ),
        ):
            assert said.returncode == 2 and "name a new folder" in said.stderr, said.stderr
            assert "os error" not in said.stderr
    again = authority(state, "init", "--spec", spec)
    assert again.returncode == 2 and "an authority is made once" in again.stderr and "os error" not in again.stderr
