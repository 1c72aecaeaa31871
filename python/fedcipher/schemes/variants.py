"""The one list of schemes with their variants: tests, fuzz targets and tables take theirs from `every_scheme`.

A scheme states its own variants: one of the core in its Rust module, one of another package as `Scheme.variants`. This
module only collects them, so that no list can leave out a new scheme.
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
        """What the scheme says of itself."""
        return self.scheme.info

    @property
    def first(self) -> bool:
        """Whether this is the variant that stands for its scheme."""
        return self.name == self.scheme.name

    @property
    def in_core(self) -> bool:
        """Whether the core does the arithmetic, as an engine needs."""
        return issubclass(self.scheme, NativeScheme)

    def make(self, *, clients: int, codec: Codec | None = None, **params: Any) -> Scheme:
        """Make the scheme for so many ``clients``; ``params`` replace those of the variant.

        Raises `ParameterError`, and `DependencyError` where a package or a feature is missing.
        """
        if self.sparse:
            codec = replace(codec_or(codec, _BITS), target="delta")
        made: Any = self.scheme
        return made(clients=clients, codec=codec, **{**self.params, **params})


def every_scheme() -> list[Variant]:
    """All schemes of `scheme_names` in all their variants, in that order.

    Each scheme has at least one variant. Raises `ParameterError` as `scheme_names`.
    """
    return [variant for name in scheme_names() for variant in variants_of(scheme_class(name))]


def variants_of(cls: type[Scheme]) -> list[Variant]:
    """The variants that ``cls`` states; where it states none, the one of its defaults."""
    core = [row for row in _native.every_scheme() if issubclass(cls, NativeScheme) and row[0] == cls.name]
    if core:
        return [Variant(name, cls, json.loads(params), sparse) for _, name, params, sparse in core]
    # This build has no kernel of it, or its arithmetic is a library's.
    return [Variant(name, cls, dict(params)) for name, params in {cls.name: {}, **cls.variants}.items()]
