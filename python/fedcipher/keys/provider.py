"""Where the aggregator's keys come from: a file, or the authority and its epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedcipher import _native
from fedcipher._arguments import as_path, as_text
from fedcipher.errors import ParameterError
from fedcipher.keys.store import load_server, load_weighting, locate
from fedcipher.schemes import Scheme

__all__ = ["FileKeys", "ServerKeys", "server_keys"]

_AUTHORITY = "authority://"


class ServerKeys(ABC):
    """The aggregator's keys over time."""

    scheme: Scheme
    examples_per_weight: float = 0.0
    """How many training examples make one unit of weight; 0: all clients weigh the same."""
    folder: Path | None = None
    """Where key files are, if they are in files."""

    @abstractmethod
    def current(self) -> _native.ServerKey:
        """The key for the next round."""

    def revoked(self) -> frozenset[int]:
        """Client ids whose ciphertexts are refused."""
        return frozenset()

    def settle(self, epoch: int) -> None:
        """A round under ``epoch`` is done: no client needs an older epoch."""


class FileKeys(ServerKeys):
    """One epoch, from ``server.key`` or its folder; `fedcipher.keys.store.locate` says what path may be."""

    def __init__(self, path: str | Path) -> None:
        path = locate(path)
        self.scheme, self._key = load_server(path)
        self.examples_per_weight = load_weighting(path)
        self.folder = path if path.is_dir() else path.parent

    def current(self) -> _native.ServerKey:
        return self._key


def server_keys(keys: str | Path | ServerKeys) -> ServerKeys:
    """The aggregator's keys: as they are, in a file, or ``authority://HOST:PORT/FOLDER``'s.

    The folder is that of ``fedcipher authority enrol NAME --role server``, from the root on. Raises `KeyFormatError`,
    `ParameterError`, and what `fedcipher.engine.Authority` raises.
    """
    if isinstance(keys, ServerKeys):
        return keys
    # A URL is no path: two of its slashes would be one.
    if not isinstance(keys, str) or not keys.startswith(_AUTHORITY):
        return FileKeys(as_path(keys, "keys"))
    # The engine's package is built upon this one.
    from fedcipher.engine import Authority

    where = urlsplit(as_text(keys, "keys"))
    if not where.netloc or len(where.path) < 2 or where.query or where.fragment:
        raise ParameterError(f"keys {keys!r}: an authority is {_AUTHORITY}HOST:PORT/FOLDER, of its credentials")
    return Authority(where.netloc, unquote(where.path))
