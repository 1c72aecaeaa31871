"""With ``--engine``: a key authority, and for each node an engine of its own, which alone holds the node's keys."""

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

_LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path, by the kernel."""
_LOOK_SECONDS = "2"
"""An engine's, for a new key epoch."""


class Offload:
    """What the authority and the engines of ``clients`` nodes are, in ``folder``. Raises `ClusterError`."""

    def __init__(self, folder: Path, scheme: Scheme, clients: int, port: int) -> None:
        self._folder, self._scheme, self._port = folder, scheme, port
        self._devices = device_names(clients)
        longest = max(len(str(self._socket(device)).encode()) for device in self._devices)
        if longest > _LONGEST_SOCKET:
            raise ClusterError(
                f"engines listen on sockets in {folder}, and a socket's path has at most {_LONGEST_SOCKET} bytes, "
                f"not {longest}: give a shorter --folder"
            )

    def make(self) -> None:
        """Certificates and keys."""
        new_authority(self._scheme, len(self._devices), self._folder)

    def programs(self) -> list[tuple[str, list[str | Path]]]:
        """Name and command of each."""
        at = f"127.0.0.1:{self._port}"
        authority: list[str | Path] = [find_program("fedcipher-authority"), "--state", self._folder / "authority"]
        found = [("authority", [*authority, "serve", "--listen", at, *lock_arguments()])]
        for device in self._devices:
            engine: list[str | Path] = [find_program("fedcipher-engine"), "serve", "--authority", at]
            engine += ["--listen", self._target(device), "--state", self._folder / f"{device}.state"]
            engine += ["--credentials", self._folder / device, "--refresh", _LOOK_SECONDS, *lock_arguments()]
            # Pinned threads of all engines would share the first cores.
            found.append((f"engine-{device.removeprefix('client-')}", [*engine, "--roam", "--threads", "1"]))
        return found

    def targets(self) -> list[str]:
        """``fedcipher-engine`` of each node."""
        return [self._target(device) for device in self._devices]

    @property
    def keys(self) -> str:
        """``fedcipher-keys`` of an app."""
        return f"authority://127.0.0.1:{self._port}{quote(str(self._folder / 'aggregator'))}"

    def wait(self, still: Callable[[str], None]) -> None:
        """Until all engines have keys; ``still`` is told what is missing, and ends the waiting by raising."""
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
