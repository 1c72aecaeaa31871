"""`fedcipher engine` and `fedcipher authority`: the two programs that hold keys, as this process."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from fedcipher.engine.local import find_program

__all__ = ["add_programs"]


def add_programs(commands: Any) -> None:
    """Adds the commands to the parser's. Their options, also ``--help``, are the programs' own."""
    for name, purpose in (
        ("engine", "fedcipher-engine: encrypts for training hosts, and alone holds their keys (Linux)"),
        ("authority", "fedcipher-authority: enrols devices and makes the keys of each epoch (Linux)"),
    ):
        # No option begins with a byte that no word of a command line can have: all words are left to the program.
        program: argparse.ArgumentParser = commands.add_parser(name, help=purpose, add_help=False, prefix_chars="\0")
        program.add_argument("words", nargs="*")
        program.set_defaults(run=_become(name))


def _become(name: str) -> Callable[[argparse.Namespace, list[str]], int]:
    def run(_: argparse.Namespace, arguments: list[str]) -> int:
        """Replaces this process, so that nothing of Python is beside the keys. Raises `EngineError`."""
        program = find_program(f"fedcipher-{name}")
        sys.stdout.flush()
        # Python ignores it, and what is ignored stays so in a new program.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execv(program, [f"fedcipher {name}", *arguments[1:]])

    return run
