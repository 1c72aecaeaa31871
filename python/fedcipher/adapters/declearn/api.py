"""declearn's own modules, without types. All other modules of this adapter take declearn's classes from here."""

from typing import Any

from fedcipher._optional import load, require
from fedcipher.errors import DependencyError

__all__ = ["aggregator", "communication", "main", "mean", "messaging", "secagg", "secagg_messages"]

require("fedcipher.adapters.declearn", "declearn", "declearn")

_VERSION = "2.9"
_found = str(load("declearn.version").VERSION)
if ".".join(_found.split(".")[:2]) != _VERSION:
    # The server's subclass overrides methods that declearn may change without notice.
    raise DependencyError(f"fedcipher.adapters.declearn needs declearn {_VERSION}, not {_found}: install that version")

aggregator: Any = load("declearn.aggregator")
communication: Any = load("declearn.communication.api")
main: Any = load("declearn.main")
mean: Any = load("declearn.metrics._mean")
messaging: Any = load("declearn.messaging")
secagg: Any = load("declearn.secagg.api")
secagg_messages: Any = load("declearn.secagg.messaging")
