"""Converts arguments to the types of the core: NumPy's numbers, any buffer of bytes, arrays of any layout.

All public functions use these conversions. An argument that cannot be converted raises a `FedcipherError` with the
argument's name.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import FedcipherError, LayoutError, ParameterError
from fedcipher.foreign_text import MAX_LINE, MAX_NAME, quoted
from fedcipher.tensors import with_numpy

__all__ = [
    "as_array",
    "as_arrays",
    "as_bytes",
    "as_float",
    "as_frames",
    "as_path",
    "as_plain",
    "as_text",
    "callable_or_none",
    "instance_of",
    "is_finite",
    "listed",
    "real_number",
    "real_numbers",
    "truth",
    "whole_number",
    "whole_numbers",
]

T = TypeVar("T")
Array = NDArray[Any]
MAX_UINT64 = (1 << 64) - 1
"""The largest unsigned 64-bit number."""
_MAX_SECONDS = 1e9
_MAX_PATH, _MAX_PART = 4000, 255
"""Most bytes of a path, and of a name in a path: the limits of systems, less room for a parent folder."""


def _shown(value: object) -> str:
    """``value`` as text for an error, cut if it is long. Secrets show no contents."""
    try:
        return quoted(repr(value), MAX_NAME)
    except Exception:
        return f"a {type(value).__name__}"


def whole_number(value: object, name: str, least: int = 0, most: int = MAX_UINT64) -> int:
    """Convert to an int, also from NumPy. Raises `ParameterError`, also for truth values and floats."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(cast(Any, value))
    except (TypeError, ValueError):
        number = None
    if number is None or not least <= number <= most:
        raise ParameterError(f"{name}={_shown(value)} is not a whole number from {least} to {most}")
    return number


def whole_numbers(values: object, name: str, least: int = 0, most: int = MAX_UINT64) -> list[int]:
    """Convert each item as `whole_number` does. Raises `ParameterError`."""
    return [whole_number(value, f"{name}[{k}]", least, most) for k, value in enumerate(several(values, name))]


def real_number(value: object, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Convert to a finite int or float, also from NumPy; an int stays an int. Raises `ParameterError`."""
    found = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if type(found) is not int and not isinstance(found, float) and not isinstance(found, (bool, np.bool_)):
        found = _plain_number(found)
    taken = isinstance(found, (int, float)) and not isinstance(found, bool) and is_finite(found)
    if not taken or not least <= cast(float, found) <= most:
        bounds = "" if (least, most) == (-math.inf, math.inf) else f" from {least:g} to {most:g}"
        raise ParameterError(f"{name}={_shown(value)} is not a finite number{bounds}")
    return float(found) if isinstance(found, np.floating) else cast(float, found)


def is_finite(value: int | float) -> bool:
    """Whether a float can represent ``value``. Unlike `math.isfinite`, does not raise for a very large int."""
    return abs(value) <= sys.float_info.max


def as_float(value: int | float) -> float:
    """The nearest float; infinity for an int beyond the range of a float."""
    if isinstance(value, float) or is_finite(value):
        return float(value)
    return math.inf if value > 0 else -math.inf


def real_numbers(values: object, name: str) -> list[float]:
    """Convert each item as `real_number` does. Raises `ParameterError`."""
    return [real_number(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def _plain_number(value: object) -> object:
    """Convert a number of any type to Python's own; None if that fails. Other values stay unchanged."""
    try:
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if isinstance(value, numbers.Real) else value
    except (TypeError, ValueError, OverflowError):
        return None


def truth(value: object, name: str) -> bool:
    """Convert to a bool, also from NumPy. Raises `ParameterError` for other types."""
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name}={_shown(value)} is neither True nor False")
    return bool(value)


def check_truths(**values: object) -> None:
    """Raise `ParameterError`, with the argument's name, for the first argument that is not a truth value."""
    for name, value in values.items():
        truth(value, name)


def as_bytes(value: object, name: str) -> bytes:
    """Convert any buffer of bytes: ``bytearray``, ``memoryview``, an array of uint8. Raises `ParameterError`."""
    if type(value) is bytes:
        return value
    try:
        view = memoryview(cast(Any, value))
        if view.itemsize == 1 and view.format in ("B", "b", "c"):
            return view.tobytes()
    except (TypeError, ValueError, BufferError):
        pass
    raise ParameterError(f"{name} is of type {type(value).__name__}, which does not hold bytes; give bytes")


