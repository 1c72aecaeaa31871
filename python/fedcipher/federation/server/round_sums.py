"""A round's running sums: one of each kind of update, so that who comes first does not decide what the others may send.

Updates add up only where they have the same layout (shapes, types, bits, clip ranges) and were trained from the same
model. A server without a key cannot know all of that before the first update is there, and the first may be a liar's or
that of a client which has fallen behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedcipher.errors import DuplicateClientError, LayoutError, ModelMismatchError
from fedcipher.federation.messages import Reply
from fedcipher.frame import Contribution
from fedcipher.schemes import Aggregator

__all__ = ["RoundSums"]

_MOST_KINDS = 4
"""Each has a sum in memory. More kinds than that are only there where several clients lie."""


@dataclass
class _Kind:
    aggregator: Aggregator
    alike: object = None
    replies: list[Reply] = field(default_factory=list[Reply])


class RoundSums:
    """The sums of one round; ``make`` makes an empty one."""

    def __init__(self, make: Callable[[], Aggregator]) -> None:
        self._make = make
        self._kinds = [_Kind(make())]
        self._clients: set[int] = set()
        self.alike: object = None
        """What the replies of the `largest` sum have in common."""

    def add(self, frame: bytes, reply: Reply, named: Iterable[int], alike: object = None) -> Contribution:
        """Add the ``frame`` of a ``reply`` to the sum that it goes with: one of replies with an equal ``alike``.

        ``named`` are the clients in its head. A client has one frame in all sums together, so that one client with
        several nodes does not take up all kinds. Raises what an aggregator raises, and `LayoutError` where there are
        too many kinds already.
        """
        twice = self._clients.intersection(named)
        if twice:
            raise DuplicateClientError(f"client {min(twice)} has sent another frame of this round")
        contribution = self._added(frame, reply, alike)
        self._clients.add(contribution.client)
        return contribution

    def _added(self, frame: bytes, reply: Reply, alike: object) -> Contribution:
        refused: LayoutError | ModelMismatchError | None = None
        for kind in self._kinds:
            if kind.replies and kind.alike != alike:
                continue
            try:
                contribution = kind.aggregator.add(frame)
            except (LayoutError, ModelMismatchError) as error:
                refused = refused or error
                continue
            kind.alike = alike
            kind.replies.append(reply)
            return contribution
        if len(self._kinds) == _MOST_KINDS:
            raise refused or LayoutError("it goes with no other, and there are too many kinds already")
        kind = _Kind(self._make(), alike, [reply])
        contribution = kind.aggregator.add(frame)
        self._kinds.append(kind)
        return contribution

    def largest(self) -> tuple[Aggregator, list[Reply], list[Reply]]:
        """The sum of most updates, the replies that are in it, and those that are in others."""
        most = max(self._kinds, key=lambda kind: len(kind.replies))
        self.alike = most.alike
        return most.aggregator, most.replies, [r for kind in self._kinds if kind is not most for r in kind.replies]
