"""Summarises a run's losses: rounds without an aggregate, clients that are missing from sums, and precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedcipher.federation.kept_share import MIN_KEPT_SHARE
from fedcipher.federation.records import CLIPPED, RoundRecord
from fedcipher.foreign_text import quoted

__all__ = ["Outcome"]

_MAX_NAMED = 3
"""How many missing clients are named; the others are only counted."""


class _Round(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def unfinished(self) -> str | None: ...


@dataclass(frozen=True)
class Outcome:
    """The outcome of ended rounds. The server, `fedcipher status`, the dashboard and `fedcipher train` all print it."""

    done: int
    """Number of rounds with an aggregate."""
    lost: dict[int, str]
    """The cause of each round without an aggregate, by round."""
    losses: tuple[str, ...] = ()
    """One sentence for each client or kind of value that is missing from the rounds' sums."""

    @classmethod
    def of(cls, rounds: Iterable[RoundRecord]) -> Outcome:
        """The outcome of ``rounds``. A round that was repeated after its server was killed counts once."""
        rounds = list(rounds)
        found = cls.of_ends(rounds)
        good = [made for made in rounds if made.unfinished is None]
        return cls(found.done, found.lost, (*_absent(good), *_imprecise(good)))

    @classmethod
    def of_ends(cls, rounds: Iterable[_Round]) -> Outcome:
        """The outcome of ``rounds`` for which only their end is known."""
        rounds = list(rounds)
        done = {made.round for made in rounds if made.unfinished is None}
        lost = {
            made.round: made.unfinished for made in rounds if made.unfinished is not None and made.round not in done
        }
        return cls(len(done), lost)

    def text(self, found: str = "") -> str:
        """The outcome on one line; ``found`` is added to the part about lost rounds."""
        parts = [f"all {self.done} rounds have an aggregate"]
        if self.lost:
            number, why = next(reversed(self.lost.items()))
            parts = [
                f"{len(self.lost)} of {len(self.lost) + self.done} rounds have no aggregate: {sorted(self.lost)}"
                f"{f'; {found}' if found else ''}. The last, round {number}: {quoted(why)}"
            ]
        return "; ".join([*parts, *self.losses])


def _absent(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Sentences about clients that were asked and are missing from sums."""
    missed: dict[str, list[tuple[int, str]]] = {}
    for made in rounds:
        for client in made.clients:
            if client.left_out is not None:
                name = f"node {client.node}" if client.client is None else f"client {client.client}"
                missed.setdefault(name, []).append((made.round, client.left_out))
    often = sorted(missed.items(), key=lambda pair: -len(pair[1]))
    for name, causes in often[:_MAX_NAMED]:
        number, why = causes[-1]
        yield f"{name} is missing from {len(causes)} of {len(rounds)} sums (last in round {number}: {quoted(why)})"
    if len(often) > _MAX_NAMED:
        yield f"{len(often) - _MAX_NAMED} other clients are also missing from some sums"


def _imprecise(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Sentences about opened sums that differ from the mean, according to the clients' counters."""
    of = f"of {len(rounds)} sums"
    idle = [made.round for made in rounds if made.all_apps_failed]
    if idle:
        yield f"{len(idle)} {of} are of no client, because all apps failed (first in round {idle[0]}); see their logs"
    thin = {made.round: made.counted["kept"] for made in rounds if made.counted.get("kept", 1.0) < MIN_KEPT_SHARE}
    if thin:
        number = min(thin, key=thin.__getitem__)
        yield f"{len(thin)} {of} keep too little of their updates (round {number}: {100 * thin[number]:.0f}%)"
    cut = {made.round: made.clipped_share for made in rounds if made.clipped_share > CLIPPED}
    if cut:
        number = max(cut, key=cut.__getitem__)
        yield f"{len(cut)} {of} have values that were cut to their range (round {number}: {100 * cut[number]:.1f}%)"
    for kind, effect in (("vanished", "were rounded to zero"), ("saturated", "are not finite numbers")):
        numbers = [made.round for made in rounds if made.counted.get(kind)]
        if numbers:
            yield f"{len(numbers)} {of} have values that {effect} (first in round {numbers[0]})"
