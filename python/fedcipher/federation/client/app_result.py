"""The result of an app for a message. After the app has seen data, every result is accepted, even a failure."""

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
    """An app's reply: arrays in the model's order, metrics by name, and seconds.

    ``failed`` is the reason if the app failed; otherwise empty.
    """

    arrays: list[Array] = field(default_factory=list[Array])
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    failed: str = ""

    def to_bytes(self, names: Collection[str]) -> bytes:
        """The result as bytes, with only the metrics in ``names``. Raises `ValueError` for a number that JSON lacks."""
        metrics = {name: _metric_numbers(self.metrics[name]) for name in names if name in self.metrics}
        fields = json.dumps({"metrics": metrics, "seconds": self.seconds, "failed": self.failed})
        packed = io.BytesIO()
        np.savez(packed, np.frombuffer(fields.encode(), np.uint8), *self.arrays)
        return packed.getvalue()

    @classmethod
    def parse(cls, content: bytes) -> AppResult:
        """Read the bytes of `to_bytes`. Raises `ValueError`."""
        stored = read_npz(content, MAX_MODEL)
        fields, *arrays = (stored[f"arr_{k}"] for k in range(len(stored)))
        return cls(arrays, **parse_json(fields.tobytes()))

    @classmethod
    def raised(cls, error: BaseException, seconds: float = 0.0) -> AppResult:
        """The result of an app that has raised ``error``. The traceback goes to this client's log."""
        _log.traceback("traceback of the app", error)
        return cls(seconds=seconds, failed=f"{type(error).__name__}: {quoted(error, MAX_LINE)}")

    def fitting(self, names: Sequence[str], like: Sequence[Array], *, updates: bool) -> AppResult:
        """This result, or a failed one if it has metrics without names, or arrays of other shapes than ``like``.

        An adapter passes on what an app returns, so arrays and metrics can be of any type. The arrays count only if
        the message ``updates`` a model.
        """
        given: Any = self.metrics
        try:
            if not isinstance(given, Mapping):
                raise LayoutError(f"the metrics are of type {type(given).__name__}; return numbers by name")
            if updates:
                _check_shapes(self.arrays, names, like)
        except LayoutError as error:
            return AppResult(seconds=self.seconds, failed=str(error))
        return self

    @classmethod
    def of(
        cls, content: Content, names: Sequence[str], like: Sequence[Array], *, updates: bool, seconds: float
    ) -> AppResult:
        """The result in an app's reply ``content``.

        If the message ``updates`` a model, the reply's arrays must have the ``names`` and the shapes of ``like``.
        """
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
    """The reply's arrays in the model's order. Apps may reorder them, since JAX returns sorted dicts.

    Raises `LayoutError` and `FrameError`.
    """
    if len(records) != 1:
        raise LayoutError(f"the reply has {len(records)} ArrayRecords; put all arrays into one ArrayRecord")
    if sorted(records[0]) != sorted(names):
        raise LayoutError(f"the reply has the arrays {list(records[0])}, expected {list(names)}")
    arrays = [to_numpy(records[0][name]) for name in names]
    _check_shapes(arrays, names, like)
    return arrays


def _check_shapes(arrays: Sequence[object], names: Sequence[str], like: Sequence[Array]) -> None:
    """Raise `LayoutError` if ``arrays`` are not arrays of numbers with the shapes of ``like``."""
    if len(arrays) != len(names):
        raise LayoutError(f"the reply has {len(arrays)} arrays for the {len(names)} arrays of the model")
    for name, made, given in zip(names, arrays, like, strict=True):
        if not isinstance(made, (np.ndarray, np.generic)) or made.dtype.kind not in "biuf":
            raise LayoutError(f"the reply's array {name!r} is not a NumPy array of numbers")
        # NumPy would broadcast a single number to a whole array.
        if made.shape != given.shape:
            raise LayoutError(
                f"the reply's array {name!r} has the shape {made.shape}, but the model's has {given.shape}: return "
                "each array in its original shape"
            )


def _metric_numbers(metric: Any) -> Any:
    """A metric's numbers: a list if ``metric`` is a list, otherwise one number."""
    numbers = numbers_of(metric)
    return numbers if isinstance(metric, list) or not numbers else numbers[0]


def numbers_of(metric: Any) -> list[int | float]:
    """A metric's numbers as a list, without values that are not numbers."""
    values = cast("list[Any]", metric if isinstance(metric, list) else [] if metric is None else [metric])
    return [value for value in values if isinstance(value, (int, float))]
