"""What one party can take from the others: places, memory, time, the log, the disk."""

import itertools
import os
import re
import resource
import signal
import socket
import sqlite3
import struct
import subprocess
import time
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from engine_harness import (
    deployment,
    error_class,
    field,
    flashe,
    raw_call,
    shown,
    socket_channel,
    tls_channel,
    until,
    updates,
)
from fedcipher import errors
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import lock_arguments, started

STALL = 3


@contextmanager
def tcp_engine(run, *arguments, hosts=("host-a", "host-b"), device="nic", name="engine-tcp"):
    """An engine over TCP for some hosts, with a device of its own; and the hosts' credentials."""
    nic = run.enrol(device)
    folders = [run.host(host, device) for host in hosts]
    run.authority("rotate", "--force")
    with over_tcp(run, nic, *arguments, hosts=hosts, name=name) as served:
        yield served, folders


def over_tcp(run, nic, *arguments, hosts, name):
    state = ("--state", run.folder / name, "--authority", run.local.authority.address, "--credentials", nic)
    serve = ("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--refresh", "1", "--exit-with-parent", *state)
    lets_in = [part for host in hosts for part in ("--host", host)]
    return started(*serve, *lets_in, *arguments, *lock_arguments(), log=run.folder / f"{name}.log")


def kept(address, folder, path="/fedcipher.v1.Engine/Describe"):
    """A connection of its own that answers pings as long as it lives: one call on it has been refused, or goes on."""
    channel = tls_channel(address, folder, options=[("grpc.use_local_subchannel_pool", 1)])
    if path.endswith("Watch"):
        # Unread ends with the channel.
        channel.watched = channel.unary_stream(path)(b"")
        next(channel.watched)
        return channel
    try:
        channel.unary_unary(path)(b"", timeout=5)
    except grpc.RpcError:
        return channel
    raise AssertionError("it was not refused")


def turned_away(address, credentials):
    """Whether an engine's host is refused as revoked."""
    try:
        connect(address, credentials=credentials, patience=2)
    except errors.FedcipherError as error:
        return isinstance(error, errors.RevokedError)
    return False


def forgets(encryptor, rounds):
    """Whether an engine, asked again and again, comes to encrypt no more under an epoch's key."""

    def forgotten():
        try:
            encryptor.encrypt(updates(1)[0], round=next(rounds))
        except errors.FedcipherError:
            return True
        return False

    return until(forgotten)


@pytest.mark.parametrize("path", ["/fedcipher.v1.Engine/Describe", "/grpc.health.v1.Health/Watch"])
def test_the_connections_of_a_revoked_host_make_room_for_others(tmp_path, path):
    with deployment(flashe(2), 1, tmp_path) as run, tcp_engine(run) as (served, (gone, stays)), ExitStack() as held:
        # Room for 64 connections, of one address for half of them.
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        run.authority("revoke", "host-a", "--no-rotate")
        assert until(lambda: turned_away(served.address, gone))
        for _ in range(40):
            held.enter_context(kept(served.address, gone, path))
        assert connect(served.address, credentials=stays).encryptor().encrypt(updates(1)[0], round=1)


def test_the_connections_of_a_revoked_device_keep_no_aggregator_out(tmp_path):
    with deployment(flashe(2), 2, tmp_path) as run, ExitStack() as held:
        device = tmp_path / "run" / "client-1"
        resource.prlimit(run.local.authority.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        run.authority("revoke", "client-1", "--no-rotate")
        for _ in range(40):
            held.enter_context(kept(run.local.authority.address, device, path="/fedcipher.v1.Authority/Keys"))

        def comes_in():
            # An engine that comes back just then may take the place of a connection that has made no call yet.
            with suppress(errors.EngineUnavailableError):
                return run.keys().current().epoch == 1

        assert until(comes_in, 5)


class Unfinished:
    """A connection whose calls never send what they have announced."""

    def __init__(self, target):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(target.removeprefix("unix:"))
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http.initiate_connection()
        self.ended = {}
        self.flush()

    def flush(self):
        self.socket.settimeout(60)
        self.socket.sendall(self.http.data_to_send())

    def call(self, method, announced, sent):
        """A message of ``announced`` bytes of which ``sent`` come; the number of the call."""
        self.read(0.2)
        stream = self.http.get_next_available_stream_id()
        asked = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/fedcipher.v1.Engine/{method}",
            ":authority": "engine",
        }
        self.http.send_headers(stream, [*asked.items(), ("content-type", "application/grpc"), ("te", "trailers")])
        data = struct.pack(">BI", 0, announced) + bytes(sent)
        while data and stream not in self.ended:
            most = min(self.http.local_flow_control_window(stream), self.http.max_outbound_frame_size)
            self.http.send_data(stream, data[:most]) if most else None
            data = data[most:]
            self.flush()
            self.read(0.01)
        return stream

    def read(self, seconds):
        """Takes what comes and answers pings; of each call that has ended it keeps how."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                received = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            if not received:
                raise ConnectionError("the engine closed the connection")
            for event in self.http.receive_data(received):
                if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                    said = dict(event.headers)
                    if "grpc-status" in said:
                        self.ended[event.stream_id] = said
                elif isinstance(event, h2.events.StreamReset):
                    self.ended.setdefault(event.stream_id, {})
            self.flush()


def test_a_request_that_is_one_message_has_a_time_and_a_size(tmp_path):
    """A stranger's words: it announces 31 MiB, and then says nothing more or all of it."""
    with deployment(flashe(2), 1, tmp_path) as run:
        nic = run.enrol("nic")
        run.authority("rotate", "--force")
        served = run.engine("slow", "--credentials", nic, "--stall", str(STALL))
        peer = Unfinished(served.address)
        methods = ("Precompute", "Describe", "ExportState")
        large = [peer.call(method, 31 << 20, 2 << 20) for method in methods]
        silent = [peer.call(method, 31 << 20, 1 << 16) for method in methods]
        assert {peer.ended[call]["fedcipher-class"] for call in large} == {"EngineError"}
        peer.read(STALL + 2)
        assert {peer.ended[call]["fedcipher-class"] for call in silent} == {"StalledError"}
        peer.socket.close()


