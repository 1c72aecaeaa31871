"""Reports of a committee's readers: what clients tell a server without a key of the answers that they have opened.

Only where the committee has fixed the set of a sum, so that there is one sum to report on. Under a common key two sums
of one round would make two reports, whose difference is one client's answer. A server takes what more clients say alike
than may lie.
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

_LEAST = 1.0
"""Seconds that readers have at least."""
_MOST_BYTES = 1 << 24


def request(purpose: Purpose, frame: bytes | None) -> Content:
    """What asks for a report beside a round's settings and sums; ``frame`` is the sum of an evaluation's answers."""
    content: Content = {REPORT: Config({"purpose": purpose})}
    if frame is not None:
        content[EVALUATION] = wire_record({EVALUATION: frame})
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

    def ask(self, link: Link, messages: Sequence[Message], answers: Sequence[Answer]) -> Report | None:
        """What ``messages``, of `request`, bring back; None where too few say the same."""
        said: dict[bytes, int] = {}
        self.heard = []
        until = time.monotonic() + max(self._patience, _LEAST)
        for reply in link.exchange(messages, until=until, enough=lambda: self._alike(said.values())):
            record = record_in(reply.content, REPORT, Config)
            text = None if record is None else record.get("report")
            if not isinstance(text, bytes):
                continue
            self.heard.append(reply.node)
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
