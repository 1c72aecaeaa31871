"""An aggregation's work, shared out between processes of one server (`Scheme.workers`, `Aggregator.parted`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcipher import _native
from fedcipher._arguments import as_bytes, as_frames
from fedcipher.schemes.base import server_key

__all__ = ["PartedSum", "Parts", "Workers"]


@dataclass(frozen=True)
class Parts:
    """What a server's own processes make an aggregate of: each of ``pieces``, with what they have in ``common``."""

    common: bytes
    pieces: list[bytes]


class Workers:
    """Does the work of aggregates in pieces."""

    def __init__(self, native: _native.Scheme) -> None:
        self._native = native

    def work(self, key: _native.ServerKey, common: bytes, piece: bytes) -> bytes:
        """Do one of `PartedSum.parts`. Raises `FrameError`."""
        return self._native.work(server_key(key), as_bytes(common, "common"), as_bytes(piece, "piece"))


class PartedSum:
    """A sum whose work other processes do."""

    def __init__(self, native: _native.Aggregator) -> None:
        self._native = native

    def parts(self) -> Parts:
        """The work of `Aggregator.finish`, for `Workers.work` in other processes. Raises as `Aggregator.finish`."""
        return Parts(*self._native.parts())

    def finish_from(self, results: Sequence[bytes]) -> bytes:
        """The same frame as `Aggregator.finish`, to the bit, from the results of all `parts` in their order.

        Raises `FrameError` where results are missing or damaged, and as `Aggregator.finish`.
        """
        return self._native.finish_from(as_frames(results, "results"))