def test_a_state_that_nobody_reads_is_let_go(tmp_path):
    made = flashe(2, per_client_top=0.1, codec=None)
    with deployment(made, 1, tmp_path) as run:
        nic = run.enrol("nic")
        run.authority("rotate", "--force")
        served = run.engine("slow", "--credentials", nic, "--stall", str(STALL), "--unfinished-mib", "64")
        with socket_channel(served.address) as channel:
            state = [field(1, field(1, "nic")), *[field(2, bytes(8 << 20))] * 2]
            list(raw_call(channel, "Engine", "ImportState")(iter(state), timeout=60))
            export = channel.unary_stream("/fedcipher.v1.Engine/ExportState")
            whole = sum(len(part) for part in export(field(1, "nic"), timeout=60))
            assert whole > 16 << 20
            unread = [export(field(1, "nic"), timeout=60) for _ in range(3)]
            # Two have 32 of the host's 32 MiB.
            assert until(lambda: any(call.done() for call in unread))
            (refused,) = (call for call in unread if call.done())
            assert error_class(refused) == "EngineUnavailableError"
            log = served.log
            assert until(lambda: log.read_text().count("StalledError") >= 2, seconds=4 * STALL)
            assert sum(len(part) for part in export(field(1, "nic"), timeout=60)) == whole


def test_one_host_leaves_the_others_half_of_what_calls_may_hold(tmp_path):
    with (
        deployment(flashe(2), 1, tmp_path) as run,
        tcp_engine(run, "--unfinished-mib", "8", "--stall", "60") as (served, (greedy, other)),
        tls_channel(served.address, greedy) as channel,
        tls_channel(served.address, other) as theirs,
    ):
        begin = field(1, field(1, "nic"))

        def kept_alive():
            yield begin
            yield field(2, bytes((4 << 20) - 2048))
            while True:
                time.sleep(1)
                yield field(2, b"")

        def hold():
            return raw_call(channel, "Engine", "ImportState")(kept_alive(), timeout=60)

        held = [hold()]

        def full():
            if not held[-1].is_active():
                # The engine has had the smaller call first.
                held.append(hold())
            more = raw_call(channel, "Engine", "ImportState")(iter([begin, field(2, bytes(1 << 20))]), timeout=60)
            try:
                list(more)
            except grpc.RpcError:
                return error_class(more) == "EngineUnavailableError"
            return False

        assert until(full) and held[-1].is_active()
        theirs_too = raw_call(theirs, "Engine", "ImportState")(iter([begin, field(2, bytes(3 << 20))]), timeout=60)
        with pytest.raises(grpc.RpcError):
            list(theirs_too)
        # It was read whole, and is no state of a client that keeps none.
        assert error_class(theirs_too) == "LayoutError"
        held[-1].cancel()


def test_an_engine_that_gets_no_key_forgets_what_has_ended_and_whom_to_serve(tmp_path):
    """Whoever has stolen its certificate asks first for each epoch's key."""
    with deployment(flashe(2), 2, tmp_path) as run:
        keys = run.keys()
        nic, trainer = run.enrol("nic"), run.host("trainer", "nic")
        run.authority("rotate")
        keys.current()
        keys.finish_epoch(2)
        with over_tcp(run, nic, hosts=["trainer"], name="honest") as honest:
            assert connect(honest.address, credentials=trainer).epochs == [2]
            os.kill(honest.process.pid, signal.SIGSTOP)
            run.authority("rotate")
            with over_tcp(run, nic, hosts=["trainer"], name="thief") as thief:
                os.kill(honest.process.pid, signal.SIGCONT)
                assert 3 in connect(thief.address, credentials=trainer).epochs
                keys.current()
                keys.finish_epoch(3)
                there = connect(honest.address, credentials=trainer)
                assert forgets(there.encryptor(2), itertools.count(1))
                assert "IdentityInUseError" in (run.folder / "honest.log").read_text()
                run.authority("revoke", "trainer", "--no-rotate")
                assert until(lambda: turned_away(honest.address, trainer))


