"""`fedcipher engine` and `fedcipher authority`: run the two programs that hold keys."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

from fedcipher.cli.parser import Parser
from fedcipher.engine.local import find_program

__all__ = ["add_authority", "add_engine"]


def add_engine(parser: Parser) -> None:
    """Pass all words of the command line to the engine."""
    _pass_on(parser, "engine")
    parser.example("serve --help")


def add_authority(parser: Parser) -> None:
    """Pass all words of the command line to the authority."""
    _pass_on(parser, "authority")
    parser.example("init --help")


def _pass_on(parser: Parser, name: str) -> None:
    parser.add_argument("words", nargs="*", help="the program's own command and options")
    parser.set_defaults(run=_become(name))


def _become(name: str) -> Callable[[argparse.Namespace, list[str]], int]:
    def run(_: argparse.Namespace, arguments: list[str]) -> int:
        """Replace this process, so that no Python code runs beside the keys. Raises `EngineError`."""
        program = find_program(f"fedcipher-{name}")
        sys.stdout.flush()
        # Python ignores this signal, and the new program would inherit that.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execv(program, [f"fedcipher {name}", *arguments[1:]])

    return run
