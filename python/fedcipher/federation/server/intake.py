"""Takes a round's replies one by one: adds each valid frame to a sum, and leaves out other replies with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from fedcipher._arguments import as_float
from fedcipher.errors import FedcipherError, FrameError, PlaintextError, StrategyError
from fedcipher.federation.chain import lanes_of
from fedcipher.federation.charter import Purpose
from fedcipher.federation.client.evidence import HEAD_BYTES
from fedcipher.federation.messages import (
    CLEAR,
    CONTEXT,
    METRICS,
    UPDATE,
    Arrays,
    Config,
    Content,
    Metrics,
    Reply,
    frame_bytes,
    record_in,
)
from fedcipher.federation.records import MAX_PHASE, PHASES, ClientRecord, RoundRecord
from fedcipher.federation.server.consent import WAITS, is_waiting
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.frame import inspect
from fedcipher.schemes import Aggregator

__all__ = ["Added", "Intake", "frame_in", "refusal_in"]

_log = quoting_log("fedcipher.federation")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Added:
    """A round's frames, added into one sum."""

    aggregator: Aggregator
    nodes: list[int]
    """The nodes that sent the frames, in order of arrival."""
    context: bytes
    """Digest of the clients' settings that are not in the charter."""
    unopened: dict[int, list[int]]
    """By node: the numbers of the last step's sums that the node's client could not open."""
    frames: list[bytes]
    """The frames, if they were kept."""


class Intake:
    """Takes the replies to the messages of ``run``."""

    def __init__(self, run: RunState) -> None:
        self._run, self._nodes = run, run.nodes

    def _nodes_present(self) -> frozenset[int]:
        """The nodes that are connected now."""
        return frozenset(() if self._run.link is None else self._run.link.nodes())

    def take(
        self,
        purpose: Purpose,
        replies: Iterable[Reply],
        record: RoundRecord,
        sums: RoundSums,
        effect: str,
        *,
        keep_frames: bool = False,
    ) -> Added:
        """Add the frames of ``replies`` to ``sums``, and record every reply in ``record``.

        ``effect`` is the log's text for a reply that is left out, such as "is left out of round 3". ``keep_frames``
        also keeps the frames themselves.
        """
        model, records = self._run.model, record.clients if purpose == "train" else record.evaluations
        charter, revoked = model.charter, self._run.setup.keys.revoked()
        measured = purpose == "train" and model.measuring
        lanes = lanes_of(charter, self._run.scheme, purpose, model.steps)
        counters = 0 if lanes is None else lanes.count
        frames: dict[int, bytes] = {}
        unopened: dict[int, list[int]] = {}
        heads: dict[int, bytes] = {}
        for reply in replies:
            phases, clear = _take_phases(reply.content, charter.clear[purpose])
            began = time.perf_counter()
            try:
                frame, context, failed = _frame_of(reply)
                header = inspect(frame)
                model.check_size(header.elements, counters, measured=measured)
                self._nodes.check(reply.node, header.clients, revoked, self._nodes_present)
                contribution = sums.add(frame, reply, header.clients, context)
            except FedcipherError as error:
                why = quoted(f"{type(error).__name__}: {error}")
                records.append(self.left_out(reply.node, effect, why, reply, phases))
                continue
            # Replies arrive one by one, so the time between them is not counted.
            record.aggregate_seconds += time.perf_counter() - began
            if purpose == "train":
                record.elements = header.elements - counters
            self._nodes.learn(reply.node, contribution.client)
            model.delivered(reply.node)
            records.append(ClientRecord(reply.node, contribution.client, phases, clear=clear))
            unopened[reply.node] = failed
            head = (record_in(reply.content, CONTEXT, Config) or {}).get("head")
            if isinstance(head, bytes) and len(head) == HEAD_BYTES:
                heads[contribution.client] = head
            if keep_frames:
                frames[reply.node] = frame
            # The sum has the frame, so its memory can be freed.
            reply.content = {}
        model.folder.keep_heads(heads)
        aggregator, accepted, others = sums.largest()
        not_added = {reply.node for reply in others}
        why = "its frame has another model or layout than most frames, or its app got other settings"
        records[:] = [
            self.left_out(client.node, effect, why, phases=client.phases)
            if client.node in not_added and client.left_out is None
            else client
            for client in records
        ]
        nodes = [reply.node for reply in accepted]
        kept = [frames[node] for node in nodes] if keep_frames else []
        return Added(aggregator, nodes, cast(bytes, sums.context or b""), unopened, kept)

    def left_out(
        self, node: int, effect: str, why: str, reply: Reply | None = None, phases: dict[str, float] | None = None
    ) -> ClientRecord:
        """Log and return the record of a node without a usable reply.

        A node that has replied is sent the whole model in the next round. A node that has not replied still has what
        it had.
        """
        refusal = None if reply is None else refusal_in(reply)
        client = self._nodes.client_of.get(node)
        known = "" if client is None else f" (client {client})"
        _log.warning("node %s%s %s: %s", node, known, effect, refusal or why)
        if reply is not None:
            self._run.model.forget(node)
        return ClientRecord(node, client, phases or {}, refusal or why, refusal is not None)


def refusal_in(reply: Reply) -> str | None:
    """The place of the cause of a client's refusal; None if the reply is not a refusal."""
    named = reply.reference
    return named and f"it refused; the cause is in its log (fedcipher.federation), reference {named}"


def _frame_of(reply: Reply) -> tuple[bytes, bytes, list[int]]:
    """The frame, the digest of the app's settings, and the numbers of the sums that the client could not open."""
    frame, context = frame_in(reply, "update", "client_mod")
    failed = (record_in(reply.content, CONTEXT, Config) or {}).get("unopened", [])
    numbers = [n for n in failed if isinstance(n, int)] if isinstance(failed, list) else []
    return frame, context, numbers


def frame_in(reply: Reply, what: str, mod: str) -> tuple[bytes, bytes]:
    """The one frame of ``reply``, and the digest of the settings that the client's app got.

    ``what`` names the frame and ``mod`` the function that makes it, for the text of errors. Raises `StrategyError` if
    the reply is an error, `PlaintextError` if it is not one encrypted frame, and `FrameError` if the digest is missing.
    """
    if reply.error is not None:
        raise StrategyError(quoted(reply.error))
    if is_waiting(reply):
        raise StrategyError(WAITS)
    arrays = [pair for record in reply.content.values() if isinstance(record, Arrays) for pair in record.items()]
    if len(arrays) != 1 or arrays[0][0] != UPDATE:
        raise PlaintextError(f"the {what} is not encrypted; add fedcipher.adapters.flower.{mod} to the app's mods")
    digest = (record_in(reply.content, CONTEXT, Config) or {}).get("digest")
    if not isinstance(digest, bytes) or len(digest) != _DIGEST_BYTES:
        raise FrameError("the reply lacks the digest of the settings that its app got")
    return frame_bytes(arrays[0][1]), digest


def _take_phases(content: Content, clear: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes by phase, and the metrics that the client sends in the clear; both from the client."""
    phases, metrics = record_in(content, METRICS, Metrics) or {}, record_in(content, CLEAR, Metrics) or {}
    # A client writes these numbers, so each is checked.
    numbers = {k: as_float(v) for k, v in phases.items() if isinstance(v, (int, float))}
    shown = {name: as_float(metrics[name]) for name in clear if isinstance(metrics.get(name), (int, float))}
    return {name: value for name, value in numbers.items() if name in PHASES and 0 <= value < MAX_PHASE}, shown
