"""What an app is told beside the model: compared with the charter where that lists it, else part of a digest.

An app may do anything with what it can read. So every record of a message must be what the charter says for its round,
and what no charter can list (the run's configuration, the app itself) goes into the first position's digest: clients
that were told different things do not sum.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fedcipher.errors import CharterError
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Charter, Purpose, Records, digest_of

__all__ = ["check_told", "context_of", "records_of"]


def records_of(content: RecordDict, *, without: frozenset[str]) -> Records:
    """The records of a message as a charter has them, but for those named ``without``."""
    made: Records = {}
    for name, record in content.items():
        if name not in without:
            made[f"{_kind(record)}:{name}"] = {str(key): _value(value) for key, value in record.items()}
    return made


def _kind(record: object) -> str:
    kinds = ((ArrayRecord, "arrays"), (MetricRecord, "metrics"), (ConfigRecord, "config"))
    return next((name for kind, name in kinds if isinstance(record, kind)), "unknown")


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # As a text, which has -0.0 and NaN too.
        return {"float": value.hex()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    # An array: Flower's own class.
    return {"array": hashlib.sha256(value.data).hexdigest(), "type": value.dtype, "shape": list(value.shape)}


def check_told(content: RecordDict, charter: Charter, purpose: Purpose, index: int, *, without: frozenset[str]) -> None:
    """Refuse, with `CharterError`, a message that tells the app something else than the charter says for ``index``."""
    if index > charter.rounds:
        raise CharterError(f"round {index} of a run whose charter has {charter.rounds}")
    # As documents: True is 1 to Python, and not to an app.
    if encode(records_of(content, without=without)) != encode(charter.settings[purpose].at(index)):
        raise CharterError(f"the message tells the app something else than the charter says for its round {index}")


def context_of(ctxt: Context) -> bytes:
    """The digest of what the charter cannot list: the run's configuration and the installed app."""
    config: Mapping[str, Any] = ctxt.run_config
    said = json.dumps(sorted((str(key), _value(value)) for key, value in config.items()))
    return digest_of(b"fedcipher context 1", said.encode(), _app().encode())


def _app() -> str:
    """Flower installs an app below ``FLWR_HOME/apps`` in a folder that its hash is part of; empty in a simulation."""
    home = Path(os.environ.get("FLWR_HOME") or os.path.expanduser("~/.flwr")) / "apps"
    found: set[str] = set()
    for path in sys.path:
        place = Path(path)
        if home in place.parents:
            found.add(place.relative_to(home).parts[0])
    return "\n".join(sorted(found))
