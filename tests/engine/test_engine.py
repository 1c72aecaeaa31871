"""The offload engine against the core in this process: same integers, no key on the host."""

import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from engine_harness import deployment, field, flashe, socket_channel, until, updates
from fedcipher import errors
from fedcipher.codec import Codec
from fedcipher.engine import connect
from fedcipher.engine.host import scheme_of
from fedcipher.engine.local import find_program, lock_arguments, run_program, started
from scheme_lists import hides, in_core, one_key, schemes_and_params, schemes_that, works

COMMON_CHOICE = pytest.param("flashe", {"codec": Codec(bits=16, clip=1.0, target="delta", top=0.1)}, id="common choice")


@pytest.mark.parametrize(("name", "params"), [*schemes_and_params(one_key, in_core, long=works), COMMON_CHOICE])
def test_an_engine_computes_what_the_core_computes(name, params, tmp_path):
    weight = 5 if params.get("server_weights") else 1
    made = fedcipher.scheme(name, clients=3, max_weight=weight, **{"codec": Codec(bits=12, clip=1.0), **params})
    inputs = updates(3)
    issued = made.keygen(3)
    here, there = made.aggregator(issued.server()), None
    with deployment(made, 3, tmp_path) as run:
        engines = [run.connect(k) for k in range(3)]
        there = engines[0].scheme.aggregator(run.keys().current())
        for k, update in enumerate(inputs):
            plan = made.round_plan(issued.server(), range(3))
            here.add(made.encryptor(issued.client(k)).encrypt(update, round=1, weight=weight, round_plan=plan))
            encryptor = engines[k].encryptor()
            encryptor.precompute(update, round=1, round_plan=plan)
            there.add(encryptor.encrypt(update, round=1, weight=weight, round_plan=plan))
            assert encryptor.stats.frame_bytes > 0
            if made.sends_parts:
                state = encryptor.export_state()
                assert len(state) == 4 * sum(x.size for x in update)
                encryptor.import_state(state)
        ours, theirs = here.finish(), there.finish()
        one = made.decryptor(issued.client(0)).open(ours, like=inputs[0])
        other = engines[1].decryptor().open(theirs, round=1, like=inputs[0])
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            assert np.array_equal(a, b)
        assert [c.client for c in other.contributions] == [0, 1, 2]
        sums = engines[2].decryptor().sums(theirs, like=inputs[0])
        assert np.array_equal(made.decryptor(issued.client(0)).sums(ours, like=inputs[0]), sums)
        assert (one.counts is None) == (other.counts is None)
        with pytest.raises(errors.WrongRoundError):
            engines[1].decryptor().open(theirs, round=2, like=inputs[0])
        with pytest.raises(errors.FrameError):
            engines[1].decryptor().open(theirs[:-1] + bytes([theirs[-1] ^ 1]), like=inputs[0])


_HOST = """
import sys, numpy as np
from fedcipher.engine import connect
engine = connect(sys.argv[1], device="client-0")
update = [np.full(200_000, 0.25, np.float32)]
frame = engine.encryptor().encrypt(update, round=1)
print("ready", flush=True)
sys.stdin.readline()
"""

