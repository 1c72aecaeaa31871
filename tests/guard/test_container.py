"""Apps in a container without a network: the guard's side, the container's program, and both around a real app.

No container engine is needed: a program of namespaces stands for the container, with the same walls.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import fedcipher
import numpy as np
import pytest

pytest.importorskip("flwr.supercore.runtime", reason="Flower 1.35 or later is not installed")

from deployment_harness import processes
from fedcipher import Codec, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.cli import main
from fedcipher.errors import GuardError
from fedcipher.guard import app_container, container
from fedcipher.guard.container import API_SOCKET, WORK_SOCKET, InContainer
from fedcipher.guard.policy import AppRules
from flower_harness import LocalGrid
from flwr.app import ArrayRecord
from flwr.cli.build import build_fab_from_disk
from flwr.proto.fab_pb2 import Fab
from flwr.serverapp.strategy import FedAvg
from guard_harness import GuardedApp
from places import TESTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers of Linux")
CLIENTS = 3


@pytest.fixture
def folder(tmp_path):
    """Short enough for a UNIX socket's path, with nothing in it."""
    made = tmp_path / "apps"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def starter(folder, monkeypatch):
    monkeypatch.setattr(container, "_START_SECONDS", 1.0)
    monkeypatch.setattr(container, "_END_SECONDS", 0.5)
    return InContainer(folder, AppRules())


def asking(folder):
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(str(folder / WORK_SOCKET))
    return made


def told(connection):
    return json.loads(connection.makefile("rb").readline())["token"]


def started(starter, tmp_path, token):
    file = tmp_path / f"token-{token}"
    file.write_text(token)
    return starter(["program", "--token-file", str(file)], {}, tmp_path)


# --- the guard's side ----------------------------------------------------------------------------


def test_a_message_goes_to_one_container_and_ends_with_it(starter, folder, tmp_path):
    with asking(folder) as first, asking(folder) as second:
        app = started(starter, tmp_path, "a")
        assert told(first) == "a" and app.poll() is None
        second.settimeout(0.3)
        with pytest.raises(TimeoutError):
            second.recv(1)
        first.close()
        assert app.poll() == 0
        app.kill()
        app.close()
        started(starter, tmp_path, "b")
        assert told(second) == "b"


def test_no_second_token_exists_while_a_container_stays(starter, folder, tmp_path):
    """A process that an earlier app has left may be in that container."""
    with asking(folder) as first, asking(folder) as left:
        app = started(starter, tmp_path, "a")
        assert told(first) == "a"
        with pytest.raises(GuardError, match="does not end"):
            app.kill()
        app.close()
        with pytest.raises(GuardError, match="does not end"):
            started(starter, tmp_path, "b")
        # The guard has asked it to end.
        assert first.recv(1) == b""
        left.settimeout(0.3)
        with pytest.raises(TimeoutError):
            left.recv(1)
        first.close()
        started(starter, tmp_path, "c")
        assert told(left) == "c"


def test_connections_of_containers_that_have_gone_get_no_token(starter, folder, tmp_path):
    for said in (b"", b"give"):
        with asking(folder) as gone:
            gone.sendall(said)
    with asking(folder) as here:
        started(starter, tmp_path, "a")
        assert told(here) == "a"


@pytest.mark.parametrize("through", [WORK_SOCKET, API_SOCKET])
def test_a_connection_that_an_app_has_put_into_another_gets_no_token(starter, folder, tmp_path, through):
    """The kernel keeps a descriptor that is on its way, also when its sender is dead."""
    with asking(folder) as kept, socket.socket(socket.AF_UNIX) as carrier:
        carrier.connect(str(folder / through))
        socket.send_fds(carrier, [b"x"], [kept.fileno()])
    with asking(folder) as here:
        app = started(starter, tmp_path, "a")
        assert told(here) == "a"
    app.kill()


def test_a_message_without_a_container_fails_in_time(starter, tmp_path):
    began = time.monotonic()
    with pytest.raises(GuardError, match="no container has asked for work"):
        started(starter, tmp_path, "a")
    assert time.monotonic() - began < 60