def test_asking_again_and_again_fills_neither_the_audit_log_nor_the_engines(tmp_path):
    with deployment(flashe(2), 1, tmp_path) as run:
        nic = run.enrol("nic")
        run.authority("rotate", "--force")
        with tls_channel(run.local.authority.address, nic) as channel:
            ask = channel.unary_unary("/fedcipher.v1.Authority/Keys")
            for number in range(60):
                # A key that nothing can be sealed to binds nothing; later ones ask for the same key again.
                with pytest.raises(grpc.RpcError) as failed:
                    ask(field(1, "nic") + field(2, bytes(16)) + field(3, bytes(number)), timeout=10)
                assert "public key" in failed.value.details()
        with sqlite3.connect(f"file:{run.local.state / 'authority.db'}?mode=ro", uri=True) as store:
            assert store.execute(
                "SELECT count(*) FROM audit WHERE party = 'nic' AND action LIKE 'issue%'"
            ).fetchone() == (0,)
        first = run.engine("first", "--credentials", nic)
        assert connect(first.address).epochs
        first.process.terminate()
        first.process.wait(10)
        for _ in range(5):
            again = run.engine("first", "--credentials", nic)
            assert connect(again.address).epochs
            again.process.terminate()
            again.process.wait(10)
        counted = lambda: [  # noqa: E731
            int(n) for n in re.findall(r"nic: issue again epoch 2, (\d+) in", run.authority("status", "--audit"))
        ]
        assert until(lambda: sum(counted()) == 5) and len(counted()) <= 2
        assert run.authority("status", "--audit").count("nic: issue epoch") == 1
        log = run.local.engine.log
        before = log.stat().st_size
        with socket_channel(run.local.target) as channel:
            call = raw_call(channel, "Engine", "Encrypt")(iter([field(1, field(1, "x" * (20 << 20)))]), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert error_class(call) == "UnknownDeviceError" and len(call.details()) < 1000
        assert log.stat().st_size - before < 10_000


@pytest.mark.parametrize("role", ["host", "server"])
def test_whom_nobody_connects_to_passes_for_no_authority(tmp_path, role):
    with deployment(flashe(2), 1, tmp_path) as run:
        nic, called = run.enrol("nic"), []
        folder = run.host("other", "nic") if role == "host" else run.enrol("other", "--role", role)

        class Claims(grpc.GenericRpcHandler):
            def service(self, details):
                called.append(details.method)

        authority, key, certificate = shown(folder)
        shows = grpc.ssl_server_credentials([(key, certificate)], authority, True)
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((Claims(),))
        address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', shows)}"
        server.start()
        try:
            with pytest.raises(errors.AccessError):
                Authority(address, run.local.server_credentials, patience=3)
            serve = ("serve", "--listen", f"unix:{tmp_path}/e.sock", "--state", tmp_path / "e", "--authority", address)
            engine = [run.local.engine.process.args[0], *serve, "--credentials", nic, *lock_arguments()]
            done = subprocess.run(engine, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2 and "AccessError" in done.stderr
        finally:
            server.stop(0)
        assert called == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own of a few MiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("a file system of its own takes root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def filled(place):
    with open(place / "fill", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_an_authority_without_room_ends_no_training(small_disk):
    with deployment(flashe(2), 2, small_disk / "w") as run:
        keys = run.keys()
        assert keys.current().epoch == 1
        run.authority("rotate")
        assert keys.current().epoch == 2
        filled(small_disk)
        keys.finish_epoch(2)
        assert keys.current().epoch == 2 and keys.revoked() == frozenset()
        with pytest.raises(errors.EngineError, match="has room and works"):
            run.authority("revoke", "client-1")
        (small_disk / "fill").unlink()
        keys.finish_epoch(2)
        assert "epoch 1: ended" in run.authority("status")


def test_an_engine_without_room_for_a_new_key_forgets_the_ended_one(small_disk, tmp_path):
    with deployment(flashe(2), 2, tmp_path / "w") as run:
        keys = run.keys()
        nic = run.enrol("nic")
        run.authority("rotate")
        keys.current()
        keys.finish_epoch(2)
        served = run.engine("cramped", "--credentials", nic, state=small_disk / "e")
        engine = connect(served.address)
        assert engine.encryptor().encrypt(updates(1)[0], round=1)
        filled(small_disk)
        run.authority("rotate")
        keys.current()
        keys.finish_epoch(3)
        assert forgets(engine.encryptor(2), itertools.count(2))
        (small_disk / "fill").unlink()
        assert until(lambda: 3 in connect(served.address).epochs)
