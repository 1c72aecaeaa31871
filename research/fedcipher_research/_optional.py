"""The packages that measurements need. Installing this package installs them."""

from __future__ import annotations

from fedcipher._optional import missing
from fedcipher.errors import DependencyError

__all__ = ["INSTALL", "require"]

INSTALL = "in a checkout of Fedcipher: pip install -e research"
"""The advice in errors about a missing package."""


def require(purpose: str, *packages: str) -> None:
    """Raise `DependencyError`, with the packages to install, unless all ``packages`` can be imported."""
    absent = missing(*packages)
    if absent:
        raise DependencyError(f"{purpose} needs {', '.join(absent)}; {INSTALL}")
