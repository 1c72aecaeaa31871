"""The app's inputs beside the model. The charter lists most of them; a digest covers the rest.

An app may use its inputs in any way. So every record of a message must be equal to the charter's record for
that round. No charter can list the run's configuration and the installed app. Their digest goes into the first
position, so updates of clients with different inputs do not sum.
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

__all__ = ["check_app_inputs", "digest_of_context", "records_of"]


def records_of(content: Content, *, without: frozenset[str]) -> Records:
    """The records of a message in the form that a charter has them, except those named in ``without``."""
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
        # Text, because JSON numbers have no NaN and canonical documents no -0.0.
        return {"float": value.hex()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, PackedArray):
        raise CharterError(f"a message gives the app a value of type {type(value).__name__}")
    return {"array": hashlib.sha256(value.data).hexdigest(), "type": value.dtype, "shape": list(value.shape)}


def check_app_inputs(
    content: Content, charter: Charter, purpose: Purpose, index: int, *, without: frozenset[str]
) -> None:
    """Raise `CharterError` if a message gives the app other records than the charter lists for round ``index``."""
    if index > charter.rounds:
        raise CharterError(f"the message is of round {index}, and the run's charter has {charter.rounds} rounds")
    # Encoded, because True == 1 in Python, while an app can tell them apart.
    if encode(records_of(content, without=without)) != encode(charter.settings[purpose].at(index)):
        raise CharterError(f"the message gives the app other inputs than the charter lists for its round {index}")


def digest_of_context(config: Mapping[str, Any], app: str) -> bytes:
    """SHA-256 of the inputs that no charter can list: the run's ``config`` and the name of the installed ``app``."""
    listed = json.dumps(sorted((str(key), _value(value)) for key, value in config.items()))
    return digest_of(b"fedcipher context 1", listed.encode(), app.encode())
