"""What an app made of a message, whatever it made: after it has seen data nothing is refused any more."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import FedcipherError, LayoutError
from fedcipher.federation.messages import Arrays, Content, Metrics, to_numpy
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_npz
from fedcipher.foreign_text import MAX_LINE, quoted, quoting_log

__all__ = ["AppResult", "numbers_of"]

_log = quoting_log("fedcipher.federation")


@dataclass
class AppResult:
    """An app's reply: arrays in the model's order, metrics by name, seconds; ``failed`` says why there is none."""

    arrays: list[Array] = field(default_factory=list[Array])
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    failed: str = ""

    def to_bytes(self, names: Collection[str]) -> bytes:
        """Everything but metrics that are not among ``names``. Raises `ValueError` for a number that has no text."""
        metrics = {name: _plain(self.metrics[name]) for name in names if name in self.metrics}
        said = json.dumps({"metrics": metrics, "seconds": self.seconds, "failed": self.failed})
        packed = io.BytesIO()
        np.savez(packed, np.frombuffer(said.encode(), np.uint8), *self.arrays)
        return packed.getvalue()

    @classmethod
    def parse(cls, content: bytes) -> AppResult:
        """From `to_bytes`. Raises `ValueError`."""
        held = read_npz(content, MAX_MODEL)
        said, *arrays = (held[f"arr_{k}"] for k in range(len(held)))
        return cls(arrays, **parse_json(said.tobytes()))

    @classmethod
    def raised(cls, error: BaseException, seconds: float = 0.0) -> AppResult:
        """Of an app that has raised ``error``: the traceback goes to this client's log."""
        _log.traceback("traceback of the app", error)
        return cls(seconds=seconds, failed=f"{type(error).__name__}: {quoted(error, MAX_LINE)}")

    @classmethod
    def of(
        cls, content: Content, names: Sequence[str], like: Sequence[Array], *, updates: bool, seconds: float
    ) -> AppResult:
        """Of an app's reply. Where it ``updates`` a model, its arrays have the ``names`` and shapes of ``like``."""
        metrics: dict[str, Any] = {}
        for record in content.values():
            metrics.update(record if isinstance(record, Metrics) else {})
        records = [record for record in content.values() if isinstance(record, Arrays)]
        if not updates:
            if records:
                _log.warning("the arrays of an evaluation's reply stay on this client")
            return cls(metrics=metrics, seconds=seconds)
        try:
            return cls(_arrays(records, names, like), metrics, seconds)
        except FedcipherError as error:
            return cls(seconds=seconds, failed=str(error))


def _arrays(records: list[Arrays], names: Sequence[str], like: Sequence[Array]) -> list[Array]:
    """In the model's order, whatever the app's: JAX returns dicts sorted. Raises `LayoutError`, `FrameError`."""
    if len(records) != 1:
        raise LayoutError(f"the reply has {len(records)} ArrayRecords; put all arrays into one")
    if sorted(records[0]) != sorted(names):
        raise LayoutError(f"the reply has arrays {list(records[0])}, expected {list(names)}")
    arrays = [to_numpy(records[0][name]) for name in names]
    for name, made, given in zip(names, arrays, like, strict=True):
        # NumPy would take one number for a whole array of them.
        if made.shape != given.shape:
            raise LayoutError(
                f"the reply's array {name!r} has the shape {made.shape}, the model's {given.shape}: return each array "
                "in the shape in which it came"
            )
    return arrays


def _plain(held: Any) -> Any:
    """A metric's numbers, one or a list of them as it was."""
    numbers = numbers_of(held)
    return numbers if isinstance(held, list) or not numbers else numbers[0]


def numbers_of(held: Any) -> list[int | float]:
    """A metric's numbers: what is none is left out."""
    values = cast("list[Any]", held if isinstance(held, list) else [] if held is None else [held])
    return [value for value in values if isinstance(value, (int, float))]
