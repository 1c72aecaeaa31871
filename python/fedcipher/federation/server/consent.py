"""Asks sites for their consent to the run's charter before the first round, and waits for people to give it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence

from fedcipher.errors import StrategyError
from fedcipher.federation.messages import CONSENT, READY, WAITING, Config, Content, Message, Reply, record_in
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoting_log

__all__ = ["WAITS", "agreed_nodes", "is_waiting"]

_log = quoting_log("fedcipher.federation")
_ASK_AGAIN_SECONDS = 5.0
_ANSWER_SECONDS = 90.0
_MAX_REFUSALS = 3
"""A node that refuses so often is not asked again. One refusal can be a guard that was killed at the question."""
WAITS = (
    "its site has not agreed to this run yet: people there decide with `fedcipher guard approve`. "
    "SecureStrategy(consent_timeout=SECONDS) waits for all sites before the first round"
)


def is_waiting(reply: Reply) -> bool:
    """Whether the people at the site of ``reply`` have not decided about the run yet."""
    return _state_of(reply) == WAITING


def agreed_nodes(run: RunState, nodes: Collection[int], seconds: float) -> set[int]:
    """The nodes whose sites agree to the run's charter within ``seconds``.

    Raises `StrategyError` if fewer agree than a sum needs.
    """
    until = time.monotonic() + seconds
    agreed, shown = set[int](), set[int]()
    refusals = Counter[int]()
    while True:
        asked = [node for node in nodes if node not in agreed and refusals[node] < _MAX_REFUSALS]
        waiting = _ask(run, asked, agreed, refusals, until)
        if waiting and not waiting <= shown:
            shown |= waiting
            run.show(f"nodes {sorted(waiting)} wait for their sites' consent to the charter, at most {seconds:.0f} s")
        left = until - time.monotonic()
        if left <= 0 or all(node in agreed or refusals[node] >= _MAX_REFUSALS for node in nodes):
            break
        time.sleep(min(_ASK_AGAIN_SECONDS, left))
    missing = sorted(set(nodes) - agreed)
    if missing:
        _log.warning("nodes %s take no part: their sites have refused, or not agreed within %.0f s", missing, seconds)
    if len(agreed) < run.setup.minimum:
        raise StrategyError(
            f"{len(agreed)} of {len(nodes)} sites have agreed to the charter {run.charter.digest.hex()} within "
            f"{seconds:.0f} s, and a sum needs {run.setup.minimum}: nodes {missing} have not. After `fedcipher guard "
            "approve` there, start the run again, with resume=True if it has a folder"
        )
    return agreed


def _ask(run: RunState, nodes: Sequence[int], agreed: set[int], refusals: Counter[int], until: float) -> set[int]:
    """Ask ``nodes`` once. Adds to ``agreed`` and ``refusals``, and returns the nodes that wait."""
    assert run.link is not None
    messages = [Message(node, run.charter.types["train"], _question(run)) for node in nodes]
    waiting = set[int]()
    # A message can be lost with its node, which is then asked again.
    for reply in run.link.exchange(messages, until=min(until, time.monotonic() + _ANSWER_SECONDS)):
        state = _state_of(reply)
        if state == READY:
            agreed.add(reply.node)
        elif state == WAITING:
            waiting.add(reply.node)
        else:
            refusals[reply.node] += 1
    return waiting


def _question(run: RunState) -> Content:
    charter = run.charter
    asked = RoundSettings(
        charter.digest, 1, 1, 0, document=charter.encode(), signature=run.model.folder.signature
    ).to_record()
    return {CONSENT: Config({key: asked[key] for key in ("charter", "document", "signature") if key in asked})}


def _state_of(reply: Reply) -> object:
    record = record_in(reply.content, CONSENT, Config)
    return None if record is None else record.get("state")
