"""Real guards around real apps: `make e2e-guard`.

A SuperLink, three SuperNodes and three guards. The client app is an ordinary one: it knows nothing of Fedcipher.
It takes minutes, so it is not part of the suite.
"""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import example_apps
import fedcipher
import numpy as np
import pytest
from deployment_harness import Federation, processes
from fedcipher import cli, keys
from guarded import Guarded, rules_for
from places import TESTS

APP = TESTS / "e2e" / "guarded_app"
CLIENTS, ROUNDS = 3, 3


def keys_of(scheme, folder):
    more = {"members": 3} if scheme == "oneshot" else {}
    made = fedcipher.scheme(scheme, clients=CLIENTS + 1, codec=fedcipher.Codec(bits=16), min_contributions=3, **more)
    return keys.save(made.keygen(CLIENTS + 1), made, folder)


def config_of(folder, made, **more):
    given = {"fedcipher-keys": str(made), "fedcipher-out": str(folder / "run"), **more}
    return " ".join(f"{k}={v!r}" if isinstance(v, str) else f"{k}={str(v).lower()}" for k, v in given.items())


def approved(federation, seconds=60):
    """Agree at each site as people do, as soon as a run asks."""
    left, until = set(range(federation.clients)), time.monotonic() + seconds
    while left and time.monotonic() < until:
        for k in list(left):
            folder = federation.home(k) / "guard"
            found = re.findall(r"guard approve (\w+)", federation.guard_log(k))
            if found:
                assert cli.main(["guard", "approve", found[-1], "--folder", str(folder)]) == 0
                left.discard(k)
        time.sleep(0.3)
    assert not left, federation.logs()


def model_of(federation, folder, client=0):
    out = folder / "model.npz"
    arguments = ["open", str(folder / "run"), "--key", str(federation.key(client)), "--out", str(out)]
    assert cli.main(arguments) == 0
    with np.load(out) as found:
        return list(found.values())


def expected(rounds=ROUNDS, size=1000):
    """The model of the app in the clear: the means of the clients' numbers."""
    model = [np.zeros(size, np.float32), np.zeros((3, 5))]
    for server_round in range(1, rounds + 1):
        moved = []
        for partition in range(CLIENTS):
            rng = np.random.default_rng([7, server_round, partition])
            moved.append([rng.random(a.shape).astype(a.dtype) for a in model])
        model = [a + np.mean([m[k] for m in moved], axis=0) for k, a in enumerate(model)]
    return model


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize("scheme", ["bfv", "oneshot"])
def test_an_unchanged_client_app_trains_on_guarded_nodes_after_people_agree(home, scheme):
    made = keys_of(scheme, home / "keys")
    federation = Guarded(home, CLIENTS, made, '{"fedcipher_guard": 1, "run_settings": ["*"]}')
    try:
        run = federation.start(APP, config_of(home, made))
        approved(federation)
        said, _ = run.communicate(timeout=300)
        assert said.count(": sum of 3 encrypted updates") == ROUNDS, said + federation.logs()
        step = 2 * 1.0 / (2**16 - 2)
        for got, want in zip(model_of(federation, home), expected(), strict=True):
            assert np.abs(got - want).max() <= 2 * ROUNDS * step
        # The app's own state is the guard's to keep.
        assert re.findall(r"COUNT (\d)", federation.guard_log(0)) == ["1", "2", "3"]
        replies = re.findall(r"REPLY \{(.*)\}", said)
        names = {name for reply in replies for name in re.findall(r"'([^']+)': \[", reply)}
        assert names <= {"arrays", *(n for n in names if n.startswith("fedcipher."))}
        assert all("'arrays': ['fedcipher.update']" in r for r in replies if "'arrays'" in r)
    finally:
        federation.stop()


def targets_of(federation, outside):
    """What `hostile.reach` tries to reach of a site: its SuperNode, its key, its guard, and files beside the app."""
    return [
        *(f"connect={address}" for address, _ in federation.nodes),
        *(f"read={path}" for path in (federation.nodes[0][1], federation.key(0), federation.home(0) / "guard")),
        *(f"read=/proc/{guard.pid}/{name}" for guard in federation.guards for name in ("environ", "cmdline")),
        *(f"write={path}" for path in (outside, federation.key(1), "/proc/self/oom_score_adj", "/dev/shm/../x")),
    ]


