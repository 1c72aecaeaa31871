"""Which optional packages are here."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedcipher.errors import DependencyError

__all__ = ["install", "load", "missing", "require"]

_OTHERWISE = {"tfhe": ", or in a checkout: make tfhe"}


def require(purpose: str, extra: str, *packages: str) -> None:
    """Raise `DependencyError`, naming the extra to install, unless all ``packages`` can be imported."""
    absent = missing(*packages)
    if absent:
        raise DependencyError(f"{purpose} needs {', '.join(absent)}; {install(extra)}")


def install(extra: str) -> str:
    """What to type for an extra."""
    return f"pip install 'fedcipher[{extra}]'" + _OTHERWISE.get(extra, "")


def missing(*packages: str) -> list[str]:
    """Those that cannot be imported."""
    return [name for name in packages if not _present(name)]


def load(name: str) -> Any:
    """A package without types, after `require`."""
    return import_module(name)


def _present(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # A blocked module is None in sys.modules.
        return False
