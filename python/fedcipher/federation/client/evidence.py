"""The lines that a client writes to a site's log: charters, frames, opened sums and refusals, as public facts.

A line is on disk before what it records leaves the client or changes its model. Causes of refusals depend on data, so
they are not lines: only the client's own log file has them.

Nothing in a sum names single frames by their digests. The lines show all the same which frames are in a sum. A client
makes one frame for each round number, and a sum's tag covers its number, its clients and its associated data. So the
sum that opens under a number holds, of each client that it names, the one frame of this number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedcipher.federation.charter import Charter
from fedcipher.federation.query import Query
from fedcipher.frame import inspect

__all__ = [
    "APPROVAL",
    "CHARTER",
    "FRAME",
    "HEAD_BYTES",
    "OPENED",
    "QUERY",
    "REFUSAL",
    "Recorder",
    "charter_facts",
    "frame_facts",
    "opened_facts",
    "query_facts",
]

CHARTER, QUERY, FRAME, OPENED, REFUSAL = "charter", "query", "frame", "opened", "refusal"
APPROVAL = "approval"
"""Kinds of lines. An approval names a charter, and says which app and settings a person has approved, and who."""
HEAD_BYTES = 16 + 8 + 32 + 64
"""Length of a log's encoded head: the log's number, its number of lines, the root, and the signature."""


class Recorder(Protocol):
    """A site's log, such as `fedcipher.guard.log.Log`."""

    def record(self, kind: str, facts: Mapping[str, Any], *, once: bool = False) -> bytes:
        """Write a line of public ``facts``, and return the log's signed head. The line is on disk at the return.

        With ``once``, nothing is written if the log has the same line already. Raises `FedcipherError` if the line
        cannot be written; then nothing may leave.
        """
        ...


def charter_facts(charter: Charter, context: bytes) -> dict[str, Any]:
    """The line of an accepted charter. ``context`` is the digest of the app's inputs that the charter does not list."""
    return {
        "charter": charter.digest.hex(),
        "run": charter.run,
        "key_set": charter.key_set,
        "epoch": charter.epoch,
        "rounds": charter.rounds,
        "reader": charter.reader,
        "sets_models": charter.sets_models,
        "context": context.hex(),
    }


def query_facts(query: Query, context: bytes) -> dict[str, Any]:
    """The line of an accepted query."""
    return {
        "charter": query.digest.hex(),
        "round": query.round,
        "key_set": query.key_set,
        "epoch": query.epoch,
        "context": context.hex(),
    }


def frame_facts(frame: bytes, charter: bytes, purpose: str, index: int, bound: bytes) -> dict[str, Any]:
    """The line of a frame that may leave. ``charter`` is a digest, ``index`` the run's round, ``bound`` the associated
    data that the frame's tag covers."""
    header = inspect(frame)
    return {
        "charter": charter.hex(),
        "purpose": purpose,
        "index": index,
        "round": header.round,
        "bound": bound.hex(),
        "sha256": hashlib.sha256(frame).hexdigest(),
        "bytes": len(frame),
    }


def opened_facts(
    frames: Sequence[bytes],
    failed: Sequence[int],
    *,
    charter: bytes,
    purpose: str,
    index: int,
    bound: bytes,
    positions: tuple[bytes, bytes],
) -> dict[str, Any]:
    """The line of opened sums, ``frames``, of which those numbered in ``failed`` do not open.

    ``positions`` are the model's positions before and after. The other arguments are those of `frame_facts`.
    """
    before, after = positions
    return {
        "charter": charter.hex(),
        "purpose": purpose,
        "index": index,
        "bound": bound.hex(),
        "before": before.hex(),
        "after": after.hex(),
        "sums": [
            {
                "round": header.round,
                "clients": sorted([client, weight] for client, weight in header.contributions),
                "sha256": hashlib.sha256(frame).hexdigest(),
                "opened": number not in failed,
            }
            for number, (frame, header) in enumerate((frame, inspect(frame)) for frame in frames)
        ],
    }
