"""A round's running sums, one for each kind of update, so that the first reply cannot decide which others are accepted.

Updates can be added only if they have the same layout (shapes, types, bits, clip ranges) and were trained from the same
model. A server without a key learns these only from the updates. The first update may come from a dishonest client, or
from a client with an old model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedcipher.errors import DuplicateClientError, LayoutError, ModelMismatchError
from fedcipher.federation.messages import Reply
from fedcipher.frame import Contribution
from fedcipher.schemes import Aggregator

__all__ = ["RoundSums"]

_MAX_KINDS = 4
"""Each kind has a sum in memory. There are more kinds only if several clients lie."""


@dataclass
class _Kind:
    aggregator: Aggregator
    context: object = None
    replies: list[Reply] = field(default_factory=list[Reply])


class RoundSums:
    """The sums of one round; ``make`` returns an empty sum."""

    def __init__(self, make: Callable[[], Aggregator]) -> None:
        self._make = make
        self._kinds = [_Kind(make())]
        self._clients: set[int] = set()
        self.context: object = None
        """The ``context`` that all replies of the `largest` sum have."""

    def add(self, frame: bytes, reply: Reply, named: Iterable[int], context: object = None) -> Contribution:
        """Add the ``frame`` of a ``reply`` to the sum of its kind, whose replies have an equal ``context``.

        ``named`` are the clients in the frame's header. A client may have one frame in all sums together, so that one
        client with several nodes cannot use up all kinds. Raises the errors of an aggregator, and `LayoutError` if
        there are too many kinds.
        """
        twice = self._clients.intersection(named)
        if twice:
            raise DuplicateClientError(f"client {min(twice)} has sent another frame of this round")
        contribution = self._add_to_kind(frame, reply, context)
        self._clients.add(contribution.client)
        return contribution

    def _add_to_kind(self, frame: bytes, reply: Reply, context: object) -> Contribution:
        refused: LayoutError | ModelMismatchError | None = None
        for kind in self._kinds:
            if kind.replies and kind.context != context:
                continue
            try:
                contribution = kind.aggregator.add(frame)
            except (LayoutError, ModelMismatchError) as error:
                refused = refused or error
                continue
            kind.context = context
            kind.replies.append(reply)
            return contribution
        if len(self._kinds) == _MAX_KINDS:
            raise refused or LayoutError("the frame fits no other frame, and there are too many kinds of frames")
        kind = _Kind(self._make(), context, [reply])
        contribution = kind.aggregator.add(frame)
        self._kinds.append(kind)
        return contribution

    def largest(self) -> tuple[Aggregator, list[Reply], list[Reply]]:
        """The sum with the most updates, its replies, and the replies of the other sums."""
        largest = max(self._kinds, key=lambda kind: len(kind.replies))
        self.context = largest.context
        others = [reply for kind in self._kinds if kind is not largest for reply in kind.replies]
        return largest.aggregator, largest.replies, others
