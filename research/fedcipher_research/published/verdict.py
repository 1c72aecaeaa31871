"""What a measured figure is beside a published one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedcipher._units import number

from fedcipher_research.published import Published

__all__ = ["RULE", "Better", "Outcome", "judged", "stated"]

RULE = (
    "*Reproduced*: the printed figure, to the digits that are printed, or a printed bound or statement that holds here "
    "too. "
    "*Beaten* and *missed*: better and worse than printed, by the factor beside them, on whatever machine each ran. "
    "*Not comparable*: what was measured is not what was printed, for the reason given."
)
"""For pages: no tolerance is chosen, so that nobody has to trust one."""

Better = Literal["smaller", "larger"]
_NONE = "not measured"


@dataclass(frozen=True)
class Outcome:
    """A published figure, ours where it has been measured, and what that makes of it."""

    what: str
    published: Published
    here: float | None
    unit: str
    verdict: str
    """``reproduced``, ``beaten``, ``missed`` or ``not comparable``; empty where nothing was measured."""
    because: str = ""
    """Why it is not comparable."""
    doubts: tuple[int, ...] = ()
    """Places, from 1, in the paper's list of contradictions that bear on it."""
    bound: str = ""
    """``over`` or ``at most``, where that is what the paper prints."""
    said: str = ""
    """What was found here, where the paper prints a statement and no number."""
    better: Better = "smaller"

    @property
    def printed(self) -> str:
        """The published figure, with its unit."""
        value = self.published.value
        shown = f"{value:,}" if not isinstance(value, str) else value
        return " ".join(part for part in (self.bound, shown, self.unit) if part)

    @property
    def measured(self) -> str:
        """Ours, with its unit."""
        if self.said:
            return self.said
        return _NONE if self.here is None else f"{number(self.here)} {self.unit}".strip()

    @property
    def factor(self) -> str:
        """Ours over the published one."""
        if self.here is None or not self.published.number:
            return ""
        published = self.published.number
        factor = self.here / published
        # Close to one, four digits would hide on which side it is.
        return f"{factor:.5f}x" if 0.9 < factor < 1.1 else f"{number(factor)}x"

    @property
    def reversed(self) -> bool:
        """A printed advantage that is a disadvantage here; what is better smaller, as an overhead, is none."""
        none = {"x": 1, "%": 0}.get(self.unit)
        return (
            self.better == "larger"
            and none is not None
            and self.here is not None
            and self.published.number > none > self.here
        )


def judged(
    what: str,
    published: Published,
    here: float | None,
    *,
    better: Better = "smaller",
    because: str = "",
    doubts: tuple[int, ...] = (),
    bound: str = "",
) -> Outcome:
    """The outcome by `RULE`."""
    return Outcome(
        what,
        published,
        here,
        published.unit,
        _verdict(published, here, better, because, bound),
        because,
        doubts,
        bound,
        better=better,
    )


def stated(
    what: str, published: Published, said: str, holds: bool, *, because: str = "", doubts: tuple[int, ...] = ()
) -> Outcome:
    """The outcome of a statement in words: whether it ``holds`` for what was ``said`` to be found here."""
    verdict = "not comparable" if because else "reproduced" if holds else "missed"
    return Outcome(what, published, None, published.unit, verdict, because, doubts, said=said)


def _verdict(published: Published, here: float | None, better: Better, because: str, bound: str) -> str:
    if here is None:
        return ""
    if because:
        return "not comparable"
    printed = published.number
    worse = here < printed if better == "larger" else here > printed
    if bound:
        return "missed" if worse else "reproduced"
    if round(here, published.decimals) == printed:
        return "reproduced"
    return "missed" if worse else "beaten"
