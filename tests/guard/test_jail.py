"""The walls around an app, with real processes: hostile programs, apps that must run, guards that die.

Each wall is tried as root, whose apps run as another user, and as a user without privileges. The campaign
`make mutants-jail` takes out one wall at a time.
"""

import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import fedcipher
import pytest
from fedcipher import _native
from fedcipher.errors import GuardError
from fedcipher.guard import jail
from fedcipher.guard.jail import JailSpec, Limits, python_paths, start

PORT = 8000
PACKAGE = str(Path(fedcipher.__file__).parents[1])
LIMITS = Limits(memory=1 << 30, processes=64, file_size=1 << 24, open_files=256)

UNSHARED = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc")


def refusal() -> str:
    """Why this machine cannot have a jail; empty if it can."""
    if not hasattr(_native, "run_in_jail"):
        return "this build has no jail: it needs Linux and the feature guard"
    if shutil.which("unshare") is None:
        return "no unshare (util-linux) on the PATH"
    tried = subprocess.run([*UNSHARED, "true"], capture_output=True, text=True, check=False)
    return f"this machine refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


REFUSAL = refusal()
pytestmark = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)

AS_NOBODY = """
mount --make-rprivate /
kept=$(mktemp -d)
mount --bind "$1" "$kept"
closed=$2
[ -z "$closed" ] || { mount -t tmpfs -o mode=755 none "$closed"; mkdir -p "$1"; mount --bind "$kept" "$1"; }
umount "$kept"
rmdir "$kept"
shift 2
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""
"""Runs a program as another user, who also reaches an interpreter in a folder that is closed to others."""


def as_nobody() -> list[str]:
    prefix = Path(sys.base_prefix)
    closed = [str(folder) for folder in reversed(prefix.parents) if not folder.stat().st_mode & 0o001]
    return ["unshare", "--mount", "sh", "-ec", AS_NOBODY, "sh", str(prefix), closed[0] if closed else ""]


def script(text: str, *arguments: str, before: list[str] | None = None) -> list[str]:
    return [*(before or []), sys.executable, "-c", text, *arguments]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PACKAGE, "HOME": "/tmp", "XDG_STATE_HOME": "/tmp/none", **more}


WALLS = """
import dataclasses, json, os
from fedcipher.guard import jail
if os.geteuid() == 0:
    os.setgroups([0, 4])
print(json.dumps([dataclasses.astuple(wall) for wall in jail.walls()]))
"""

NAMES = (
    *("namespaces", "mounts", "network", "sockets", "files", "writing", "processes", "privileges", "system calls"),
    *("landlock", "descriptors", "limits", "children", "signals"),
)


@pytest.fixture(scope="module", params=["as this user", "without privileges"])
def tried(request):
    """What each wall did, by its name."""
    before: list[str] = []
    if request.param == "without privileges" and os.geteuid() == 0:
        before = as_nobody()
        if subprocess.run([*before, sys.executable, "-c", "0"], capture_output=True, check=False).returncode:
            pytest.skip("another user of this machine cannot run this interpreter")
    ran = subprocess.run(script(WALLS, before=before), env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return {name: (holds, text) for name, holds, text, _ in json.loads(ran.stdout)}


def test_every_wall_is_tried(tried):
    assert set(tried) == set(NAMES), tried


@pytest.mark.parametrize("name", NAMES)
def test_a_wall_holds_against_a_hostile_program(tried, name):
    holds, text = tried[name]
    assert holds, text


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def spec(work):
    return JailSpec(python_paths(), work, LIMITS)


def run(spec: JailSpec, text: str, env: dict[str, str] | None = None) -> tuple[int | None, str]:
    """The exit status and the output of a Python program in a jail."""
    with start(spec, script(text), env or {}, PORT) as running:
        said = b"".join(iter(lambda: running.output.read(1 << 16), b""))
        return running.wait(30), said.decode()


def test_an_app_reaches_the_guard_and_works_in_its_folder(spec, work):
    text = f"""
import os, socket
with socket.create_connection(("127.0.0.1", {PORT})) as guard:
    guard.sendall(os.getcwd().encode())
    open("state", "w").write(guard.recv(100).decode())
"""
    with start(spec, script(text), {}, PORT) as running:
        connection, _ = running.listener.accept()
        with connection:
            assert connection.recv(1000) == os.fsencode(work)
            connection.sendall(b"a model")
        assert running.wait(30) == 0
    assert (work / "state").read_text() == "a model"


NUMERIC = """
import multiprocessing, os, socket, tempfile, threading
import numpy as np

def dot(x):
    return float(x @ x)

