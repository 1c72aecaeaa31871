"""The aggregator's keys, as a run asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from fedcipher import _native
from fedcipher.schemes import Scheme

__all__ = ["ServerKeys"]


class ServerKeys(ABC):
    """The aggregator's keys in successive key epochs."""

    scheme: Scheme
    examples_per_weight: float = 0.0
    """Training examples for one unit of weight; 0 if all clients have the same weight."""
    folder: Path | None = None
    """The folder of the key files; None for keys without files."""

    @abstractmethod
    def current(self) -> _native.ServerKey:
        """The key for the next round."""

    def revoked(self) -> frozenset[int]:
        """Ids of revoked clients, whose ciphertexts the server refuses."""
        return frozenset()

    def finish_epoch(self, epoch: int) -> None:
        """Report that a round under ``epoch`` has its sum, which ends the epochs before ``epoch``."""
