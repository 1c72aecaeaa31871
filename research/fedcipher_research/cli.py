"""`fedcipher-research`: every command of `fedcipher`, for the baselines too, and a `bench` with presets and studies."""

from __future__ import annotations

from collections.abc import Sequence

from fedcipher import cli
from fedcipher.cli.commands import COMMANDS, MEASURE, Command

__all__ = ["main"]

_BENCH = Command(
    "bench", MEASURE, "measure schemes, and lay published figures beside them", "fedcipher_research.bench.commands"
)
_COMMANDS = tuple(_BENCH if command.name == _BENCH.name else command for command in COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``fedcipher-research``. Returns the exit status, like `fedcipher.cli.main`."""
    from fedcipher_research.baselines.registered import pass_on

    pass_on()
    return cli.main(argv, program="fedcipher-research", commands=_COMMANDS)
