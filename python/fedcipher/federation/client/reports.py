"""A reader's report: what a client tells a server without a key of the answers that it has opened.

Only where the committee has fixed the set of a sum, so that there is one sum to report on. Under a common key two sums
of one round would make two reports, whose difference is one client's answer.
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
    """Take up the sums that a message brings, and report the answers of its purpose at the position they lead to.

    Raises `RoundError` for settings that are no settings, `CharterError` where the charter has no reports, and what
    `ClientModel.receive` raises.
    """
    settings = RoundSettings.parse(record_in(message.content, CONFIG, Config) or Config())
    with holder.store.locked():
        model = ClientModel(holder, settings, context)
        charter, purpose = model.charter, _purpose_of(message.content)
        record = record_in(message.content, charter.record, Arrays)
        if not charter.reports:
            raise CharterError("a report is asked for, and the charter has none")
        if message.type != charter.types[purpose] or record is None:
            raise RoundError("the message is of another type than the charter names, or brings no model")
        decryptor = holder.decryptor()
        model.receive(record, decryptor)
        values = model.reported if purpose == "train" else model.evaluated(_frame_of(message.content), decryptor)
    return {REPORT: Config({"report": _encoded(values)})}


def _purpose_of(content: Content) -> Purpose:
    record = record_in(content, REPORT, Config)
    said = None if record is None else record.get("purpose")
    if said not in PURPOSES:
        raise RoundError("a report is asked for, and neither of training nor of an evaluation")
    return said


def _frame_of(content: Content) -> bytes:
    record = record_in(content, EVALUATION, Arrays)
    if record is None or list(record) != [EVALUATION]:
        raise FrameError("a report of an evaluation is asked for, and its sum is not there")
    return frame_bytes(record[EVALUATION])


def _encoded(values: Mapping[str, list[float]]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
