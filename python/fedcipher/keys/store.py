"""One file a party: a line of JSON (scheme, parameters, codec), then that party's key as bytes.

Client files hold a secret and are created readable by their owner only.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher.errors import FrameError, KeyFormatError
from fedcipher.schemes import KeySet, Scheme, from_spec
from fedcipher.schemes.base import state_dir

__all__ = ["client_file", "load_client", "load_server", "open_client", "save"]

_VERSION = 1
_SERVER_FILE = "server.key"


def client_file(folder: str | Path, client: int) -> Path:
    """Where `save` puts the key of ``client``."""
    return Path(folder) / f"client-{client}.key"


def save(keys: KeySet, made_by: Scheme, folder: str | Path) -> Path:
    """Write ``server.key`` and one ``client-<id>.key`` per client into a new ``folder``.

    All or nothing, and on disk when this returns: the files are written into a hidden folder beside it, which
    then takes its name. Raises `KeyFormatError` where ``folder`` exists and is not empty.
    """
    folder = Path(folder)
    draft = folder.absolute().with_name(f".{folder.absolute().name}.{secrets.token_hex(8)}")
    try:
        _make_parents(draft.parent)
        if folder.exists() and any(folder.iterdir()):
            raise _exists(folder)
        draft.mkdir(mode=0o700)
        try:
            _write(draft / _SERVER_FILE, made_by, keys.server().to_bytes(), "server")
            for client, key in keys.clients.items():
                _write(client_file(draft, client), made_by, key.to_bytes(), "client")
            _sync(draft)
            # Refused by the system where the folder has got files meanwhile.
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync(draft.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _exists(folder) from None
        raise KeyFormatError(f"keys cannot be written to {folder}: {error}; choose another folder") from error
    return folder


def _exists(folder: Path) -> KeyFormatError:
    return KeyFormatError(f"{folder} exists and is not empty; choose another folder, or delete the old keys first")


def _make_parents(folder: Path) -> None:
    if not folder.is_dir():
        _make_parents(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """A file's name is durable once its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, made_by: Scheme, key: bytes, role: str) -> None:
    content = {
        "fedcipher": _VERSION,
        "role": role,
        **made_by.spec(),
    }
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(json.dumps(content).encode() + b"\n" + key)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, role: str) -> tuple[Scheme, bytes]:
    try:
        content_bytes = _native.read_key_file(path) if role == "client" else path.read_bytes()
        head, _, key = content_bytes.partition(b"\n")
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


def _damaged(path: Path) -> KeyFormatError:
    return KeyFormatError(
        f"key file {path} is damaged or cut short; take it again from whoever issued it, or have new keys made"
    )


def load_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """The scheme and secret key in a client's file, to decrypt or to look at; see `open_client`.

    Raises `KeyFormatError`: also where other users may read the file, or replace it.
    """
    path = Path(path)
    made, key = _read(path, "client")
    try:
        return made, _native.ClientKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None


def open_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """As `load_client`, to encrypt: takes the key file into use with the ledgers of this process's state folder.

    Holds a lock on ``<path>.used`` for the process's life, so that no engine uses the key at the same time; other
    processes with the same state folder may. Raises `KeyInUseError` where an engine holds it, `KeyFormatError`
    where the key has been used with another state folder, and `LedgerError` where that folder has lost its ledger.
    """
    path = Path(path)
    made, key = load_client(path)
    _native.hold_key_file(path, key, state_dir())
    return made, key


def load_server(path: str | Path) -> tuple[Scheme, _native.ServerKey]:
    """The scheme and public key in the server's file, or in the folder that holds it."""
    path = Path(path)
    path = path / _SERVER_FILE if path.is_dir() else path
    made, key = _read(path, "server")
    try:
        return made, _native.ServerKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None
