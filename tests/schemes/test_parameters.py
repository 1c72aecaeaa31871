"""The parameters in the code are the ones that docs/reference/parameters.md has figures for, and have 128 bits."""

from __future__ import annotations

import json
import subprocess
import sys

import fedcipher
import pytest
from places import ROOT

TOOLS = ROOT / "tools"
# What each scheme's secret and error are called in the estimator's file.
CASES = [
    ("bfv", {"preset": "compact"}, "ternary"),
    ("bfv", {"preset": "fast"}, "ternary"),
    ("bfv", {"preset": "fedbit-paper"}, "ternary"),
    ("pasta-bfv", {"prime_bits": 17}, "fhe10"),
    ("pasta-bfv", {"prime_bits": 33}, "fhe10"),
]


def estimates() -> list[dict[str, object]]:
    """The public lattice estimator's figures."""
    return json.loads((TOOLS / "lattice_estimator.json").read_text(encoding="utf-8"))["results"]


@pytest.mark.parametrize(("name", "options", "sample"), CASES)
def test_every_known_attack_costs_128_bits(name: str, options: dict[str, object], sample: str) -> None:
    """N and log q as the scheme reports them, special prime included, under the estimator's default model."""
    about = fedcipher.scheme(name, clients=10, codec=fedcipher.Codec(bits=8, clip=0.5), **options).describe()
    n, log_q = int(about["N"]), int(about["log q"]) + int(about.get("log special prime", 0))
    of_set = [r for r in estimates() if (r["n"], r["log_q"], r["sample"]) == (n, log_q, sample)]
    default = {r["attack"]: float(str(r["bits"])) for r in of_set if r["model"] == "MATZOV"}
    assert {"usvp", "bdd", "dual", "dual_hybrid"} <= default.keys(), f"no figures for N = {n}, log q = {log_q}"
    assert min(default.values()) >= 128, default


def test_own_estimate_agrees_with_the_public_estimator() -> None:
    """tools/lattice_estimate.py within a bit, for every set and model."""
    command = [sys.executable, str(TOOLS / "lattice_estimate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_coded_dual_attack_costs_128_bits() -> None:
    """tools/lattice_coded.py has its authors' figures for Kyber, never more, and 128 bits for each set."""
    command = [sys.executable, str(TOOLS / "lattice_coded.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (TOOLS.parent / "docs" / "reference" / "parameters.md").read_text(encoding="utf-8")
    assert done.stdout.strip() in page