if __name__ == "__main__":
    vector = np.ones(100_000, np.float32)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(dot, [vector, 2 * vector]) == [1e5, 4e5]
    found = []
    threads = [threading.Thread(target=lambda: found.append(dot(vector))) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert found == [1e5] * 4
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [1])
    os.write(socket.recv_fds(there, 10, 1)[1][0], b"by a descriptor\\n")
    shared = multiprocessing.Value("i", 7)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(shared.value))
    import subprocess, sys
    assert subprocess.run([sys.executable, "-c", "print('child', flush=True)"]).returncode == 0
    import getpass
    print(getpass.getuser())
"""


def test_numpy_threads_processes_and_passed_descriptors_work(spec, work):
    (work / "app.py").write_text(NUMERIC)
    (work / "app.py").chmod(0o644)
    roomy = replace(spec, limits=replace(LIMITS, memory=4 << 30))
    with start(roomy, [sys.executable, str(work / "app.py")], {"OMP_NUM_THREADS": "2"}, PORT) as running:
        said = b"".join(iter(lambda: running.output.read(1 << 16), b"")).decode()
        assert (running.wait(60), said) == (0, "by a descriptor\nchild\napp\n")


def test_the_environment_is_what_the_guard_lists(spec, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_SECRET", "x")
    # The interpreter adds variables to os.environ.
    status, said = run(spec, "print(open('/proc/self/environ', 'rb').read())", {"APP": "1"})
    assert (status, said) == (0, f"{b'APP=1' + bytes(1)!r}\n")


def test_the_status_is_the_apps_or_128_and_its_signal(spec):
    assert run(spec, "raise SystemExit(7)")[0] == 7
    assert run(spec, "import os; os.kill(os.getpid(), 15)")[0] == 128 + signal.SIGTERM


def test_an_app_that_writes_too_much_waits_for_the_reader(spec):
    with start(spec, script("import os\nwhile True: os.write(1, bytes(1 << 16))"), {}, PORT) as running:
        assert len(running.output.read(1000)) == 1000
        assert running.poll() is None
        running.kill()
        assert running.poll() == 128 + signal.SIGKILL


def parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int) -> set[int]:
    known = parents()
    found = {pid}
    while more := {child for child, parent in known.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(processes: set[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while processes & set(parents()):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


CHILDREN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        break
os.write(1, b"x")
time.sleep(600)
"""
"""An app with six children, half of them in sessions of their own, and half of those without a parent soon."""


def test_kill_ends_every_process_of_the_jail(spec):
    # This process may have children of other tests.
    before = descendants(os.getpid())
    with start(spec, script(CHILDREN), {}, PORT) as running:
        for _ in range(7):
            running.output.read(1)
        jailed = descendants(os.getpid()) - before
        assert len(jailed) >= 9, "two processes of the jail, and seven of the app"
        running.kill()
        assert not jailed & set(parents())


GUARD = f"""
import sys
from pathlib import Path
from fedcipher.guard.jail import JailSpec, python_paths, start
running = start(JailSpec(python_paths(), Path(sys.argv[1])), [sys.executable, "-c", {CHILDREN!r}], {{}}, {PORT})
for _ in range(7):
    running.output.read(1)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("which", ["the guard", "the process between"])
def test_an_app_dies_with(work, which):
    command = script(GUARD, str(work))
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        jailed: set[int] = set()
        try:
            assert guard.stdout.readline() == b"started\n"
            jailed = descendants(guard.pid)
            (between,) = [pid for pid, parent in parents().items() if parent == guard.pid]
            os.kill(guard.pid if which == "the guard" else between, signal.SIGKILL)
            # A guard that lives has not yet asked how the process between has ended.
            assert gone(jailed - {between})
        finally:
            guard.kill()
            for left in jailed & set(parents()):
                os.kill(left, signal.SIGKILL)


def test_a_hundred_jails_leave_nothing_behind(spec):
    def left() -> tuple[int, int, str]:
        mounts = Path("/proc/self/mounts").read_text()
        return len(descendants(os.getpid())), len(os.listdir("/proc/self/fd")), mounts

    with start(spec, script("pass"), {}, PORT) as running:
        running.wait(30)
    before = left()
    for _ in range(100):
        with start(spec, script("pass"), {}, PORT) as running:
            running.listener.getsockname()
    assert left() == before


def test_check_prints_a_line_for_each_wall(monkeypatch, capsys):
    walls = [jail.Wall("network", True, "a connection", "-"), jail.Wall("files", False, "a file", "look")]
    monkeypatch.setattr(jail, "walls", lambda: walls)
    assert jail.check() == 1
    assert capsys.readouterr().out == "network  holds  a connection\nfiles    FAILS  a file; look\n"


def refused(spec: JailSpec, argv: list[str] | None = None) -> str:
    with pytest.raises(GuardError) as error:
        start(spec, argv or script("open('ran', 'w')"), {}, PORT)
    assert not (spec.work / "ran").exists()
    return str(error.value)


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/1", "/dev", "/dev/mem", "/tmp", "/does/not/exist", "relative"])
def test_a_jail_shows_no(spec, path):
    assert f"'files' around an app cannot be built: {path}" in refused(replace(spec, read_only=(Path(path),)))


def test_nothing_to_read_lies_in_the_work_of_the_app(spec, work):
    (work / "data").mkdir()
    assert "in its work: the app could replace it" in refused(replace(spec, read_only=(*spec.read_only, work / "data")))


BELOW = f"""
import sys
from pathlib import Path
from fedcipher.guard.jail import JailSpec, python_paths, start
spec = JailSpec((*python_paths(), Path(sys.argv[1])), Path(sys.argv[2]))
with start(spec, [sys.executable, "-c", "print(open('/proc/self/mounts').read())"], {{}}, {PORT}) as running:
    print(b"".join(iter(lambda: running.output.read(1 << 16), b"")).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system below a folder to read")
def test_a_file_system_below_a_folder_to_read_is_for_reading_too(work, tmp_path):
    (tmp_path / "data" / "below").mkdir(parents=True)
    mounted = 'mount -t tmpfs none "$1/below"; shift; exec "$@"'
    before = ["unshare", "--mount", "sh", "-ec", mounted, "sh", str(tmp_path / "data")]
    command = script(BELOW, str(tmp_path / "data"), str(work), before=before)
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    (line,) = [line for line in ran.stdout.splitlines() if f"{tmp_path}/data/below " in line]
    assert {"ro", "nosuid", "nodev"} <= set(line.split()[3].split(","))


def test_a_link_to_read_leads_where_it_leads_outside(spec, tmp_path):
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "rows").write_text("1,2")
    (tmp_path / "link").symlink_to("data")
    shown = replace(spec, read_only=(*spec.read_only, tmp_path / "link"))
    assert run(shown, f"print(open({str(tmp_path / 'link' / 'rows')!r}).read())") == (0, "1,2\n")


