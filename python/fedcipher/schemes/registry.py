"""The list of known schemes: the schemes of this package, and schemes that other packages register.

A scheme of another package derives from `fedcipher.schemes.base.Scheme`, or from
`fedcipher.schemes.library.LibraryScheme` if a library does its arithmetic. Its package calls `register`. There is no
discovery of installed packages. A program knows the scheme only if it imports the module that registers it, or if its
environment variable FEDCIPHER_SCHEMES names that module. Processes that the program starts inherit the variable.
"""

from __future__ import annotations

import inspect
import os
import re
from importlib import import_module
from typing import TypeVar

from fedcipher._arguments import as_text
from fedcipher.errors import FedcipherError, ParameterError
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.schemes.base import Scheme, SchemeInfo
from fedcipher.schemes.bfv import Bfv
from fedcipher.schemes.flashe import Flashe
from fedcipher.schemes.oneshot import Oneshot
from fedcipher.schemes.pasta_bfv import PastaBfv
from fedcipher.schemes.plain import Plain

__all__ = ["MODULES", "register", "scheme_class", "scheme_names"]

MODULES = "FEDCIPHER_SCHEMES"
"""Environment variable: names of modules to import, separated by commas. Each registers schemes on import."""

_S = TypeVar("_S", bound=type[Scheme])
# The form of a name in frames and key files.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")
_BUILT_IN: dict[str, type[Scheme]] = {cls.name: cls for cls in (Plain, Flashe, Bfv, Oneshot, PastaBfv)}
_registered: dict[str, type[Scheme]] = {}


def register(cls: _S) -> _S:
    """Make ``cls`` known by its ``name`` in this process, and return ``cls``.

    Raises `ParameterError` if ``cls`` is not a concrete `Scheme` with a name and a `SchemeInfo`, or if another scheme
    has the name. Registering the same class again has no effect.
    """
    if not _is_concrete_scheme(cls):
        raise ParameterError(f"{quoted(repr(cls), MAX_NAME)} is not a concrete scheme class; derive one from Scheme")
    name, info = getattr(cls, "name", None), getattr(cls, "info", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)) or not isinstance(info, SchemeInfo):
        raise ParameterError(
            f"{cls.__name__} needs a name of at most 16 small letters, digits and hyphens, and an info of type "
            "SchemeInfo"
        )
    if (_BUILT_IN | _registered).get(name, cls) is not cls:
        raise ParameterError(f"another scheme has the name {name!r}; give {cls.__name__} a name of its own")
    if name not in _BUILT_IN:
        _registered[name] = cls
    return cls


def _is_concrete_scheme(given: object) -> bool:
    return inspect.isclass(given) and issubclass(given, Scheme) and not inspect.isabstract(given)


def scheme_names() -> list[str]:
    """Names of all known schemes: first this package's, then registered ones."""
    return list(_known())


def scheme_class(name: str) -> type[Scheme]:
    """The class of a scheme's name. Raises `ParameterError` for an unknown name."""
    known = _known()
    if as_text(name, "scheme") not in known:
        raise ParameterError(
            f"scheme {quoted(repr(name), MAX_NAME)} is not one of {', '.join(known)}; for a scheme of another package, "
            f"set {MODULES} to the module that registers it"
        )
    return known[name]


def _known() -> dict[str, type[Scheme]]:
    for module in os.environ.get(MODULES, "").split(","):
        if module.strip():
            _import(module.strip())
    return _BUILT_IN | _registered


def _import(module: str) -> None:
    try:
        # Python caches imported modules, so repeated calls are cheap.
        import_module(module)
    except FedcipherError:
        raise
    except Exception as error:
        raise ParameterError(
            f"{MODULES} names {quoted(module, MAX_NAME)}, which cannot be imported: {quoted(error)}; install its "
            "package, or correct the variable"
        ) from error
