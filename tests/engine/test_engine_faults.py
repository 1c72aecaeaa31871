"""What may go wrong between hosts, engines and the authority, each against real processes."""

import logging
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone

import grpc
import numpy as np
import pytest
from engine_harness import (
    deployment,
    encrypt_begin,
    error_class,
    field,
    flashe,
    flat_layout,
    raw_call,
    socket_channel,
    until,
    updates,
    values,
)
from fedcipher import errors
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.codec import Codec
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import find_program, lock_arguments, started
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAdam, FedAvg


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def strategy_of(run, clients, seen=None):
    averaging = FedAvg(fraction_train=1.0, min_train_nodes=clients, min_available_nodes=clients)
    return SecureStrategy(averaging, run.keys(), out=run.folder / "model", on_round=seen)


def grid_of(run, clients, tamper=None):
    targets = [[np.full((20, 30), k / 8, np.float32), np.zeros(7, np.float32)] for k in range(clients)]
    grid = LocalGrid(make_app(targets, [10] * clients), clients, "none", tamper)
    for context in grid.contexts.values():
        context.node_config["fedcipher-engine"] = run.local.target
    return grid, targets


def test_an_engine_is_an_opener_that_holds_no_key_in_the_server(tmp_path, caplog):
    """The strategy around it steps by the mean; the process of the server has no key."""
    caplog.set_level(logging.INFO)
    with deployment(flashe(codec=Codec(bits=16)), 4, tmp_path) as run:
        adam = FedAdam(min_train_nodes=3, min_available_nodes=3, min_evaluate_nodes=3)
        strategy = SecureStrategy(adam, run.keys(), opener=run.connect(3).decryptor())
        grid, targets = grid_of(run, 3)
        scores = []
        result = strategy.start(
            grid,
            record(initial()),
            num_rounds=3,
            evaluate_fn=lambda _, a: scores.append(a.to_numpy_ndarrays()[0].mean()),
        )
        assert len(scores) == 4 and scores[3] == result.arrays.to_numpy_ndarrays()[0].mean() > scores[0] == 0
        assert "this server sees each round's mean; " in caplog.text


# --- the engine dies ---------------------------------------------------------------------------


