"""Collects the reports of a committee's readers: clients open the answers and report them to a server without a key.

Reports exist only under a committee, which fixes one set of clients for a sum. Under a common key, two sums of one
round would give two reports, and their difference could be one client's answer. The server accepts a report that more
clients send alike than may lie.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, cast

from fedcipher._arguments import is_finite
from fedcipher.federation.answers import Answer, Report
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import EVALUATION, REPORT, Config, Content, Message, record_in, wire_record
from fedcipher.federation.server.link import Link
from fedcipher.foreign_files import parse_json
from fedcipher.foreign_text import quoting_log

__all__ = ["Reports", "request"]

_log = quoting_log("fedcipher.federation")

_MIN_SECONDS = 1.0
"""The shortest time, in seconds, that readers have to report."""
_MAX_BYTES = 1 << 24
"""The largest report that is read."""


def request(purpose: Purpose, frame: bytes | None) -> Content:
    """The content that asks for a report, in addition to a round's settings and sums.

    ``frame`` is the sum of an evaluation's answers; None for a report on training.
    """
    content: Content = {REPORT: Config({"purpose": purpose})}
    if frame is not None:
        content[EVALUATION] = wire_record({EVALUATION: frame})
    return content


class Reports:
    """The server's side of reports.

    It accepts a report that more than ``corrupt`` readers send within ``patience`` seconds.
    """

    def __init__(self, corrupt: int, patience: float) -> None:
        self._corrupt, self._patience = corrupt, patience
        self.answered: list[int] = []
        """Nodes that have answered the last request, and so have received its sums."""

    @property
    def wanted(self) -> int:
        """How many readers are asked: enough that more than ``corrupt`` of them are honest."""
        return 2 * self._corrupt + 1

    def ask(self, link: Link, messages: Sequence[Message], answers: Sequence[Answer]) -> Report | None:
        """Send ``messages`` made with `request` and return the report; None if too few reports are the same."""
        counts: dict[bytes, int] = {}
        self.answered = []
        until = time.monotonic() + max(self._patience, _MIN_SECONDS)
        for reply in link.exchange(messages, until=until, enough=lambda: self._enough_agree(counts.values())):
            record = record_in(reply.content, REPORT, Config)
            text = None if record is None else record.get("report")
            if not isinstance(text, bytes):
                continue
            self.answered.append(reply.node)
            if len(text) > _MAX_BYTES:
                _log.warning("a reader's report of %s bytes is left out; the limit is %s bytes", len(text), _MAX_BYTES)
                continue
            counts[text] = counts.get(text, 0) + 1
        accepted = [text for text, count in counts.items() if count > self._corrupt]
        if not accepted:
            _log.warning(
                "%s of %s readers have reported answers, but fewer than %s reports agree: the round has no metrics",
                *(len(self.answered), len(messages), self._corrupt + 1),
            )
            return None
        return _parsed(accepted[0], answers)

    def _enough_agree(self, counts: Collection[int]) -> bool:
        return max(counts, default=0) > self._corrupt


def _parsed(text: bytes, answers: Sequence[Answer]) -> Report | None:
    try:
        report: Any = parse_json(text)
        values = {answer.name: [_number(value) for value in report[answer.name]] for answer in answers}
        if len(report) != len(answers) or any(len(values[answer.name]) != answer.count for answer in answers):
            raise ValueError("its answers are not those of the charter")
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        # More clients sent this than may lie, so their app may be of another version.
        _log.warning("the readers' report cannot be read: %s", error)
        return None
    return Report(values)


def _number(value: object) -> float:
    if type(value) not in (int, float) or not is_finite(cast(float, value)):
        raise ValueError("it holds a value that is not a finite number")
    return cast(float, value)
