"""The smallest adapter: a federation over TCP, with an app that is one plain function. No framework.

A client says its node and waits for messages; each message and each reply is a number, a length and bytes.
"""

import selectors
import socket
import time

from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import Message
from fedcipher.federation.refusal import refused
from fedcipher.federation.server.link import reply_from
from fedcipher.federation.told import digest_of_context

_HEAD = 16


def _send(connection, number, raw):
    connection.sendall(number.to_bytes(8, "little") + len(raw).to_bytes(8, "little") + raw)


def _receive(connection):
    head = _exactly(connection, _HEAD)
    return int.from_bytes(head[:8], "little"), _exactly(connection, int.from_bytes(head[8:], "little"))


def _exactly(connection, size):
    held = bytearray()
    while len(held) < size:
        part = connection.recv(min(size - len(held), 1 << 20))
        if not part:
            raise EOFError("the other side has gone")
        held += part
    return bytes(held)


# --- the client ------------------------------------------------------------------------------


def client(port, node, settings, app):
    """Take part as ``node`` until the server goes: ``app(purpose, arrays)`` gives (arrays, metrics)."""
    session = ClientSession(lambda: key_holder_of(settings, {}), lambda: digest_of_context({}, "socket"))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        _send(connection, node, b"")
        while True:
            try:
                number, raw = _receive(connection)
            except EOFError:
                return
            _send(connection, number, answered(session, Message.parse(raw), app).to_bytes())


def answered(session, message, app):
    """The reply to ``message``, with the app's work where it asks for some."""
    try:
        opened = session.open(message)
        if isinstance(opened, Work):
            with opened as work:
                opened = session.seal(message, work, _result(message.type, work, app))
        if opened is None:
            raise ValueError(f"a message of type {message.type!r} of no run")
        return opened
    except Exception as error:
        return refused(message, error)


def _result(purpose, work, app):
    try:
        arrays, metrics = app(purpose, work.arrays)
        return AppResult(arrays, metrics)
    except Exception as error:
        return AppResult.raised(error)


# --- the server ------------------------------------------------------------------------------


class SocketLink:
    """The `Link` of clients that are connected; it waits for ``count`` of them."""

    def __init__(self, listener, count):
        self._connections, self._sent, self._late = {}, 0, []
        while len(self._connections) < count:
            connection = listener.accept()[0]
            self._connections[_receive(connection)[0]] = connection

    def nodes(self):
        return list(self._connections)

    def exchange(self, messages, *, until, enough=lambda: False, grace=lambda seconds: 0.0):
        return _Exchange(self, messages, until, enough, grace)

    def late(self, names, until):
        yield from [(name, reply) for name, reply in self._late if name in names]

    def close(self):
        for connection in self._connections.values():
            connection.close()

    def send(self, message):
        self._sent += 1
        _send(self._connections[message.node], self._sent, message.to_bytes())
        return str(self._sent)

    def replies(self, seconds):
        """What has come within ``seconds``: (number, reply)."""
        with selectors.DefaultSelector() as selector:
            for node, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, node)
            for key, _ in selector.select(seconds):
                number, raw = _receive(key.fileobj)
                yield str(number), reply_from(key.data, Message.parse(raw))

    def keep(self, name, reply):
        self._late.append((name, reply))


class _Exchange:
    def __init__(self, link, messages, until, enough, grace):
        self._link, self._until, self._enough, self._grace = link, until, enough, grace
        self._began, self.asked, self.waiting = time.monotonic(), [], {}
        for message in messages:
            self.waiting[link.send(message)] = message.node
            self.asked.append(message.node)

    def __iter__(self):
        until, satisfied = self._until, False
        while self.waiting and (now := time.monotonic()) < until:
            for name, reply in self._link.replies(min(until - now, 1.0)):
                if self.waiting.pop(name, None) is None:
                    self._link.keep(name, reply)
                else:
                    yield reply
            if not satisfied and self._enough():
                satisfied, now = True, time.monotonic()
                until = min(until, now + self._grace(now - self._began))
