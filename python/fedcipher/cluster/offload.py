"""The programs of ``--engine``: a key authority and one engine per node. Only the engine holds the node's keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from fedcipher.engine import connect
from fedcipher.engine.local import device_names, find_program, lock_arguments, new_authority, rotate
from fedcipher.errors import ClusterError, EngineError
from fedcipher.schemes import Scheme

__all__ = ["Offload"]

_MAX_SOCKET_PATH = 107
"""Bytes; the kernel's limit for the path of a Unix socket."""
_REFRESH_SECONDS = "2"
"""The interval at which an engine looks for a new key epoch."""


class Offload:
    """The key authority and the engines of ``clients`` nodes, with their files in ``folder``.

    Raises `ClusterError` if the folder's path is too long for sockets.
    """

    def __init__(self, folder: Path, scheme: Scheme, clients: int, port: int) -> None:
        self._folder, self._scheme, self._port = folder, scheme, port
        self._devices = device_names(clients)
        longest = max(len(str(self._socket(device)).encode()) for device in self._devices)
        if longest > _MAX_SOCKET_PATH:
            raise ClusterError(
                f"engines listen on sockets in {folder}, and a socket's path has at most {_MAX_SOCKET_PATH} bytes, "
                f"not {longest}: give a shorter --folder"
            )

    def make(self) -> None:
        """Make the certificates and keys."""
        new_authority(self._scheme, len(self._devices), self._folder)

    def programs(self) -> list[tuple[str, list[str | Path]]]:
        """The name and command of each program."""
        at = f"127.0.0.1:{self._port}"
        authority: list[str | Path] = [find_program("fedcipher-authority"), "--state", self._folder / "authority"]
        found = [("authority", [*authority, "serve", "--listen", at, *lock_arguments()])]
        for device in self._devices:
            engine: list[str | Path] = [find_program("fedcipher-engine"), "serve", "--authority", at]
            engine += ["--listen", self._target(device), "--state", self._folder / f"{device}.state"]
            engine += ["--credentials", self._folder / device, "--refresh", _REFRESH_SECONDS, *lock_arguments()]
            # With --roam threads are not pinned. Otherwise all engines would share the first cores.
            found.append((f"engine-{device.removeprefix('client-')}", [*engine, "--roam", "--threads", "1"]))
        return found

    def targets(self) -> list[str]:
        """The value of ``fedcipher-engine`` for each node."""
        return [self._target(device) for device in self._devices]

    @property
    def keys(self) -> str:
        """The value of ``fedcipher-keys`` for an app."""
        return f"authority://127.0.0.1:{self._port}{quote(str(self._folder / 'aggregator'))}"

    def wait(self, still: Callable[[str], None]) -> None:
        """Wait until all engines have keys.

        ``still`` is called again and again with a text that says what is missing. It may raise to end the wait.
        """
        if self._scheme.info.committee:
            while True:
                try:
                    rotate(self._folder)
                    break
                except EngineError as error:
                    still(f"there is no roster yet ({error})")
        for device in self._devices:
            while not self._answers(device):
                still(f"the engine of {device} has no key")

    def _answers(self, device: str) -> bool:
        with contextlib.suppress(EngineError):
            connect(self._target(device), patience=5)
            return True
        return False

    def _target(self, device: str) -> str:
        return f"unix:{self._socket(device)}"

    def _socket(self, device: str) -> Path:
        return self._folder / f"{device}.sock"
