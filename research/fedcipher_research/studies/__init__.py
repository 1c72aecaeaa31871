"""Published experiments that are no cases of `fedcipher_research.bench.presets`, each a function that measures one.

`fedcipher-research bench NAME` runs one and writes its report; docs/evidence/published.md is made of their outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedcipher.errors import ParameterError

from fedcipher_research.studies.findings import Asked, Findings

__all__ = ["Asked", "Findings", "check_data", "study", "study_names"]

# A module of this package and its function, loaded when asked for: some need packages of their own.
_STUDIES = {
    "fedbit-packing": "packing",
    "fedbit-round": "fedbit_round",
    "flashe-accuracy": "accuracy",
    "flashe-masks": "masks",
    "flashe-sparse": "sparse",
    "flashe-unbatched": "unbatched",
    "flashe-wan": "wan",
    "hhe-sweep": "hhe",
    "paillier-python": "paillier",
    "tfhe-concrete": "concrete",
    "fednic": "fednic",
}
# What those that train need of --data-dir.
_DATA = {
    "fedbit-round": ("mnist", "cifar10"),
    "flashe-accuracy": ("mnist",),
    "flashe-wan": ("cifar10", "shakespeare", "mnist"),
    "fednic": ("mnist",),
}


def check_data(name: str, data_dir: str) -> None:
    """Raise `ParameterError` where a study's data sets are not in ``data_dir``."""
    needed = _DATA.get(name, ())
    if needed and not data_dir:
        raise ParameterError(f"{name} trains: give --data-dir, a folder with {' and '.join(needed)}")
    for part in needed:
        if not (Path(data_dir) / part).is_dir():
            raise ParameterError(f"--data-dir {data_dir} has no folder {part}, which {name} trains on")


def study_names() -> list[str]:
    """Names that `study` takes."""
    return list(_STUDIES)


def study(name: str) -> Callable[[Asked], Findings]:
    """The study of that name. Raises `ParameterError`."""
    if name not in _STUDIES:
        raise ParameterError(f"study {name!r} is not one of {', '.join(_STUDIES)}")
    return import_module(f"fedcipher_research.studies.{_STUDIES[name]}").run
