"""Reports of a committee's readers: what clients tell a server without a key of the answers that they have opened.

Only where the committee has fixed the set of a sum, so that there is one sum to report on. Under a common key two sums
of one round would make two reports, whose difference is one client's answer. A server takes what more clients say alike
than may lie.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from fedcipher._arguments import is_finite
from fedcipher.errors import CharterError, FrameError, RoundError
from fedcipher.federation.answers import Answer, Report
from fedcipher.federation.charter import PURPOSES, Purpose
from fedcipher.flower import protocol
from fedcipher.flower.client_model import ClientModel
from fedcipher.flower.party import party_of
from fedcipher.flower.replies import Gathering
from fedcipher.flower.settings import RoundSettings
from fedcipher.flower.told import context_of
from fedcipher.foreign_files import parse_json
from fedcipher.foreign_text import quoting_log

__all__ = ["Reports", "is_for_reader", "report", "request"]

_log = quoting_log("fedcipher.flower")

_PURPOSE, _REPORT = "purpose", "report"
_LEAST = 1.0
"""Seconds that readers have at least."""
_MOST_BYTES = 1 << 24


# --- a client ---------------------------------------------------------------------------------------


def is_for_reader(msg: Message) -> bool:
    """Whether a message asks for a report, and is not for the app."""
    return protocol.REPORT in msg.content


def report(msg: Message, ctxt: Context) -> Message:
    """Take up the sums that a message brings, and report the answers of its purpose at the position they lead to.

    Raises `CharterError` where the charter has no reports, and what `ClientModel.receive` raises.
    """
    settings = RoundSettings.parse(msg.content.config_records.pop(protocol.CONFIG))
    party = party_of(ctxt)
    with party.store.locked():
        model = ClientModel(party, settings, context_of(ctxt))
        charter, purpose = model.charter, _purpose_of(msg.content)
        record = msg.content.array_records.get(charter.record)
        if not charter.reports:
            raise CharterError("a report is asked for, and the charter has none")
        if msg.metadata.message_type != charter.types[purpose] or record is None:
            raise RoundError("the message is of another type than the charter names, or brings no model")
        decryptor = party.decryptor()
        model.receive(record, decryptor)
        values = model.reported if purpose == "train" else model.evaluated(_frame_of(msg.content), decryptor)
    content = RecordDict({protocol.REPORT: ConfigRecord({_REPORT: _encoded(values)})})
    return Message(content, reply_to=msg)


def _purpose_of(content: RecordDict) -> Purpose:
    record = content.config_records.get(protocol.REPORT)
    said = None if record is None else record.get(_PURPOSE)
    if said not in PURPOSES:
        raise RoundError("a report is asked for, and neither of training nor of an evaluation")
    return said


def _frame_of(content: RecordDict) -> bytes:
    record = content.array_records.get(protocol.EVALUATION)
    if record is None or list(record.keys()) != [protocol.EVALUATION]:
        raise FrameError("a report of an evaluation is asked for, and its sum is not there")
    return protocol.frame_bytes(record[protocol.EVALUATION])


def _encoded(values: Mapping[str, list[float]]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


# --- the server -------------------------------------------------------------------------------------


def request(purpose: Purpose, frame: bytes | None) -> RecordDict:
    """What asks for a report beside a round's settings and sums; ``frame`` is the sum of an evaluation's answers."""
    content = RecordDict({protocol.REPORT: ConfigRecord({_PURPOSE: purpose})})
    if frame is not None:
        content[protocol.EVALUATION] = protocol.wire_record({protocol.EVALUATION: frame})
    return content


class Reports:
    """The server's side: readers have ``patience`` seconds; what more than ``corrupt`` say alike is taken."""

    def __init__(self, corrupt: int, patience: float) -> None:
        self._corrupt, self._patience = corrupt, patience
        self.heard: list[int] = []
        """Nodes that have answered the last question, and so have all that it brought."""

    @property
    def wanted(self) -> int:
        """How many readers are asked: of so many, enough say the truth."""
        return 2 * self._corrupt + 1

    def ask(self, grid: Grid, messages: Sequence[Message], answers: Sequence[Answer]) -> Report | None:
        """What ``messages``, of `request`, bring back; None where too few say the same."""
        said: dict[bytes, int] = {}
        self.heard = []
        until = time.monotonic() + max(self._patience, _LEAST)
        for reply in Gathering(grid, messages, until=until, enough=lambda: self._alike(said.values())):
            record = None if reply.has_error() else reply.content.get(protocol.REPORT)
            text = record.get(_REPORT) if isinstance(record, ConfigRecord) else None
            if not isinstance(text, bytes):
                continue
            self.heard.append(reply.metadata.src_node_id)
            if len(text) > _MOST_BYTES:
                _log.warning("a reader's report of %s bytes is left out: at most %s are read", len(text), _MOST_BYTES)
                continue
            said[text] = said.get(text, 0) + 1
        taken = [text for text, count in said.items() if count > self._corrupt]
        if not taken:
            _log.warning(
                "%s of %s readers have reported answers, and fewer than %s alike: the round has no metrics here",
                *(len(self.heard), len(messages), self._corrupt + 1),
            )
            return None
        return _parsed(taken[0], answers)

    def _alike(self, counts: Collection[int]) -> bool:
        return max(counts, default=0) > self._corrupt


def _parsed(text: bytes, answers: Sequence[Answer]) -> Report | None:
    try:
        said: Any = parse_json(text)
        values = {answer.name: [_number(value) for value in said[answer.name]] for answer in answers}
        if len(said) != len(answers) or any(len(values[answer.name]) != answer.count for answer in answers):
            raise ValueError("other answers than the charter names")
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        # More clients say so than may lie: an app of another version.
        _log.warning("what readers have reported is no report: %s", error)
        return None
    return Report(values)


def _number(value: object) -> float:
    if type(value) not in (int, float) or not is_finite(cast(float, value)):
        raise ValueError("a report holds what is no number")
    return cast(float, value)
