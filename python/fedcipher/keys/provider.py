"""Sources of the aggregator's keys: a key file, or a key authority with its epochs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedcipher import _native
from fedcipher._arguments import as_path, as_text
from fedcipher.engine.authority import Authority
from fedcipher.errors import ParameterError
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.keys.store import load_server, load_weighting, locate

__all__ = ["FileKeys", "server_keys"]

_AUTHORITY = "authority://"


class FileKeys(ServerKeys):
    """The key of one epoch, from ``server.key`` or its folder. `fedcipher.keys.store.locate` resolves ``path``."""

    def __init__(self, path: str | Path) -> None:
        path = locate(path)
        self.scheme, self._key = load_server(path)
        self.examples_per_weight = load_weighting(path)
        self.folder = path if path.is_dir() else path.parent

    def current(self) -> _native.ServerKey:
        return self._key


def server_keys(keys: str | Path | ServerKeys) -> ServerKeys:
    """Load the aggregator's keys from a path or from ``authority://HOST:PORT/FOLDER``; return `ServerKeys` unchanged.

    FOLDER is the absolute path of the folder that ``fedcipher authority enrol NAME --role server`` has made. Raises
    `KeyFormatError`, `ParameterError`, and the errors of `fedcipher.engine.Authority`.
    """
    if isinstance(keys, ServerKeys):
        return keys
    # A Path would join the two slashes of the URL.
    if not isinstance(keys, str) or not keys.startswith(_AUTHORITY):
        return FileKeys(as_path(keys, "keys"))
    where = urlsplit(as_text(keys, "keys"))
    if not where.netloc or len(where.path) < 2 or where.query or where.fragment:
        raise ParameterError(
            f"keys {keys!r}: an authority is {_AUTHORITY}HOST:PORT/FOLDER, where FOLDER has the server's credentials"
        )
    return Authority(where.netloc, unquote(where.path))
