"""One file a party: a line of JSON (scheme, parameters, codec), then that party's key as bytes.

Client files hold a secret and are created readable by their owner only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher.errors import KeyFormatError
from fedcipher.schemes import KeySet, Scheme, from_spec

__all__ = ["client_file", "load_client", "load_server", "save"]

_VERSION = 1
_SERVER_FILE = "server.key"


def client_file(folder: str | Path, client: int) -> Path:
    """Where `save` puts the key of ``client``."""
    return Path(folder) / f"client-{client}.key"


def save(keys: KeySet, made_by: Scheme, folder: str | Path) -> Path:
    """Write ``server.key`` and one ``client-<id>.key`` per client; existing files are not replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / _SERVER_FILE, made_by, keys.server().to_bytes(), "server")
    for client, key in keys.clients.items():
        _write(client_file(folder, client), made_by, key.to_bytes(), "client")
    return folder


def _write(path: Path, made_by: Scheme, key: bytes, role: str) -> None:
    content = {
        "fedcipher": _VERSION,
        "role": role,
        **made_by.spec(),
    }
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyFormatError(f"{path} exists; choose another folder or delete the old keys first") from None
    with os.fdopen(handle, "wb") as file:
        file.write(json.dumps(content).encode() + b"\n" + key)


def _read(path: Path, role: str) -> tuple[Scheme, bytes]:
    try:
        head, _, key = path.read_bytes().partition(b"\n")
        content: dict[str, Any] = json.loads(head)
    except FileNotFoundError:
        raise KeyFormatError(f"no key file {path}; make keys with `fedcipher keygen`") from None
    except (OSError, ValueError) as error:
        raise KeyFormatError(f"key file {path} cannot be read: {error}") from error
    try:
        if content["fedcipher"] != _VERSION or content["role"] != role:
            raise KeyFormatError(f"key file {path} is no version {_VERSION} {role} key")
        made = from_spec(content)
    except (KeyError, TypeError) as error:
        raise KeyFormatError(f"key file {path} is damaged: {error}") from error
    return made, key


def load_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """The scheme and secret key in a client's file. Raises `KeyFormatError`."""
    made, key = _read(Path(path), "client")
    return made, _native.ClientKey.from_bytes(key)


def load_server(path: str | Path) -> tuple[Scheme, _native.ServerKey]:
    """The scheme and public key in the server's file, or in the folder that holds it."""
    path = Path(path)
    made, key = _read(path / _SERVER_FILE if path.is_dir() else path, "server")
    return made, _native.ServerKey.from_bytes(key)
