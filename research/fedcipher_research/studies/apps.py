"""FLASHE's three applications: how many values each model has, as the paper says."""

from __future__ import annotations

from fedcipher_research.published import setup

__all__ = ["APPLICATIONS", "application_sizes"]

APPLICATIONS = {"ResNet": "ResNet-20", "GRU": "GRU", "CNN": "CNN"}
"""What Table 4 calls each, and Fig. 13."""


def application_sizes() -> dict[str, int]:
    """Parameters by the names of Table 4."""
    models = setup("flashe")["models"]
    return {name: next(int(m["parameters"]) for m in models if name in m["name"]) for name in APPLICATIONS}
