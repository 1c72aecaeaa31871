"""The command line. `commands.py` lists all commands; each other file has the commands of one group."""

from fedcipher.cli.program import main, parser

__all__ = ["main", "parser"]
