"""A published figure beside one of a study's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedcipher.bench.statistics import Summary, summarise
from fedcipher.bench.study import Study

from fedcipher_research.published import Published
from fedcipher_research.published.verdict import Better, Outcome, judged

__all__ = ["Comparison", "Measured", "per", "ratio", "summaries", "total"]

Measured = Callable[[dict[str, dict[str, Summary]]], float]
"""From summaries by case label and figure name; a `KeyError` where a case has no run."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, with which published figure, and why not where it cannot be."""

    what: str
    published: Published
    ours: Measured
    better: Better = "smaller"
    because: str = ""
    """Why it is not comparable, where it is not."""
    doubts: tuple[int, ...] = ()
    """The paper's contradictions that bear on it."""
    bound: str = ""
    """``over`` or ``at most``, where that is what is printed."""

    def outcome(self, found: dict[str, dict[str, Summary]]) -> Outcome:
        """By what was measured; without a verdict where its cases have not been."""
        try:
            here = self.ours(found)
        except (KeyError, ZeroDivisionError):
            here = None
        return judged(
            self.what,
            self.published,
            here,
            better=self.better,
            because=self.because,
            doubts=self.doubts,
            bound=self.bound,
        )


def summaries(study: Study) -> dict[str, dict[str, Summary]]:
    """Every figure of every case."""
    return {result.case.label: summarise(result) for result in study.results}


def ratio(figure: str, over: str, under: str) -> Measured:
    """How many times ``under``'s average ``over``'s is."""
    return lambda s: s[over][figure].average / s[under][figure].average


def per(figure: str, label: str, count: float) -> Measured:
    """A figure per value or client, or in another unit."""
    return lambda s: s[label][figure].average / count


def total(label: str, unit: float, *figures: str) -> Measured:
    """Several figures of a case together."""
    return lambda s: sum(s[label][figure].average for figure in figures) / unit
