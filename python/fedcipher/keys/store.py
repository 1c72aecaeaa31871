"""One file a party: a line of JSON (scheme, parameters, codec), then that party's key as bytes.

Client files hold a secret and are created readable by their owner only.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher._arguments import as_path, as_text, instance_of, real_number, whole_number
from fedcipher._files import flush_folder, make_private_folder, refusal, user_home
from fedcipher.errors import ForeignFileError, FrameError, KeyFormatError, ParameterError
from fedcipher.foreign_files import MAX_KEY_FILE, MAX_NOTE, open_file, parse_json, read_file
from fedcipher.foreign_text import MAX_NAME, quoted, quoting_log
from fedcipher.schemes import KeySet, Scheme, from_spec, scheme_names
from fedcipher.schemes.base import state_dir
from fedcipher.schemes.registry import MODULES

__all__ = [
    "VERSION",
    "client_file",
    "hold",
    "home",
    "load_client",
    "load_coordinator",
    "load_server",
    "load_weighting",
    "locate",
    "locate_run",
    "named_folder",
    "open_client",
    "replace_client_key",
    "role_of",
    "save",
    "save_client",
    "save_server",
    "write_new",
]

_log = quoting_log("fedcipher")
VERSION = 1
"""Of key files."""
_SERVER_FILE = "server.key"
_SHOWN = 5
"""Key files that are named where one is not found."""
_WEIGHTING, _COORDINATOR = "examples_per_weight", "coordinator"


def locate(name: str | Path) -> Path:
    """The key folder or file that an app's settings mean: an absolute path, or a name given to ``keygen --name``.

    Flower runs an app in a folder of its own choice, where a relative path finds nothing, or another app's keys; so
    `KeyFormatError` for one.
    """
    try:
        path = as_path(name, "keys").expanduser()
    except RuntimeError as error:
        raise KeyFormatError(f"keys are asked for as {str(name)!r}: {error}; give an absolute path") from error
    if path.is_absolute():
        return path
    named = named_folder(str(name)) if len(path.parts) == 1 else None
    if named is not None and named.is_dir():
        return named
    looked = f", and {named} does not exist" if named else ""
    raise KeyFormatError(
        f"keys are asked for as {str(name)!r}: Flower runs apps in a folder of its own, so a relative path means "
        f"nothing there{looked}. Give an absolute path, or make the keys with `fedcipher keygen --name NAME`"
    )


def home() -> Path:
    """``FEDCIPHER_HOME``, or ``~/.fedcipher``: where what has a name is, whatever folder an app runs in.

    Raises `ParameterError` where this user has no home folder.
    """
    chosen = os.environ.get("FEDCIPHER_HOME")
    return Path(chosen).absolute() if chosen else user_home("FEDCIPHER_HOME") / ".fedcipher"


def locate_run(given: str | Path) -> Path:
    """A run's folder, or its name as an app has it, or the last run of a training's folder."""
    given = as_path(given, "run")
    if not given.exists() and len(given.parts) == 1:
        return home() / "runs" / given
    runs = {
        int(found[1] or 1): path
        for path in given.glob("run*")
        if (found := re.fullmatch(r"run(?:-(\d+))?", path.name)) and not path.is_symlink()
    }
    return given if (given / "journal.db").exists() or not runs else runs[max(runs)]


def named_folder(name: str) -> Path:
    """Where ``keygen --name`` puts keys: ``keys/NAME`` in `home`."""
    if as_path(name, "name").name != name or name in ("", ".", ".."):
        raise KeyFormatError(f"{name!r} is no name for keys: no folder separators, please")
    return home() / "keys" / name


def client_file(folder: str | Path, client: int) -> Path:
    """Where `save` puts the key of ``client``."""
    return as_path(folder, "folder") / f"client-{whole_number(client, 'client')}.key"


def save(
    keys: KeySet, made_by: Scheme, folder: str | Path, *, examples_per_weight: float = 0.0, coordinator: str = ""
) -> Path:
    """Write ``server.key`` and one ``client-<id>.key`` per client into a new ``folder``.

    ``examples_per_weight`` is what `load_weighting` gives back, ``coordinator`` what `load_coordinator` does. Raises
    `ParameterError` for values that these would refuse.

    All or nothing, and on disk when this returns: the files are written into a hidden folder beside it, which
    then takes its name. Raises `KeyFormatError` where ``folder`` exists and is not empty.
    """
    folder, keys = as_path(folder, "folder"), instance_of(keys, KeySet, "keys", "give a KeySet, as from keygen")
    weighting, named = _weighting(examples_per_weight), _named(coordinator)
    _of_scheme(keys.server_key, made_by)
    draft = folder.absolute().with_name(f".{folder.absolute().name}.{secrets.token_hex(8)}")
    try:
        make_private_folder(draft.parent)
        if folder.exists() and any(folder.iterdir()):
            raise _exists(folder)
        draft.mkdir(mode=0o700)
        try:
            _write(draft / _SERVER_FILE, made_by, keys.server().to_bytes(), "server", weighting)
            for client, key in keys.clients.items():
                _write(client_file(draft, client), made_by, key.to_bytes(), "client", named)
            flush_folder(draft)
            # Refused by the system where the folder has got files meanwhile.
            _rename(draft, folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        flush_folder(draft.parent)
    except OSError as error:
        raise KeyFormatError(f"cannot write keys to {refusal(error, folder)}") from error
    return folder


def save_server(key: _native.ServerKey, made_by: Scheme, path: str | Path, *, examples_per_weight: float = 0.0) -> Path:
    """Write one server key file. Raises `KeyFormatError`, also where ``path`` exists."""
    path, weighting = as_path(path, "path"), _weighting(examples_per_weight)
    key = instance_of(key, _native.ServerKey, "key", "give the server's")
    return _save(path, _of_scheme(key, made_by), key.to_bytes(), "server", weighting)


def save_client(key: _native.ClientKey, made_by: Scheme, path: str | Path, *, coordinator: str = "") -> Path:
    """Write one client key file, readable by its owner only. Raises as `save_server`."""
    path, named = as_path(path, "path"), _named(coordinator)
    key = instance_of(key, _native.ClientKey, "key", "give a client's")
    return _save(path, _of_scheme(key, made_by), key.to_bytes(), "client", named)


def replace_client_key(path: Path, key: _native.ClientKey) -> None:
    """Put ``key`` into the client's file at ``path``, and leave what else it says; all or nothing.

    Raises `KeyFormatError`.
    """
    head = _content(path, "client").partition(b"\n")[0]
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            write_new(draft, head + b"\n" + key.to_bytes(), 0o600)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        flush_folder(path.parent)
    except OSError as error:
        raise KeyFormatError(f"cannot write a key to {refusal(error, path)}") from error


def _weighting(examples_per_weight: object) -> dict[str, Any]:
    return {_WEIGHTING: real_number(examples_per_weight, "examples_per_weight", 0)}


def _named(coordinator: object) -> dict[str, Any]:
    return {_COORDINATOR: coordinator} if as_text(coordinator, "coordinator") else {}


def _of_scheme(key: _native.ClientKey | _native.ServerKey, made_by: object) -> Scheme:
    """``made_by``, where the key is of that scheme: a file of both would open nothing. Raises `ParameterError`."""
    scheme = instance_of(made_by, Scheme, "made_by", "give the scheme that has made the keys")
    if key.scheme != scheme.name:
        raise ParameterError(f"the key is of {key.scheme}, and the scheme is {scheme.name}")
    return scheme


def _save(path: Path, made_by: Scheme, key: bytes, role: str, more: dict[str, Any]) -> Path:
    try:
        make_private_folder(path.absolute().parent)
        _write(path, made_by, key, role, more)
        flush_folder(path.absolute().parent)
    except FileExistsError:
        raise KeyFormatError(f"{path} exists; choose another name, or delete the old key first") from None
    except OSError as error:
        raise KeyFormatError(f"cannot write a key to {refusal(error, path)}") from error
    return path


def _rename(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _exists(folder) from None
        raise


def _exists(folder: Path) -> KeyFormatError:
    return KeyFormatError(f"{folder} exists and is not empty; choose another folder, or delete the old keys first")


def _write(path: Path, made_by: Scheme, key: bytes, role: str, more: dict[str, Any]) -> None:
    content = {
        "fedcipher": VERSION,
        "role": role,
        **made_by.spec(),
        **more,
    }
    write_new(path, json.dumps(content).encode() + b"\n" + key, 0o600)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """A new file, on disk when this returns. Raises `OSError`, `FileExistsError` among them."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, role: str) -> tuple[Scheme, bytes]:
    content, key = _parts(path, role)
    try:
        return from_spec(content), key
    except (ParameterError, KeyError, TypeError) as error:
        name = content.get("scheme")
        if isinstance(name, str) and name not in scheme_names():
            raise KeyFormatError(
                f"key file {path} is of scheme {quoted(repr(name), MAX_NAME)}, which is not known here; where another "
                f"package has it, let {MODULES} name the module that registers it"
            ) from error
        raise _damaged(path) from error


