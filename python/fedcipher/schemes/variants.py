"""The single list of schemes with their variants, for tests, fuzz targets and tables (`every_scheme`).

Each scheme states its own variants: a scheme of the core in its Rust module, a scheme of another package as
`Scheme.variants`. This module only collects them, so that no list can omit a new scheme.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedcipher import _native
from fedcipher.codec import Codec, codec_or
from fedcipher.schemes.base import NativeScheme, Scheme, SchemeInfo
from fedcipher.schemes.registry import scheme_class, scheme_names

__all__ = ["Variant", "every_scheme", "variants_of"]

_BITS = 16


@dataclass(frozen=True)
class Variant:
    """A scheme with parameters under which it is tested."""

    name: str
    """Unique among all variants. The first variant of a scheme has the scheme's name."""
    scheme: type[Scheme]
    params: Mapping[str, Any]
    """The parameters of this scheme alone. They fit three clients."""
    sparse: bool = False
    """Whether each client chooses which coordinates it sends. Such a variant sends deltas."""

    @property
    def info(self) -> SchemeInfo:
        """The scheme's `SchemeInfo`."""
        return self.scheme.info

    @property
    def first(self) -> bool:
        """Whether this is the scheme's first variant, which has the scheme's name."""
        return self.name == self.scheme.name

    @property
    def in_core(self) -> bool:
        """Whether the core does the arithmetic. An engine serves only such schemes."""
        return issubclass(self.scheme, NativeScheme)

    def make(self, *, clients: int, codec: Codec | None = None, **params: Any) -> Scheme:
        """Make the scheme for at most ``clients`` clients. ``params`` replace parameters of the variant.

        Raises `ParameterError`, and `DependencyError` if a package or a feature is missing.
        """
        if self.sparse:
            codec = replace(codec_or(codec, _BITS), target="delta")
        made: Any = self.scheme
        return made(clients=clients, codec=codec, **{**self.params, **params})


def every_scheme() -> list[Variant]:
    """List all variants of all schemes, in the order of `scheme_names`.

    Each scheme has at least one variant. Raises the errors of `scheme_names`.
    """
    return [variant for name in scheme_names() for variant in variants_of(scheme_class(name))]


def variants_of(cls: type[Scheme]) -> list[Variant]:
    """The variants that ``cls`` states, or one variant with default parameters if it states none."""
    core = [row for row in _native.every_scheme() if issubclass(cls, NativeScheme) and row[0] == cls.name]
    if core:
        return [Variant(name, cls, json.loads(params), sparse) for _, name, params, sparse in core]
    # Either this build lacks the scheme's kernel, or another library does the scheme's arithmetic.
    return [Variant(name, cls, dict(params)) for name, params in {cls.name: {}, **cls.variants}.items()]