def assert_reached_nothing(site, least, outside):
    """At least so many tries are in the log of a ``site``, and none of them got anything."""
    tries = re.findall(r"TRY (.*)", site)
    assert len(tries) >= least, site[-3000:]
    # A private /tmp takes files, and loses them with the app.
    assert [line for line in tries if ": refused" not in line and not line.startswith("write /tmp")] == []
    assert not outside.exists() and not processes("hostile-child")


def test_a_hostile_app_reaches_nothing_and_tells_nobody(home):
    made = keys_of("bfv", home / "keys")
    rules = rules_for(APP, app_seconds=20)
    federation = Guarded(home, CLIENTS, made, rules)
    try:
        outside = Path("/tmp") / f"fedcipher-hostile-{os.getpid()}"
        targets = targets_of(federation, outside)
        config = config_of(home, made, mode="hostile", targets="|".join(targets), **{"num-server-rounds": 5})
        said = federation.run(APP, config, timeout=500)
        site = "".join(federation.guard_log(k) for k in range(CLIENTS))
        assert_reached_nothing(site, CLIENTS * 4 * (len(targets) + 4), outside)
        elsewhere = said + "".join(path.read_text() for path in federation.folder.glob("flower-*.log"))
        assert "4711" not in elsewhere and "diagnosis" not in elsewhere
        assert "patient 4711" in site
        # Each failure is a frame that counts nothing, so every round has three frames.
        assert said.count(": sum of 3 encrypted updates") == 5, said
    finally:
        federation.stop()


READING = """

from pytorchexample import hostile

_read = load_data


def load_data(*given):
    with open({data!r}) as file:
        hostile.reach(file.read().split())
    return _read(*given)
"""


def test_quickstart_pytorch_trains_under_oneshot_and_its_process_reaches_nothing_else(home, monkeypatch):
    """Its client is as in the clear but for `load_data`, which first tries to reach what it must not."""
    name = "quickstart-pytorch"
    example_apps.skip_without_modules(name)
    example_apps.run(example_apps.APPS / name / "plain", home / "clear", monkeypatch)
    made, app = example_apps.keys_for(name, home, "oneshot"), example_apps.encrypted(name, home, mod=False)
    data = home / "data"
    data.mkdir()
    shutil.copy(APP / "guarded_app" / "hostile.py", app / "pytorchexample")
    with (app / "pytorchexample" / "task.py").open("a") as file:
        file.write(READING.format(data=str(data / "targets")))
    federation = Guarded(home, CLIENTS)
    try:
        federation.restart_guards(made, rules_for(app, data=[str(data)]))
        outside = Path("/tmp") / f"fedcipher-hostile-{os.getpid()}"
        targets = targets_of(federation, outside)
        (data / "targets").write_text("\n".join(targets))
        config = example_apps.settings(name, made, home)
        began = time.monotonic()
        said = federation.run(app, " ".join(f"{k}={v!r}" for k, v in config.items()))
        assert said.count(": sum of 3 encrypted updates") == ROUNDS, said + federation.logs()
        site = "".join(federation.guard_log(k) for k in range(CLIENTS))
        # Each client trains in each round, and half of the clients evaluate.
        assert_reached_nothing(site, CLIENTS * ROUNDS * (len(targets) + 4), outside)
        saved = example_apps.SAVED[name]
        got, want = (example_apps.arrays_of(folder / saved) for folder in (federation.outputs, home / "clear"))
        most = example_apps.assert_equal_models(got, want, ROUNDS)
        print(f"{name} under oneshot differs by {most:.1e} after {time.monotonic() - began:.0f} s")
    finally:
        federation.stop()


STEPS = (
    "task.kept_alive",
    "client.PullTaskInput",
    "client.PullMessages",
    "client.PullObject",
    "session.seal",
    "client.PushMessages",
    "client.PushObject",
    "client.ConfirmMessageReceived",
    "client.PushTaskOutput",
)
DYING = """
import os, signal, sys
from fedcipher import cli
from fedcipher.guard import supernode, worker
from flwr.supercore.runtime import RuntimeHttpClient
from fedcipher.federation.client.session import ClientSession
place, when, mark = sys.argv[1:4]
owner = {"task": supernode.Task, "client": RuntimeHttpClient, "session": ClientSession}[place.split(".")[0]]
name = place.split(".")[1]
real = getattr(owner, name)
def dies(*given, **named):
    if os.path.exists(mark):
        return real(*given, **named)
    if when == "before":
        open(mark, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    made = real(*given, **named)
    open(mark, "x").close()
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, dies)
sys.exit(cli.main(sys.argv[4:]))
"""


