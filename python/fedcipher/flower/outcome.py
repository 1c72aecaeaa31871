"""What a run's end was: which rounds have no aggregate, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedcipher.foreign_text import quoted

__all__ = ["Outcome"]


class _Round(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def unfinished(self) -> str | None: ...


@dataclass(frozen=True)
class Outcome:
    """Of rounds that have ended. The strategy's error, `fedcipher status` and a training's last line say the same."""

    done: int
    lost: dict[int, str]
    """The cause, by round."""

    @classmethod
    def of(cls, rounds: Iterable[_Round]) -> Outcome:
        """A round that was tried again, after its server was killed, counts once."""
        rounds = list(rounds)
        done = {made.round for made in rounds if made.unfinished is None}
        lost = {
            made.round: made.unfinished for made in rounds if made.unfinished is not None and made.round not in done
        }
        return cls(len(done), lost)

    def text(self, found: str = "") -> str:
        """One line; ``found`` is put beside the lost rounds."""
        if not self.lost:
            return f"none of {self.done} rounds is lost"
        number, why = next(reversed(self.lost.items()))
        return (
            f"{len(self.lost)} of {len(self.lost) + self.done} rounds have no aggregate: {sorted(self.lost)}"
            f"{f'; {found}' if found else ''}. The last, round {number}: {quoted(why)}"
        )
