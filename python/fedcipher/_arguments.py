"""What a caller gives, as the types that the core takes: NumPy's numbers, any buffer of bytes, arrays of any layout.

All public functions convert here. What cannot be converted is refused with a `FedcipherError` that names it.
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
"""What 64 bits hold."""
_MOST_SECONDS = 1e9
_MAX_PATH, _MAX_PART = 4000, 255
"""Bytes of a path, and of a name in it: what systems have, less room for a folder before it."""


def _shown(value: object) -> str:
    """For an error; a secret has no text of its own, and what is long is cut."""
    try:
        return quoted(repr(value), MAX_NAME)
    except Exception:
        return f"a {type(value).__name__}"


def whole_number(value: object, name: str, least: int = 0, most: int = MAX_UINT64) -> int:
    """A whole number, NumPy's too. Truth values and floats are refused. Raises `ParameterError`."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(cast(Any, value))
    except (TypeError, ValueError):
        number = None
    if number is None or not least <= number <= most:
        raise ParameterError(f"{name}={_shown(value)} is no whole number from {least} to {most}")
    return number


def whole_numbers(values: object, name: str, least: int = 0, most: int = MAX_UINT64) -> list[int]:
    """Several of them. Raises `ParameterError`."""
    return [whole_number(value, f"{name}[{k}]", least, most) for k, value in enumerate(several(values, name))]


def real_number(value: object, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A number that a float holds, NumPy's too; Python's own stay as they are. Raises `ParameterError`."""
    found = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if type(found) is not int and not isinstance(found, float) and not isinstance(found, (bool, np.bool_)):
        found = _plain_number(found)
    taken = isinstance(found, (int, float)) and not isinstance(found, bool) and is_finite(found)
    if not taken or not least <= cast(float, found) <= most:
        bounds = "" if (least, most) == (-math.inf, math.inf) else f" from {least:g} to {most:g}"
        raise ParameterError(f"{name}={_shown(value)} is no finite number{bounds}")
    return float(found) if isinstance(found, np.floating) else cast(float, found)


def is_finite(value: int | float) -> bool:
    """Whether a float holds it; `math.isfinite` and ``float`` end in an error at a whole number that is too large."""
    return abs(value) <= sys.float_info.max


def as_float(value: int | float) -> float:
    """The nearest float; a whole number that is too large for one is infinite."""
    if isinstance(value, float) or is_finite(value):
        return float(value)
    return math.inf if value > 0 else -math.inf


def real_numbers(values: object, name: str) -> list[float]:
    """Several of them. Raises `ParameterError`."""
    return [real_number(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def _plain_number(value: object) -> object:
    """Python's number of the same value; what is no real number stays."""
    try:
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if isinstance(value, numbers.Real) else value
    except (TypeError, ValueError, OverflowError):
        return None


def truth(value: object, name: str) -> bool:
    """True or false, NumPy's too. Raises `ParameterError`."""
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name}={_shown(value)} is neither True nor False")
    return bool(value)


def check_truths(**values: object) -> None:
    """Raise `ParameterError` for the first argument, by its name, that is neither true nor false."""
    for name, value in values.items():
        truth(value, name)


def as_bytes(value: object, name: str) -> bytes:
    """Bytes of any buffer of bytes: ``bytearray``, ``memoryview``, an array of uint8. Raises `ParameterError`."""
    if type(value) is bytes:
        return value
    try:
        view = memoryview(cast(Any, value))
        if view.itemsize == 1 and view.format in ("B", "b", "c"):
            return view.tobytes()
    except (TypeError, ValueError, BufferError):
        pass
    raise ParameterError(f"{name} is of type {type(value).__name__} and holds no bytes; give bytes")


