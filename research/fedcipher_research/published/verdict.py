"""The verdict on a measured figure beside a published one."""

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
"""The rule of verdicts, for pages. The rule has no tolerance, so a reader need not trust a choice of one."""

Better = Literal["smaller", "larger"]
_NONE = "not measured"


@dataclass(frozen=True)
class Outcome:
    """A published figure, our figure if it has been measured, and the verdict."""

    what: str
    published: Published
    here: float | None
    unit: str
    verdict: str
    """``reproduced``, ``beaten``, ``missed`` or ``not comparable``; empty if nothing was measured."""
    because: str = ""
    """Why the figures are not comparable."""
    doubts: tuple[int, ...] = ()
    """The numbers, from 1, of the paper's contradictions that concern this figure."""
    bound: str = ""
    """``over`` or ``at most``, if the paper prints a bound."""
    said: str = ""
    """The finding here in words, if the paper prints a statement and not a number."""
    better: Better = "smaller"

    @property
    def printed(self) -> str:
        """The published figure, with its unit."""
        value = self.published.value
        shown = f"{value:,}" if not isinstance(value, str) else value
        return " ".join(part for part in (self.bound, shown, self.unit) if part)

    @property
    def measured(self) -> str:
        """Our figure, with its unit."""
        if self.said:
            return self.said
        return _NONE if self.here is None else f"{number(self.here)} {self.unit}".strip()

    @property
    def factor(self) -> str:
        """Our figure divided by the published one."""
        if self.here is None or not self.published.number:
            return ""
        published = self.published.number
        factor = self.here / published
        # Close to one, four digits would not show whether the factor is above or below one.
        return f"{factor:.5f}x" if 0.9 < factor < 1.1 else f"{number(factor)}x"

    @property
    def reversed(self) -> bool:
        """True if a printed advantage is a disadvantage here. A figure that should be small is not an advantage."""
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
    """The outcome for a number, by `RULE`."""
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
    """The outcome for a statement in words. ``said`` is the finding here; ``holds`` is true if the statement holds."""
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