_SCAN = """
import re, sqlite3, sys
secret = sqlite3.connect(sys.argv[1]).execute("SELECT key FROM keys WHERE device = 'client-0'").fetchone()[0]
# Behind the key's header (128 bytes and one contribution) and before its checksum: the cohort's, then the scheme's.
secret = secret[140:-8]
# PASTA: the client's words, then a public ciphertext that travels, then the ring secret.
secret = secret if len(secret) < 5000 else secret[32:544] + secret[-4096:]
# A ring secret has few byte values: it takes longer pieces to be told from chance.
width = 16 if len(secret) < 200 else 64
windows = {secret[i : i + width] for i in range(0, len(secret) - width + 1, max(1, len(secret) // 5))}
windows = {w for w in windows if len(set(w)) >= 3}
assert windows
for pid in sys.argv[2:]:
    found = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            start, end, perms = re.match(r"(\\w+)-(\\w+) (\\S+)", line).groups()
            if "r" not in perms or "[v" in line:
                continue
            try:
                memory.seek(int(start, 16))
                content = memory.read(int(end, 16) - int(start, 16))
            except OSError:
                continue
            found |= {w for w in windows if w in content}
    print(len(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="reading another process's memory needs root")
@pytest.mark.parametrize("name", schemes_that(hides, one_key, in_core, long=works))
def test_key_bytes_are_in_the_engine_and_not_in_the_host(name, tmp_path):
    made = fedcipher.scheme(name, clients=2, codec=Codec(bits=12, clip=1.0))
    with deployment(made, 2, tmp_path) as run:
        host = subprocess.Popen(
            [sys.executable, "-c", _HOST, run.local.target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert host.stdout.readline() == "ready\n"
            pids = [str(host.pid), str(run.local.engine.process.pid)]
            database = str(run.local.state / "authority.db")
            scan = subprocess.run([sys.executable, "-c", _SCAN, database, *pids], capture_output=True, text=True)
            assert scan.returncode == 0, scan.stderr
            in_host, in_engine = map(int, scan.stdout.split())
        finally:
            host.kill()
            host.wait()
    assert in_host == 0
    if name != "bfv":
        # BFV keeps its secret in the NTT domain only; the others as it was issued.
        assert in_engine > 0


def test_the_engine_gives_up_dumps_and_tracing(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        pid = run.local.engine.process.pid
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)
        # A process that is not dumpable belongs to root in /proc, whoever runs it.
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0
        if os.geteuid() == 0:
            locked = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmLck"))
            assert int(locked.split()[1]) > 0


def _encrypt(engine, update, round_number):
    return engine.encryptor().encrypt(update, round=round_number)


def _decrypt(engine, aggregate):
    return engine.decryptor().decrypt(aggregate)


def test_an_engine_that_starts_after_its_run_has_begun_takes_part(tmp_path):
    """Its key was issued to it alone, so no round of it can have been encrypted elsewhere, however old."""
    begun = (int(time.time()) - 3600) << 20
    with deployment(flashe(), 1, tmp_path) as run:
        encryptor = run.connect(0).encryptor()
        for number in (1, 2):
            assert encryptor.encrypt(updates(1)[0], round=begun + number)
        with pytest.raises(errors.NonceReuseError):
            encryptor.encrypt(updates(1)[0], round=begun + 2)


def test_thirty_two_clients_at_once(tmp_path):
    clients, rounds = 32, 3
    made = flashe(clients)
    inputs = updates(clients, 60_000)
    with deployment(made, clients, tmp_path) as run:
        engines = [run.connect(k) for k in range(clients)]
        for number in range(1, rounds + 1):
            aggregator = engines[0].scheme.aggregator(run.keys().current())
            with ThreadPoolExecutor(clients) as pool:
                encrypt = partial(_encrypt, round_number=number)
                for frame in pool.map(encrypt, engines, inputs):
                    aggregator.add(frame)
                aggregate = aggregator.finish()
                models = list(pool.map(_decrypt, engines, [aggregate] * clients))
            expected = np.mean([u[0].clip(-1, 1) for u in inputs], axis=0)
            for model in models:
                assert np.array_equal(model[0], models[0][0])
            assert np.abs(models[0][0] - expected).max() < 1e-4


def test_metrics_tell_phases_bytes_and_outcomes(tmp_path):
    made = flashe(2)
    folder = fedcipher.keys.save(made.keygen(2), made, tmp_path / "keys")
    with open_engine(tmp_path, folder, "--metrics", "127.0.0.1:19464") as target:
        engine = connect(target, device="client-0")
        engine.encryptor().encrypt(updates(1)[0], round=1)
        with pytest.raises(errors.NonceReuseError):
            engine.encryptor().encrypt(updates(1)[0], round=1)
        with urllib.request.urlopen("http://127.0.0.1:19464/metrics") as page:
            text = page.read().decode()
        with socket_channel(target) as channel:
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert health(field(1, "fedcipher.v1.Engine"), timeout=10) == field(1, 1), "not SERVING"
    assert 'fedcipher_engine_bytes_total{direction="values_in"} 12040' in text
    assert 'fedcipher_engine_calls_total{call="encrypt",outcome="ok"} 1' in text
    assert 'fedcipher_engine_calls_total{call="encrypt",outcome="NonceReuseError"} 1' in text
    assert 'fedcipher_engine_seconds_total{phase="encrypt"}' in text
    assert "key" not in text.lower()


@contextmanager
def open_engine(tmp_path, keys, *arguments):
    """An engine over key files, without an authority; yields its target."""
    files = [part for path in sorted(Path(keys).glob("client-*.key")) for part in ("--key-file", path)]
    target = f"unix:{tmp_path / 'engine.sock'}"
    command = ("fedcipher-engine", "serve", "--listen", target, "--state", tmp_path / "engine", "--exit-with-parent")
    with started(*command, *files, *arguments, *lock_arguments(), log=tmp_path / "engine.log") as service:
        assert service.address == target
        yield target


def test_a_terminated_engine_finishes_what_is_under_way(tmp_path):
    made = flashe(2)
    issued = made.keygen(2)
    folder = fedcipher.keys.save(issued, made, tmp_path / "keys")
    update = [np.full(60_000_000, 0.5, np.float32)]
    with open_engine(tmp_path, folder) as target:
        engine = connect(target, device="client-0")
        frames = []
        thread = threading.Thread(target=lambda: frames.append(engine.encryptor().encrypt(update, round=1)))
        thread.start()
        time.sleep(0.15)
        pids = subprocess.run(
            ["pgrep", "-f", str(tmp_path / "engine.sock")], capture_output=True, text=True, check=True
        )
        os.kill(int(pids.stdout.split()[0]), signal.SIGTERM)
        assert thread.is_alive(), "the update was too small to be cut short"
        thread.join()
        assert frames, "the engine dropped the stream it was serving"
        aggregator = made.aggregator(issued.server())
        aggregator.add(frames[0])
        assert abs(made.decryptor(issued.client(1)).decrypt(aggregator.finish())[0][::1000] - 0.5).max() < 1e-4
        time.sleep(0.5)
        with pytest.raises(errors.EngineUnavailableError):
            connect(target, device="client-0")
        assert not (tmp_path / "engine.sock").exists()


def test_the_socket_is_its_owners_alone(tmp_path):
    made = flashe(2)
    folder = fedcipher.keys.save(made.keygen(2), made, tmp_path / "keys")
    with open_engine(tmp_path, folder) as target:
        assert stat.S_IMODE((tmp_path / "engine.sock").stat().st_mode) == 0o600
        others = fedcipher.keys.save(made.keygen(2), made, tmp_path / "others")
        with pytest.raises(errors.EngineError, match="another engine answers"), open_engine(tmp_path, others):
            pass
        assert connect(target, device="client-1").client == 1
    # One that a dead engine has left behind is replaced, somebody's file is not.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "engine.sock"))
    with open_engine(tmp_path, folder) as target:
        assert connect(target, device="client-1").client == 1
    (tmp_path / "engine.sock").unlink(missing_ok=True)
    (tmp_path / "engine.sock").write_text("somebody's")
    with pytest.raises(errors.EngineError, match="not a socket"), open_engine(tmp_path, folder):
        pass
    assert (tmp_path / "engine.sock").read_text() == "somebody's"
    (tmp_path / "engine.sock").unlink()
    tmp_path.chmod(0o777)
    with (
        pytest.raises(errors.EngineError, match="who may write to"),
        open_engine(tmp_path, folder),
    ):
        pass
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_of_the_machine_is_refused(open_path):
    made = flashe(2)
    folder = fedcipher.keys.save(made.keygen(2), made, open_path / "keys")
    with open_engine(open_path, folder) as target:
        # Even where the file's permissions have been opened by mistake.
        (open_path / "engine.sock").chmod(0o777)
        code = f"""