def as_frames(values: object, name: str) -> list[bytes]:
    """Several of them. Raises `ParameterError`."""
    return [as_bytes(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def as_text(value: object, name: str) -> str:
    """A text that has an encoding. Raises `ParameterError`."""
    if not isinstance(value, str):
        raise ParameterError(f"{name}={_shown(value)} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name}={_shown(value)} holds half a surrogate pair, which no encoding has") from None
    return str(value)


def as_path(value: object, name: str) -> Path:
    """A path that the system can be asked for. Raises `ParameterError`."""
    found: object = value
    if isinstance(value, os.PathLike):
        found = os.fspath(cast("os.PathLike[str]", value))
    if not isinstance(found, str) or not _has_encoding(found):
        raise ParameterError(f"{name}={_shown(value)} is no path; give a text or a pathlib.Path")
    # Else `Path.exists` raises what nobody expects of it.
    encoded = os.fsencode(found)
    if len(encoded) > _MAX_PATH or any(len(part) > _MAX_PART for part in encoded.split(os.fsencode(os.sep))):
        raise ParameterError(f"{name} {quoted(found, MAX_LINE)} is longer than file systems take; choose another")
    return Path(found)


def _has_encoding(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def as_plain(value: Any) -> Any:
    """A number of NumPy's as Python's own; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def as_array(value: object, name: str) -> Array:
    """An array of numbers as the processor has them: in its own byte order, aligned. Raises `LayoutError`."""
    (made,) = as_arrays([value], name)
    return made


def as_arrays(values: object, name: str) -> list[Array]:
    """The arrays of an update or a model: in the processor's byte order, aligned; without a copy where they are.

    NumPy's, tensors with DLPack, and nested lists of numbers. Raises `LayoutError`.
    """
    made: list[Array] = []
    for k, value in enumerate(listed(values, name)):
        try:
            (found,) = with_numpy([value])
            made.append(_aligned(np.asanyarray(found)))
        except FedcipherError as error:
            raise LayoutError(f"{name}[{k}]: {error}") from error
        except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
            raise LayoutError(f"{name}[{k}] of type {type(value).__name__} is no array: {quoted(error)}") from error
    return made


def listed(values: object, name: str) -> list[Any]:
    """What a list of arrays, or of their names, holds; a single array would be taken for its rows.

    Raises `LayoutError`.
    """
    if isinstance(values, (str, bytes, Mapping)) or hasattr(values, "__dlpack__") or not isinstance(values, Iterable):
        raise LayoutError(f"{name} is of type {type(values).__name__}; give a list of arrays, as in [array]")
    return list(cast("Iterable[Any]", values))


def _aligned(x: Array) -> Array:
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.getmaskarray(x).any():
            raise LayoutError("it has masked values, which would count; fill them first")
        x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise LayoutError(f"dtype {x.dtype.name} is not supported; cast to one of numbers, such as float32")
    if not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.aligned else x.copy()


def texts(values: object, name: str) -> list[str]:
    """Several texts. Raises `ParameterError`."""
    return [as_text(value, f"{name}[{k}]") for k, value in enumerate(several(values, name))]


def seconds(value: object, name: str) -> float:
    """A time above 0, and no longer than a clock has. Raises `ParameterError`."""
    found = real_number(value, name, 0, _MOST_SECONDS)
    if not found:
        raise ParameterError(f"{name}={_shown(value)}: give seconds above 0")
    return found


def callable_or_none(value: T, name: str) -> T:
    """A function, or none. Raises `ParameterError`."""
    if value is not None and not callable(value):
        raise ParameterError(f"{name}={_shown(value)} is no function")
    return value


def instance_of(value: object, cls: type[T], name: str, hint: str) -> T:
    """What is of ``cls``. Raises `ParameterError`, which says ``hint``."""
    if not isinstance(value, cls):
        raise ParameterError(f"{name} is of type {type(value).__name__}; {hint}")
    return value


def several(values: object, name: str) -> list[object]:
    """The items of a list; a text is none. Raises `ParameterError`."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ParameterError(f"{name}={_shown(values)} is no list")
    try:
        return list(cast("Iterable[object]", values))
    except TypeError:
        # An array without dimensions says that it is iterable.
        raise ParameterError(f"{name}={_shown(values)} is no list") from None
