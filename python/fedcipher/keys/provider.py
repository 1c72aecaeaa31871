"""Where the aggregator's keys come from: a file, or the authority and its epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from fedcipher import _native
from fedcipher.keys.store import load_server
from fedcipher.schemes import Scheme

__all__ = ["FileKeys", "ServerKeys"]


class ServerKeys(ABC):
    """The aggregator's keys over time."""

    scheme: Scheme

    @abstractmethod
    def current(self) -> _native.ServerKey:
        """The key for the next round."""

    def revoked(self) -> frozenset[int]:
        """Client ids whose ciphertexts are refused."""
        return frozenset()

    def settle(self, epoch: int) -> None:
        """A round under ``epoch`` is done: no client needs an older epoch."""


class FileKeys(ServerKeys):
    """One epoch, from ``server.key`` or the folder that holds it."""

    def __init__(self, path: str | Path) -> None:
        self.scheme, self._key = load_server(path)

    def current(self) -> _native.ServerKey:
        return self._key
