"""Sends messages over one TCP connection, optionally as slowly as over a given link.

The sender delays the bytes: they leave at ``bandwidth`` and arrive ``latency`` later, like with netem's delay. Both
sides delay their bytes, so a round trip takes twice the latency.
"""

from __future__ import annotations

import json
import queue
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from fedcipher.errors import ParameterError, PeerLostError
from fedcipher.foreign_files import parse_json

__all__ = ["Connection", "Link", "Message"]

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"FBN1"
_MAX_HEADER = 1 << 20
_MAX_PAYLOAD = 1 << 34
_CHUNK = 1 << 14
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class Link:
    """A link's bandwidth in bit/s (0: no limit) and one-way latency in seconds."""

    bandwidth: float = 0.0
    latency: float = 0.0

    @classmethod
    def parse(cls, bandwidth: str = "", latency: str = "") -> Link:
        """A link from texts such as ``40mbit`` and ``80ms``. Raises `ParameterError`."""
        rate = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", bandwidth.lower()) if bandwidth else None
        delay = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", latency.lower()) if latency else None
        if (bandwidth and rate is None) or (latency and delay is None):
            raise ParameterError(f"{bandwidth!r}, {latency!r}: write a link as 40mbit and 80ms")
        bits = float(rate[1]) * _UNITS[rate[2]] if rate else 0.0
        if rate and bits < 1e3:
            raise ParameterError(f"bandwidth {bandwidth!r} is below 1kbit")
        return cls(bits, float(delay[1]) * (1e-3 if delay[2] == "ms" else 1.0) if delay else 0.0)

    def seconds(self, size: int) -> float:
        """Seconds that ``size`` bytes take in one direction."""
        return self.latency + (size * 8 / self.bandwidth if self.bandwidth else 0.0)

    def __str__(self) -> str:
        if not self.bandwidth and not self.latency:
            return "loopback or network without a limit"
        rate = f"{self.bandwidth / 1e6:g} Mbit/s" if self.bandwidth else "full speed"
        return f"{rate}, {self.latency * 1e3:g} ms one way"


@dataclass(frozen=True)
class Message:
    """A message: its kind, facts as JSON values, and bytes."""

    kind: str
    facts: dict[str, Any]
    payload: bytes = b""


class Connection:
    """Sends and receives messages, and counts bytes. Raises `PeerLostError` for anything but a valid message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.sent = 0
        self.received = 0
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pacer: _Pacer | None = None

    def shape(self, link: Link) -> None:
        """Send like over ``link`` from now on."""
        if self._pacer is not None:
            self._pacer.close()
        self._pacer = _Pacer(self._socket, link) if link.bandwidth or link.latency else None

    def send(self, kind: str, payload: bytes = b"", **facts: Any) -> None:
        """Send a message. Returns when the bytes are handed to the system. Raises `PeerLostError`."""
        header = json.dumps({"kind": kind, **facts}).encode()
        head = _HEAD.pack(_MAGIC, len(header), len(payload)) + header
        try:
            for part in (head, payload):
                if self._pacer is not None:
                    self._pacer.send(part)
                else:
                    self._socket.sendall(part)
                self.sent += len(part)
        except OSError as error:
            raise PeerLostError(f"the other side went away while {kind!r} was sent to it: {error}") from error

    def receive(self, *kinds: str) -> Message:
        """The next message. Raises `PeerLostError` for a message whose kind is not in ``kinds``."""
        magic, header_len, payload_len = _HEAD.unpack(self._read(_HEAD.size))
        if magic != _MAGIC or header_len > _MAX_HEADER or payload_len > _MAX_PAYLOAD:
            raise PeerLostError("the other side uses another protocol; is it `fedcipher bench serve`?")
        try:
            facts: Any = parse_json(self._read(header_len))
            kind = facts.pop("kind")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise PeerLostError("the other side sent a malformed message") from None
        message = Message(str(kind), facts, self._read(payload_len))
        if message.kind == "error":
            raise PeerLostError(f"the other side reports {facts.get('error')}: {facts.get('message')}")
        if message.kind not in kinds:
            raise PeerLostError(f"the other side sent {message.kind!r} instead of {' or '.join(kinds)}")
        return message

    def _read(self, size: int) -> bytes:
        # Memory grows as bytes arrive, because the announced length cannot be trusted.
        parts: list[bytes] = []
        missing = size
        while missing:
            try:
                part = self._socket.recv(min(missing, 1 << 20))
            except OSError as error:
                raise PeerLostError(f"the other side went away: {error}") from error
            if not part:
                raise PeerLostError(f"the other side closed the connection with {missing} bytes to come")
            parts.append(part)
            missing -= len(part)
            self.received += len(part)
        return b"".join(parts)

    def counters(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self.sent, self.received

    def close(self) -> None:
        """Close the connection at once."""
        if self._pacer is not None:
            self._pacer.close()
        self._socket.close()


class _Pacer:
    """Sends bytes at the time when a link of this bandwidth and latency would have delivered them."""

    def __init__(self, sock: socket.socket, link: Link) -> None:
        self._socket = sock
        self._link = link
        self._free = 0.0
        self._failed: OSError | None = None
        # The size of a TCP window: the bytes that are on the link, and some more.
        ahead = int(link.bandwidth / 8 * 2 * link.latency) // _CHUNK + 16
        self._chunks: queue.Queue[tuple[float, bytes] | None] = queue.Queue(ahead)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), _CHUNK):
            part = data[at : at + _CHUNK]
            busy = len(part) * 8 / self._link.bandwidth if self._link.bandwidth else 0.0
            self._free = max(self._free, time.monotonic()) + busy
            self._chunks.put((self._free + self._link.latency, part))
            if self._failed is not None:
                raise self._failed

    def _run(self) -> None:
        while (item := self._chunks.get()) is not None:
            due, part = item
            time.sleep(max(0.0, due - time.monotonic()))
            if self._failed is None:
                try:
                    self._socket.sendall(part)
                except OSError as error:
                    self._failed = error

    def close(self) -> None:
        self._chunks.put(None)
        self._thread.join(5)
