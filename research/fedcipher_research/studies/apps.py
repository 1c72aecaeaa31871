"""FLASHE's three applications, with the number of values of each model in the paper."""

from __future__ import annotations

from fedcipher_research.published import setup

__all__ = ["APPLICATIONS", "application_sizes"]

APPLICATIONS = {"ResNet": "ResNet-20", "GRU": "GRU", "CNN": "CNN"}
"""The name of each application in Table 4, and its name in Fig. 13."""


def application_sizes() -> dict[str, int]:
    """The number of parameters, by the names of Table 4."""
    models = setup("flashe")["models"]
    return {name: next(int(m["parameters"]) for m in models if name in m["name"]) for name in APPLICATIONS}
