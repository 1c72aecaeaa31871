"""What an app made of a message, whatever it made: after it has seen data there is no refusal any more."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FedcipherError, LayoutError
from fedcipher.flower import protocol
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_npz
from fedcipher.foreign_text import MAX_LINE, quoted, quoting_log

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable

__all__ = ["Work", "computed", "numbers_of"]

_log = quoting_log("fedcipher.flower")


@dataclass
class Work:
    """An app's reply: arrays in the model's order, metrics by name, seconds; ``failed`` says why there is none."""

    arrays: list[NumpyArray] = field(default_factory=list[NumpyArray])
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
    def parse(cls, content: bytes) -> Work:
        """From `to_bytes`. Raises `ValueError`."""
        held = read_npz(content, MAX_MODEL)
        said, *arrays = (held[f"arr_{k}"] for k in range(len(held)))
        return cls(arrays, **parse_json(said.tobytes()))


def computed(
    msg: Message, ctxt: Context, call_next: ClientAppCallable, model: Sequence[NumpyArray] | None, record: str
) -> Work:
    """Let the app compute. ``model`` has the arrays that a reply must have; none where it has to have none."""
    names = [] if model is None else list(msg.content.array_records[record].keys())
    began = time.perf_counter()
    try:
        reply: Any = call_next(msg, ctxt)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        _log.traceback("traceback of the app", error)
        return Work(seconds=time.perf_counter() - began, failed=f"{type(error).__name__}: {quoted(error, MAX_LINE)}")
    seconds = time.perf_counter() - began
    try:
        return _work(reply, model, names, seconds)
    except FedcipherError as error:
        return Work(seconds=seconds, failed=str(error))


def _work(reply: Any, model: Sequence[NumpyArray] | None, names: list[str], seconds: float) -> Work:
    if not isinstance(reply, Message):
        return Work(seconds=seconds, failed=f"the app answered with {type(reply).__name__}, not with a Message")
    if reply.has_error():
        return Work(seconds=seconds, failed=f"the app answered with an error: {reply.error.reason!r}")
    metrics: dict[str, Any] = {}
    for held in reply.content.metric_records.values():
        metrics.update(held)
    records = list(reply.content.array_records.values())
    if model is not None:
        return Work(_arrays(records, model, names), metrics, seconds)
    if records:
        _log.warning("the arrays of an evaluation's reply stay on this client")
    return Work(metrics=metrics, seconds=seconds)


def _arrays(records: list[ArrayRecord], model: Sequence[NumpyArray], names: list[str]) -> list[NumpyArray]:
    """In the model's order, whatever the app's: JAX returns dicts sorted. Raises `LayoutError`, `FrameError`."""
    if len(records) != 1:
        raise LayoutError(f"the reply has {len(records)} ArrayRecords; put all arrays into one")
    if sorted(records[0].keys()) != sorted(names):
        raise LayoutError(f"the reply has arrays {list(records[0].keys())}, expected {names}")
    arrays = [protocol.to_numpy(records[0][name]) for name in names]
    for name, made, given in zip(names, arrays, model, strict=True):
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
