"""Which schemes there are: this package's, and those that other packages register.

A scheme of another package is a `fedcipher.schemes.base.Scheme`; where a library does its arithmetic it is a
`fedcipher.schemes.library.LibraryScheme`, whose keys, frames and checks are the core's. Its package calls `register`.
Nothing is found by itself. A scheme of an installed package is known only in a program that imports the module which
registers it, or whose variable FEDCIPHER_SCHEMES names that module. Programs pass the variable on to those they start.
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
"""The variable with names of modules, with commas, that register schemes as they are imported."""

_S = TypeVar("_S", bound=type[Scheme])
# As frames and key files carry it.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")
_OURS: dict[str, type[Scheme]] = {cls.name: cls for cls in (Plain, Flashe, Bfv, Oneshot, PastaBfv)}
_registered: dict[str, type[Scheme]] = {}


def register(cls: _S) -> _S:
    """Make ``cls`` known by its ``name`` in this process, wherever the name of a scheme is taken; returns ``cls``.

    Raises `ParameterError` where ``cls`` is no whole `Scheme` with a name and a `SchemeInfo`, or where the name is
    another scheme's. To register the same class again changes nothing.
    """
    if not _whole(cls):
        raise ParameterError(f"{quoted(repr(cls), MAX_NAME)} is no class of a scheme; derive one from Scheme")
    name, info = getattr(cls, "name", None), getattr(cls, "info", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)) or not isinstance(info, SchemeInfo):
        raise ParameterError(
            f"{cls.__name__} has no name of at most 16 small letters, digits and hyphens, or no info of type SchemeInfo"
        )
    if (_OURS | _registered).get(name, cls) is not cls:
        raise ParameterError(f"the name {name!r} is another scheme's; give {cls.__name__} one of its own")
    if name not in _OURS:
        _registered[name] = cls
    return cls


def _whole(given: object) -> bool:
    return inspect.isclass(given) and issubclass(given, Scheme) and not inspect.isabstract(given)


def scheme_names() -> list[str]:
    """Names that `scheme` takes: this package's schemes, then those that are registered."""
    return list(_known())


def scheme_class(name: str) -> type[Scheme]:
    """The class behind a name; `ParameterError` when there is none."""
    known = _known()
    if as_text(name, "scheme") not in known:
        raise ParameterError(
            f"scheme {quoted(repr(name), MAX_NAME)} is not one of {', '.join(known)}; {MODULES} names the module that "
            "registers another package's"
        )
    return known[name]


def _known() -> dict[str, type[Scheme]]:
    for module in os.environ.get(MODULES, "").split(","):
        if module.strip():
            _import(module.strip())
    return _OURS | _registered


def _import(module: str) -> None:
    try:
        # What is imported already is not imported again.
        import_module(module)
    except FedcipherError:
        raise
    except Exception as error:
        raise ParameterError(
            f"{MODULES} names {quoted(module, MAX_NAME)}, which cannot be imported: {quoted(error)}; install its "
            "package, or correct the variable"
        ) from error
