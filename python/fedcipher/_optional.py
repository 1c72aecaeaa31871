"""Which optional packages are here, and what the native module of `make demo` leaves out."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedcipher import _native
from fedcipher._files import user_home
from fedcipher.errors import DependencyError

__all__ = ["install", "load", "missing", "require", "require_feature"]


def require(purpose: str, extra: str, *packages: str) -> None:
    """Raise `DependencyError`, naming the extra to install, unless all ``packages`` can be imported.

    Raises `ParameterError` where one of them is Flower and this user has no home folder.
    """
    absent = missing(*packages)
    if absent:
        raise DependencyError(f"{purpose} needs {', '.join(absent)}; {install(extra)}")
    if "flwr" in packages and not os.environ.get("FLWR_HOME"):
        # Flower asks for it when it is imported.
        user_home("FLWR_HOME")


def install(extra: str) -> str:
    """What to type for an extra."""
    return f"pip install 'fedcipher[{extra}]'"


def missing(*packages: str) -> list[str]:
    """Those that cannot be imported."""
    return [name for name in packages if not _present(name)]


def require_feature(purpose: str, feature: str) -> None:
    """Raise `DependencyError` unless the native module has the Cargo ``feature``. Every wheel has it."""
    if feature and feature not in _native.features:
        raise DependencyError(f"{purpose} needs {feature}, which `make demo` leaves out; run `make build`")


def load(name: str) -> Any:
    """A package without types, after `require`."""
    return import_module(name)


def _present(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # A blocked module is None in sys.modules.
        return False
