"""All schemes, by name. A new scheme is a file here and its class in `registry.py`, or another package registers it."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from fedcipher._arguments import instance_of
from fedcipher._native import SetMemory
from fedcipher.codec import Codec
from fedcipher.errors import ParameterError
from fedcipher.foreign_text import quoted
from fedcipher.schemes.base import (
    Aggregator,
    Decrypted,
    Decryptor,
    Encryptor,
    EncryptStats,
    KeySet,
    Scheme,
    SchemeInfo,
)
from fedcipher.schemes.committee import Committee, CommitteeRound, Member
from fedcipher.schemes.registry import register, scheme_class, scheme_names
from fedcipher.schemes.variants import Variant, every_scheme
from fedcipher.schemes.workers import PartedSum, Parts, Workers

__all__ = [
    "DEFAULT_SCHEME",
    "Aggregator",
    "Committee",
    "CommitteeRound",
    "Decrypted",
    "Decryptor",
    "EncryptStats",
    "Encryptor",
    "KeySet",
    "Member",
    "PartedSum",
    "Parts",
    "Scheme",
    "SchemeInfo",
    "SetMemory",
    "Variant",
    "Workers",
    "every_scheme",
    "following_bits",
    "from_spec",
    "register",
    "scheme",
    "scheme_class",
    "scheme_names",
]


DEFAULT_SCHEME = "bfv"
"""The scheme of commands, examples and pages, where nothing speaks for another."""


def following_bits(name: str) -> int | Literal["auto"]:
    """The usual ``Codec(bits=)`` of a scheme whose ranges follow the updates; `ParameterError` as `scheme_class`."""
    return "auto" if scheme_class(name).info.widths else 6


def scheme(name: str, **params: Any) -> Scheme:
    """Make a scheme by name.

    Every scheme takes ``clients`` (most clients of a round), ``max_weight`` (largest integer weight of
    one), ``min_contributions`` and ``codec``; the class of the scheme documents the rest. ``min_contributions`` is the
    fewest clients of a sum: a count, or a share of ``clients`` between 0 and 1, rounded up to a count here. Raises
    `ParameterError`.
    """
    cls = scheme_class(name)
    known = inspect.signature(cls).parameters
    for key in params.keys() & cls.split:
        raise ParameterError(f"scheme {name!r} has no parameter {key}: give {cls.split[key]}")
    strange = [key for key in params if key not in known]
    if strange:
        raise ParameterError(f"scheme {name!r} has no parameter {', '.join(strange)}; it takes {', '.join(known)}")
    try:
        return cls(**params)
    except ParameterError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"scheme {name!r}: {quoted(error)}") from error


def from_spec(spec: dict[str, Any]) -> Scheme:
    """The scheme behind `Scheme.spec`. Raises `ParameterError`."""
    spec = instance_of(spec, dict, "spec", "give what Scheme.spec() returns")
    try:
        name, codec, params = spec["scheme"], Codec(**spec["codec"]), dict(spec["params"])
        return scheme(name, **{**params, "codec": codec})
    except ParameterError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ParameterError(f"this is no Scheme.spec(): {quoted(error)}") from error
