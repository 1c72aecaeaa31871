"""Key files: one for each party, with a line of JSON (scheme, parameters, codec) and then the key's bytes.

Client files hold a secret. They are created readable by their owner only.
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
"""The version of the format of key files."""
_SERVER_FILE = "server.key"
_MAX_SUGGESTED = 5
"""Most existing key files that an error about a missing file names."""
_WEIGHTING, _COORDINATOR = "examples_per_weight", "coordinator"


def locate(name: str | Path) -> Path:
    """Resolve an app's key setting: an absolute path, or a name created by ``keygen --name``.

    Raises `KeyFormatError` for other relative paths. Flower runs an app in a folder of its own choice, where a relative
    path would find nothing, or the keys of another app.
    """
    try:
        path = as_path(name, "keys").expanduser()
    except RuntimeError as error:
        raise KeyFormatError(f"keys {str(name)!r}: {error}; give an absolute path") from error
    if path.is_absolute():
        return path
    named = named_folder(str(name)) if len(path.parts) == 1 else None
    if named is not None and named.is_dir():
        return named
    absent = f", and {named} does not exist" if named else ""
    raise KeyFormatError(
        f"keys {str(name)!r}: Flower runs apps in another folder, so a relative path cannot be resolved{absent}. Give "
        "an absolute path, or make the keys with `fedcipher keygen --name NAME`"
    )


def home() -> Path:
    """The folder of named keys and runs: ``FEDCIPHER_HOME``, or ``~/.fedcipher``.

    It does not depend on the folder that an app runs in. Raises `ParameterError` if this user has no home folder.
    """
    chosen = os.environ.get("FEDCIPHER_HOME")
    return Path(chosen).absolute() if chosen else user_home("FEDCIPHER_HOME") / ".fedcipher"


def locate_run(given: str | Path) -> Path:
    """Resolve a run: the run's folder, a training's folder (its last run), or the name of a run in `home`."""
    given = as_path(given, "run")
    runs = {
        int(found[1] or 1): path
        for path in given.glob("run*")
        if (found := re.fullmatch(r"run(?:-(\d+))?", path.name)) and not path.is_symlink()
    }
    if any((given / name).exists() for name in ("journal.db", "run.json")):
        return given
    if runs:
        return runs[max(runs)]
    # An app, its keys and its run often have one name, and the app's folder is then here.
    named = home() / "runs" / given if len(given.parts) == 1 else None
    return named if named is not None and (named.is_dir() or not given.exists()) else given


def named_folder(name: str) -> Path:
    """The folder of ``keygen --name NAME``: ``keys/NAME`` in `home`. Raises `KeyFormatError`, `ParameterError`."""
    if as_path(name, "name").name != name or name in ("", ".", ".."):
        raise KeyFormatError(f"{name!r} is not a name for keys: give a name without folder separators")
    return home() / "keys" / name


def client_file(folder: str | Path, client: int) -> Path:
    """The path at which `save` writes the key of ``client``."""
    return as_path(folder, "folder") / f"client-{whole_number(client, 'client')}.key"


def save(
    keys: KeySet, made_by: Scheme, folder: str | Path, *, examples_per_weight: float = 0.0, coordinator: str = ""
) -> Path:
    """Write ``server.key`` and one ``client-<id>.key`` per client into a new ``folder``.

    Writes all files or none. The files are on disk when this returns: a hidden folder beside ``folder`` is written
    first and then renamed.

    Parameters
    ----------
    examples_per_weight
        The number that `load_weighting` returns.
    coordinator
        The text that `load_coordinator` returns.

    Raises `ParameterError` for values that these functions would refuse, and `KeyFormatError` if ``folder`` exists and
    is not empty.
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
            # The system refuses the rename if the folder has received files meanwhile.
            _rename(draft, folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        flush_folder(draft.parent)
    except OSError as error:
        raise KeyFormatError(f"cannot write keys to {refusal(error, folder)}") from error
    return folder


def save_server(key: _native.ServerKey, made_by: Scheme, path: str | Path, *, examples_per_weight: float = 0.0) -> Path:
    """Write one server key file. Raises `KeyFormatError`, also if ``path`` exists."""
    path, weighting = as_path(path, "path"), _weighting(examples_per_weight)
    key = instance_of(key, _native.ServerKey, "key", "give the server's key")
    return _save(path, _of_scheme(key, made_by), key.to_bytes(), "server", weighting)


def save_client(key: _native.ClientKey, made_by: Scheme, path: str | Path, *, coordinator: str = "") -> Path:
    """Write one client key file, readable by its owner only. Raises the errors of `save_server`."""
    path, named = as_path(path, "path"), _named(coordinator)
    key = instance_of(key, _native.ClientKey, "key", "give a client's key")
    return _save(path, _of_scheme(key, made_by), key.to_bytes(), "client", named)


def replace_client_key(path: Path, key: _native.ClientKey) -> None:
    """Replace the key in the client's file at ``path``, atomically. The other contents stay unchanged.

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
    """Check that ``made_by`` is the key's scheme, and return it. Raises `ParameterError`."""
    scheme = instance_of(made_by, Scheme, "made_by", "give the scheme that made the keys")
    if key.scheme != scheme.name:
        raise ParameterError(
            f"the key is of scheme {key.scheme}, and made_by is {scheme.name}; give the scheme that made the key"
        )
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
    """Write a new file, which is on disk when this returns. Raises `OSError`, `FileExistsError` if ``path`` exists."""
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
                f"key file {path} is of scheme {quoted(repr(name), MAX_NAME)}, which is not known here; if another "
                f"package has this scheme, set {MODULES} to the module that registers it"
            ) from error
        raise _damaged(path) from error


