"""Registers the baselines when imported. FEDCIPHER_SCHEMES=fedcipher_research.baselines.registered imports it."""

import os

from fedcipher.schemes import register
from fedcipher.schemes.registry import MODULES

from fedcipher_research.baselines import BASELINES

__all__ = ["pass_on"]

for _baseline in BASELINES:
    register(_baseline)


def pass_on() -> None:
    """Set the environment so that programs started by this process register the baselines too."""
    named = [name for name in os.environ.get(MODULES, "").split(",") if name]
    if __name__ not in named:
        os.environ[MODULES] = ",".join([*named, __name__])