def test_what_a_container_puts_in_the_sockets_place_is_not_followed(starter, folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    with asking(folder) as here:
        for name in (WORK_SOCKET, API_SOCKET):
            (folder / name).unlink()
            (folder / name).symlink_to(victim)
        app = started(starter, tmp_path, "a")
        assert told(here) == "a"
    app.kill()
    InContainer(folder, AppRules())
    assert victim.read_text() == "mine" and victim.stat().st_mode & 0o777 == 0o600
    assert (folder / WORK_SOCKET).is_socket() and not (folder / WORK_SOCKET).is_symlink()
    (folder / API_SOCKET).unlink()
    (folder / API_SOCKET).mkdir()
    with pytest.raises(GuardError, match="--socket"):
        InContainer(folder, AppRules())


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777])
def test_a_folder_that_others_reach_is_refused(folder, mode, capsys):
    folder.chmod(mode)
    with pytest.raises(GuardError, match="no other user may reach it"):
        InContainer(folder, AppRules())
    assert main(["guard", "check", "--socket", str(folder)]) != 0
    folder.chmod(0o700)
    assert main(["guard", "check", "--socket", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "container  UNKNOWN  nothing that a program in a container says proves anything" in said


def test_a_link_to_a_folder_and_a_long_path_are_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(GuardError, match="must be a folder of the guard's user"):
        InContainer(tmp_path / "link", AppRules())
    with pytest.raises(GuardError, match="shorten its path"):
        InContainer(tmp_path / ("x" * 120), AppRules())


@pytest.mark.parametrize("rules", [{"data": ("/data",)}, {"environment": ("A=1",)}])
def test_rules_that_the_guard_cannot_enforce_are_refused(folder, rules):
    with pytest.raises(GuardError, match="give the app's container its mounts and variables"):
        InContainer(folder, AppRules(**rules))


# --- the container's program ---------------------------------------------------------------------


GOOD = {"CapEff": "0", "CapPrm": "0", "CapBnd": "0", "CapAmb": "0", "NoNewPrivs": "1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routes": ["eth0"]}, r"has a network \(eth0\).*--network none"),
        ({"pid": 2}, "first process of a container"),
        ({"CapBnd": "00000000a80425fb"}, "--cap-drop ALL"),
        ({"NoNewPrivs": "0"}, "--security-opt no-new-privileges"),
        ({}, "can write to /: start it with --read-only"),
    ],
)
def test_a_container_that_is_open_runs_no_app(folder, monkeypatch, capsys, change, said):
    given = {"routes": [], "pid": 1, **GOOD, **change}
    monkeypatch.setattr(app_container, "_interfaces_with_routes", lambda: given["routes"])
    monkeypatch.setattr(app_container, "_status", lambda: given)
    monkeypatch.setattr(os, "getpid", lambda: given["pid"])
    assert main(["guard", "app", "--socket", str(folder)]) != 0
    assert re.search(said, capsys.readouterr().err)


ENTER = """
set -e
ip link set lo up
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t tmpfs tmpfs "$2"
mount -o remount,bind,ro /
shift 2
exec setpriv --bounding-set=-all --no-new-privs "$@"
"""


class Container:
    """What an engine does: a program behind walls, started again whenever it ends. Its output is in ``log``."""

    def __init__(self, folder, memory, log):
        memory.mkdir()
        program = [sys.executable, "-c", "import sys; from fedcipher.cli import main; sys.exit(main())"]
        self._command = ["unshare", "-Urnpm", "--fork", "--kill-child", "--mount-proc"]
        self._command += ["sh", "-c", ENTER, "sh", str(folder), str(memory)]
        self._command += [*program, "guard", "app", "--socket", str(folder)]
        self._env = {**os.environ, "TMPDIR": str(memory), "PYTHONPATH": os.pathsep.join(sys.path)}
        self._log, self._ended, self.starts = log, threading.Event(), 0
        self._process = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._ended.is_set():
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._env)
                self.starts += 1
                self._process.wait()
            self._ended.wait(0.1)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._thread.join(20)


