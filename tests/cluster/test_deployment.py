"""The ready app on a real SuperLink and SuperNodes over TLS, started by `flwr run`."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from deployment_harness import BIN, fedcipher, processes
from fedcipher import errors, scheme
from fedcipher.cluster import local, programs, supervisor
from places import ROOT

APP = ROOT / "examples" / "quickstart"
DEPLOY = APP.parents[1] / "deploy"
CLIENTS = 2


def processes_of(folder):
    """Command lines of all processes that know of ``folder``."""
    return list(processes(str(folder)).values())


@pytest.mark.parametrize("engine", [[], pytest.param(["--engine"], marks=pytest.mark.long)])
def test_a_cluster_runs_the_ready_app_and_leaves_no_process(tmp_path, engine):
    folder = tmp_path / "cluster"
    options = ("--clients", CLIENTS, "--scheme", "bfv", "--folder", folder, *engine)
    made = fedcipher("cluster", "up", *options, cwd=tmp_path)
    try:
        logs = "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in (folder / "logs").glob("*.log"))
        assert made.returncode == 0, made.stdout + made.stderr + logs
        assert "2 SuperNodes are online, under " in made.stdout
        state = fedcipher("cluster", "status", "--folder", folder, cwd=tmp_path)
        assert state.returncode == 0 and "2 of 2 SuperNodes are online" in state.stdout
        # The same once more changes nothing and says the same; another is refused.
        again = fedcipher("cluster", "up", *options, cwd=tmp_path)
        assert again.returncode == 0 and again.stdout in made.stdout
        other = fedcipher("cluster", "up", *options, "--bits", 9, cwd=tmp_path)
        assert other.returncode == 2 and "with another scheme" in other.stderr and "cluster down" in other.stderr
        # Nobody else reads a key, and nothing but TLS is spoken.
        for secret in (
            *(folder / "keys").glob("*.key"),
            *(folder / "nodes").glob("*.key"),
            *(folder / "engines").glob("*/*.key.pem"),
            folder / "tls" / "link.pem",
        ):
            assert secret.stat().st_mode & 0o077 == 0 or secret.name == "server.key"
        assert not any("--insecure" in words for words in processes_of(folder))

        app = tmp_path / "app"
        shutil.copytree(APP, app, ignore=shutil.ignore_patterns("keys"))
        (keys,) = re.findall(r"^  keys  (\S+)", made.stdout, re.MULTILINE)
        assert engine == ([] if keys == str(folder / "keys") else ["--engine"])
        overrides = f"fedcipher-keys='{keys}' clients={CLIENTS} rounds=2"
        run = ("cluster", "run", app, "--folder", folder, "--stream", "--run-config", overrides)
        done = fedcipher(*run, cwd=tmp_path, timeout=600)
        logs = "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in (folder / "logs").glob("*.log"))
        assert done.stdout.count("aggregate_train: Received 2 results and 0 failures") == 2, done.stdout + logs
        # No metric was in the clear. Who has a client's key opens them; an engine what its client has not gone past.
        assert "'accuracy'" not in done.stdout
        (run,) = re.findall(r"the model is encrypted in (\S+);", done.stdout)
        ours = ("--engine", f"unix:{folder}/engines/client-0.sock") if engine else ("--key", f"{keys}/client-0.key")
        shown = fedcipher("status", run, *ours, cwd=tmp_path)
        assert shown.returncode == 0 and "accuracy 0." in shown.stdout.splitlines()[2], shown.stdout + shown.stderr
        # Each client's own log says which model it began with, and all say the same.
        said = [
            re.findall(r"has the SHA-256 ([0-9a-f]{64})", p.read_text()) for p in (folder / "logs").glob("node-*.log")
        ]
        assert len(said) == CLIENTS and said[0] == said[1] and len(said[0]) == 1, logs
    finally:
        ended = fedcipher("cluster", "down", "--folder", folder, cwd=tmp_path)
    assert ended.returncode == 0 and "ended" in ended.stdout
    assert processes_of(folder) == []
    state = fedcipher("cluster", "status", "--folder", folder, cwd=tmp_path)
    assert state.returncode == 1 and "not running" in state.stdout
    old = fedcipher("cluster", "up", *options, cwd=tmp_path)
    assert old.returncode == 2 and "of an earlier cluster" in old.stderr


def test_a_program_of_a_cluster_that_dies_is_started_again(tmp_path):
    """Only a SuperLink that never lives for long ends the cluster."""
    (tmp_path / "logs").mkdir()
    (tmp_path / supervisor.REGISTERED).touch()
    began = tmp_path / "began"
    # As a SuperLink starts what starts its ServerApps: out of its group, and deaf to all that can be ignored.
    left = f"trap '' TERM INT HUP; while :; do sleep 1; done; {tmp_path}"
    once = f"setsid sh -c {shlex.quote(left)} & echo >> {began}; sleep 600"
    programs = [{"name": "superlink", "command": ["sh", "-c", once]}, {"name": "node", "command": ["false"]}]
    (tmp_path / supervisor.INDEX).write_text(json.dumps({"programs": programs}))
    command = [sys.executable, "-m", "fedcipher.cluster.supervisor", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        times = 0
        while process.poll() is None:
            if began.exists() and len(began.read_text()) > times:
                times += 1
                subprocess.run(["pkill", "-f", str(began)], check=True)
            time.sleep(0.05)
        said = process.stderr.read()
    assert times == said.count("superlink has ended with status -15") == 3
    assert said.count("node has ended with status 1") >= 2
    assert processes_of(tmp_path) == []


def test_a_program_that_can_start_no_app_any_more_ends_and_is_started_again(tmp_path):
    """Flower starts the process that starts apps once; a SuperNode without it takes tasks that nobody does."""
    code = (
        "import sys, time, pathlib; from fedcipher.cluster.programs import _SharedSecrets;"
        "own = _SharedSecrets(pathlib.Path(sys.argv[1]));"
        "own.start_superexec('127.0.0.1:1', own.folder / 'none'); time.sleep(200)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "own")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    assert done.returncode == -signal.SIGTERM and "SuperExec, which starts apps, has ended with status" in done.stderr


@pytest.mark.parametrize(
    ("host", "at"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("localhost", "127.0.0.1"), ("::1", "::1"), ("10.0.0.7", "10.0.0.7")],
)
def test_a_superlinks_own_apps_reach_it_wherever_it_listens(host, at):
    assert programs._reached_at(host) == at


@pytest.mark.parametrize("how", ["the supervisor is killed", "SIGTERM"])
def test_no_process_of_a_cluster_outlives_it(tmp_path, how):
    (tmp_path / "logs").mkdir()
    (tmp_path / supervisor.REGISTERED).touch()
    programs = [{"name": name, "command": ["sleep", f"600.{tmp_path.stat().st_ino}{k}"]} for k, name in enumerate("ab")]
    (tmp_path / supervisor.INDEX).write_text(json.dumps({"programs": programs}))
    marks = [program["command"][1] for program in programs]

    def left():
        return [mark for mark in marks if processes_of(mark)]

    def until(done):
        end = time.monotonic() + 30
        while not done():
            assert time.monotonic() < end, left()
            time.sleep(0.05)

    command = [sys.executable, "-m", "fedcipher.cluster.supervisor", str(tmp_path)]
    with subprocess.Popen(command) as process:
        until(lambda: len(left()) == 2)
        assert supervisor.is_running(tmp_path) == process.pid
        process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        until(lambda: not left())
    assert supervisor.is_running(tmp_path) == 0


@pytest.mark.parametrize(
    ("clients", "at"), [(800, "keys and certificates"), (2, "SuperLink"), (2, "registering node 0")]
)
def test_a_cluster_that_is_told_to_end_while_it_starts_leaves_nothing_running(tmp_path, clients, at):
    folder = tmp_path / "cluster"
    up = [str(BIN / "fedcipher"), "cluster", "up", "--clients", str(clients), "--folder", str(folder)]
    with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert any(at in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 143 and "ended by SIGTERM" in said
    # What runs has to say goodbye; what had not begun is as if it had never been asked for.
    end = time.monotonic() + 30
    while left := processes_of(folder):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert folder.exists() == (clients == 2)


def test_what_is_no_cluster_is_refused_by_name(tmp_path):
    folder = tmp_path / "cluster"
    assert fedcipher("cluster", "down", "--folder", folder, cwd=tmp_path).stdout.strip().endswith("was not running")
    refused = fedcipher("cluster", "status", "--folder", folder, cwd=tmp_path)
    assert refused.returncode == 2 and "has no cluster" in refused.stderr
    nothing = fedcipher("cluster", "run", APP, "--folder", folder, cwd=tmp_path)
    assert nothing.returncode == 2 and "cluster up` starts one" in nothing.stderr
    committee = fedcipher("cluster", "up", "--clients", 3, "--scheme", "oneshot", "--folder", folder, cwd=tmp_path)
    assert committee.returncode == 2 and "members needs as many clients" in committee.stderr
    assert not folder.exists()
    deep = tmp_path / ("deep" * 25)
    long = fedcipher("cluster", "up", "--clients", 3, "--engine", "--folder", deep, cwd=tmp_path)
    assert long.returncode == 2 and "give a shorter --folder" in long.stderr and not deep.exists()
    deep.mkdir()
    (deep / "somebody's").touch()
    full = fedcipher("cluster", "up", "--clients", 3, "--folder", deep, cwd=tmp_path)
    assert full.returncode == 2 and "is not empty" in full.stderr and (deep / "somebody's").exists()


def test_what_cannot_be_prepared_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcipher.engine.local.find_program", lambda name: "/bin/false")
    made = scheme("flashe", clients=2)
    for _ in range(2):
        with pytest.raises(errors.EngineError):
            local.up(tmp_path / "c", made, 2, engine=True)
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("error", ["", "Error: Public key already\n in use (code 1204)", "Error: not reachable"])
def test_a_node_whose_registration_was_not_answered_is_registered(tmp_path, monkeypatch, error):
    """The second try finds it there; whatever else the SuperLink says is tried again and, at the end, told."""
    monkeypatch.setattr(local, "_flwr", lambda *_: (not error, error))
    waited = []

    def wait(said):
        waited.append(said)
        raise errors.ClusterError(said)

    if "reachable" in error:
        with pytest.raises(errors.ClusterError, match="not reachable"):
            local._register(tmp_path, tmp_path / "node.pub", wait)
    else:
        local._register(tmp_path, tmp_path / "node.pub", wait)
        assert waited == []


class SlowSuperLink:
    """Commands of `flwr` that take ``seconds`` each, by a clock of its own; the first answer for each node is lost."""

    def __init__(self, monkeypatch, seconds, lost=1):
        self.now, self.seconds, self.lost, self.asked = 0.0, seconds, lost, Counter()
        monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        monkeypatch.setattr(local, "is_running", lambda folder: 1)
        monkeypatch.setattr(local, "_answers", lambda port: True)
        monkeypatch.setattr(local, "status", lambda folder: {"online": len(self.asked)})
        monkeypatch.setattr(local, "_flwr", self.flwr)

    def sleep(self, seconds):
        self.now += seconds

    def flwr(self, folder, *words):
        self.now += self.seconds
        node = words[words.index("register") + 1]
        self.asked[node] += 1
        return False, "" if self.asked[node] <= self.lost else "Error: Public key already in use"

    def start(self, folder, clients):
        local._start(folder, 1, [folder / f"node-{k}.pub" for k in range(clients)], None, lambda text: None)


@pytest.mark.parametrize("clients", [3, 60, 300])
def test_a_start_has_time_by_the_number_of_its_nodes(tmp_path, monkeypatch, clients):
    link = SlowSuperLink(monkeypatch, 4)
    link.start(tmp_path, clients)
    assert set(link.asked.values()) == {2} and len(link.asked) == clients
    assert (tmp_path / supervisor.REGISTERED).exists()


@pytest.mark.parametrize("clients", [3, 60, 300])
def test_a_start_that_registers_nobody_ends_and_says_which_node(tmp_path, monkeypatch, clients):
    link = SlowSuperLink(monkeypatch, 4, lost=10**6)
    with pytest.raises(errors.ClusterError, match="node 0 cannot be registered"):
        link.start(tmp_path, clients)
    assert not (tmp_path / supervisor.REGISTERED).exists()


@pytest.mark.parametrize("unit", sorted(p.name for p in DEPLOY.glob("systemd/*.service")))
def test_a_unit_is_one_that_systemd_takes_and_its_flags_exist(unit):
    text = (DEPLOY / "systemd" / unit).read_text()
    (command,) = re.findall(r"^ExecStart=\S*/((?:.*\\\n)*.*)$", text, re.MULTILINE)
    known = [
        subprocess.run([str(BIN / command.split()[0]), "--help"], capture_output=True, text=True, check=True).stdout
    ]
    for word in set(command.split()) & {"serve", "superlink", "supernode"}:
        parts = [[str(BIN / command.split()[0]), word], [str(BIN / f"flower-{word}")]]
        for part in parts[: 1 + ("super" in word)]:
            known.append(subprocess.run([*part, "--help"], capture_output=True, text=True, check=True).stdout)
    flags = set(re.findall(r"--[a-z-]+", command))
    assert flags and all(re.search(rf"{flag}\b", "".join(known)) for flag in flags)
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is absent")
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "systemd" / unit)], capture_output=True, text=True
    )
    # The programs are where an administrator puts them, not here.
    wrong = [line for line in said.stderr.splitlines() if unit in line and "is not executable" not in line]
    assert wrong == []


@pytest.mark.parametrize("program", ["supernode", "superlink"])
def test_the_flags_of_the_deployment_page_exist(program):
    page = (APP.parents[1] / "docs" / "how-to" / "deploy.md").read_text()
    (command,) = re.findall(rf"^fedcipher {program} (?:.*\\\n)*.*$", page, re.MULTILINE)
    ours, flowers = (set(re.findall(r"--[a-z-]+", part)) for part in re.split(r" -- ", command))
    if program == "supernode":
        flowers |= {"--allow-runtime-dependency-installation", "--insecure"}
    assert len(flowers) >= 4
    for words, flags in (([BIN / "fedcipher", program], ours), ([BIN / f"flower-{program}"], flowers)):
        known = subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
        assert flags and all(re.search(rf"{flag}\b", known) for flag in flags)
