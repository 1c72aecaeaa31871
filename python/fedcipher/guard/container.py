"""The guard's side of apps in a container without a network: two UNIX sockets in a folder that both see.

The container engine is the wall. The guard makes the sockets at its start and keeps them open. It reads nothing else
from the folder, and what comes through the sockets is as foreign as an app's call in a jail.

A container serves one message. Its program (`fedcipher.guard.app_container`) connects to the first socket, and gets the
token of the next message. The connection stays until the program has killed every other process of the container, and
the guard gives no second token before. So a process that an app leaves behind is dead when the next token exists.
"""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from fedcipher._files import make_private_folder, refusal
from fedcipher.errors import GuardError
from fedcipher.foreign_files import read_file
from fedcipher.guard.policy import AppRules

__all__ = ["API_SOCKET", "WORK_SOCKET", "ContainerApp", "InContainer", "check_folder"]

WORK_SOCKET, API_SOCKET = "work.sock", "api.sock"
_START_SECONDS = 60.0
"""How long a message waits for a container. Its engine starts the next container meanwhile."""
_END_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MAX_TOKEN = 1024


class InContainer:
    """The `StartApp` of a guard whose apps run in a container. Raises `GuardError` if other users reach ``folder``.

    The limits of the rules are those of jails: the container has limits, data and variables of its own.
    """

    def __init__(self, folder: Path, rules: AppRules) -> None:
        if rules.data or rules.environment:
            raise GuardError(
                "data and environment of the guard's rules are for apps that the guard starts: remove them, and give "
                "the app's container its mounts and variables"
            )
        try:
            make_private_folder(folder)
            check_folder(folder)
            self._work, self._api = (_listening(folder / name) for name in (WORK_SOCKET, API_SOCKET))
        except OSError as error:
            raise GuardError(f"--socket: {refusal(error, folder)}") from error
        self._waiting: list[socket.socket] = []
        self._last: ContainerApp | None = None

    def __call__(self, arguments: list[str], environment: Mapping[str, str], folder: Path) -> ContainerApp:
        """Hand the message's token to a container. Raises `GuardError` if none comes in time."""
        if self._last is not None:
            self._last.kill()
        token = read_file(Path(arguments[arguments.index("--token-file") + 1]), _MAX_TOKEN).decode()
        peer = self._container()
        with suppress(OSError):
            # If it has gone meanwhile, `ContainerApp.poll` says so.
            peer.sendall(json.dumps({"token": token}).encode() + b"\n")
        self._last = ContainerApp(peer, self._api.dup())
        return self._last

    def _container(self) -> socket.socket:
        """The connection of a container's program that waits for work."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            # No app has a token now. A connection of an earlier app can hold descriptors, and with them connections.
            for left in _pending(self._api):
                left.close()
            self._waiting += _pending(self._work)
            ended = [peer for peer in self._waiting if _has_ended(peer)]
            for peer in ended:
                self._waiting.remove(peer)
                peer.close()
            if self._waiting and not ended:
                return self._waiting.pop(0)
            if not ended:
                time.sleep(_POLL_SECONDS)
        raise GuardError(
            f"no container has asked for work in {_START_SECONDS:.0f} s: start it again after each message, with "
            "`fedcipher guard app`, and look at its log"
        )


class ContainerApp:
    """The `AppProcess` of a message whose app is in a container. The app's output is in the container's own log."""

    def __init__(self, peer: socket.socket, listener: socket.socket) -> None:
        self._peer, self.listener = peer, listener
        self.output: IO[bytes] = io.BytesIO()

    def poll(self) -> int | None:
        """0 once the container's program has gone or has said anything, else None."""
        return 0 if _has_ended(self._peer) else None

    def kill(self) -> None:
        """Let the container end, and wait until it has. Raises `GuardError` if it stays."""
        if self._peer.fileno() < 0:
            return
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_WR)
        until = time.monotonic() + _END_SECONDS
        while not _has_ended(self._peer):
            if time.monotonic() >= until:
                raise GuardError("the container of an app does not end: end it, and look at what it runs")
            time.sleep(_POLL_SECONDS)
        self._peer.close()

    def close(self) -> None:
        """Close the API's socket. The connection stays until `kill` has seen the container's end."""
        self.listener.close()


def _pending(listener: socket.socket) -> list[socket.socket]:
    """The connections that the guard has not accepted yet."""
    found: list[socket.socket] = []
    listener.setblocking(False)
    with suppress(OSError):
        while True:
            found.append(listener.accept()[0])
    return found


def _has_ended(peer: socket.socket) -> bool:
    """Whether the other side has closed the connection. It has nothing to say, so a byte counts as an end too."""
    try:
        peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def check_folder(folder: Path) -> None:
    """Raise `GuardError` if ``folder`` is not this user's own, or if other users reach it."""
    found = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise GuardError(
            f"{folder} must be a folder of the guard's user, and no other user may reach it (chmod 700), because its "
            "sockets give plaintext models"
        )


def _listening(path: Path) -> socket.socket:
    """A socket that listens at ``path``. Neither call follows a link."""
    with suppress(FileNotFoundError):
        path.unlink()
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        why = "shorten its path" if "too long" in str(error) else error.strerror
        raise GuardError(f"the socket {path} cannot be made: {why}") from error
    made.listen()
    return made
