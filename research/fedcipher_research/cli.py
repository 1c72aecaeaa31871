"""`fedcipher-research`: every command of `fedcipher`, with presets, studies and reports in its `bench`."""

from __future__ import annotations

from collections.abc import Sequence

from fedcipher import cli

from fedcipher_research.bench.commands import add_bench

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``fedcipher-research``; returns the exit status, as `fedcipher.cli.main` does."""
    return cli.main(argv, program="fedcipher-research", add_bench=add_bench)
