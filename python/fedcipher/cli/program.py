"""The program `fedcipher`: finds the command, runs it, and prints an error in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from fedcipher import __version__
from fedcipher._files import refusal, refuse_to_replace
from fedcipher._signals import Terminated, raise_on_termination, restore_defaults
from fedcipher.cli.commands import COMMANDS, GROUPS, Command
from fedcipher.cli.parser import GroupedParser, Parser
from fedcipher.errors import FedcipherError
from fedcipher.foreign_text import show

__all__ = ["check_output", "main", "parser", "refused"]

# A shell's exit status for a program ended by Ctrl-C, or by a pipe without a reader.
_INTERRUPTED, _NO_READER = 130, 141


def main(
    argv: Sequence[str] | None = None, *, program: str = "fedcipher", commands: Sequence[Command] = COMMANDS
) -> int:
    """Run ``fedcipher`` and return the exit status. An error prints one line on standard error.

    ``program`` and ``commands`` are for another program with its own commands, such as ``fedcipher-research``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        try:
            with raise_on_termination():
                options = parser(program, commands, called=_called(arguments)).parse_args(arguments)
                check_output(options)
                return options.run(options, arguments)
        finally:
            # Flushed here, because at exit Python would report a closed pipe as an error of this program.
            sys.stdout.flush()
    except FedcipherError as error:
        return refused(error)
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has ended. Broken connections raise other errors (`PeerLostError`).
        # Drop the rest of the buffer, because Python flushes it at exit and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NO_READER
    except OSError as error:
        return _failed(refusal(error))
    except Terminated as terminated:
        return terminated.report()
    except KeyboardInterrupt:
        show("fedcipher: interrupted", to=sys.stderr)
        return _INTERRUPTED
    finally:
        if argv is None:
            # Otherwise a signal during the exit would print tracebacks of Python and libraries.
            restore_defaults()


def _called(arguments: Sequence[str]) -> str:
    """The command's name: the first word that is not an option, as no option before it has a value; empty if none."""
    return next((word for word in arguments if not word.startswith("-")), "")


def parser(
    program: str = "fedcipher", commands: Sequence[Command] = COMMANDS, *, called: str | None = None
) -> GroupedParser:
    """The parser of ``commands`` with their options; with ``called``, only that command has options.

    A command's options are in its module. So ``called`` avoids the import of other commands' modules.
    """
    groups = {group: {each.name: each.does for each in commands if each.group == group} for group in GROUPS}
    made = GroupedParser(groups, prog=program, description="Federated learning with encrypted updates.")
    made.add_argument("--version", action="version", version=__version__)
    made.set_defaults(program=program)
    parts = made.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for command in commands:
        # A command that passes its words on gets a prefix that no word can have, so every word is an argument.
        part = parts.add_parser(
            command.name,
            help=command.does,
            description=_sentence(command.does),
            add_help=not command.passes_on,
            prefix_chars="\0" if command.passes_on else "-",
        )
        if called in (None, command.name):
            command.fill(part)
    return made


def _sentence(does: str) -> str:
    return f"{does[0].upper()}{does[1:]}."


def check_output(options: argparse.Namespace) -> None:
    """Check that ``--out`` is not a file that the command reads. Raises `ParameterError`."""
    out: object = getattr(options, "out", None)
    if not isinstance(out, Path):
        return
    given = [value for name, value in vars(options).items() if name != "out"]
    named = [path for value in given for path in (cast("list[object]", value) if isinstance(value, list) else [value])]
    refuse_to_replace(out, [path for path in named if isinstance(path, Path)])


def _open_streams() -> None:
    """Replace missing standard streams by the null device.

    Otherwise a file opened later would get the number of the missing stream, and printed text would go to this file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A path may have characters that the terminal's encoding lacks.
        with suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def refused(error: FedcipherError) -> int:
    """Print the error on standard error and return the exit status."""
    return _failed(f"{type(error).__name__}: {error}")


def _failed(why: str) -> int:
    show(f"fedcipher: {why}", to=sys.stderr)
    return 2