def _parts(path: Path, role: str) -> tuple[dict[str, Any], bytes]:
    """The JSON fields and the key in a key file. Raises `KeyFormatError`."""
    head, _, key = _content(path, role).partition(b"\n")
    try:
        content: dict[str, Any] = parse_json(head)
        version, found = content["fedcipher"], content["role"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if version != VERSION:
        raise KeyFormatError(
            f"key file {path} has version {version}, and this Fedcipher reads version {VERSION}; use the Fedcipher "
            "that made the file, or have new keys made"
        )
    if found != role:
        raise KeyFormatError(f"key file {path} is a {found} key, and a {role} key is needed; name the other file")
    return content, key


def role_of(path: str | Path) -> str:
    """The role in a key file: ``client`` or ``server``. Raises `KeyFormatError`."""
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
    """The error for a missing key file, with the names of the client key files in its folder."""
    try:
        present = sorted(found.name for found in path.parent.glob("*.key") if found.name != _SERVER_FILE)
    except OSError:
        present = []
    if not present or role != "client":
        return KeyFormatError(f"no key file {path}; name one that exists, or make keys with `fedcipher keygen`")
    shown = ", ".join([*present[:_MAX_SUGGESTED], *(["..."] if len(present) > _MAX_SUGGESTED else [])])
    return KeyFormatError(f"no key file {path}; there are {shown}: name one of them")


def read_secret(path: Path) -> bytes:
    """Read a file that no other user may read or replace. Raises `KeyFormatError`, `OSError`.

    Follows links, because the user names the path, and containers mount secrets as links.
    """
    # Raise the system's own error for a missing file.
    open_file(path, MAX_KEY_FILE, follow=True).close()
    return _native.read_key_file(path)


def _damaged(path: Path) -> KeyFormatError:
    # The core's message is about frames, and asks the sender to transmit again. A file has no sender.
    return KeyFormatError(
        f"key file {path} is damaged, cut short, made by another version of Fedcipher, or not a key file; ask for the "
        "file again, or have new keys made"
    )


def load_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """Load the scheme and the secret key from a client's file, to decrypt or to inspect. To encrypt, use `open_client`.

    Raises `KeyFormatError`, also if other users may read or replace the file.
    """
    path = as_path(path, "path")
    made, key = _read(path, "client")
    try:
        return made, _native.ClientKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None


def open_client(path: str | Path) -> tuple[Scheme, _native.ClientKey]:
    """Load a client's key to encrypt with, and bind the key file to the ledgers of this process's state folder.

    Like `load_client`, but also locks ``<path>.used`` until the process ends or has opened 64 other keys. While the
    lock is held, no engine uses the key. Other processes with the same state folder may use it. If nothing can be
    written beside the key file, the lock file is in the state folder.

    Raises the errors of `load_client`, `KeyInUseError` if an engine holds the key, and `KeyFormatError` if the key has
    been used with another state folder. Raises `LedgerError` if the state folder has lost the key's ledger, or will
    vanish with this container.
    """
    path = as_path(path, "path")
    made, key = load_client(path)
    hold(path, key)
    return made, key


def hold(path: Path, key: _native.ClientKey) -> None:
    """Lock the file of ``key`` for this process, again if the process has released it. Raises as `open_client`."""
    if warning := _native.hold_key_file(path, key, state_dir()):
        _log.warning("%s", warning)


def _server_file(path: str | Path) -> Path:
    path = as_path(path, "path")
    return path / _SERVER_FILE if path.is_dir() else path


def load_weighting(path: str | Path) -> float:
    """Training examples for one unit of weight, from the server's file; 0 if all clients have the same weight.

    Raises `KeyFormatError`.
    """
    path = _server_file(path)
    value: Any = _parts(path, "server")[0].get(_WEIGHTING, 0.0)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise KeyFormatError(
            f"key file {path} is damaged: {_WEIGHTING} is {value!r}, not a number from 0 on; ask for the file again"
        )
    return float(value)


def load_coordinator(path: str | Path) -> str:
    """The coordinator's public key in a client's file, as base64; empty if there is none. Raises `KeyFormatError`."""
    path = as_path(path, "path")
    value: Any = _parts(path, "client")[0].get(_COORDINATOR, "")
    if not isinstance(value, str):
        raise KeyFormatError(f"key file {path} is damaged: its coordinator is not a text; ask for the file again")
    return value


def load_server(path: str | Path) -> tuple[Scheme, _native.ServerKey]:
    """Load the scheme and the public key from the server's file, or from the folder of that file.

    Raises `KeyFormatError`.
    """
    path = _server_file(path)
    made, key = _read(path, "server")
    try:
        return made, _native.ServerKey.from_bytes(key)
    except (FrameError, KeyFormatError):
        raise _damaged(path) from None