@pytest.mark.parametrize(
    ("place", "when", "consent"),
    [*((place, when, 0) for place in STEPS for when in ("before", "after")), ("client.PullMessages", "after", 200)],
)
def test_a_guard_that_is_killed_costs_a_round_at_most(home, place, when, consent):
    """``consent``: the first message asks for consent, otherwise for training."""
    made = keys_of("bfv", home / "keys")
    rules = rules_for(APP, app_seconds=60)
    federation = Guarded(home, CLIENTS, made, rules)
    try:
        victim = federation.guards[0]
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
        mark = home / "dead"
        federation.guards[0] = federation.start_guard(0, ["-c", DYING, place, when, str(mark)])
        run = federation.start(APP, config_of(home, made, **{"may-lose": 1, "consent-timeout": consent}))
        until = time.monotonic() + 200
        while federation.guards[0].poll() is None and run.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        assert mark.exists() and federation.guards[0].poll() is not None
        federation.guards[0] = federation.start_guard(0)
        said, _ = run.communicate(timeout=400)
        full = said.count(": sum of 3 encrypted updates")
        print(f"killed {when} {place}: {full} of {ROUNDS} rounds are full")
        assert full >= ROUNDS - 1, said + federation.guard_log(0)[-3000:]
    finally:
        federation.stop()


def peak_mib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.parametrize("scheme", ["flashe", "bfv", "oneshot"])
def test_a_guards_memory_stays_below_eight_models(home, scheme):
    size = 10_000_000
    made = keys_of(scheme, home / "keys")
    rules = rules_for(APP, app_seconds=300)
    federation = Guarded(home, CLIENTS, made, rules)
    try:
        before = peak_mib(federation.guards[0])
        config = config_of(home, made, size=size, **{"num-server-rounds": 2, "deadline": 400})
        said = federation.run(APP, config, timeout=1200)
        assert said.count(": sum of 3 encrypted updates") == 2, said + federation.logs()
        more, model = peak_mib(federation.guards[0]) - before, 4 * size / 2**20
        print(f"{scheme}: a guard's peak grows by {more:.0f} MiB, {more / model:.1f} models of {model:.0f} MiB")
        assert more < 8 * model
    finally:
        federation.stop()


def test_a_guarded_round_beside_the_same_app_with_the_mod(home):
    """Prints the seconds of both, which take turns."""
    seconds = {"guard": [], "mod": []}
    # A key belongs to the state folder of its first use.
    made = {kind: keys_of("bfv", home / f"keys-{kind}") for kind in seconds}
    rules = rules_for(APP, answer_every=0.0)
    with_mod = home / "guarded-mod"
    shutil.copytree(APP, with_mod)
    client = with_mod / "guarded_app" / "client_app.py"
    line = "from fedcipher.adapters.flower import client_mod\n\napp = ClientApp(mods=[client_mod])"
    client.write_text(client.read_text().replace("app = ClientApp()", line))
    for kind in seconds:
        (home / kind).mkdir()
    federations = {
        "guard": Guarded(home / "guard", CLIENTS, made["guard"], rules),
        "mod": Federation(home / "mod", CLIENTS),
    }
    try:
        for turn in range(3):
            for kind, federation in federations.items():
                config = config_of(
                    home, made[kind], **{"fedcipher-out": str(home / f"{kind}-{turn}"), "consent-timeout": 0}
                )
                said = federation.run(APP if kind == "guard" else with_mod, config)
                assert said.count(": sum of 3 encrypted updates") == ROUNDS, said + federation.logs()
                seconds[kind].append(float(re.search(r"finished in ([\d.]+)s", said)[1]) / ROUNDS)
        best = {kind: min(found) for kind, found in seconds.items()}
        print(f"seconds a round: {seconds}; guard over mod {best['guard'] / best['mod']:.2f}, at most 1.3")
    finally:
        for federation in federations.values():
            federation.stop()
