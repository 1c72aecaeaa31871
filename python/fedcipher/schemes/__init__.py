"""All schemes by name. A new scheme is a file here with an entry in `registry.py`, or another package registers it."""

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
"""The scheme that commands, examples and pages use by default."""


def following_bits(name: str) -> int | Literal["auto"]:
    """The default ``Codec(bits=)`` of a scheme if clip ranges follow the updates. Raises `ParameterError`."""
    return "auto" if scheme_class(name).info.widths else 6


def scheme(name: str, **params: Any) -> Scheme:
    """Make a scheme by name.

    Every scheme takes ``clients``, ``max_weight``, ``min_contributions`` and ``codec``. The class of the scheme
    documents the other parameters. Raises `ParameterError`, and `DependencyError` if a package or feature is missing.

    Parameters
    ----------
    clients
        Most clients in a round.
    max_weight
        Largest integer weight of a client.
    min_contributions
        Fewest clients in a sum: a count, or a share of ``clients`` between 0 and 1, which is rounded up to a count.
    codec
        A `Codec`; without one, the scheme's default.
    """
    cls = scheme_class(name)
    known = inspect.signature(cls).parameters
    for key in params.keys() & cls.split:
        raise ParameterError(f"scheme {name!r} has no parameter {key}: give {cls.split[key]}")
    unknown = [key for key in params if key not in known]
    if unknown:
        raise ParameterError(f"scheme {name!r} has no parameter {', '.join(unknown)}; it takes {', '.join(known)}")
    try:
        return cls(**params)
    except ParameterError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"scheme {name!r}: {quoted(error)}") from error


def from_spec(spec: dict[str, Any]) -> Scheme:
    """Make the scheme that a `Scheme.spec` describes. Raises `ParameterError`."""
    spec = instance_of(spec, dict, "spec", "give what Scheme.spec() returns")
    try:
        name, codec, params = spec["scheme"], Codec(**spec["codec"]), dict(spec["params"])
        return scheme(name, **{**params, "codec": codec})
    except ParameterError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ParameterError(f"this is not a result of Scheme.spec(): {quoted(error)}") from error
