"""The packages that measurements need, which come with this one."""

from __future__ import annotations

from fedcipher._optional import missing
from fedcipher.errors import DependencyError

__all__ = ["INSTALL", "require"]

INSTALL = "in a checkout of Fedcipher: pip install -e research"
"""What to type where one of them is missing."""


def require(purpose: str, *packages: str) -> None:
    """Raise `DependencyError`, saying what to install, unless all ``packages`` can be imported."""
    absent = missing(*packages)
    if absent:
        raise DependencyError(f"{purpose} needs {', '.join(absent)}; {INSTALL}")