def test_a_link_that_the_app_left_in_its_work_leads_nowhere(spec, work, tmp_path):
    (tmp_path / "secret").write_text("the guard's")
    (work / "link").symlink_to(tmp_path / "secret")
    status, said = run(spec, "open('link')")
    assert status == 1
    assert "FileNotFoundError" in said


def test_a_program_that_does_not_start_is_an_error_with_its_path(spec):
    assert "/does/not/start does not start" in refused(spec, ["/does/not/start"])
    assert "absolute path" in refused(spec, ["python"])


def test_a_work_folder_that_does_not_exist_is_an_error(spec, tmp_path):
    assert "tmp" in refused(replace(spec, work=tmp_path / "none"))


REFUSED_CALLS = {"landlock": 444, "seccomp": 317, "files": 442, "privileges": 126, "network": 49}
"""The system call of x86-64 that each wall is built with; that of the network gives the socket its port."""

WITHOUT_A_CALL = """
import ctypes, json, struct, sys
from pathlib import Path
from fedcipher.errors import GuardError
from fedcipher.guard.jail import JailSpec, python_paths, start
call, work = int(sys.argv[1]), Path(sys.argv[2])
enosys = 0x00050000 | 38
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, enosys), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0
try:
    start(JailSpec(python_paths(), work), [sys.executable, "-c", "open('ran', 'w')"], {}, 8000)
except GuardError as error:
    print(json.dumps([error.wall, str(error)]))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("wall", REFUSED_CALLS)
def test_without_one_wall_the_app_does_not_start(work, wall):
    command = script(WITHOUT_A_CALL, str(REFUSED_CALLS[wall]), str(work))
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found, text = json.loads(ran.stdout)
    assert found == wall
    assert "the app has not started" in text
    assert jail._REMEDIES[wall] in text
    assert not (work / "ran").exists()


def test_where_namespaces_are_refused_the_app_does_not_start(work):
    # The user namespace that sets the limit has no other user whose the folder could be.
    kept = "from fedcipher.guard import jail\njail._give = lambda work: None\n"
    text = WITHOUT_A_CALL.partition("enosys =")[0] + kept + WITHOUT_A_CALL[WITHOUT_A_CALL.index("try:") :]
    inside = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    before = ["unshare", "--user", "--map-root-user", "sh", "-ec", inside, "sh"]
    command = script(text, "0", str(work), before=before)
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    wall, text = json.loads(ran.stdout)
    assert wall == "namespaces"
    assert "user.max_user_namespaces" in text
    assert not (work / "ran").exists()


def test_the_kernels_landlock_is_reported(spec):
    abi = ctypes.CDLL(None).syscall(444, None, 0, 1)
    with start(spec, script("pass"), {}, PORT) as running:
        assert 1 <= running.landlock <= abi
