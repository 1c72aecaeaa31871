"""Lists every command of `fedcipher`, with its group, one line of help, and the module that implements it.

To add a command, add a line here and a function `add_NAME` in its module. A module is imported only when its command
is called.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from fedcipher.cli.parser import Parser

__all__ = ["COMMANDS", "GROUPS", "Command"]


class Command(NamedTuple):
    """A command, its ``group`` in the help, and the ``module`` that has `add_NAME`.

    With ``passes_on`` the command passes all its words, including ``--help``, to another program.
    """

    name: str
    group: str
    does: str
    module: str
    passes_on: bool = False

    def fill(self, parser: Parser) -> None:
        """Add the command's options and its work to its parser; imports its module."""
        add: Callable[[Parser], None] = getattr(import_module(self.module), f"add_{self.name}")
        add(parser)


_HERE = "fedcipher.cli"
START, KEYS, RUNS, SITES = "start", "keys", "runs", "sites"
FEDERATION, ENGINE, MEASURE = "servers and clients", "engine and authority", "measure"
GROUPS = (START, KEYS, RUNS, SITES, FEDERATION, ENGINE, MEASURE)

COMMANDS = (
    Command("train", START, "train a model under encryption, simulated on this machine", f"{_HERE}.train"),
    Command("schemes", START, "list the schemes, the attacks that each withstands, and its cost", f"{_HERE}.schemes"),
    Command("keygen", KEYS, "make the key files of the server and of each client", f"{_HERE}.keys"),
    Command("inspect", KEYS, "print the public header of a key file or a frame", f"{_HERE}.keys"),
    Command("identity", KEYS, "make a party's own keys, for schemes without a shared key", f"{_HERE}.parties"),
    Command("roster", KEYS, "make the list of parties from their cards, or check it", f"{_HERE}.parties"),
    Command("join", KEYS, "make a party's key file from its identity and the roster", f"{_HERE}.parties"),
    Command("joined", KEYS, "add parties that have joined the roster to a party's key", f"{_HERE}.parties"),
    Command("forget", KEYS, "delete a committee member's prekeys after a run", f"{_HERE}.parties"),
    Command("status", RUNS, "show the progress of a run's server", f"{_HERE}.runs"),
    Command("dashboard", RUNS, "show a running run in the browser", f"{_HERE}.runs"),
    Command("open", RUNS, "decrypt the final model of a run", f"{_HERE}.runs"),
    Command("policy", SITES, "show which runs this site allows on its data", f"{_HERE}.sites"),
    Command("charter", SITES, "print or sign a run's charter, its requests to clients", f"{_HERE}.sites"),
    Command("guard", SITES, "run apps behind walls, so that only frames leave this site", f"{_HERE}.guard"),
    Command("verify", SITES, "check sites' logs against each other, and write a report", f"{_HERE}.verify"),
    Command("cluster", FEDERATION, "run a SuperLink and SuperNodes on this machine", f"{_HERE}.cluster"),
    Command("access", FEDERATION, "make the token that starts runs, and the key that signs apps", f"{_HERE}.services"),
    Command("run", FEDERATION, "sign a Flower app and start it on a SuperLink", f"{_HERE}.services"),
    Command("superlink", FEDERATION, "start flower-superlink; only a token starts runs", f"{_HERE}.services"),
    Command("supernode", FEDERATION, "start flower-supernode, for signed apps only", f"{_HERE}.services"),
    Command("superexec", FEDERATION, "start apps, for superlink and supernode", f"{_HERE}.services"),
    Command("engine", ENGINE, "encrypt for training hosts that have no keys (Linux)", f"{_HERE}.programs", True),
    Command("authority", ENGINE, "enrol devices, and make each epoch's keys (Linux)", f"{_HERE}.programs", True),
    Command("spec", ENGINE, "print a scheme as JSON, for fedcipher authority init", f"{_HERE}.schemes"),
    Command("advise", MEASURE, "rank the schemes for your model, cohort and link", f"{_HERE}.measure"),
    Command("bench", MEASURE, "measure rounds of schemes in a client and a server process", f"{_HERE}.measure"),
)
