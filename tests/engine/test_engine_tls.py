"""What travels between hosts, engines and the authority stays closed to who records it, quantum computer included."""

import contextlib
import socket
import ssl
import struct
import threading

import grpc
import pytest
from engine_harness import deployment, flashe, raw_call, tls_channel, updates
from fedcipher import errors
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import lock_arguments, started

X25519MLKEM768 = 0x11EC
TLS_1_3 = 0x0304
SUPPORTED_VERSIONS, KEY_SHARE = 43, 51


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """An authority, an engine over TLS with the device `nic`, and the credentials of its host."""
    folder = tmp_path_factory.mktemp("tls")
    with deployment(flashe(), 1, folder) as run:
        nic, trainer = run.enrol("nic"), run.host("trainer", "nic")
        run.local.rotate()
        with started(
            *("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", folder / "nic-state"),
            *("--authority", run.local.authority.address, "--credentials", nic, "--host", "trainer"),
            *("--exit-with-parent", *lock_arguments()),
            log=folder / "nic.log",
        ) as served:
            yield run, served, trainer


def context(credentials, side):
    made = ssl.SSLContext(side)
    made.load_verify_locations(credentials / "authority.pem")
    made.load_cert_chain(credentials / "certificate.pem", credentials / "key.pem")
    made.set_alpn_protocols(["h2"])
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def greets(address, client):
    """Whether a service goes through a handshake with ``client``."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, client.wrap_socket(plain) as secure:
        return secure.version()


# What a library offers that knows less: one group, since some add the hybrid one by themselves.
LESSER = [
    pytest.param(ssl.TLSVersion.TLSv1_2, "X25519", id="1.2-x25519"),
    pytest.param(ssl.TLSVersion.TLSv1_2, "prime256v1", id="1.2-p256"),
    pytest.param(ssl.TLSVersion.TLSv1_3, "X25519", id="1.3-x25519"),
    pytest.param(ssl.TLSVersion.TLSv1_3, "prime256v1", id="1.3-p256"),
]


def lesser(made, version, group):
    made.minimum_version = made.maximum_version = version
    made.set_ecdh_curve(group)
    return made


def address_of(services, service):
    run, served, _ = services
    return run.local.authority.address if service == "authority" else served.address


@pytest.mark.parametrize("service", ["authority", "engine"])
@pytest.mark.parametrize(("version", "group"), LESSER)
def test_a_client_without_tls_1_3_and_the_hybrid_group_is_refused(services, service, version, group):
    client = lesser(context(services[2], ssl.PROTOCOL_TLS_CLIENT), version, group)
    with pytest.raises(ssl.SSLError) as caught:
        greets(address_of(services, service), client)
    # Its certificate is fine.
    assert caught.value.reason in {"TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE"}


@pytest.mark.parametrize("service", ["authority", "engine"])
def test_a_foreign_client_with_tls_1_3_and_the_hybrid_group_is_served(services, service):
    """BoringSSL, in gRPC's own library. Its call arrives: the refusal is ours."""
    with tls_channel(address_of(services, service), services[2]) as channel:
        call = raw_call(channel, "Nothing", "Known")(iter([b""]))
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("version", "group"), LESSER)
@pytest.mark.parametrize("client", ["host", "aggregator"])
def test_our_clients_talk_to_no_server_without_tls_1_3_and_the_hybrid_group(services, client, version, group):
    run, _, trainer = services
    server = lesser(context(run.folder / "nic", ssl.PROTOCOL_TLS_SERVER), version, group)
    with listening() as (listener, address):
        ended = threading.Thread(target=served_once, args=(listener, server))
        ended.start()
        with pytest.raises(errors.AccessError, match=r"TLS 1\.3 with the group X25519MLKEM768"):
            if client == "host":
                connect(address, credentials=trainer, patience=5)
            else:
                Authority(address, run.local.server_credentials, patience=5)
        ended.join(10)


@contextlib.contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener, f"127.0.0.1:{listener.getsockname()[1]}"


def served_once(listener, server):
    plain, _ = listener.accept()
    with plain, contextlib.suppress(ssl.SSLError, OSError), server.wrap_socket(plain, server_side=True):
        pass


class Recorder:
    """A relay that keeps what a service says first."""

    def __init__(self, listener, address):
        self.listener, self.address, self.said = listener, address, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection((host, int(port)))
                self.said.append(b"")
                threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, len(self.said) - 1), daemon=True).start()

    def _pass(self, source, sink, record):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if record is not None:
                    self.said[record] += data
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def negotiated(self):
        return {server_hello(said) for said in self.said if said}


def server_hello(said):
    """(version, group) of the ServerHello that ``said`` begins with."""
    kind, _, _, message = struct.unpack_from(">BHHB", said)
    assert (kind, message) == (22, 2), said[:16]
    at = 5 + 4 + 2 + 32
    at += 1 + said[at] + 2 + 1
    (size,) = struct.unpack_from(">H", said, at)
    extensions, at = {}, at + 2
    end = at + size
    while at < end:
        name, length = struct.unpack_from(">HH", said, at)
        extensions[name] = said[at + 4 : at + 4 + length]
        at += 4 + length
    word = lambda name: struct.unpack_from(">H", extensions[name])[0]  # noqa: E731
    return word(SUPPORTED_VERSIONS), word(KEY_SHARE)


def test_hosts_aggregators_and_engines_negotiate_the_hybrid_group(services, tmp_path):
    run, served, trainer = services
    with listening() as (listener, address):
        recorded = Recorder(listener, served.address)
        engine = connect(address, credentials=trainer)
        assert engine.encryptor().encrypt(updates(1)[0], round=1)
        assert recorded.negotiated() == {(TLS_1_3, X25519MLKEM768)}
    with listening() as (listener, address):
        recorded = Recorder(listener, run.local.authority.address)
        assert Authority(address, run.local.server_credentials).current()
        assert recorded.negotiated() == {(TLS_1_3, X25519MLKEM768)}
    folder = run.enrol("another")
    run.authority("rotate", "--force")
    with listening() as (listener, address):
        recorded = Recorder(listener, run.local.authority.address)
        with started(
            *("fedcipher-engine", "serve", "--listen", f"unix:{tmp_path}/e.sock", "--state", tmp_path / "state"),
            *("--authority", address, "--credentials", folder, "--exit-with-parent", *lock_arguments()),
            log=tmp_path / "another.log",
        ) as other:
            assert connect(other.address).epochs
        assert recorded.negotiated() == {(TLS_1_3, X25519MLKEM768)}
