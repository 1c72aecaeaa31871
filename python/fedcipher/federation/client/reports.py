"""Makes a reader's report: the answers that a client has opened, for a server without a key.

Reports exist only under a committee, which fixes one set of clients for a sum. Under a common key, two sums of one
round would give two reports, and their difference could be one client's answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedcipher.errors import CharterError, FrameError, RoundError
from fedcipher.federation.charter import PURPOSES, Purpose
from fedcipher.federation.client.key_holder import KeyHolder
from fedcipher.federation.client.model import ClientModel
from fedcipher.federation.messages import (
    CONFIG,
    EVALUATION,
    REPORT,
    Arrays,
    Config,
    Content,
    Message,
    frame_bytes,
    record_in,
)
from fedcipher.federation.round_settings import RoundSettings

__all__ = ["report"]


def report(message: Message, holder: KeyHolder, context: bytes) -> Content:
    """Open the sums in a message, and report the answers of its purpose at the position after them.

    Raises `RoundError` for invalid settings, `CharterError` if the charter has no reports, and the errors of
    `ClientModel.receive`.
    """
    settings = RoundSettings.parse(record_in(message.content, CONFIG, Config) or Config())
    with holder.store.locked():
        model = ClientModel(holder, settings, context)
        charter, purpose = model.charter, _purpose_of(message.content)
        record = record_in(message.content, charter.record, Arrays)
        if not charter.reports:
            raise CharterError("the message asks for a report, but the charter has none")
        if message.type != charter.types[purpose] or record is None:
            raise RoundError("the message has another type than the charter names, or brings no model")
        decryptor = holder.decryptor()
        model.receive(record, decryptor)
        values = model.reported if purpose == "train" else model.evaluated(_frame_of(message.content), decryptor)
    return {REPORT: Config({"report": _encoded(values)})}


def _purpose_of(content: Content) -> Purpose:
    record = record_in(content, REPORT, Config)
    purpose = None if record is None else record.get("purpose")
    if purpose not in PURPOSES:
        raise RoundError("the message asks for a report, but neither on training nor on an evaluation")
    return purpose


def _frame_of(content: Content) -> bytes:
    record = record_in(content, EVALUATION, Arrays)
    if record is None or list(record) != [EVALUATION]:
        raise FrameError("the message asks for a report on an evaluation, but does not bring its sum")
    return frame_bytes(record[EVALUATION])


def _encoded(values: Mapping[str, list[float]]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
