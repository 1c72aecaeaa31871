"""Studies: functions that repeat a published experiment which `fedcipher_research.bench.presets` cannot express.

`fedcipher-research bench NAME` runs a study and writes its report. docs/evidence/published.md is made from the
outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedcipher.errors import ParameterError

from fedcipher_research.studies.findings import Findings, StudySettings

__all__ = ["Findings", "StudySettings", "check_data", "study", "study_names"]

# The module of each study. It is loaded when the study runs, because some studies need packages of their own.
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
# The data sets in --data-dir that a study trains on.
_DATA = {
    "fedbit-round": ("mnist", "cifar10"),
    "flashe-accuracy": ("mnist",),
    "flashe-wan": ("cifar10", "shakespeare", "mnist"),
    "fednic": ("mnist",),
}


def check_data(name: str, data_dir: str) -> None:
    """Raise `ParameterError` if a data set of a study is not in ``data_dir``."""
    needed = _DATA.get(name, ())
    if needed and not data_dir:
        raise ParameterError(f"{name} trains: give --data-dir, a folder with {' and '.join(needed)}")
    for part in needed:
        if not (Path(data_dir) / part).is_dir():
            raise ParameterError(f"--data-dir {data_dir} has no folder {part}, which {name} trains on")


def study_names() -> list[str]:
    """The names of all studies."""
    return list(_STUDIES)


def study(name: str) -> Callable[[StudySettings], Findings]:
    """The study with this name. Raises `ParameterError`."""
    if name not in _STUDIES:
        raise ParameterError(f"study {name!r} is not one of {', '.join(_STUDIES)}")
    return import_module(f"fedcipher_research.studies.{_STUDIES[name]}").run
