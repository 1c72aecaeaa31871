"""Divides an aggregation's work among the processes of one server (`Scheme.workers`, `Aggregator.parted`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcipher import _native
from fedcipher._arguments import as_bytes, as_frames
from fedcipher.schemes.base import server_key

__all__ = ["PartedSum", "Parts", "Workers"]


@dataclass(frozen=True)
class Parts:
    """The work of an aggregation: each of ``pieces`` is one work item, and every item also needs ``common``."""

    common: bytes
    pieces: list[bytes]


class Workers:
    """Runs work items of aggregations."""

    def __init__(self, native: _native.Scheme) -> None:
        self._native = native

    def run_work_item(self, key: _native.ServerKey, common: bytes, piece: bytes) -> bytes:
        """Run one piece of `PartedSum.parts` and return its result. Raises `FrameError`."""
        return self._native.run_work_item(server_key(key), as_bytes(common, "common"), as_bytes(piece, "piece"))


class PartedSum:
    """A sum computed by other processes from work items."""

    def __init__(self, native: _native.Aggregator) -> None:
        self._native = native

    def parts(self) -> Parts:
        """Return the work of `Aggregator.finish`, for `Workers.run_work_item` in other processes.

        Raises the errors of `Aggregator.finish`.
        """
        return Parts(*self._native.parts())

    def finish_from(self, results: Sequence[bytes]) -> bytes:
        """Return the frame of `Aggregator.finish`, bit for bit, from the results of all `parts` in their order.

        Raises `FrameError` if results are missing or damaged, and the errors of `Aggregator.finish`.
        """
        return self._native.finish_from(as_frames(results, "results"))
