"""Provisioning: places keys into the startup kits of the server and of each site."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedcipher._optional import load, require
from fedcipher.errors import KeyFormatError
from fedcipher.keys.store import client_file, locate

__all__ = ["KeyBuilder"]

_SERVER = "server.key"
require("fedcipher.adapters.nvflare", "nvflare", "nvflare")
_Builder: Any = load("nvflare.lighter.spec").Builder


class KeyBuilder(_Builder):
    """Copies keys into the folder ``startup/fedcipher`` of each kit, as a builder in NVFlare's ``project.yml``.

    ``keys`` is a folder of ``fedcipher keygen``. The first site of the project gets ``client-0.key`` as ``client.key``,
    the second gets ``client-1.key``. A folder with ``server.key`` alone has the roster of parties that share no key,
    such as those of `oneshot`. Each site then gets the roster, and makes its ``client.key`` itself, with
    ``fedcipher join``. Raises `KeyFormatError` if the folder lacks a key.
    """

    def __init__(self, keys: str) -> None:
        super().__init__()
        self._keys = keys

    def build(self, project: Any, ctx: Any) -> None:
        """Copy the keys."""
        folder, clients = locate(self._keys), list(project.get_clients())
        roster_only = not client_file(folder, 0).exists()
        _copy(folder / _SERVER, Path(ctx.get_kit_dir(project.get_server())), _SERVER)
        for number, client in enumerate(clients):
            kit = Path(ctx.get_kit_dir(client))
            if roster_only:
                _copy(folder / _SERVER, kit, _SERVER)
            else:
                _copy(client_file(folder, number), kit, "client.key")


def _copy(source: Path, kit: Path, name: str) -> None:
    if not source.is_file():
        raise KeyFormatError(f"{source} does not exist; make keys for all sites of the project: fedcipher keygen")
    (kit / "fedcipher").mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(source, kit / "fedcipher" / name)