def as_frames(values: object, name: str) -> list[bytes]:
    """Convert each item as `as_bytes` does. Raises `ParameterError`."""
    return [as_bytes(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def as_text(value: object, name: str) -> str:
    """Check for a text that can be encoded as UTF-8. Raises `ParameterError`."""
    if not isinstance(value, str):
        raise ParameterError(f"{name}={_shown(value)} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name}={_shown(value)} holds half a surrogate pair, which cannot be encoded") from None
    return str(value)


def as_path(value: object, name: str) -> Path:
    """Convert to a path that the system accepts. Raises `ParameterError`."""
    found: object = value
    if isinstance(value, os.PathLike):
        found = os.fspath(cast("os.PathLike[str]", value))
    if not isinstance(found, str) or not _has_encoding(found):
        raise ParameterError(f"{name}={_shown(value)} is not a path; give a text or a pathlib.Path")
    # For longer paths even `Path.exists` raises OSError.
    encoded = os.fsencode(found)
    if len(encoded) > _MAX_PATH or any(len(part) > _MAX_PART for part in encoded.split(os.fsencode(os.sep))):
        raise ParameterError(f"{name} {quoted(found, MAX_LINE)} is too long for a file system; choose a shorter path")
    return Path(found)


def _has_encoding(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def as_plain(value: Any) -> Any:
    """Convert a NumPy number to Python's own. Other values stay unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def as_array(value: object, name: str) -> Array:
    """Convert to an array of numbers in the processor's byte order, aligned. Raises `LayoutError`."""
    (made,) = as_arrays([value], name)
    return made


def as_arrays(values: object, name: str) -> list[Array]:
    """Convert the arrays of an update or a model to numpy arrays in the processor's byte order, aligned.

    Takes numpy arrays, DLPack tensors and nested lists of numbers. Copies only if needed. Raises `LayoutError`.
    """
    made: list[Array] = []
    for k, value in enumerate(listed(values, name)):
        try:
            (found,) = with_numpy([value])
            made.append(_aligned(np.asanyarray(found)))
        except FedcipherError as error:
            raise LayoutError(f"{name}[{k}]: {error}") from error
        except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
            raise LayoutError(f"{name}[{k}] of type {type(value).__name__} is not an array: {quoted(error)}") from error
    return made


def listed(values: object, name: str) -> list[Any]:
    """The items of a list of arrays or names. Raises `LayoutError`, also for a single array instead of a list."""
    if isinstance(values, (str, bytes, Mapping)) or hasattr(values, "__dlpack__") or not isinstance(values, Iterable):
        raise LayoutError(f"{name} is of type {type(values).__name__}; give a list of arrays, as in [array]")
    return list(cast("Iterable[Any]", values))


def _aligned(x: Array) -> Array:
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.getmaskarray(x).any():
            raise LayoutError("the array has masked values, whose data would count; fill them first")
        x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise LayoutError(f"dtype {x.dtype.name} is not supported; cast to a numeric dtype, such as float32")
    if not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.aligned else x.copy()


def texts(values: object, name: str) -> list[str]:
    """Convert each item as `as_text` does. Raises `ParameterError`."""
    return [as_text(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def seconds(value: object, name: str) -> float:
    """Check for a time in seconds above 0, and at most 1e9. Raises `ParameterError`."""
    found = real_number(value, name, 0, _MAX_SECONDS)
    if not found:
        raise ParameterError(f"{name}={_shown(value)}: give seconds above 0")
    return found


def callable_or_none(value: T, name: str) -> T:
    """Check for a function or None. Raises `ParameterError`."""
    if value is not None and not callable(value):
        raise ParameterError(f"{name}={_shown(value)} is not a function")
    return value


def instance_of(value: object, cls: type[T], name: str, hint: str) -> T:
    """Check that ``value`` is of type ``cls``. Raises `ParameterError`, which ends in ``hint``."""
    if not isinstance(value, cls):
        raise ParameterError(f"{name} is of type {type(value).__name__}; {hint}")
    return value


def several(values: object, name: str) -> list[object]:
    """The items of a list. Raises `ParameterError`, also for a text."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ParameterError(f"{name}={_shown(values)} is not a list")
    try:
        return list(cast("Iterable[object]", values))
    except TypeError:
        # An array without dimensions has __iter__, but iteration fails.
        raise ParameterError(f"{name}={_shown(values)} is not a list") from None
