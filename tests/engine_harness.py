"""Engines and authorities as real processes, and a plain gRPC client that speaks to them byte by byte."""

import struct
import time
from contextlib import ExitStack, contextmanager

import grpc
import numpy as np
from fedcipher import scheme
from fedcipher.codec import Codec
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import lock_arguments, run_program, start_engines, started

# Whole models, so that a run follows the key epochs.
CODEC = Codec(bits=16, clip=1.0, target="weights")


def flashe(clients=4, **params):
    return scheme("flashe", clients=clients, **{"codec": CODEC, "min_contributions": 1, **params})


class Deployment:
    """One authority with an engine of several devices; more engines on demand."""

    def __init__(self, made, devices, folder, stack, **options):
        self.folder, self.stack = folder, stack
        self.local = stack.enter_context(start_engines(made, devices, folder / "run", **options))
        self.scheme = made

    def authority(self, *arguments):
        return run_program("fedcipher-authority", "--state", self.local.state, *lock_arguments(), *arguments)

    def enrol(self, name, *options):
        self.authority("enrol", name, "--out", self.folder / name, *options)
        return self.folder / name

    def host(self, name, *devices, options=()):
        """Credentials of a training host that may use ``devices``."""
        return self.enrol(
            name, "--role", "host", *(part for device in devices for part in ("--device", device)), *options
        )

    def keys(self):
        return Authority(self.local.authority.address, self.local.server_credentials)

    def connect(self, k):
        return connect(self.local.target, device=f"client-{k}")

    def engine(self, name, *arguments, state=None):
        """One more engine, on a socket of its own."""
        target = f"unix:{self.folder / name}.sock"
        service = started(
            *("fedcipher-engine", "serve", "--listen", target, "--refresh", "1", "--exit-with-parent"),
            *("--state", state or self.folder / f"{name}-state", "--authority", self.local.authority.address),
            *arguments,
            *lock_arguments(),
            log=self.folder / f"{name}.log",
        )
        return self.stack.enter_context(service)


@contextmanager
def deployment(made, devices, folder, **options):
    with ExitStack() as stack:
        yield Deployment(made, devices, folder, stack, **options)


def until(condition, seconds=15):
    """Waits for what another process does in its own time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def updates(clients, size=3000, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(0, 0.3, size).astype(np.float32), np.ones((2, 5), np.float32) * k] for k in range(clients)]


# --- protobuf by hand: independent of the generated code ---------------------------------------


def _varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A protobuf field: bytes and str length-delimited, int as varint."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def raw_call(channel, service, method):
    """A stream-to-stream call of bytes messages."""
    return channel.stream_stream(f"/fedcipher.v1.{service}/{method}")


def encrypt_begin(device, layout, round_number, more=b""):
    return field(1, field(1, device) + field(3, round_number) + field(4, 1) + field(5, layout) + more)


def values(count):
    return field(2, np.zeros(count, np.float32).tobytes())


def flat_layout(count):
    """The wire form of one float32 tensor of 16 bits, clip 1."""
    return struct.pack("<HBBBfI", 1, 1, 16, 1, 1.0, count)


def socket_channel(target):
    # gRPC's C core would send the percent-encoded path as authority, which HTTP/2 servers refuse.
    options = [("grpc.max_receive_message_length", -1), ("grpc.default_authority", "engine")]
    return grpc.insecure_channel(target, options=options)


def shown(folder):
    """The authority's certificate, and the key and certificate of a party's folder."""
    return [(folder / name).read_bytes() for name in ("authority.pem", "key.pem", "certificate.pem")]


def tls_channel(address, folder, options=()):
    """With the credentials of a party's folder."""
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*shown(folder)), options=options)


def error_class(call):
    """The class of `fedcipher.errors` that a failed call names."""
    return dict(call.trailing_metadata()).get("fedcipher-class")
