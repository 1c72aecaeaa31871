"""Attacks on the engine and the authority that have worked once, each against real processes."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fedcipher
import grpc
import numpy as np
import pytest
from engine_harness import (
    CODEC,
    deployment,
    encrypt_begin,
    error_class,
    field,
    flashe,
    flat_layout,
    raw_call,
    socket_channel,
    tls_channel,
    until,
    updates,
    values,
)
from fedcipher import errors
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import Service, await_address, find_program, lock_arguments, run_program, started
from places import ROOT
from scheme_lists import adds, hides, in_core, one_key, schemes_that

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")
DEPLOY = ROOT / "deploy"
PROTO = ROOT / "crates" / "fedcipher-engine" / "proto" / "fedcipher" / "v1"


@contextmanager
def nic(run, *arguments, hosts=("trainer",)):
    """One more engine, over TLS."""
    folder = run.enrol("nic")
    run.local.rotate()
    allowed = [part for host in hosts for part in ("--host", host)]
    with started(
        *("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", run.folder / "nic-state"),
        *("--authority", run.local.authority.address, "--credentials", folder, "--refresh", "1"),
        *("--exit-with-parent", *lock_arguments(), *allowed, *arguments),
        log=run.folder / "nic.log",
    ) as served:
        yield served


# --- attack 9: what is over stays ----------------------------------------------------------------


def device_keys(database, epoch):
    store = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = store.execute("SELECT key FROM keys WHERE epoch = ? AND key IS NOT NULL", (epoch,)).fetchall()
    finally:
        store.close()
    # Behind the key's header (96 bytes and one contribution) and before its checksum.
    return [row[0][124:-8] for row in rows]


def pieces_of(secret):
    pieces = {secret[at : at + 32] for at in range(0, len(secret) - 31, max(1, len(secret) // 16))}
    return {piece for piece in pieces if len(set(piece)) >= 3}


def found(state, pieces):
    files = [path.read_bytes() for path in state.iterdir() if path.name.startswith("authority.db")]
    return sum(any(piece in content for content in files) for piece in pieces)


def gone(state, pieces):
    return found(state, pieces) == 0


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds, in_core))
def test_keys_of_ended_epochs_are_in_no_file_of_the_store_while_it_serves(name, tmp_path):
    devices = 24
    made = fedcipher.scheme(name, clients=devices, codec=CODEC)
    with deployment(made, devices, tmp_path) as run:
        state, keys, ended = run.local.state, run.keys(), set()
        for epoch in (1, 2, 3):
            for secret in device_keys(state / "authority.db", epoch):
                ended |= pieces_of(secret)
            assert found(state, ended), "the search finds keys that are in use"
            run.local.rotate()
            assert keys.current().epoch == epoch + 1
            keys.finish_epoch(epoch + 1)
            assert until(partial(gone, state, ended)), f"epoch {epoch}: {found(state, ended)} of {len(ended)}"
        assert run.local.authority.process.poll() is None


def test_a_reader_of_the_store_delays_the_end_of_keys_and_no_more(tmp_path):
    with deployment(flashe(), 4, tmp_path) as run:
        state, keys = run.local.state, run.keys()
        ended = set().union(*map(pieces_of, device_keys(state / "authority.db", 1)))
        reader = sqlite3.connect(state / "authority.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM keys").fetchone()
        run.local.rotate()
        assert keys.current().epoch == 2
        keys.finish_epoch(2)
        assert reader.execute("SELECT COUNT(key) FROM keys WHERE epoch = 1").fetchone() == (4,), "it reads the past"
        assert found(state, ended), "and the past is still there"
        reader.close()
        assert until(partial(gone, state, ended))


def test_a_revoked_host_is_cut_off_within_the_refresh_period(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, nic(run, hosts=("trainer", "other")) as served:
        trainer, other = run.host("trainer", "nic"), run.host("other", "nic")
        quiet = threading.Event()

        def messages():
            yield encrypt_begin("nic", flat_layout(500_000), 1)
            yield values(100_000)
            quiet.wait(60)

        with tls_channel(served.address, trainer) as channel:
            call = raw_call(channel, "Engine", "Encrypt")(messages(), timeout=60)
            assert next(call)
            run.authority("revoke", "trainer", "--no-rotate")
            with pytest.raises(grpc.RpcError):
                list(call)
            assert error_class(call) == "RevokedError", call.details()
            describe = channel.unary_unary("/fedcipher.v1.Engine/Describe")
            with pytest.raises(grpc.RpcError) as caught:
                describe(b"", timeout=20)
            assert error_class(caught.value) == "RevokedError"
            quiet.set()
        with pytest.raises(errors.RevokedError, match="host trainer"):
            connect(served.address, credentials=trainer)
        assert connect(served.address, credentials=other).encryptor().encrypt(updates(1)[0], round=2)


def test_only_a_hosts_certificate_uses_an_engine_whatever_names_it_lets_in(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        others = [run.enrol("sensor"), run.enrol("summer", "--role", "server")]
        with nic(run, hosts=("trainer", "sensor", "summer")) as served:
            for credentials in others:
                with pytest.raises(errors.FedcipherError, match="may not use this engine"):
                    connect(served.address, credentials=credentials)
            trainer = run.host("trainer", "nic")
            assert connect(served.address, credentials=trainer).encryptor().encrypt(updates(1)[0], round=1)


def test_a_revocation_says_when_its_rotation_has_to_wait(tmp_path):
    with deployment(flashe(), 3, tmp_path) as run:
        keys = run.keys()
        assert keys.current().epoch == 1
        assert run.local.rotate() == 2
        # Epoch 1 is in use until a round of epoch 2 is finished.
        program = [find_program("fedcipher-authority"), "--state", run.local.state, *lock_arguments()]
        done = subprocess.run([*program, "revoke", "client-1"], capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
        assert "client-1 revoked" in done.stdout and "epoch 1 is still in use" in done.stdout
        assert 1 in keys.revoked()
        assert "epoch 3" not in run.authority("status")
        keys.finish_epoch(2)
        assert re.search("epoch 3: current.* 2 keys", run.authority("status"))
        keys.finish_epoch(2)
        assert "epoch 4" not in run.authority("status")


@pytest.mark.parametrize("command", [["--help"], ["status"], ["rotate"], ["revoke", "client-1"]])
def test_a_command_whose_output_nobody_takes_is_done_and_fails(command, tmp_path):
    state = ("--state", tmp_path / "authority")
    (tmp_path / "spec.json").write_text(json.dumps(flashe(2).spec()))
    run_program("fedcipher-authority", *state, "init", "--spec", tmp_path / "spec.json")
    for k in range(2):
        run_program("fedcipher-authority", *state, "enrol", f"client-{k}", "--out", tmp_path / f"c{k}")
    run_program("fedcipher-authority", *state, "rotate", *lock_arguments())
    whole = [find_program("fedcipher-authority"), *state, *lock_arguments(), *command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(whole, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and "panicked" not in done.stderr
    status = run_program("fedcipher-authority", *state, "status")
    assert ("epoch 2: current" in status) == (command[0] in ("rotate", "revoke"))
    assert ("client-1, client 1, revoked" in status) == (command[0] == "revoke")


# --- attack 10: silence ---------------------------------------------------------------------------


def open_silent(address, count, first=b""):
    """``count`` connections that say ``first`` and then nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 512)), hard))
    local = address.startswith("unix:")
    host, _, port = address.rpartition(":")
    where = address.removeprefix("unix:") if local else (host, int(port))
    made = []
    for _ in range(count):
        one = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        one.settimeout(5)
        try:
            one.connect(where)
            one.sendall(first)
        except OSError:
            one.close()
            continue
        made.append(one)
    return made


