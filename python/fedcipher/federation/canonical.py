"""The canonical encoding of a document: equal values give equal bytes, and `decode` refuses all other bytes.

The encoding is JSON in ASCII, with sorted keys and without spaces. Two parties that hash a document must hash the same
bytes, so `decode` accepts only what `encode` makes. It refuses repeated keys, NaN, infinities, -0.0 and texts that are
not in Unicode's form NFC: each would give one value two encodings.
"""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, cast

from fedcipher.errors import CharterError
from fedcipher.foreign_text import MAX_NAME, quoted

__all__ = ["decode", "encode"]

_MAX_BYTES = 64 << 20
_MAX_DEPTH = 16
_WHOLE = range(-(2**63), 2**64)
"""Whole numbers that fit in 64 bits, signed or unsigned."""


def encode(document: object) -> bytes:
    """The canonical bytes of ``document``.

    A document consists of dicts with text keys, lists, texts, whole numbers, finite floats, booleans and None. Raises
    `CharterError` for anything else.
    """
    _check(document, 0)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes) -> Any:
    """The document of ``content``. Raises `CharterError` for bytes that `encode` does not make."""
    if len(content) > _MAX_BYTES:
        raise CharterError(f"a document has {len(content)} bytes, at most {_MAX_BYTES} are allowed")
    try:
        document = json.loads(content, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except CharterError:
        raise
    except (ValueError, RecursionError) as error:
        raise CharterError("a document is not JSON") from error
    if encode(document) != content:
        raise CharterError("a document is not in its canonical encoding")
    return document


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise CharterError("a document names a field twice")
    return made


def _no_constant(name: str) -> object:
    raise CharterError(f"a document has {name} where a finite number is needed")


def _check(value: object, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise CharterError(f"a document is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, int, float, str)):
        _check_scalar(value)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            _check(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise CharterError(f"a field is named by {type(key).__name__}, not by a text")
            _check_scalar(key)
            _check(item, depth + 1)
    else:
        raise CharterError(f"{type(value).__name__} has no canonical form")


def _check_scalar(value: bool | int | float | str | None) -> None:
    if isinstance(value, str):
        # Fast path: ASCII is always in form NFC.
        if value.isascii():
            return
        if not unicodedata.is_normalized("NFC", value) or any("\ud800" <= c <= "\udfff" for c in value):
            raise CharterError(f"the text {quoted(repr(value), MAX_NAME)} is not in Unicode's form NFC")
    elif isinstance(value, float):
        if not math.isfinite(value) or (value == 0.0 and math.copysign(1, value) < 0):
            raise CharterError(f"{value!r} has no canonical form")
    elif value is not None and value not in _WHOLE:
        raise CharterError("a whole number of a document is outside -2^63 to 2^64 - 1")