def test_an_engine_killed_in_mid_stream_is_a_named_error(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        engine = run.connect(0)
        caught = []

        def encrypt():
            try:
                engine.encryptor().encrypt([np.zeros(80_000_000, np.float32)], round=1)
            except errors.FedcipherError as error:
                caught.append(error)

        thread = threading.Thread(target=encrypt)
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive()
        run.local.engine.process.kill()
        thread.join(20)
        assert isinstance(caught[0], errors.EngineUnavailableError), caught
        with pytest.raises(errors.EngineUnavailableError):
            engine.encryptor().encrypt([np.zeros(10, np.float32)], round=2)


def cause_of(left_out, caplog):
    """The class that the client's own log has under the reference that the server was given."""
    (reference,) = re.findall(r"reference ([0-9a-f]{8})$", left_out)
    return re.search(rf"refused, reference {reference}: (\w+):", caplog.text)[1]


def test_the_round_goes_on_without_the_client_whose_engine_died(tmp_path, caplog):
    with deployment(flashe(), 3, tmp_path) as run:
        run.enrol("client-9")
        run.local.rotate()
        own = run.engine("own", "--credentials", run.folder / "client-9")
        rounds, killed = [], []

        def after(finished):
            # Client 2 loses its engine after the first round.
            rounds.append(finished)
            if not killed:
                own.process.kill()
                killed.append(own.process.wait())

        strategy = strategy_of(run, 3, after)
        grid, _ = grid_of(run, 3)
        grid.contexts[1002].node_config.update({"fedcipher-engine": own.address, "fedcipher-device": "client-9"})
        strategy.start(grid, record(initial()), num_rounds=3)
        assert killed == [-signal.SIGKILL]
        assert [len([c for c in r.clients if c.left_out is None]) for r in rounds] == [3, 2, 2]
        lost = [c for c in rounds[1].clients if c.left_out]
        assert lost[0].client == 3 and cause_of(lost[0].left_out, caplog) == "EngineUnavailableError"
        model = strategy.open_model(run.connect(0).decryptor())
        assert np.isfinite(model[0]).all()


def test_a_restarted_engine_takes_its_key_up_again_and_refuses_a_used_round(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        run.enrol("client-9")
        run.local.rotate()
        one = run.engine("own", "--credentials", run.folder / "client-9")
        connect(one.address).encryptor().encrypt(updates(1)[0], round=5)
        one.process.kill()
        one.process.wait()
        again = run.engine("own", "--credentials", run.folder / "client-9")
        engine = connect(again.address)
        with pytest.raises(errors.NonceReuseError):
            engine.encryptor().encrypt(updates(1)[0], round=5)
        engine.encryptor().encrypt(updates(1)[0], round=6)


def test_two_engines_with_one_identity(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        run.enrol("client-9")
        run.local.rotate()
        run.engine("own", "--credentials", run.folder / "client-9")
        with pytest.raises(errors.EngineError, match=r"IdentityInUseError.*another engine"):
            run.engine("twin", "--credentials", run.folder / "client-9")
        assert "refuse second engine epoch 2" in run.authority("status", "--audit")


# --- the authority dies ------------------------------------------------------------------------


def test_no_epoch_is_lost_or_made_twice_when_rotations_are_killed(tmp_path):
    with deployment(flashe(), 3, tmp_path) as run:
        program = find_program("fedcipher-authority")
        command = [program, "--state", str(run.local.state), "rotate", *lock_arguments()]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        usual = time.perf_counter() - began
        killed = 0
        while killed < 10:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(random.uniform(0, 1.2 * usual))
            killed += process.poll() is None
            process.kill()
            process.communicate()
        # The service, killed too, between two looks at its store.
        run.local.authority.process.kill()
        run.local.authority.process.wait()
        newest = run.local.rotate()
        rows = sqlite3.connect(run.local.state / "authority.db").execute(
            "SELECT epoch, state, COUNT(keys.key) FROM epochs JOIN keys USING (epoch) GROUP BY epoch ORDER BY epoch"
        )
        epochs = rows.fetchall()
        assert [e for e, _, _ in epochs] == list(range(1, newest + 1))
        assert [s for _, s, _ in epochs[-2:]] == ["previous", "current"]
        assert all(count == (0 if state == "ended" else 3) for _, state, count in epochs)
        audit = run.authority("status", "--audit")
        assert re.findall(r"rotate epoch (\d+)", audit) == [str(e) for e in range(1, newest + 1)]


def test_scheduled_rotations_survive_kills_of_the_service(tmp_path):
    with deployment(flashe(), 2, tmp_path) as run:
        program = find_program("fedcipher-authority")
        serve = ["serve", "--listen", "127.0.0.1:0", "--rotate-every", "1", "--allow-swap"]
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            service = subprocess.Popen([program, "--state", str(run.local.state), *serve], stderr=subprocess.DEVNULL)
            time.sleep(random.uniform(0.3, 1.6))
            service.kill()
            service.wait()
        rotated = list(map(int, re.findall(r"rotate epoch (\d+)", run.authority("status", "--audit"))))
        assert len(rotated) >= 3
        assert rotated == list(range(1, len(rotated) + 1))


def test_rounds_go_on_while_the_authority_is_away(tmp_path, caplog):
    with deployment(flashe(), 2, tmp_path) as run:
        rounds = []
        strategy = strategy_of(run, 2, rounds.append)

        def tamper(message, reply, client):
            if rounds and run.local.authority.process.poll() is None:
                run.local.authority.process.kill()
                run.local.authority.process.wait()
            return reply

        grid, _ = grid_of(run, 2, tamper)
        strategy.start(grid, record(initial()), num_rounds=3)
        assert [[c.left_out for c in r.clients] for r in rounds] == [[None, None]] * 3
        assert "continuing with the keys of epoch 1" in caplog.text


# --- epochs ------------------------------------------------------------------------------------


def test_a_rotation_in_a_run_ends_no_round_of_it(tmp_path):
    with deployment(flashe(), 3, tmp_path) as run:
        rounds = []
        strategy = strategy_of(run, 3, rounds.append)

        def tamper(message, reply, client):
            if len(rounds) == 1 and client == 0 and "train" in message.metadata.message_type and not rotated:
                rotated.append(run.local.rotate())
            return reply

        rotated = []
        grid, targets = grid_of(run, 3, tamper)
        strategy.start(grid, record(initial()), num_rounds=4)
        # A run keeps the epoch that its charter names, which stays usable for as long.
        assert [r.epoch for r in rounds] == [1, 1, 1, 1]
        assert all(c.left_out is None for r in rounds for c in [*r.clients, *r.evaluations])
        expected = np.zeros((20, 30))
        for _ in rounds:
            expected = (expected + np.mean([t[0] for t in targets], axis=0)) / 2
        assert np.abs(strategy.open_model(run.connect(1).decryptor())[0] - expected).max() < 1e-3
        assert "epoch 1: ended" not in run.authority("status")
        run.authority("rotate", "--force")
        assert "epoch 1: ended" in run.authority("status")
        engine = run.connect(0)
        deadline = time.monotonic() + 10
        while 1 in engine._client.describe()[2] and time.monotonic() < deadline:
            time.sleep(0.2)
        with pytest.raises(errors.WrongEpochError):
            engine.encryptor(1).encrypt(updates(1)[0], round=2**62)


def test_calls_that_fetch_an_epoch_at_once_do_not_lose_what_one_of_them_reserved(tmp_path):
    """Fetched twice, the key that came later took the other's place, and its reserved round counted as used."""
    with deployment(flashe(), 1, tmp_path) as run:
        engines = [run.connect(0) for _ in range(8)]
        (update,) = updates(1)

        def call(k, epoch, at_once):
            encryptor = engines[k].encryptor(epoch)
            at_once.wait(30)
            if k:
                return encryptor.export_state()
            encryptor.precompute(update, round=epoch)
            return encryptor.encrypt(update, round=epoch)

        with ThreadPoolExecutor(len(engines)) as pool:
            for _ in range(8):
                epoch = int(run.authority("rotate", "--force").split()[-1])
                at_once = threading.Barrier(len(engines))
                for done in [pool.submit(call, k, epoch, at_once) for k in range(len(engines))]:
                    done.result()


def test_an_authority_from_a_backup_serves_again_once_its_epochs_are_past_those_it_forgot(tmp_path):
    """Under the number of a forgotten epoch there is another key, which devices that know the first one do not take."""
    with deployment(flashe(), 2, tmp_path) as run:
        engines = [run.connect(k) for k in range(2)]
        address, log = run.local.authority.address, tmp_path / "again.log"

        def summed(epoch, round):
            server = run.keys().current()
            assert server.epoch == epoch
            aggregator = run.scheme.aggregator(server, round=round)
            for engine, update in zip(engines, updates(2), strict=True):
                aggregator.add(engine.encryptor(epoch).encrypt(update, round=round))
            return engines[0].decryptor().decrypt(aggregator.finish(), round=round)

        run.local.authority.stop()
        backup = shutil.copytree(run.local.state, tmp_path / "backup")
        serve = ("--state", run.local.state, "serve", "--listen", address, *lock_arguments())
        with started("fedcipher-authority", *serve, log=log):
            assert run.local.rotate() == 2
            summed(2, 1)
        shutil.rmtree(run.local.state)
        shutil.copytree(backup, run.local.state)
        with started("fedcipher-authority", *serve, log=log):
            assert run.local.rotate() == 2
            with pytest.raises(errors.WrongEpochError):
                summed(2, 2)
            assert "epoch 3" in run.authority("rotate", "--force")
            mean = summed(3, 3)
        want = np.mean([np.clip(u[0], -1, 1) for u in updates(2)], axis=0)
        assert np.abs(mean[0] - want).max() < 1e-3


def test_an_epoch_that_a_federation_still_needs_is_not_rotated_away(tmp_path):
    with deployment(flashe(), 2, tmp_path) as run:
        keys = run.keys()
        assert keys.current().epoch == 1
        assert run.local.rotate() == 2
        with pytest.raises(errors.EngineError, match="epoch 1 is still in use"):
            run.local.rotate()
        keys.finish_epoch(2)
        assert run.local.rotate() == 3
        run.keys()
        assert "epoch 4" in run.authority("rotate", "--force")


@pytest.mark.parametrize("target", ["delta", "weights"])
def test_the_first_round_of_a_run_ends_the_epochs_before_it(tmp_path, target):
    """Each run keeps the epoch that it began with, and the authority can rotate once between two runs."""

    def runs_a_round(name):
        averaging = FedAvg(fraction_train=1.0, min_train_nodes=3, min_available_nodes=3)
        strategy = SecureStrategy(averaging, run.keys(), out=tmp_path / name)
        strategy.start(grid_of(run, 3)[0], record(initial()), num_rounds=2)
        return [one.epoch for one in strategy.rounds]

    with deployment(flashe(codec=Codec(bits=16, target=target)), 3, tmp_path) as run:
        assert runs_a_round("first") == [1, 1]
        for epoch, name in ((2, "second"), (3, "third")):
            assert run.local.rotate() == epoch
            with pytest.raises(errors.EngineError, match=f"epoch {epoch - 1} is still in use"):
                run.local.rotate()
            assert until(lambda: run.connect(0).epochs[-1] == epoch)  # noqa: B023
            assert runs_a_round(name) == [epoch, epoch]


def is_revoked(call):
    try:
        call()
    except errors.RevokedError:
        return True
    return False


def test_a_revoked_device_is_refused_at_once_and_gets_no_further_epoch(tmp_path, caplog):
    with deployment(flashe(), 3, tmp_path) as run:
        rounds = []
        strategy = strategy_of(run, 3, rounds.append)

        def tamper(message, reply, client):
            if len(rounds) == 1 and client == 0 and "revoked" not in run.authority("status"):
                run.authority("revoke", "client-1")
            return reply

        grid, _ = grid_of(run, 3, tamper)
        strategy.start(grid, record(initial()), num_rounds=3)
        left_out = [{c.client: c.left_out for c in r.clients if c.left_out} for r in rounds]
        assert left_out[0] == {}
        # In the round of its revocation its ciphertext comes and is refused.
        assert "RevokedError" in left_out[1][1]
        # In the next too, unless its engine has refused it before.
        last = left_out[2][1]
        refused = ("RevokedError", "WrongEpochError", "AccessError")
        assert "RevokedError" in last or cause_of(last, caplog) in refused
        assert [r.epoch for r in rounds] == [1, 1, 1]
        # Its engine knows after the refresh period, and three rounds may take less.
        assert until(lambda: is_revoked(lambda: run.connect(1)))
        assert "client-1: issue epoch 2" not in run.authority("status", "--audit")
        with pytest.raises(errors.EngineError, match="not used twice"):
            run.enrol("client-1")


def test_a_party_is_what_the_authority_enrolled_it_as_whatever_its_certificate_says(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        assert run.keys().current().epoch == 1
        store = next(tmp_path.rglob("authority.db"))
        with closing(sqlite3.connect(store)) as database, database:
            assert database.execute("UPDATE parties SET role = 'host' WHERE name = 'aggregator'").rowcount == 1
        with pytest.raises(errors.AccessError, match="aggregator"):
            run.keys().current()


# --- certificates ------------------------------------------------------------------------------


def test_bad_certificates_are_refused_by_the_authority(tmp_path):
    with deployment(flashe(), 1, tmp_path / "a") as run, deployment(flashe(), 1, tmp_path / "b") as other:
        expired = run.enrol("expired", "--from", "2020-01-01T00:00:00Z", "--days", "30")
        tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat(timespec="seconds")
        # To a device whose clock is behind, or an authority whose clock is ahead, a certificate is of tomorrow.
        early = run.enrol("early", "--from", tomorrow)
        foreign = other.enrol("foreign")
        revoked = run.enrol("revoked")
        run.authority("revoke", "revoked", "--no-rotate")
        host = run.host("trainer", "client-0")
        run.local.rotate()
        for name, folder, said in [
            ("expired", expired, "AccessError.*has expired.*clocks"),
            ("early", early, "AccessError.*not valid yet.*clocks"),
            ("foreign", foreign, "AccessError.*authority"),
            ("revoked", revoked, "RevokedError"),
        ]:
            with pytest.raises(errors.EngineError, match=said):
                run.engine(name, "--credentials", folder)
        with pytest.raises(errors.EngineError, match="of host trainer, not of a device"):
            run.engine("host", "--credentials", host)
        with pytest.raises(errors.AccessError, match="for a server"):
            Authority(run.local.authority.address, host)
        with pytest.raises(errors.AccessError):
            Authority(run.local.authority.address, other.local.server_credentials)


def test_engines_over_tls_admit_their_hosts_only(tmp_path):
    with deployment(flashe(), 1, tmp_path / "a") as run, deployment(flashe(), 1, tmp_path / "b") as other:
        nic = run.enrol("nic")
        run.local.rotate()
        with started(
            *("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", tmp_path / "state"),
            *("--authority", run.local.authority.address, "--credentials", nic, "--host", "trainer"),
            *("--exit-with-parent", *lock_arguments()),
            log=tmp_path / "nic.log",
        ) as served:
            trainer = run.host("trainer", "nic")
            engine = connect(served.address, credentials=trainer)
            update = updates(1)[0]
            aggregator = engine.scheme.aggregator(run.keys().current())
            aggregator.add(engine.encryptor().encrypt(update, round=1))
            decrypted = engine.decryptor().decrypt(aggregator.finish())
            assert np.abs(decrypted[0] - update[0].clip(-1, 1)).max() < 1e-4
            stranger = run.host("stranger", "nic")
            with pytest.raises(errors.AccessError, match="host stranger may not use"):
                connect(served.address, credentials=stranger)
            with pytest.raises(errors.AccessError, match="device nic may not use"):
                connect(served.address, credentials=nic)
            expired = run.host("old", "nic", options=("--from", "2020-01-01T00:00:00Z", "--days", "30"))
            for credentials in (other.host("trainer", "client-0"), expired):
                with pytest.raises(errors.AccessError):
                    connect(served.address, credentials=credentials)
            with pytest.raises(errors.EngineError, match="credentials"):
                connect(served.address)


def test_a_key_made_on_the_device_never_leaves_it(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run:
        folder = tmp_path / "nic"
        request = [find_program("fedcipher-engine"), "request", "nic", "--out", str(folder)]
        subprocess.run(request, check=True)
        key = (folder / "key.pem").read_text()
        run.authority("enrol", "nic", "--request", folder / "request.pem", "--out", folder)
        assert (folder / "key.pem").read_text() == key
        run.local.rotate()
        served = run.engine("nic", "--credentials", folder)
        assert connect(served.address).epochs == [2]
        assert key.splitlines()[1].encode() not in (run.local.state / "authority.db").read_bytes()


# --- hosts that misbehave ----------------------------------------------------------------------


def test_a_device_gets_no_other_devices_key(tmp_path):
    with deployment(flashe(), 2, tmp_path) as run:
        folder = run.local.state.parent / "client-0"
        read = lambda name: (folder / name).read_bytes()  # noqa: E731
        credentials = grpc.ssl_channel_credentials(read("authority.pem"), read("key.pem"), read("certificate.pem"))
        with grpc.secure_channel(run.local.authority.address, credentials) as channel:
            call = channel.unary_unary("/fedcipher.v1.Authority/Keys")
            with pytest.raises(grpc.RpcError) as caught:
                call(field(1, "client-1") + field(2, bytes(16)) + field(3, bytes(1216)), timeout=10)
            assert error_class(caught.value) == "AccessError"
            assert "device client-0 asked for the keys of another device" in caught.value.details()
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/fedcipher.v1.Authority/ServerKeys")(b"", timeout=10)
            assert error_class(caught.value) == "AccessError"
        with pytest.raises(errors.UnknownDeviceError, match="its devices are: client-0, client-1"):
            connect(run.local.target, device="client-7")


def test_truncated_and_malformed_streams_are_named_and_harm_nobody(tmp_path):
    count = 5000
    begin = encrypt_begin("client-0", flat_layout(count), 1)
    cases = {
        "TruncatedError": [begin, values(100)],
        "EngineError": [values(100)],
        "FrameError": [encrypt_begin("client-0", b"\x01\x00", 2)],
        "LayoutError": [encrypt_begin("client-0", struct.pack("<HBBBf", 1, 1, 16, 0, float("nan")), 3)],
    }
    with deployment(flashe(), 2, tmp_path) as run, socket_channel(run.local.target) as channel:
        encrypt = raw_call(channel, "Engine", "Encrypt")
        number = 10
        for expected, messages in cases.items():
            call = encrypt(iter(messages), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert error_class(call) == expected, call.details()
        no_ring, shared = field(8, 1), field(3, count * 4)
        for asked, *extra in (
            [b"", values(count + 1)],
            [b"", values(count), values(1)],
            [b"", field(2, b"abc")],
            [b"", begin],
            [b"", shared],
            [no_ring, shared],
        ):
            number += 1
            first = encrypt_begin("client-0", flat_layout(count), number, asked)
            call = encrypt(iter([first, *extra]), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert error_class(call) == "EngineError", call.details()
        # A host that just goes away.
        call = encrypt(iter([encrypt_begin("client-0", flat_layout(count), 99), values(10)]), timeout=20)
        call.cancel()
        engine = run.connect(1)
        assert engine.encryptor().encrypt(updates(1)[0], round=1)


def test_no_bytes_bring_the_engine_down(tmp_path):
    rng = random.Random(3)
    with deployment(flashe(), 1, tmp_path) as run, socket_channel(run.local.target) as channel:
        frame = run.connect(0).encryptor().encrypt(updates(1)[0], round=1)
        aggregator = run.connect(0).scheme.aggregator(run.keys().current())
        aggregator.add(frame)
        aggregate = aggregator.finish()
        for k in range(150):
            kind = k % 3
            if kind == 0:
                messages = [rng.randbytes(rng.randrange(200))]
            elif kind == 1:
                layout = bytearray(flat_layout(50))
                layout[rng.randrange(len(layout))] ^= 1 << rng.randrange(8)
                messages = [encrypt_begin("client-0", bytes(layout), 1000 + k), values(50)]
            else:
                damaged = bytearray(aggregate)
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                messages = [field(1, b""), field(2, bytes(damaged))]
            method = "Decrypt" if kind == 2 else "Encrypt"
            try:
                list(raw_call(channel, "Engine", method)(iter(messages), timeout=20))
                # Damage of a layout may be a valid layout of as many values.
                assert kind == 1
            except grpc.RpcError as error:
                assert error_class(error), error
        assert run.local.engine.process.poll() is None
        assert run.connect(0).decryptor().decrypt(aggregate)


def test_only_a_sealed_ring_is_taken(tmp_path):
    with deployment(flashe(), 1, tmp_path) as run, (tmp_path / "file").open("wb+") as file:
        for passed in ([], [file.fileno()], [os.memfd_create("unsealed")]):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(5)
                raw.connect(run.local.target.removeprefix("unix:"))
                socket.send_fds(raw, [b"R"], passed)
                assert raw.recv(100) == b"", "the connection is closed, not served"
        assert run.connect(0).encryptor().encrypt(updates(1)[0], round=1)


def test_updates_of_many_tensors_and_chunks_cross_the_ring(tmp_path):
    """Larger than all places of the ring, in pieces that fit no chunk."""
    rng = np.random.default_rng(3)
    sizes = [1, 7, 131_071, 131_073, 3, 900_001, 5]
    update = [rng.normal(0, 0.3, size).astype(np.float32) for size in sizes]
    with deployment(flashe(), 1, tmp_path) as run:
        engine = run.connect(0)
        aggregator = engine.scheme.aggregator(run.keys().current())
        aggregator.add(engine.encryptor().encrypt(update, round=1))
        means = engine.decryptor().decrypt(aggregator.finish())
        for sent, got in zip(update, means, strict=True):
            np.testing.assert_allclose(got, sent.clip(-1, 1), atol=1e-4)


@contextmanager
def own_engine(folder, *options):
    """An engine of client-9's alone, started with ``options``."""
    with deployment(flashe(), 2, folder) as run:
        run.enrol("client-9")
        run.local.rotate()
        yield run.engine("own", "--credentials", run.folder / "client-9", *options)


def test_a_slow_reader_costs_no_memory_and_is_let_go(tmp_path):
    count = 60_000_000
    with own_engine(tmp_path, "--stall", "3") as served:
        pid = served.process.pid
        quiet = threading.Event()

        def messages():
            yield encrypt_begin("client-9", flat_layout(count), 1)
            for _ in range(count // 500_000):
                yield values(500_000)
            quiet.wait(30)

        with socket_channel(served.address) as channel:
            options = {"timeout": 60}
            before = resident(pid)
            call = raw_call(channel, "Engine", "Encrypt")(messages(), **options)
            assert next(call)
            # The host reads no more; gRPC's own window fills, then ours.
            time.sleep(1.5)
            # 240 MB come and 150 MB go.
            assert resident(pid) - before < 96 << 20
            # Others are served meanwhile.
            assert connect(served.address).encryptor().encrypt(updates(1)[0], round=2)
            time.sleep(3)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert error_class(call) == "StalledError"
            quiet.set()
        assert "StalledError" in served.log.read_text()
        assert connect(served.address).encryptor().encrypt(updates(1)[0], round=3)


def test_an_import_that_stands_still_or_has_no_end_is_refused(tmp_path):
    with own_engine(tmp_path, "--stall", "2") as served:
        begin, quiet = field(1, field(1, "client-9")), threading.Event()

        def silent():
            yield begin
            quiet.wait(30)

        def endless():
            yield begin
            # A quarter more than is held.
            part = field(2, bytes(16 << 20))
            for _ in range(80):
                yield part

        with socket_channel(served.address) as channel:
            for messages, why in ((silent, "StalledError"), (endless, "EngineError")):
                call = raw_call(channel, "Engine", "ImportState")(messages(), timeout=120)
                with pytest.raises(grpc.RpcError):
                    list(call)
                assert error_class(call) == why
                quiet.set()
            assert "at most 1 GiB" in call.details()
        assert connect(served.address).encryptor().encrypt(updates(1)[0], round=1)


def test_calls_that_never_end_hold_no_more_than_all_of_them_may(tmp_path):
    with own_engine(tmp_path, "--unfinished-mib", "16", "--stall", "20") as served:
        quiet = threading.Event()
        begin, three = field(1, field(1, "client-9")), field(2, bytes(3 << 20))

        def unfinished():
            yield begin
            yield three
            quiet.wait(20)

        with socket_channel(served.address) as channel:
            ask = raw_call(channel, "Engine", "ImportState")
            calls = [ask(unfinished(), timeout=30) for _ in range(3)]
            # Two have 6 of 8 MiB, a user's half: the one whose bytes come last, whichever it is, is refused.
            assert until(lambda: not all(call.is_active() for call in calls))
            (refused,) = (call for call in calls if not call.is_active())
            assert error_class(refused) == "EngineUnavailableError"
            assert "--unfinished-mib" in refused.details()
            # What needs little goes on.
            assert connect(served.address).encryptor().encrypt(updates(1)[0], round=1)
            quiet.set()
            for call in calls:
                call.cancel()

            def others_are_let_go():
                call = ask(iter([begin, three, three]), timeout=30)
                with pytest.raises(grpc.RpcError):
                    list(call)
                # What was read whole is no state of a client that keeps none.
                assert error_class(call) in ("EngineUnavailableError", "LayoutError")
                return error_class(call) == "LayoutError"

            assert until(others_are_let_go)


def test_what_is_made_ahead_is_no_larger_than_the_engine_keeps(tmp_path):
    with own_engine(tmp_path, "--ahead", "1000") as served, socket_channel(served.address) as channel:
        precompute = channel.unary_unary("/fedcipher.v1.Engine/Precompute")
        for number, (count, made) in enumerate(((1000, field(1, 1)), (1001, b""), (2**31, b""), (1, field(1, 1))), 1):
            asked = field(1, "client-9") + field(3, number) + field(4, flat_layout(count))
            assert precompute(asked, timeout=20) == made, count
