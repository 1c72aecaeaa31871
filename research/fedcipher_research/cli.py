"""`fedcipher-research`: every command of `fedcipher`, for the baselines too, and a `bench` with presets and studies."""

from __future__ import annotations

from collections.abc import Sequence

from fedcipher import cli

from fedcipher_research.bench.commands import add_bench

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``fedcipher-research``; returns the exit status, as `fedcipher.cli.main` does."""
    from fedcipher_research.baselines.registered import pass_on

    pass_on()
    return cli.main(argv, program="fedcipher-research", add_bench=add_bench)