@pytest.fixture(scope="module")
def namespaces():
    tried = subprocess.run(
        ["unshare", "-Urnpm", "--fork", "--mount-proc", "sh", "-c", "ip link && setpriv --version"],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("no user namespaces or no iproute2 here, which stand for a container")


LEFT = """
import os, subprocess, sys
from fedcipher.guard.app_container import _kill_all
fork = "import os, time\\nfor _ in range(99): os.fork() or time.sleep(600)"
for program in ("import time; time.sleep(600)", "import os, time; os.fork() or os.setsid(); time.sleep(600)", fork):
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
_kill_all()
print([int(name) for name in os.listdir("/proc") if name.isdigit()])
"""


def test_nothing_of_an_app_is_left_when_its_container_says_so(namespaces):
    """Before the guard sees the connection's end, and hands out the next token."""
    command = ["unshare", "-Urnpm", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    command += ['ulimit -u 5000; exec "$@"', "sh", sys.executable, "-c", LEFT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout == "[1]\n", done.stderr


def trained(tmp_path, folder, rounds, mode="honest", targets=""):
    """Rounds of the guarded app, whose client 0 is in a container. Returns strategy, result, and the container."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TESTS / "e2e" / "guarded_app"))
        from guarded_app.client_app import app

    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=Codec(bits=16, clip=2.0))
    made = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    content = build_fab_from_disk(TESTS / "e2e" / "guarded_app")
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    starters = {0: InContainer(folder, AppRules())}
    honest = ClientInThread(app)
    grid = LocalGrid(GuardedApp(honest, made, tmp_path / "guards", starters, fab), CLIENTS, made, sites=True)
    for context in grid.contexts.values():
        context.run_config.update({"seed": 7, "mode": mode, "targets": targets})
    everybody = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
    strategy = SecureStrategy(FedAvg(**everybody), made, opener=made / "client-0.key")
    with Container(folder, tmp_path / "memory", tmp_path / "container.log") as engine:
        result = strategy.start(grid, ArrayRecord([np.zeros(1000, np.float32)]), num_rounds=rounds)
    return strategy, result, engine


class ClientInThread:
    """The app of the clients without a container, which does no harm."""

    def __init__(self, app):
        self._app = app

    def __call__(self, message, context):
        context.run_config["mode"] = "honest"
        return self._app(message, context)


def update(server_round, partition):
    return np.random.default_rng([7, server_round, partition]).random(1000).astype(np.float32)


@pytest.fixture
def slow(monkeypatch):
    """A busy machine takes its time to start a container."""
    monkeypatch.setattr(container, "_START_SECONDS", 300.0)


def test_an_app_in_a_container_trains_as_in_the_clear(namespaces, slow, folder, tmp_path):
    strategy, result, engine = trained(tmp_path, folder, 2)
    log = (tmp_path / "container.log").read_text()
    want = sum(np.mean([update(n, k) for k in range(CLIENTS)], axis=0) for n in (1, 2))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], want, atol=1e-3, err_msg=log)
    assert [made.accepted for made in strategy.rounds] == [CLIENTS] * 2
    # A container for each message, and the app's state goes from one to the next by the guard.
    assert engine.starts >= 2 and "COUNT 1" in log and "COUNT 2" in log, log


def test_a_hostile_app_in_a_container_reaches_nothing_and_leaves_nothing(namespaces, slow, folder, tmp_path):
    outside = tmp_path / "outside"
    with socket.create_server(("127.0.0.1", 0)) as server:
        targets = [f"connect=127.0.0.1:{server.getsockname()[1]}", "read=/proc/1/maps", "read=/proc/1/environ"]
        targets += [f"write={path}" for path in (outside, folder / "more", folder / WORK_SOCKET)]
        strategy, result, _ = trained(tmp_path, folder, 3, "hostile", "|".join(targets))
    log = (tmp_path / "container.log").read_text()
    tries = [line for line in log.splitlines() if line.startswith("TRY")]
    assert len(tries) == 3 * (len(targets) + 4), log
    # A datagram to the container's own loopback is sent to nobody.
    assert [line for line in tries if ": refused" not in line and not line.startswith("TRY udp")] == []
    assert not outside.exists() and not processes("hostile-child")
    assert [made.accepted for made in strategy.rounds] == [CLIENTS] * 3
    want = sum(np.mean([update(n, k) for k in (1, 2)], axis=0) for n in (1, 2, 3))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], want, atol=1e-3, err_msg=log)
