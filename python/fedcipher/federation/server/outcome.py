"""What a run has lost: rounds without an aggregate, clients that are missing from sums, and precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedcipher.federation.kept_share import MIN_KEPT_SHARE
from fedcipher.federation.records import CLIPPED, RoundRecord
from fedcipher.foreign_text import quoted

__all__ = ["Outcome"]

_SHOWN = 3
"""So many clients are named; of the others there is a number."""


class _Round(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def unfinished(self) -> str | None: ...


@dataclass(frozen=True)
class Outcome:
    """Of rounds that have ended. Server, `fedcipher status`, dashboard and a training's last line say the same."""

    done: int
    lost: dict[int, str]
    """The cause, by round."""
    losses: tuple[str, ...] = ()
    """Of the rounds that have an aggregate: a sentence for each client or kind of value that their sums lack."""

    @classmethod
    def of(cls, rounds: Iterable[RoundRecord]) -> Outcome:
        """A round that was tried again, after its server was killed, counts once."""
        rounds = list(rounds)
        found = cls.of_ends(rounds)
        good = [made for made in rounds if made.unfinished is None]
        return cls(found.done, found.lost, (*_absent(good), *_imprecise(good)))

    @classmethod
    def of_ends(cls, rounds: Iterable[_Round]) -> Outcome:
        """Of rounds of which no more is known than how they ended."""
        rounds = list(rounds)
        done = {made.round for made in rounds if made.unfinished is None}
        lost = {
            made.round: made.unfinished for made in rounds if made.unfinished is not None and made.round not in done
        }
        return cls(len(done), lost)

    def text(self, found: str = "") -> str:
        """One line; ``found`` is put beside the lost rounds."""
        said = [f"none of {self.done} rounds is lost"]
        if self.lost:
            number, why = next(reversed(self.lost.items()))
            said = [
                f"{len(self.lost)} of {len(self.lost) + self.done} rounds have no aggregate: {sorted(self.lost)}"
                f"{f'; {found}' if found else ''}. The last, round {number}: {quoted(why)}"
            ]
        return "; ".join([*said, *self.losses])


def _absent(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Clients that were asked and are in no sum."""
    missed: dict[str, list[tuple[int, str]]] = {}
    for made in rounds:
        for client in made.clients:
            if client.left_out is not None:
                name = f"node {client.node}" if client.client is None else f"client {client.client}"
                missed.setdefault(name, []).append((made.round, client.left_out))
    often = sorted(missed.items(), key=lambda pair: -len(pair[1]))
    for name, causes in often[:_SHOWN]:
        number, why = causes[-1]
        yield f"{name} is not in {len(causes)} of {len(rounds)} sums (last in round {number}: {quoted(why)})"
    if len(often) > _SHOWN:
        yield f"{len(often) - _SHOWN} other clients are not in every sum that they were asked for"


def _imprecise(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Sums that were opened and are not the mean, as far as the clients' counters say."""
    of = f"of {len(rounds)} sums"
    thin = {made.round: made.counted["kept"] for made in rounds if made.counted.get("kept", 1.0) < MIN_KEPT_SHARE}
    if thin:
        number = min(thin, key=thin.__getitem__)
        yield f"{len(thin)} {of} keep too little of their updates (round {number}: {100 * thin[number]:.0f}%)"
    cut = {made.round: made.clipped_share for made in rounds if made.clipped_share > CLIPPED}
    if cut:
        number = max(cut, key=cut.__getitem__)
        yield f"{len(cut)} {of} have values that were cut to their range (round {number}: {100 * cut[number]:.1f}%)"
    for kind, what in (("vanished", "were rounded to zero"), ("saturated", "are no finite numbers")):
        numbers = [made.round for made in rounds if made.counted.get(kind)]
        if numbers:
            yield f"{len(numbers)} {of} have values that {what} (first in round {numbers[0]})"
