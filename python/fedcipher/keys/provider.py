"""Where the aggregator's keys come from: a file, or the authority and its epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from fedcipher import _native
from fedcipher.keys.store import load_server, load_weighting, locate
from fedcipher.schemes import Scheme

__all__ = ["FileKeys", "ServerKeys"]


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
