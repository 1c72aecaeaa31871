"""The command line. `commands.py` lists what there is; every other file has the commands of one group."""

from fedcipher.cli.program import main, parser

__all__ = ["main", "parser"]