import grpc, os
options = [("grpc.default_authority", "engine")]
call = grpc.insecure_channel({target!r}, options=options).unary_unary("/fedcipher.v1.Engine/Describe")
os.setgid(65534); os.setuid(65534)
try:
    call(b"", timeout=10)
except grpc.RpcError as error:
    print(dict(error.trailing_metadata()).get("fedcipher-class"))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "AccessError", done.stderr


def test_the_engine_needs_keys_and_the_authority_a_sound_scheme(tmp_path):
    engine = find_program("fedcipher-engine")
    command = [engine, "serve", "--listen", f"unix:{tmp_path / 'x.sock'}", "--state", tmp_path, "--allow-swap"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--key-file" in done.stderr
    (tmp_path / "spec.json").write_text('{"scheme": "rot13", "params": {}, "codec": {"bits": 8}}')
    with pytest.raises(errors.EngineError, match="rot13"):
        run_program("fedcipher-authority", "--state", tmp_path / "a", "init", "--spec", tmp_path / "spec.json")


def test_ended_epochs_leave_no_keys_in_the_store(tmp_path):
    with deployment(flashe(), 2, tmp_path) as run:
        database = run.local.state / "authority.db"
        first = sqlite3.connect(database).execute("SELECT key FROM keys WHERE epoch = 1").fetchone()[0][124:-8]
        keys = run.keys()
        run.local.rotate()
        assert keys.current().epoch == 2
        keys.finish_epoch(2)
        assert sqlite3.connect(database).execute("SELECT COUNT(key) FROM keys WHERE epoch = 1").fetchone() == (0,)
        sqlite3.connect(database).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert first not in database.read_bytes()
        assert stat.S_IMODE(database.stat().st_mode) == 0o600


@pytest.mark.parametrize("spec", ["[" * 100_000, '{"a":' * 100_000, "no JSON", ""])
def test_an_engine_that_does_not_say_a_scheme_is_refused(spec):
    with pytest.raises(errors.EngineError, match="did not send a scheme"):
        scheme_of(spec)


def test_ended_epochs_leave_no_ledgers_and_other_epochs_keep_theirs(tmp_path):
    def ledgers():
        return sorted(path.name for path in tmp_path.rglob("*") if path.suffix in (".nonce", ".opened"))

    with deployment(flashe(), 2, tmp_path) as run:
        keys, engines = run.keys(), [run.connect(k) for k in range(2)]
        first = ledgers()
        assert len(first) == 4
        for epoch in (2, 3, 4):
            assert run.local.rotate() == epoch
            # Those of the epoch before are there as long as it is usable.
            assert until(lambda: len(ledgers()) == 8)
            assert keys.current().epoch == epoch
            keys.finish_epoch(epoch)
            assert until(lambda: len(ledgers()) == 4)
            for engine, update in zip(engines, updates(2), strict=True):
                engine.encryptor(epoch).encrypt(update, round=epoch)
        assert not set(first) & set(ledgers())
