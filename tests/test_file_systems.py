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
from fedcipher import _files
from fedcipher.flower import journal

TESTS = Path(__file__).parent


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
    code = "import sys; from pathlib import Path; from fedcipher.flower.journal import *; Journal(Path(sys.argv[1]))"
    done = python(code, tmp_path, env=lacking(LACKS="shared-maps"))
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_locks_a_run_is_refused_with_the_file_system_and_readers_read(lacking, tmp_path):
    made = python(RUN, tmp_path, 1, env=lacking())
    assert made.returncode == 0, made.stderr[-2000:]
    code = "import sys; from pathlib import Path; from fedcipher.flower.journal import *; Journal(Path(sys.argv[1]))"
    done = python(code, tmp_path / "run", env=lacking(LACKS="locks"))
    said = done.stderr.splitlines()[-1]
    assert "RunError" in said and "has no file locks" in said and "use a local disk" in said, said
    assert "another process" not in said and " at /" in said
    code = "import sys; from fedcipher.cli import main; sys.exit(main(['status', sys.argv[1]]))"
    read = python(code, tmp_path / "run", env=lacking(LACKS="locks"))
    assert read.returncode == 0, read.stderr


MAKE = """
import sys
from pathlib import Path
from fedcipher.errors import RunError
from fedcipher.flower.journal import Journal
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
