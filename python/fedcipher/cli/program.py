"""The program `fedcipher`: finds the command, runs it, and says in one line what went wrong."""

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

# As a shell reports a program that Ctrl-C, or a pipe without a reader, has ended.
_INTERRUPTED, _NO_READER = 130, 141


def main(
    argv: Sequence[str] | None = None, *, program: str = "fedcipher", commands: Sequence[Command] = COMMANDS
) -> int:
    """Entry point of ``fedcipher``; returns the exit status: 0, or not 0 after one line on standard error.

    Another ``program`` of a checkout may have other ``commands``.
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
            # Here, and not at Python's end, where a reader that has gone is reported as this program's error.
            sys.stdout.flush()
    except FedcipherError as error:
        return refused(error)
    except BrokenPipeError:
        # `| head` has what it wanted. Connections that break are errors of their own (`PeerLostError` and so on).
        # What is left in the buffer is dropped: Python flushes it once more at its end, and would complain.
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
            # A signal would interrupt what Python and libraries do at exit, with tracebacks.
            restore_defaults()


def _called(arguments: Sequence[str]) -> str:
    """The command's name, before which only options without a value can stand; empty where there is none."""
    return next((word for word in arguments if not word.startswith("-")), "")


def parser(
    program: str = "fedcipher", commands: Sequence[Command] = COMMANDS, *, called: str | None = None
) -> GroupedParser:
    """The parser of ``commands``, each with its options; with ``called``, that command alone has them.

    To add a command's options imports its module, which the help of the program and other commands do without.
    """
    groups = {group: {each.name: each.does for each in commands if each.group == group} for group in GROUPS}
    made = GroupedParser(groups, prog=program, description="Federated learning with encrypted updates.")
    made.add_argument("--version", action="version", version=__version__)
    made.set_defaults(program=program)
    parts = made.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for command in commands:
        # Of a command that passes all words on, no option begins with a byte that a word can have.
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
    """Refuse, whatever the command, to write to a file that it is to read. Raises `ParameterError`."""
    out: object = getattr(options, "out", None)
    if not isinstance(out, Path):
        return
    given = [value for name, value in vars(options).items() if name != "out"]
    named = [path for value in given for path in (cast("list[object]", value) if isinstance(value, list) else [value])]
    refuse_to_replace(out, [path for path in named if isinstance(path, Path)])


def _open_streams() -> None:
    """Where this program was started without one of its three streams, it reads and writes nothing there.

    A file that it opens would else have that stream's number, and be written to by whatever prints.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A path may hold what the terminal's encoding lacks.
        with suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def refused(error: FedcipherError) -> int:
    """Say why on standard error; returns the exit status."""
    return _failed(f"{type(error).__name__}: {error}")


def _failed(why: str) -> int:
    show(f"fedcipher: {why}", to=sys.stderr)
    return 2
