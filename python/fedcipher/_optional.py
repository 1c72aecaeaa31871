"""Checks for optional packages, and for features that the native module of `make demo` lacks."""

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
    """Raise `DependencyError`, with the extra to install, unless all ``packages`` can be imported.

    Raises `ParameterError` if one package is Flower and this user has no home folder.
    """
    absent = missing(*packages)
    if absent:
        raise DependencyError(f"{purpose} needs {', '.join(absent)}; {install(extra)}")
    if "flwr" in packages and not os.environ.get("FLWR_HOME"):
        # Flower looks up the home folder when it is imported.
        user_home("FLWR_HOME")


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'fedcipher[{extra}]'"


def missing(*packages: str) -> list[str]:
    """The packages that cannot be imported."""
    return [name for name in packages if not _present(name)]


def require_feature(purpose: str, feature: str) -> None:
    """Raise `DependencyError` unless the native module has the Cargo ``feature``. Every wheel has it."""
    if feature and feature not in _native.features:
        raise DependencyError(f"{purpose} needs {feature}, which `make demo` leaves out; run `make build`")


def load(name: str) -> Any:
    """Import a package that has no types. Call `require` first."""
    return import_module(name)


def _present(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # find_spec raises this for a blocked module, whose entry in sys.modules has the value None.
        return False
