"""The public header of a frame: the part of an update, an aggregate or a key that is readable without a key.

A header is a claim. Nothing in it is checked here: an aggregator checks an update, and a decryptor an aggregate.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fedcipher import _native
from fedcipher._arguments import as_bytes

__all__ = ["Contribution", "Header", "Kind", "inspect"]


class Kind(IntEnum):
    """The content of a frame, by the number in its header."""

    UPDATE = 1
    AGGREGATE = 2
    CLIENT_KEY = 3
    SERVER_KEY = 4
    REQUEST = 5
    """An aggregator asks a member of the committee for shares. An answer or a complaint comes back."""
    ANSWER = 6
    COMPLAINT = 7
    PROPOSAL = 8
    """An aggregator proposes to a member which sums exist. An agreement comes back."""
    AGREEMENT = 9
    PREKEY = 10
    """A member publishes the key that clients seal their next shares to."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class Contribution(NamedTuple):
    """A client and the integer weight that it counts with."""

    client: int
    weight: int


class Header(NamedTuple):
    """The public header of a frame."""

    kind: Kind
    scheme: str
    """The scheme's name."""
    epoch: int
    """The key epoch."""
    round: int
    contributions: list[Contribution]
    """The sender of an update, or all clients of an aggregate."""
    elements: int
    """Values of the update or aggregate: of all its arrays together."""
    payload_bytes: int
    memory: bytes
    """The 16-byte id of the memory of sets that an aggregate counts in, under a tag."""

    @property
    def clients(self) -> list[int]:
        """The clients of `contributions`, in their order."""
        return [client for client, _ in self.contributions]


def inspect(frame: bytes) -> Header:
    """The public header of ``frame``, which may be of any scheme. Raises `FrameError` if ``frame`` is malformed."""
    kind, scheme, epoch, number, contributions, elements, size, memory = _native.inspect(as_bytes(frame, "frame"))
    named = [Contribution(client, weight) for client, weight in contributions]
    return Header(Kind(kind), scheme, epoch, number, named, elements, size, memory)
