"""A round's running sums: one of each kind of update, so that who comes first does not decide what the others may send.

Updates add up only where they have the same layout (shapes, types, bits, clip ranges) and were trained from the same
model. A server without a key cannot know all of that before the first update is there, and the first may be a liar's or
that of a client which has fallen behind.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Message

from fedcipher.errors import LayoutError, ModelMismatchError
from fedcipher.schemes import Aggregator, Contribution

__all__ = ["Sums"]

_MOST_KINDS = 4
"""Each has a sum in memory. More kinds than that are only there where several clients lie."""


class Sums:
    """The sums of one round; ``make`` makes an empty one."""

    def __init__(self, make: Callable[[], Aggregator]) -> None:
        self._make = make
        self._kinds: list[tuple[Aggregator, list[Message]]] = [(make(), [])]

    def add(self, frame: bytes, reply: Message) -> Contribution:
        """Add the ``frame`` of a ``reply`` to the sum that it goes with. Raises what an aggregator raises."""
        refused: LayoutError | ModelMismatchError | None = None
        for aggregator, replies in self._kinds:
            try:
                contribution = aggregator.add(frame)
            except (LayoutError, ModelMismatchError) as error:
                refused = refused or error
                continue
            replies.append(reply)
            return contribution
        if len(self._kinds) == _MOST_KINDS or refused is None:
            raise refused or LayoutError("the update goes with no other")
        aggregator = self._make()
        contribution = aggregator.add(frame)
        self._kinds.append((aggregator, [reply]))
        return contribution

    def largest(self) -> tuple[Aggregator, list[Message], list[Message]]:
        """The sum of most updates, the replies that are in it, and those that are in others."""
        aggregator, replies = max(self._kinds, key=lambda kind: len(kind[1]))
        return aggregator, replies, [r for other, others in self._kinds if other is not aggregator for r in others]
