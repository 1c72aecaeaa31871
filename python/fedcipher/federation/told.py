"""What an app is told beside the model: compared with the charter where that lists it, else part of a digest.

An app may do anything with what it can read. So every record of a message must be what the charter says for its round,
and what no charter can list (the run's configuration, the app itself) goes into the first position's digest: clients
that were told different things do not sum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedcipher.errors import CharterError
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Charter, Purpose, Records, digest_of
from fedcipher.federation.messages import Arrays, Config, Content, Metrics, PackedArray

__all__ = ["check_told", "digest_of_context", "records_of"]


def records_of(content: Content, *, without: frozenset[str]) -> Records:
    """The records of a message as a charter has them, but for those named ``without``."""
    made: Records = {}
    for name, record in content.items():
        if name not in without:
            made[f"{_kind(record)}:{name}"] = {str(key): _value(value) for key, value in record.items()}
    return made


def _kind(record: object) -> str:
    kinds = ((Arrays, "arrays"), (Metrics, "metrics"), (Config, "config"))
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
    if not isinstance(value, PackedArray):
        raise CharterError(f"a message tells the app a value of type {type(value).__name__}")
    return {"array": hashlib.sha256(value.data).hexdigest(), "type": value.dtype, "shape": list(value.shape)}


def check_told(content: Content, charter: Charter, purpose: Purpose, index: int, *, without: frozenset[str]) -> None:
    """Refuse, with `CharterError`, a message that tells the app something else than the charter says for ``index``."""
    if index > charter.rounds:
        raise CharterError(f"round {index} of a run whose charter has {charter.rounds}")
    # As documents: True is 1 to Python, and not to an app.
    if encode(records_of(content, without=without)) != encode(charter.settings[purpose].at(index)):
        raise CharterError(f"the message tells the app something else than the charter says for its round {index}")


def digest_of_context(config: Mapping[str, Any], app: str) -> bytes:
    """The digest of what the charter cannot list: the run's configuration, and the ``app`` that is installed."""
    said = json.dumps(sorted((str(key), _value(value)) for key, value in config.items()))
    return digest_of(b"fedcipher context 1", said.encode(), app.encode())
