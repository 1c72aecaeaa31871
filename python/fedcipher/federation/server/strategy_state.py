"""Exports a strategy's state between rounds as bytes: numbers, texts, arrays, and lists and dicts of these.

The format is NumPy's ``.npz`` with JSON and never a pickle, because a run's folder may come from an untrusted party.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import RunError
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_npz
from fedcipher.foreign_text import quoting_log

__all__ = ["StrategyState"]

_log = quoting_log("fedcipher.federation")
Taken = Callable[[object], "Mapping[str, NDArray[Any]] | None"]
Given = Callable[[Mapping[str, NDArray[Any]]], object]


class StrategyState:
    """The attributes of ``strategy`` that have changed since this object was made.

    ``arrays_of`` returns the arrays of a framework's own record by name, and None for any other object. ``record_of``
    makes such a record from these arrays.
    """

    def __init__(self, strategy: object, arrays_of: Taken, record_of: Given) -> None:
        self._strategy, self._arrays_of, self._record_of = strategy, arrays_of, record_of
        self._name = type(strategy).__name__
        self._initial = {name: (value, self._digest_of(value)) for name, value in vars(strategy).items()}
        self._warned: set[str] = set()

    def export(self) -> bytes:
        """The changed attributes, for `restore`. A warning names each attribute that cannot be exported."""
        exported: dict[str, Any] = {}
        arrays: list[NDArray[Any]] = []
        for name, value in vars(self._strategy).items():
            flat: list[NDArray[Any]] = []
            try:
                tree = self._flat(value, flat)
            except TypeError:
                if value is not self._initial.get(name, (None, None))[0] and name not in self._warned:
                    self._warned.add(name)
                    _log.warning(
                        "%s.%s has a type that cannot be stored: a resumed run starts without it", self._name, name
                    )
                continue
            if _digest(tree, flat) != self._initial.get(name, (None, None))[1]:
                exported[name] = self._flat(value, arrays)
        packed = io.BytesIO()
        named_arrays = {str(i): array for i, array in enumerate(arrays)}
        np.savez(
            packed, allow_pickle=False, tree=np.frombuffer(json.dumps(exported).encode(), np.uint8), **named_arrays
        )
        return packed.getvalue()

    def restore(self, state: bytes) -> None:
        """Set the attributes from the bytes of `export`. Raises `RunError` if they are damaged."""
        try:
            arrays = read_npz(state, MAX_MODEL)
            exported = parse_json(arrays.pop("tree").tobytes())
            values = {name: self._deep(tree, arrays) for name, tree in exported.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the stored state of {self._name} is damaged: {error}; copy the run again") from error
        for name, value in values.items():
            setattr(self._strategy, name, value)

    def _flat(self, value: object, arrays: list[NDArray[Any]]) -> Any:
        """``value`` for JSON, with its arrays moved into ``arrays``. Raises `TypeError` for an unsupported type."""
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            arrays.append(value)
            return {"array": len(arrays) - 1}
        if isinstance(value, np.generic):
            return self._flat(np.asarray(value), arrays)
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        if isinstance(value, (list, tuple)):
            items = cast("list[object] | tuple[object, ...]", value)
            return {"tuple" if isinstance(value, tuple) else "list": [self._flat(x, arrays) for x in items]}
        record = self._arrays_of(value)
        if record is not None:
            return {"record": [[name, self._flat(array, arrays)] for name, array in record.items()]}
        if isinstance(value, dict):
            pairs = cast("dict[object, object]", value).items()
            return {"dict": [[self._flat(key, arrays), self._flat(x, arrays)] for key, x in pairs]}
        raise TypeError(type(value).__name__)

    def _deep(self, tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """The inverse of `_flat`."""
        ((kind, value),) = tree.items()
        if kind == "array":
            return arrays[str(value)]
        if kind == "dict":
            return {self._deep(key, arrays): self._deep(x, arrays) for key, x in value}
        if kind == "record":
            return self._record_of({name: self._deep(x, arrays) for name, x in value})
        if kind in ("list", "tuple"):
            items = [self._deep(x, arrays) for x in value]
            return tuple(items) if kind == "tuple" else items
        return value

    def _digest_of(self, value: object) -> bytes | None:
        arrays: list[NDArray[Any]] = []
        try:
            return _digest(self._flat(value, arrays), arrays)
        except TypeError:
            return None


def _digest(tree: Any, arrays: Sequence[NDArray[Any]]) -> bytes:
    hashed = hashlib.sha256(json.dumps([tree, [[x.dtype.str, x.shape] for x in arrays]]).encode())
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.digest()