def _parts(path: Path, role: str) -> tuple[dict[str, Any], bytes]:
    """What the file says of the scheme, and the key."""
    head, _, key = _content(path, role).partition(b"\n")
    try:
        content: dict[str, Any] = parse_json(head)
        version, found = content["fedcipher"], content["role"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if version != VERSION:
        raise KeyFormatError(
            f"key file {path} is of version {version}, this Fedcipher reads version {VERSION}; use the Fedcipher that "
            "made it, or have new keys made"
        )
    if found != role:
        raise KeyFormatError(f"key file {path} is a {found} key where a {role} key is needed; name the other file")
    return content, key


def role_of(path: str | Path) -> str:
    """``client`` or ``server``: whose key file this is. Raises `KeyFormatError`."""
    path = _server_file(path)
    try:
        with open_file(path, MAX_KEY_FILE, follow=True) as file:
            role = parse_json(file.readline(MAX_NOTE))["role"]
    except OSError as error:
        raise KeyFormatError(f"cannot read key file {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if role not in ("client", "server"):
        raise _damaged(path)
    return role


def _content(path: Path, role: str) -> bytes:
    try:
        return read_secret(path) if role == "client" else read_file(path, MAX_KEY_FILE, follow=True)
    except ForeignFileError as error:
        raise KeyFormatError(f"{path} {error.strerror}; name the key file itself") from None
    except FileNotFoundError:
        raise _no_key_file(path, role) from None
    except OSError as error:
        raise KeyFormatError(f"cannot read key file {refusal(error, path)}") from error


def _no_key_file(path: Path, role: str) -> KeyFormatError:
    """What to say of a key file that is not there: which clients' are, where it would be."""
    try:
        there = sorted(found.name for found in path.parent.glob("*.key") if found.name != _SERVER_FILE)
    except OSError:
        there = []
    if not there or role != "client":
        return KeyFormatError(f"no key file {path}; name one that is there, or make keys with `fedcipher keygen`")
    shown = ", ".join([*there[:_SHOWN], *(["..."] if len(there) > _SHOWN else [])])
    return KeyFormatError(f"no key file {path}; there are {shown}: name one of them")


def read_secret(path: Path) -> bytes:
    """The bytes of a file that no other user may read or replace. Raises `KeyFormatError`, `OSError`.

    The user names it, so that a link is followed: a secret's mount is made of links.
    """
    # The system's own error for a file that is not there.
    open_file(path, MAX_KEY_FILE, follow=True).close()
    return _native.read_key_file(path)


def _damaged(path: Path) -> KeyFormatError:
    # The core's own words are about frames: they ask a sender to transmit again, and a file has none.
    return KeyFormatError(
        f"key file {path} is damaged, cut short, made by another version of Fedcipher, or no key file; ask for the "
        "file again, or have new keys made"
    )


def load_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """The scheme and secret key in a client's file, to decrypt or to look at; see `open_client`.

    Raises `KeyFormatError`: also where other users may read the file, or replace it.
    """
    path = as_path(path, "path")
    made, key = _read(path, "client")
    try:
        return made, _native.ClientKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None


def open_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """As `load_client`, to encrypt: takes the key file into use with the ledgers of this process's state folder.

    Holds a lock on ``<path>.used`` until the process ends or has opened 64 others, so that no engine uses the key at
    the same time; other processes with the same state folder may. Where nothing can be written beside the key file,
    that note is in the state folder. Raises `KeyInUseError` where an engine holds it, `KeyFormatError` where the key
    has been used with another state folder, and `LedgerError` where that folder has lost its ledger, or ends with the
    container that this is.
    """
    path = as_path(path, "path")
    made, key = load_client(path)
    hold(path, key)
    return made, key


def hold(path: Path, key: _native.ClientKey) -> None:
    """Take the file of ``key`` into use, again where this process has let go of it. Raises as `open_client`."""
    if said := _native.hold_key_file(path, key, state_dir()):
        _log.warning("%s", said)


def _server_file(path: str | Path) -> Path:
    path = as_path(path, "path")
    return path / _SERVER_FILE if path.is_dir() else path


def load_weighting(path: str | Path) -> float:
    """How many examples make one unit of weight, as the server's file says; 0: all clients weigh the same."""
    path = _server_file(path)
    value: Any = _parts(path, "server")[0].get(_WEIGHTING, 0.0)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise KeyFormatError(f"key file {path} is damaged: {value!r} examples cannot make one unit of weight")
    return float(value)


def load_coordinator(path: str | Path) -> str:
    """The key of the coordinator that a client's file names, as base64; empty where there is none."""
    path = as_path(path, "path")
    value: Any = _parts(path, "client")[0].get(_COORDINATOR, "")
    if not isinstance(value, str):
        raise KeyFormatError(f"key file {path} is damaged: its coordinator is no text")
    return value


def load_server(path: str | Path) -> tuple[Scheme, _native.ServerKey]:
    """The scheme and public key in the server's file, or in the folder that holds it."""
    path = _server_file(path)
    made, key = _read(path, "server")
    try:
        return made, _native.ServerKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None