def closed_by_peer(one):
    try:
        one.settimeout(0.001)
        # What it said before does not count.
        while one.recv(1 << 16):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HELLO = bytes([22, 3, 1, 2, 0, 1])


@pytest.mark.parametrize("first", [b"", b"said"], ids=["silent", "half-open"])
def test_silent_connections_exhaust_neither_authority_nor_engine(first, tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, nic(run) as served:
        trainer = run.host("trainer", "nic")
        services = [run.local.authority, run.local.engine, served]
        count = 700
        for service in services:
            resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        silent = []
        try:
            for service in services:
                said = b"" if not first else PREFACE if service is run.local.engine else HELLO
                silent += open_silent(service.address, count, said)
            assert len(silent) > 2 * count
            # Honest parties are served while all of them are open.
            assert Authority(run.local.authority.address, run.local.server_credentials, patience=5).current()
            assert connect(run.local.target, device="client-0", patience=5).encryptor().encrypt(updates(1)[0], round=1)
            assert connect(served.address, credentials=trainer, patience=5)
            for service in services:
                assert len(os.listdir(f"/proc/{service.process.pid}/fd")) < 250
            # And in the end all of the silent ones have been let go.
            assert until(lambda: all(map(closed_by_peer, silent)), 40)
        finally:
            for one in silent:
                one.close()
        assert all(service.process.poll() is None for service in services)
        assert re.search(r"address 127.0.0.1: refuse silent connection", run.authority("status", "--audit"))


def ends(work):
    """The error with which ``work`` ends; it must end."""
    caught = []

    def run():
        try:
            work()
        except errors.FedcipherError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for ever"
    return caught[0] if caught else None


GONE = (errors.EngineUnavailableError, errors.StalledError)


@contextmanager
def stopped(process):
    os.kill(process.pid, signal.SIGSTOP)
    try:
        # A thread that is on a processor stops when it next enters the kernel.
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_calls_to_a_stopped_engine_end(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, nic(run) as served:
        trainer = run.host("trainer", "nic")
        local = connect(run.local.target, patience=2)
        remote = connect(served.address, credentials=trainer, patience=2)
        aggregator = local.scheme.aggregator(run.keys().current())
        aggregator.add(remote.encryptor().encrypt(updates(1)[0], round=1))
        aggregate = aggregator.finish()
        for engine, process in ((local, run.local.engine.process), (remote, served.process)):
            with stopped(process):
                for call in (
                    engine._client.describe,
                    lambda engine=engine: engine.encryptor().encrypt(updates(1)[0], round=2),
                    lambda engine=engine: engine.decryptor().decrypt(aggregate),
                    lambda engine=engine: engine.encryptor().precompute(updates(1)[0], round=3),
                    lambda engine=engine: engine.encryptor().export_state(),
                    lambda engine=engine: engine.encryptor().import_state(b""),
                ):
                    assert isinstance(ends(call), GONE)
            assert engine.encryptor().encrypt(updates(1)[0], round=9), "and it is used again when it goes on"
        with stopped(served.process):
            assert isinstance(ends(lambda: connect(served.address, credentials=trainer, patience=2)), GONE)


def test_calls_of_one_device_at_once_wait_for_each_other_and_not_for_themselves(tmp_path):
    made = fedcipher.scheme("bfv", clients=2)
    # As much as rayon shares out between its threads.
    update = [np.zeros(1 << 20, np.float32)]
    with futures.ThreadPoolExecutor(8) as pool, deployment(made, 2, tmp_path) as run:
        encryptors = [run.connect(0).encryptor() for _ in range(8)]
        calls = [pool.submit(one.precompute, update, round=k) for one in encryptors for k in range(1, 4)]
        calls.append(pool.submit(run.connect(1).encryptor().encrypt, update, round=1))
        done, waiting = futures.wait(calls, timeout=60)
        assert not waiting, "they wait for ever"
        # In whatever order they came.
        assert {type(call.exception()) for call in done} <= {type(None), errors.NonceReuseError}


def test_a_stream_whose_engine_stops_in_the_middle_ends(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        engine = connect(run.local.target, patience=2)
        update = [np.zeros(80_000_000, np.float32)]
        timer = threading.Timer(0.1, os.kill, (run.local.engine.process.pid, signal.SIGSTOP))
        timer.start()
        try:
            assert isinstance(ends(lambda: engine.encryptor().encrypt(update, round=1)), GONE)
        finally:
            timer.join()
            os.kill(run.local.engine.process.pid, signal.SIGCONT)


def test_a_stopped_authority_holds_up_no_round(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        keys = Authority(run.local.authority.address, run.local.server_credentials, patience=2)
        with stopped(run.local.authority.process):
            assert isinstance(ends(lambda: keys._client.server_keys([])), GONE)
            # Rounds go on under the keys that are here.
            assert ends(lambda: keys.current()) is None
            assert ends(lambda: keys.finish_epoch(1)) is None
            again = lambda: Authority(run.local.authority.address, run.local.server_credentials, patience=2)  # noqa: E731
            assert isinstance(ends(again), GONE)
            # So do engines.
            assert run.connect(0).encryptor().encrypt(updates(1)[0], round=1)
        assert keys.current().epoch == 1


def test_messages_are_bounded_before_they_are_read(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, socket_channel(run.local.target) as channel:
        begin = encrypt_begin("client-0", flat_layout(20_000_000), 1)
        call = raw_call(channel, "Engine", "Encrypt")(iter([begin, values(10_000_000)]), timeout=20)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert "message length" in call.details().lower(), call.details()


@pytest.mark.parametrize("bits", [40, 62, 64])
def test_a_host_takes_no_absurd_lengths_from_its_engine(bits, tmp_path):
    """An engine that has been taken over; no real one says such things."""
    with deployment(flashe(), 1, tmp_path) as run:
        run.enrol("nic")
        run.host("trainer", "nic")
        spec = connect(run.local.target)._client.describe()[0]
        server = grpc.server(futures.ThreadPoolExecutor(4))
        describe = grpc.unary_unary_rpc_method_handler(lambda request, context: field(1, spec) + field(3, b"\x01"))
        encrypt = grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([field(1, (1 << bits) - 1)]))
        handlers = {"Describe": describe, "Encrypt": encrypt}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedcipher.v1.Engine", handlers),))
        read = lambda name: (run.folder / "nic" / name).read_bytes()  # noqa: E731
        pair = [(read("key.pem"), read("certificate.pem"))]
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
        server.start()
        try:
            engine = connect(f"127.0.0.1:{port}", credentials=run.folder / "trainer")
            with pytest.raises(errors.EngineError, match="larger than its update"):
                engine.encryptor().encrypt(updates(1)[0], round=1)
        finally:
            server.stop(None)


# --- attack 11: a user who is let in and never gets in ---------------------------------------------

ENGINE, TRAINER, MEMBER, STRANGER, GROUP = 61001, 1000, 61003, 61004, 61100

_AS_USER = """
import os, sys
import fedcipher
from fedcipher.engine import connect
from fedcipher import errors
import numpy as np
target, device, user, *groups = sys.argv[1:]
os.setgroups([int(g) for g in groups])
os.setgid(int(user))
os.setuid(int(user))
try:
    engine = connect(target, device=device)
    print(len(engine.encryptor().encrypt([np.zeros(100, np.float32)], round=int(user))))
except errors.FedcipherError as error:
    print(type(error).__name__)
"""


def as_user(target, user, *groups, device=""):
    command = [sys.executable, "-c", _AS_USER, target, device, str(user), *map(str, groups)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or done.stderr


def documented_command():
    """The settings of the unit that people are given, and its ExecStart's arguments."""
    unit = (DEPLOY / "systemd" / "fedcipher-engine.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit.replace("\\\n", " "), re.M))
    return settings, settings["ExecStart"].split()


@contextmanager
def open_folder():
    """A folder that other users can pass; pytest's own cannot."""
    folder = Path(tempfile.mkdtemp(prefix="fedcipher-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def owned(path, user):
    for each in [path, *path.rglob("*")]:
        os.chown(each, user, user)


@contextmanager
def service_as(user, groups, command, log):
    """``command`` as systemd would run it for that user, LimitMEMLOCK included where this machine lets us."""
    unlimited = ["prlimit", "--memlock=unlimited:unlimited"]
    if subprocess.run([*unlimited, "true"], capture_output=True, check=False).returncode != 0:
        unlimited, command = [], [*command, "--allow-swap"]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--groups", ",".join(map(str, groups)) or str(user)]
    with log.open("wb") as output:
        wrapped = [*unlimited, *become, *map(str, command)]
        process = subprocess.Popen(wrapped, stdout=output, stderr=subprocess.STDOUT)
    service = Service(process, "", log)
    try:
        service.address = await_address(service)
        yield service
    finally:
        service.stop()


@AS_ROOT
def test_the_documented_unit_serves_the_users_it_names_and_nobody_else(tmp_path):
    settings, command = documented_command()
    assert settings["SupplementaryGroups"] == "fedcipher-hosts" and f"{TRAINER}=nic-1" in command
    with deployment(flashe(), 1, tmp_path) as run, open_folder() as folder:
        program = shutil.copy(find_program("fedcipher-engine"), folder / "fedcipher-engine")
        nic = run.enrol("nic-1")
        run.local.rotate()
        places = {"run": 0o755, "state": 0o700, "etc": 0o700}
        for name, mode in places.items():
            (folder / name).mkdir(mode=mode)
        shutil.copytree(nic, folder / "etc" / "nic-1")
        for name in places:
            owned(folder / name, ENGINE)
        put = {
            "/usr/local/bin/fedcipher-engine": str(program),
            "unix:/run/fedcipher/engine.sock": f"unix:{folder}/run/engine.sock",
            "fedcipher-hosts": str(GROUP),
            "/var/lib/fedcipher": f"{folder}/state",
            "authority.example:7443": run.local.authority.address,
            "/etc/fedcipher/nic-1": f"{folder}/etc/nic-1",
            "127.0.0.1:9464": "127.0.0.1:0",
        }
        assert set(put) <= set(command)
        command = [put.get(word, word) for word in command]
        with service_as(ENGINE, [ENGINE, GROUP], command, tmp_path / "unit.log") as service:
            target = service.address
            assert as_user(target, TRAINER, GROUP).isdigit()
            assert as_user(target, MEMBER, GROUP) == "AccessError", "the group opens the socket, not the engine"
            assert as_user(target, STRANGER) == "EngineUnavailableError", "no way to the socket"
            assert connect(target).client == 1


@AS_ROOT
def test_allowed_users_without_a_way_to_the_socket_are_named_at_the_start(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        folder = run.enrol("nic")
        run.local.rotate()
        with pytest.raises(errors.EngineError, match="--allow-uid for user 1000 needs --socket-group"):
            run.engine("nic", "--credentials", folder, "--allow-uid", "1000=nic")
        # pytest's folders are their owner's alone.
        with pytest.raises(errors.EngineError, match=r"keeps group 61100 from the socket; chmod o\+x"):
            run.engine("nic", "--credentials", folder, "--allow-uid", "1000=nic", "--socket-group", str(GROUP))


# --- attack 24: a host that uses its neighbours' devices -----------------------------------------


@contextmanager
def shared_engine(run, hosts):
    """An engine over TLS with the devices `a` and `b`; ``hosts`` are names with the devices that each may use."""
    devices = [run.enrol(device) for device in ("a", "b")]
    folders = {host: run.host(host, *own) for host, own in hosts.items()}
    run.authority("rotate", "--force")
    with started(
        *("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", run.folder / "shared-state"),
        *("--authority", run.local.authority.address, "--refresh", "1", "--exit-with-parent", *lock_arguments()),
        *(part for folder in devices for part in ("--credentials", folder)),
        *(part for host in hosts for part in ("--host", host)),
        log=run.folder / "shared.log",
    ) as served:
        yield served, folders


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds, in_core))
def test_attack_24_a_host_opens_no_recorded_upload_with_its_neighbours_devices(name, tmp_path):
    """It encrypted as every other device of its engine, and took its own updates from the sum."""
    made = fedcipher.scheme(name, clients=3, codec=CODEC, min_contributions=3)
    hosts = {"host-a": ["a"], "host-b": ["b"]}
    with deployment(made, 1, tmp_path) as run, shared_engine(run, hosts) as (served, folders):
        assert until(lambda: 2 in run.connect(0).epochs)
        victim, own, other = updates(3)
        recorded = run.connect(0).encryptor().encrypt(victim, round=1)
        liar = connect(served.address, device="a", credentials=folders["host-a"])
        frames = [recorded, liar.encryptor().encrypt(own, round=1)]
        with pytest.raises(errors.UnknownDeviceError, match="its devices are: a;"):
            connect(served.address, device="b", credentials=folders["host-a"])
        # So it can make no sum of three, and none of fewer opens.
        aggregator = made.aggregator(run.keys().current())
        for frame in frames:
            aggregator.add(frame)
        with pytest.raises(errors.TooFewContributionsError):
            aggregator.finish()
        # With its neighbour's own update there is a sum, of which it learns what any client does.
        frames.append(connect(served.address, credentials=folders["host-b"]).encryptor().encrypt(other, round=1))
        aggregator = made.aggregator(run.keys().current())
        for frame in frames:
            aggregator.add(frame)
        assert (
            np.abs(
                liar.decryptor().decrypt(aggregator.finish())[0]
                - np.mean([u[0].clip(-1, 1) for u in (victim, own, other)], axis=0)
            ).max()
            < 1e-3
        )


def calls_for(device):
    """(method, requests) of every call that names a device."""
    named = field(1, device)
    return {
        "Describe": [named],
        "Encrypt": [encrypt_begin(device, flat_layout(10), 1), values(10)],
        "Decrypt": [field(1, named), field(2, bytes(200))],
        "Precompute": [named + field(3, 1) + field(4, flat_layout(10))],
        "ExportState": [named],
        "ImportState": [field(1, named), field(2, b"state")],
        "Answer": [field(1, named), field(2, b"request")],
        "TakePrekeys": [named + field(3, b"prekey")],
        "Prekey": [named],
        "Forget": [named],
    }


def refusal(channel, method, requests):
    call = raw_call(channel, "Engine", method)(iter(requests), timeout=20)
    with pytest.raises(grpc.RpcError):
        list(call)
    return call.code(), error_class(call), call.details()


def test_attack_24_every_call_that_names_a_device_is_refused_alike(tmp_path):
    hosts = {"host-a": ["a"], "host-b": ["b"], "both": ["a", "b"], "elsewhere": ["client-0"]}
    with deployment(flashe(), 1, tmp_path) as run, shared_engine(run, hosts) as (served, folders):
        methods = set(re.findall(r"rpc (\w+)", (PROTO / "engine.proto").read_text()))
        with tls_channel(served.address, folders["host-a"]) as channel:
            refused = {
                refusal(channel, method, requests)
                # One of a neighbour, of another engine, of nobody, none of these in another spelling.
                for device in ("b", "client-0", "nobody", "A", "a ", "a\n", "b" * 1000)
                for method, requests in calls_for(device).items()
            }
            assert len(refused) == 1, refused
            code, named, text = refused.pop()
            assert (code, named) == (grpc.StatusCode.NOT_FOUND, "UnknownDeviceError")
            assert "its devices are: a;" in text
            assert calls_for("a").keys() == methods, "a call that this test does not know"
        # Without a name a host means its only device, whatever else the engine has.
        assert (
            connect(served.address, credentials=folders["host-a"]).client
            == connect(served.address, device="a", credentials=folders["both"]).client
        )
        with pytest.raises(errors.UnknownDeviceError, match="its devices are: a, b;"):
            connect(served.address, credentials=folders["both"])
        with pytest.raises(errors.UnknownDeviceError, match="its devices are: none;"):
            connect(served.address, device="a", credentials=folders["elsewhere"])
        log = (run.folder / "shared.log").read_text()
        assert "nobody" not in log and "bbbb" not in log


def test_attack_24_a_host_is_enrolled_for_devices_that_exist_and_shown_with_them(tmp_path):
    with deployment(flashe(), 2, tmp_path) as run:
        for devices, said in (
            ([], "give --device NAME for each"),
            (["client-0", "client-9"], "not an enrolled device"),
            (["aggregator"], "not an enrolled device"),
            (["a b"], "is not a valid name|not an enrolled device"),
        ):
            with pytest.raises(errors.EngineError, match=said):
                run.host("trainer", *devices)
        with pytest.raises(errors.EngineError, match="uses no devices"):
            run.enrol("nic", "--device", "client-0")
        enrol = ("enrol", "trainer", "--role", "host", "--device", "client-1", "--device", "client-0")
        assert "has 2 clients, and only 1 may lie" in run.authority(*enrol, "--out", tmp_path / "trainer")
        assert "may lie" not in run.authority(*enrol[:1], "one", *enrol[2:-2], "--out", tmp_path / "one")
        assert "host trainer, may use client-0, client-1\n" in run.authority("status")
        run.authority("revoke", "client-1", "--no-rotate")
        with pytest.raises(errors.EngineError, match="not an enrolled device"):
            run.host("other", "client-1")


@AS_ROOT
def test_attack_24_a_user_of_a_socket_uses_the_devices_listed_with_it(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, open_folder() as folder:
        program = shutil.copy(find_program("fedcipher-engine"), folder / "fedcipher-engine")
        for name, mode in {"run": 0o755, "state": 0o700, "etc": 0o700}.items():
            (folder / name).mkdir(mode=mode)
        for device in ("a", "b"):
            shutil.copytree(run.enrol(device), folder / "etc" / device)
        run.local.rotate()
        for name in ("run", "state", "etc"):
            owned(folder / name, ENGINE)
        command = [program, "serve", "--listen", f"unix:{folder}/run/e.sock", "--state", folder / "state"]
        command += ["--authority", run.local.authority.address, "--socket-group", str(GROUP)]
        command += ["--credentials", folder / "etc" / "a", "--credentials", folder / "etc" / "b"]
        command += ["--allow-uid", f"{TRAINER}=a", "--allow-uid", f"{MEMBER}=a", "--allow-uid", f"{MEMBER}=b"]
        with service_as(ENGINE, [ENGINE, GROUP], command, tmp_path / "e.log") as service:
            target = service.address
            assert as_user(target, TRAINER, GROUP).isdigit(), "its only device needs no name"
            assert as_user(target, TRAINER, GROUP, device="b") == "UnknownDeviceError"
            assert as_user(target, MEMBER, GROUP) == "UnknownDeviceError", "it must say which of its two"
            assert as_user(target, MEMBER, GROUP, device="a").isdigit()
            assert as_user(target, MEMBER, GROUP, device="b").isdigit()
            assert as_user(target, STRANGER, GROUP, device="a") == "AccessError"
            assert connect(target, device="b").client == 2, "root reads the engine's files anyway"


# --- names, keys, memory, the audit log ---------------------------------------------------------------


def test_enrolling_says_what_a_certificate_will_not_match(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        said = run.authority("enrol", "near", "--out", tmp_path / "near")
        assert "names localhost, 127.0.0.1 only" in said and "--name" in said
        said = run.authority("enrol", "far", "--out", tmp_path / "far", "--name", "nic-1.example")
        assert "only" not in said
        assert "only" not in run.authority(
            "enrol", "someone", "--role", "host", "--device", "far", "--out", tmp_path / "someone"
        )
        run.local.rotate()
        with (
            started(
                *("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", tmp_path / "state"),
                *("--authority", run.local.authority.address, "--credentials", tmp_path / "far"),
                *("--host", "someone", "--exit-with-parent", *lock_arguments()),
                log=tmp_path / "far.log",
            ) as served,
            pytest.raises(errors.AccessError, match=r"not for this name.*nic-1\.example.*--name"),
        ):
            connect(served.address, credentials=tmp_path / "someone")


def test_refused_attempts_are_counted_in_the_audit_log(tmp_path):
    with deployment(flashe(), 2, tmp_path / "a") as run, deployment(flashe(), 1, tmp_path / "b") as other:
        host, gone = run.host("trainer", "client-0"), run.enrol("gone")
        run.authority("revoke", "gone", "--no-rotate")
        foreign = other.enrol("foreign", "--role", "server")
        address, tries = run.local.authority.address, 40
        asks = field(1, "client-1") + field(2, bytes(16)) + field(3, bytes(1216))
        device = run.local.state.parent / "client-0"
        for folder, method, request in ((host, "ServerKeys", b""), (device, "Keys", asks), (gone, "Keys", asks)):
            with tls_channel(address, folder) as channel:
                call = channel.unary_unary(f"/fedcipher.v1.Authority/{method}")
                for _ in range(tries):
                    with pytest.raises(grpc.RpcError):
                        call(request, timeout=10)
        for _ in range(3):
            with pytest.raises(errors.EngineError):
                Authority(address, foreign)
        audit = lambda: run.authority("status", "--audit")  # noqa: E731
        assert until(lambda: "connection that broke off" in audit())
        text = until(audit)
        for line in (
            "host trainer: refuse a call for a server",
            "device client-0: refuse another device's key",
            "device gone: refuse revoked",
        ):
            rows = [row for row in text.splitlines() if line in row]
            # A minute may end in between.
            assert 1 <= len(rows) <= 3, rows
            until(lambda line=line: counted(audit(), line) >= tries)
            assert counted(audit(), line) == tries


def counted(text, line):
    return sum(int(n) for n in re.findall(re.escape(line) + r", (\d+) in this minute", text))


@AS_ROOT
@pytest.mark.parametrize("command", [["rotate"], ["revoke", "client-1"]])
def test_commands_that_hold_keys_lock_their_memory(command, tmp_path):
    user = 61001
    with open_folder() as folder:
        program = shutil.copy(find_program("fedcipher-authority"), folder / "fedcipher-authority")
        (folder / "spec.json").write_text(json.dumps(flashe(2).spec()))
        state = ("--state", folder / "authority")
        run_program("fedcipher-authority", *state, "init", "--spec", folder / "spec.json")
        for k in range(2):
            run_program("fedcipher-authority", *state, "enrol", f"client-{k}", "--out", folder / f"c{k}")
        run_program("fedcipher-authority", *state, "rotate")
        owned(folder / "authority", user)
        become = ["prlimit", "--memlock=65536:65536", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        whole = [*become, program, *state, *command]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "memory cannot be locked" in done.stderr, done.stdout
        done = subprocess.run([*whole, "--allow-swap"], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "epoch 2" in done.stdout, done.stderr


def test_keys_that_others_could_read_or_replace_are_refused(tmp_path):
    made = flashe(2)
    folder = fedcipher.keys.save(made.keygen(2), made, tmp_path / "keys")
    key = folder / "client-0.key"
    command = ("fedcipher-engine", "serve", "--listen", f"unix:{tmp_path}/e.sock", "--state", tmp_path / "engine")

    def start():
        with started(*command, "--key-file", key, *lock_arguments(), log=tmp_path / "log"):
            pass

    start()
    key.chmod(0o644)
    with pytest.raises(errors.EngineError, match=f"chmod 600 {key}"):
        start()
    key.chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(errors.EngineError, match=f"chmod go-w {folder}"):
        start()
    folder.chmod(0o700)
    start()
    with deployment(made, 1, tmp_path) as run:
        credentials = run.local.server_credentials
        (credentials / "key.pem").chmod(0o644)
        with pytest.raises(errors.EngineError, match=f"chmod 600 {credentials}/key.pem"):
            run.keys()
        (credentials / "key.pem").chmod(0o600)
        credentials.chmod(0o777)
        with pytest.raises(errors.EngineError, match="chmod go-w"):
            run.keys()
        credentials.chmod(0o700)
        assert run.keys().current().epoch == 1
