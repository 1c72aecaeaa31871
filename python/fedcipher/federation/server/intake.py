"""Replies of a round, one by one: each sound frame goes into a sum, and each other reply is left out with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from fedcipher._arguments import as_float
from fedcipher.errors import FedcipherError, FrameError, PlaintextError, StrategyError
from fedcipher.federation.chain import lanes_of
from fedcipher.federation.charter import Purpose
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
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.frame import inspect
from fedcipher.schemes import Aggregator

__all__ = ["Added", "Intake", "frame_in", "refusal_in"]

_log = quoting_log("fedcipher.federation")
_DIGEST = 32


@dataclass(frozen=True)
class Added:
    """A round's frames in one sum."""

    aggregator: Aggregator
    nodes: list[int]
    """Whose frames these are, in the order in which they came."""
    context: bytes
    """What the replies' apps were told beside the charter."""
    unopened: dict[int, list[int]]
    """By node: the numbers of the last step's sums that its client could not open."""
    frames: list[bytes]
    """The frames, where they were kept."""


class Intake:
    """Takes the replies of ``run``'s rounds."""

    def __init__(self, run: RunState) -> None:
        self._run, self._nodes = run, run.nodes

    def _there(self) -> frozenset[int]:
        """The nodes that are there."""
        return frozenset(() if self._run.link is None else self._run.link.nodes())

    def take(
        self,
        purpose: Purpose,
        replies: Iterable[Reply],
        record: RoundRecord,
        sums: RoundSums,
        said: str,
        *,
        kept: bool = False,
    ) -> Added:
        """Add the frames of ``replies`` to ``sums``; what is left out is in ``record``, and in the log as ``said``.

        ``kept`` keeps the frames beside the sum.
        """
        model, heard = self._run.model, record.clients if purpose == "train" else record.evaluations
        charter, revoked = model.charter, self._run.setup.keys.revoked()
        measured = purpose == "train" and model.measuring
        lanes = lanes_of(charter, self._run.scheme, purpose, model.steps)
        counters = 0 if lanes is None else lanes.count
        frames: dict[int, bytes] = {}
        unopened: dict[int, list[int]] = {}
        for reply in replies:
            phases, clear = _take_phases(reply.content, charter.clear[purpose])
            began = time.perf_counter()
            try:
                frame, context, failed = _frame_of(reply)
                header = inspect(frame)
                model.check_size(header.elements, counters, measured=measured)
                self._nodes.check(reply.node, header.clients, revoked, self._there)
                contribution = sums.add(frame, reply, header.clients, context)
            except FedcipherError as error:
                why = quoted(f"{type(error).__name__}: {error}")
                heard.append(self.left_out(reply.node, said, why, reply, phases))
                continue
            # Replies come one by one: the wait between them is no work.
            record.aggregate_seconds += time.perf_counter() - began
            if purpose == "train":
                record.elements = header.elements - counters
            self._nodes.learn(reply.node, contribution.client)
            model.delivered(reply.node)
            heard.append(ClientRecord(reply.node, contribution.client, phases, clear=clear))
            unopened[reply.node] = failed
            if kept:
                frames[reply.node] = frame
            # The frame is in the sum.
            reply.content = {}
        aggregator, accepted, others = sums.largest()
        astray = {reply.node for reply in others}
        why = "its frame goes with another model or layout than most, or its app was told something else"
        heard[:] = [
            self.left_out(client.node, said, why, phases=client.phases)
            if client.node in astray and client.left_out is None
            else client
            for client in heard
        ]
        nodes = [reply.node for reply in accepted]
        held = [frames[node] for node in nodes] if kept else []
        return Added(aggregator, nodes, cast(bytes, sums.alike or b""), unopened, held)

    def left_out(
        self, node: int, said: str, why: str, reply: Reply | None = None, phases: dict[str, float] | None = None
    ) -> ClientRecord:
        """A node whose reply is of no use, or that gave none: logged.

        After a reply it is sent everything again. After silence it has still what it had.
        """
        refusal = None if reply is None else refusal_in(reply)
        client = self._nodes.client_of.get(node)
        known = "" if client is None else f" (client {client})"
        _log.warning("node %s%s %s: %s", node, known, said, refusal or why)
        if reply is not None:
            self._run.model.forget(node)
        return ClientRecord(node, client, phases or {}, refusal or why, refusal is not None)


def refusal_in(reply: Reply) -> str | None:
    """Where to look for the cause of a client's refusal."""
    named = reply.reference
    return named and f"it refused; its own log (fedcipher.federation) has the cause, reference {named}"


def _frame_of(reply: Reply) -> tuple[bytes, bytes, list[int]]:
    """The frame, what its client's app was told beside the charter, and which sums its client could not open."""
    frame, context = frame_in(reply, "update", "client_mod")
    failed = (record_in(reply.content, CONTEXT, Config) or {}).get("unopened", [])
    numbers = [n for n in failed if isinstance(n, int)] if isinstance(failed, list) else []
    return frame, context, numbers


def frame_in(reply: Reply, what: str, mod: str) -> tuple[bytes, bytes]:
    """The one frame of ``reply``, and the digest of what its client's app was told.

    ``what`` the frame is and the ``mod`` that makes it are for the refusal of anything else. Raises `StrategyError` for
    a reply that is an error, `PlaintextError`, and `FrameError`.
    """
    if reply.error is not None:
        raise StrategyError(quoted(reply.error))
    arrays = [pair for record in reply.content.values() if isinstance(record, Arrays) for pair in record.items()]
    if len(arrays) != 1 or arrays[0][0] != UPDATE:
        raise PlaintextError(f"the {what} is not encrypted; add fedcipher.adapters.flower.{mod} to the app's mods")
    said = (record_in(reply.content, CONTEXT, Config) or {}).get("digest")
    if not isinstance(said, bytes) or len(said) != _DIGEST:
        raise FrameError("the reply does not say what its app was told")
    return frame_bytes(arrays[0][1]), said


def _take_phases(content: Content, clear: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes by phase, and the metrics that the client sends in the clear."""
    taken, said = record_in(content, METRICS, Metrics) or {}, record_in(content, CLEAR, Metrics) or {}
    # A client writes them.
    numbers = {k: as_float(v) for k, v in taken.items() if isinstance(v, (int, float))}
    shown = {name: as_float(said[name]) for name in clear if isinstance(said.get(name), (int, float))}
    return {name: value for name, value in numbers.items() if name in PHASES and 0 <= value < MAX_PHASE}, shown
