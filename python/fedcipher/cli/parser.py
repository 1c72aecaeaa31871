"""Parsers whose help has commands and options in groups, defaults, and examples at the end."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from fedcipher.foreign_text import MAX_LINE, quoted

__all__ = ["GroupedParser", "OptionGroup", "Parser", "RenamedOption"]

_NAME_WIDTH = 12


class OptionGroup(Protocol):
    """A parser or one of its groups, to which options can be added."""

    def add_argument(self, *names: str, **how: Any) -> object:
        """Add an option, like `argparse.ArgumentParser.add_argument`."""
        ...


class _Formatter(argparse.HelpFormatter):
    """Shows the default of each option, unless the option's help already names a default."""

    def __init__(self, prog: str, **how: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **how})

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if "default" in text or default is None or default is False or default in ("", argparse.SUPPRESS):
            return text
        if not action.option_strings or isinstance(default, list):
            return text
        return f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """A command's parser with examples in its help.

    A wrong option gives one line, without the whole usage that argparse prints.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.formatter_class = _Formatter
        self.examples: list[str] = []

    def example(self, *lines: str) -> None:
        """Add examples to the help. Each line is the text after the command's name."""
        self.examples += [f"{self.prog} {line}".rstrip() for line in lines]

    def format_help(self) -> str:
        """The help of argparse, followed by the examples."""
        shown = "".join(f"  {line}\n" for line in self.examples)
        return super().format_help() + (f"\nexamples:\n{shown}" if shown else "")

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program with status 2."""
        self.exit(2, f"{self.prog}: {quoted(message, MAX_LINE)}; see {self.prog} --help\n")


class GroupedParser(Parser):
    """The program's parser; ``groups`` maps each group's title to its commands with their one-line help."""

    def __init__(self, groups: Mapping[str, Mapping[str, str]], **how: Any) -> None:
        super().__init__(**how)
        self._groups = groups

    def format_help(self) -> str:
        """The help with one line for each command, by group."""
        parts = [self.format_usage(), self.description or ""]
        for title, commands in self._groups.items():
            lines = [f"  {name:{_NAME_WIDTH}}{does}" for name, does in commands.items()]
            parts.append("\n".join([f"{title}:", *lines]))
        parts.append("options:\n  -h, --help  show this text\n  --version   show the version")
        parts.append(f"`{self.prog} COMMAND --help` lists the options of a command, with examples.")
        return "\n\n".join(part.strip("\n") for part in parts) + "\n"


class RenamedOption(argparse.Action):
    """Refuses the earlier name of an option; ``const`` is the new name."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str, **how: Any) -> None:
        super().__init__(option_strings, dest, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **how)
        self.const = const

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """End the program, like a wrong option."""
        parser.error(f"{option} was renamed to {self.const}")
