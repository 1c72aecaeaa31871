"""Attacks 7 and 8: what happens to a key's history, in real processes that share key files and state folders."""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import wire_tools
from engine_harness import CODEC, flashe
from fedcipher import errors, keys, scheme
from fedcipher.engine import connect
from fedcipher.engine.local import lock_arguments, started
from places import IMPORTED
from scheme_lists import adds, hides, one_key, schemes_that

UPDATE = [np.full(300, 0.5, np.float32)]

# What the Flower mod does in a client's process: the party of a context, an encryption, a result on a line.
CLIENT = (
    """
import sys, numpy as np
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.errors import FedcipherError

path, *rounds = sys.argv[1:]
own = {"fedcipher-key": path}
encrypt = lambda number: key_holder_of(own, {}).encryptor().encrypt([np.full(300, 0.5, np.float32)], round=number)
"""
    + wire_tools.EACH_ROUND
)


@pytest.fixture
def folder(tmp_path):
    made = flashe(2)
    return keys.save(made.keygen(2), made, tmp_path / "keys")


def client(path, *rounds, state=None):
    environment = {**os.environ, **({"FEDCIPHER_STATE_DIR": str(state)} if state else {})}
    command = [sys.executable, "-c", CLIENT, str(path), *map(str, rounds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def outcome(path, *rounds, state=None):
    return client(path, *rounds, state=state).communicate(timeout=120)[0].splitlines()


def engine(tmp_path, path, name, *more):
    command = ("fedcipher-engine", "serve", "--listen", f"unix:{tmp_path / name}.sock", "--exit-with-parent")
    command += ("--state", tmp_path / f"{name}-state", "--key-file", path, *more)
    return started(*command, *lock_arguments(), log=tmp_path / f"{name}.log")


def ledger(tmp_path):
    return next((tmp_path / "state").glob("*-0.nonce"))


def damage_flip(path):
    content = bytearray(path.read_bytes())
    # The newest entry: the one with the larger counter.
    at = max((64, 96), key=lambda at: struct.unpack_from("<Q", content, at + 8))
    content[at + 16] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "cut to nothing": lambda path: path.write_bytes(b""),
    "cut by one byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a flipped bit in the newest entry": damage_flip,
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("rounds", [[1], [1, 2, 3]])
@pytest.mark.parametrize("damage", DAMAGE)
def test_attack_7_a_damaged_ledger_is_no_fresh_start(damage, rounds, folder, tmp_path):
    path = folder / "client-0.key"
    assert outcome(path, *rounds) == [f"encrypted {r}" for r in rounds]
    DAMAGE[damage](ledger(tmp_path))
    for line in outcome(path, rounds[-1]) + outcome(path, rounds[-1] + 1):
        assert line.startswith("LedgerError") and "rotate the keys" in line, line
    assert outcome(folder / "client-1.key", rounds[-1]) == [f"encrypted {rounds[-1]}"]


def test_attack_7_another_state_folder_is_refused(folder, tmp_path):
    path = folder / "client-0.key"
    assert outcome(path, 1) == ["encrypted 1"]
    (line,) = outcome(path, 1, state=tmp_path / "other")
    assert line.startswith("KeyFormatError") and "another state folder" in line
    shutil.rmtree(tmp_path / "state")
    (line,) = outcome(path, 1)
    assert line.startswith("KeyFormatError") and "another state folder" in line


def test_attack_7_two_engines_with_one_key_file(folder, tmp_path):
    path = folder / "client-0.key"
    with engine(tmp_path, path, "first") as first:
        connect(first.address, device="client-0").encryptor().encrypt(UPDATE, round=1)
        with pytest.raises(errors.EngineError, match="KeyInUseError"), engine(tmp_path, path, "second"):
            pass
    # Not at the same time either.
    with pytest.raises(errors.EngineError, match="another state folder"), engine(tmp_path, path, "second"):
        pass
    with engine(tmp_path, path, "first") as first, pytest.raises(errors.NonceReuseError):
        connect(first.address, device="client-0").encryptor().encrypt(UPDATE, round=1)


def taken_port(_):
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, ["--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]


def damaged_key(folder):
    (folder / "client-1.key").write_bytes(b"no key")
    return None, ["--key-file", folder / "client-1.key"]


def used_key(folder):
    assert outcome(folder / "client-1.key", 1) == ["encrypted 1"]
    return None, ["--key-file", folder / "client-1.key"]


@pytest.mark.parametrize("cause", [taken_port, damaged_key, used_key])
def test_a_start_that_is_refused_binds_no_key_to_its_state_folder(folder, tmp_path, cause):
    path = folder / "client-0.key"
    held, more = cause(folder)
    with pytest.raises(errors.EngineError), engine(tmp_path, path, "first", *more):
        pass
    with engine(tmp_path, path, "second") as second:
        connect(second.address, device="client-0").encryptor().encrypt(UPDATE, round=1)
    if held:
        held.close()


@pytest.mark.parametrize("state", ["state", "first-state"])
def test_attack_7_an_engine_and_a_process_with_one_key_file(folder, tmp_path, state):
    path = folder / "client-0.key"
    with engine(tmp_path, path, "first"):
        (line,) = outcome(path, 1, state=tmp_path / state)
        assert line.startswith("KeyInUseError") and "fedcipher-engine" in line
    process = client(path, 1, "wait", state=tmp_path / "first-state")
    assert [process.stdout.readline().strip() for _ in range(2)] == ["encrypted 1", "waiting"]
    with pytest.raises(errors.EngineError, match="KeyInUseError"), engine(tmp_path, path, "first"):
        pass
    process.communicate("\n", timeout=60)
    with engine(tmp_path, path, "first") as first, pytest.raises(errors.NonceReuseError):
        connect(first.address, device="client-0").encryptor().encrypt(UPDATE, round=1)


# What opens an aggregate in a process of its own; which of two, the server says.
READER = """
import pathlib, sys
from engine_harness import flashe
from fedcipher import keys
from fedcipher.errors import FedcipherError
made, key = keys.open_client(sys.argv[1])
decryptor = made.decryptor(key)
for aggregate in sys.argv[2:]:
    try:
        decryptor.decrypt(pathlib.Path(aggregate).read_bytes())
        print("opened", flush=True)
    except FedcipherError as error:
        print(type(error).__name__, error, flush=True)
"""


def opened(path, *aggregates):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(IMPORTED)}
    command = [sys.executable, "-c", READER, str(path), *map(str, aggregates)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("claims", [1, 3])
@pytest.mark.parametrize("name", ["*-0.nonce", "ledgers.index"])
def test_attack_25_a_file_put_back_lets_no_round_be_encrypted_twice(name, claims, folder, tmp_path):
    path = folder / "client-0.key"
    assert outcome(path, 1) == ["encrypted 1"]
    file = next((tmp_path / "state").glob(name))
    copy = file.read_bytes()
    rounds = range(2, 2 + claims)
    assert outcome(path, *rounds) == [f"encrypted {r}" for r in rounds]
    file.write_bytes(copy)
    lines = outcome(path, *rounds)
    if name == "ledgers.index" and claims == 1:
        # What a power cut leaves: the index has not heard of the last claim yet.
        assert lines[0].startswith("NonceReuseError")
        assert outcome(path, 3) == ["encrypted 3"]
        return
    assert len(lines) == claims
    for line in lines:
        assert line.startswith("LedgerError") and "put back" in line and "rotate the keys" in line, line


@pytest.mark.parametrize("claims", [1, 3])
def test_attack_25_openings_put_back_let_no_second_aggregate_of_a_round_open(claims, folder, tmp_path):
    made, server = keys.load_server(folder)
    encryptors = [made.encryptor(keys.load_client(folder / f"client-{k}.key")[1]) for k in range(2)]
    rounds = range(1, 2 + claims)
    frames = [[encryptor.encrypt(UPDATE, round=r) for encryptor in encryptors] for r in rounds]

    def aggregate(name, updates):
        aggregator = made.aggregator(server)
        for frame in updates:
            aggregator.add(frame)
        (tmp_path / name).write_bytes(aggregator.finish())
        return tmp_path / name

    path = folder / "client-0.key"
    whole = [aggregate(f"whole-{k}", updates) for k, updates in enumerate(frames)]
    less = [aggregate(f"less-{k}", updates[1:]) for k, updates in enumerate(frames)]
    assert opened(path, whole[0]) == ["opened"]
    file = next((tmp_path / "state").glob("*-0.opened"))
    copy = file.read_bytes()
    assert opened(path, *whole[1:]) == ["opened"] * claims
    file.write_bytes(copy)
    for line in opened(path, *less[1:]):
        assert line.startswith("LedgerError") and "put back" in line, line


def test_attack_25_a_process_killed_at_any_time_leaves_a_ledger_that_goes_on():
    made = flashe(1)
    key = made.keygen(1).client(0)
    random, first = np.random.default_rng(25), 1
    for _ in range(40):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            encryptor = made.encryptor(key)
            for number in range(first, first + 10_000):
                encryptor.precompute(UPDATE, round=number)
                os.write(writing, struct.pack("<Q", number))
            os._exit(0)
        os.close(writing)
        time.sleep(random.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            claimed = pipe.read()
        if claimed:
            (last,) = struct.unpack("<Q", claimed[-8:])
            with pytest.raises(errors.NonceReuseError):
                made.encryptor(key).encrypt(UPDATE, round=last)
            first = last + 1
        # One more may have been claimed when the process ended.
        made.encryptor(key).encrypt(UPDATE, round=first + 1)
        first += 2


def test_processes_of_one_app_share_a_key_file_and_never_a_round(folder, tmp_path):
    path = folder / "client-0.key"
    processes = [client(path, "wait", *range(1, 21)) for _ in range(3)]
    assert [p.stdout.readline() for p in processes] == ["waiting\n"] * 3
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    lines = [line for p in processes for line in p.communicate(timeout=120)[0].splitlines()]
    done = [line for line in lines if line.startswith("encrypted")]
    assert len(done) == len(set(done)) and "encrypted 20" in done
    assert all(line.startswith(("encrypted", "NonceReuseError")) for line in lines), lines
    # Killed without a chance to tidy up, the lock goes with the process.
    process = client(path, 21, "wait")
    assert process.stdout.readline() == "encrypted 21\n"
    process.kill()
    process.communicate()
    with pytest.raises(errors.EngineError, match="another state folder"), engine(tmp_path, path, "first"):
        pass


def test_a_round_dated_far_ahead_does_not_brick_the_key(folder):
    path = folder / "client-0.key"
    now = int(time.time())
    ahead, today = (now + 3 * 86400) << 20, now << 20
    first, second = outcome(path, ahead, today + 1)
    assert first.startswith("WrongRoundError") and "clock" in first
    assert second == f"encrypted {today + 1}"


def forked(work):
    """What ``work`` makes in a forked process: bytes; an exception's text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            # Ends a child that waits for threads which only its parent has.
            signal.alarm(60)
            try:
                made = b"ok" + work()
            except BaseException as error:
                made = f"{type(error).__name__}: {error}".encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(made)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        made = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the forked process hung or died"
    return made


@pytest.mark.parametrize("size", [3000, 300_000])
def test_attack_8_bfv_precomputed_before_a_fork_is_not_used_twice(size, rng):
    made = scheme("bfv", clients=2, codec=CODEC)
    issued = made.keygen(2)
    encryptor = made.encryptor(issued.client(0))
    update = [rng.uniform(-1, 1, size).astype(np.float32)]
    encryptor.precompute(update, round=1)
    theirs = forked(lambda: encryptor.encrypt(update, round=1))
    ours = encryptor.encrypt(update, round=1)
    if theirs.startswith(b"ok"):
        frame = theirs[2:]
        assert len(frame) == len(ours)
        # Headers are equal; the payload begins with the seed. No 32 bytes of one are at their place in the other.
        same = np.frombuffer(frame, np.uint8) == np.frombuffer(ours, np.uint8)
        differs = int(np.argmin(same))
        assert frame[:differs] == ours[:differs] and differs < 512
        assert same[differs:-8].mean() < 0.02, "the seed was used twice"
    else:
        assert theirs.startswith((b"NonceReuseError", b"LedgerError")), theirs


IN_A_FORK = """
import os, signal, sys, threading
import numpy as np
import fedcipher
from fedcipher import errors

child = os.fork()
if child:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(60)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)
made = fedcipher.scheme("bfv", clients=2, codec=fedcipher.Codec(bits=12, clip=1.0))
encryptor = made.encryptor(made.keygen(2).client(0))
update, done = [np.zeros(1_500_000, np.float32)], []

def several(first):
    for number in range(first, 60, 8):
        try:
            encryptor.encrypt(update, round=number)
        except errors.NonceReuseError:
            # Another thread was quicker with a later one.
            pass
        encryptor.export_state()
        done.append(number)

threads = [threading.Thread(target=several, args=(first,)) for first in range(1, 9)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
os._exit(len(done) != 59)
"""


def test_threads_of_a_forked_process_that_share_an_encryptor_wait_for_each_other(tmp_path):
    """And not for themselves: a thread of the pool that waits takes up the next call."""
    environment = {**os.environ, "FEDCIPHER_STATE_DIR": str(tmp_path), "RAYON_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", IN_A_FORK], env=environment, timeout=120, check=False)
    assert done.returncode == 0, "it waits for ever"


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_a_forked_process_does_not_wait_for_its_parents_threads(name, rng):
    made = scheme(name, clients=2, codec=CODEC)
    issued = made.keygen(2)
    update = [rng.uniform(-1, 1, 1_200_000).astype(np.float32)]
    frames = [made.encryptor(issued.client(0)).encrypt(update, round=1)]
    # Only where it was the parent that woke them is there anything to wait for: it has, just now.
    theirs = forked(lambda: made.encryptor(issued.client(1)).encrypt(update, round=1))
    assert theirs.startswith(b"ok"), theirs[:300]
    frames.append(theirs[2:])
    aggregator = made.aggregator(issued.server())
    for frame in frames:
        aggregator.add(frame)
    total = aggregator.finish()
    opened = forked(lambda: made.decryptor(issued.client(0)).decrypt(total)[0].tobytes())
    assert np.abs(np.frombuffer(opened[2:], np.float32) - update[0]).max() < 1e-4


@pytest.mark.parametrize("precompute", [True, False])
def test_attack_8_flashe_encrypts_no_round_in_parent_and_child(precompute, rng):
    made = flashe(2)
    issued = made.keygen(2)
    encryptor = made.encryptor(issued.client(0))
    update = [rng.uniform(-1, 1, 300_000).astype(np.float32)]
    if precompute:
        encryptor.precompute(update, round=1)
    theirs = forked(lambda: encryptor.encrypt(update, round=1))
    assert theirs.startswith((b"ok", b"NonceReuseError")), theirs[:300]
    ours = b""
    with contextlib.suppress(errors.NonceReuseError):
        ours = encryptor.encrypt(update, round=1)
    assert theirs.startswith(b"ok") != bool(ours), "the round was encrypted by both, or by neither"
    frame = ours or theirs[2:]
    aggregator = made.aggregator(issued.server())
    aggregator.add(frame)
    got = made.decryptor(issued.client(1)).decrypt(aggregator.finish())[0]
    assert np.abs(got - update[0]).max() < 1e-4


def test_attack_8_hybrid_keys_made_after_a_fork_differ():
    made = scheme("pasta-bfv", clients=1, min_contributions=1, codec=CODEC)
    made.keygen(1)
    theirs = forked(lambda: made.keygen(1).client(0).to_bytes())
    ours = made.keygen(1).client(0).to_bytes()
    assert theirs.startswith(b"ok"), theirs[:300]
    # The thread's generator is seeded anew every 64 KiB: a fork repeats a part of the BFV secret, thousands of bytes.
    # Lengths are equal but for a byte or so of the library's coding: the secret lies at the end.
    assert abs(len(theirs) - 2 - len(ours)) < 64
    pieces = (ours[at : at + 256] for at in range(0, len(ours) - 256, 64))
    assert not any(piece in theirs for piece in pieces), "a part of the secret repeats"


def test_keygen_is_all_or_nothing_when_it_is_killed(tmp_path):
    """``kill -9`` at any time leaves a whole folder of keys or none."""
    out = tmp_path / "keys"
    command = [sys.executable, "-m", "fedcipher.cli", "keygen", "--equal", "--clients", "3000", "--out", str(out)]
    code = "import sys; from fedcipher import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *command[3:]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.rglob("client-1*.key")):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    assert not out.exists()
    small = ["3" if part == "3000" else part for part in command]
    assert subprocess.run(small, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert sorted(p.name for p in out.iterdir()) == [*(f"client-{k}.key" for k in range(3)), "server.key"]
    before = {p: p.read_bytes() for p in out.iterdir()}
    done = subprocess.run(small, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "delete the old keys first" in done.stderr
    assert {p: p.read_bytes() for p in out.iterdir()} == before
