"""Who has spoilt a sum that does not open, found by halving: for schemes in which a client's lie cannot be seen.

In `oneshot` a client that shares another secret than the one it encrypted under makes a sum that nobody can open, and
neither the server nor the committee can tell whose fault it is. So in the rounds that follow part of its clients sit
out, and every sum tells of those who were in it: a liar among n clients is found in about log2 n rounds. A client that
lies in some rounds only can have another one taken for it; who is found is left out for one run, and let in again
where sums do not open without it either.
"""

from __future__ import annotations

import random
from collections.abc import Collection

__all__ = ["Suspects"]


class Suspects:
    """The search, over the rounds of a run. Clients are named by their number in the key set."""

    def __init__(self) -> None:
        # At least one of these lies, if whoever has been cleared does not.
        self._guilty: list[int] = []
        # Nothing is known of these yet: they were with a liar.
        self._unknown: list[int] = []
        self._cleared: set[int] = set()
        self._draw = random.Random()
        self.found: set[int] = set()
        """Clients that alone have spoilt a sum of others that had opened."""

    @property
    def searching(self) -> bool:
        """Whether clients sit out that may be honest."""
        return bool(self._guilty or self._unknown)

    def spoilt(self, clients: Collection[int]) -> None:
        """The sum of ``clients`` has not opened."""
        tested = sorted(client for client in clients if client not in self._cleared)
        if not tested:
            # One of those that were cleared: nothing holds of what was concluded with it.
            self._cleared, self.found, tested = set(), set(), sorted(clients)
        self._unknown = [client for client in (*self._unknown, *self._guilty) if client not in tested]
        self._guilty = tested
        self._conclude()

    def opened(self, clients: Collection[int]) -> None:
        """The sum of ``clients`` has opened, so each of them was honest this time."""
        if self.searching:
            self._cleared.update(clients)
            self._unknown = [client for client in self._unknown if client not in self._cleared]
            self._guilty = [client for client in self._guilty if client not in self._cleared]
            self._conclude()

    def _conclude(self) -> None:
        if len(self._guilty) == 1:
            self.found.update(self._guilty)
            self._guilty = []
        if not self.searching:
            self._cleared = set()

    def excluded(self, sampled: Collection[int], least: int) -> set[int]:
        """Which of the ``sampled`` clients sit the next round out, so that at least ``least`` remain.

        Where so few would remain that nothing could be learnt only those that were found sit out.
        """
        out = self.found & set(sampled)
        guilty = [client for client in self._guilty if client in sampled]
        unknown = [client for client in self._unknown if client in sampled]
        others = len(sampled) - len(out) - len(guilty) - len(unknown)
        # At random, because where few are there the same choice could be as empty again and again.
        self._draw.shuffle(guilty)
        taking_part = max(len(guilty) // 2, least - others)
        if taking_part < len(guilty):
            return out | set(guilty[taking_part:]) | set(unknown)
        # Too few have been cleared: first those of whom nothing is known, with some of the others where they must.
        taking_part = max(least - others - len(unknown), 0)
        if unknown and taking_part < len(guilty):
            return out | set(guilty[taking_part:])
        return out
