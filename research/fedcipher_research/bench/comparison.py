"""The comparison of a published figure with a measured one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedcipher.bench.statistics import Summary, summarise
from fedcipher.bench.study import Study

from fedcipher_research.published import Published
from fedcipher_research.published.verdict import Better, Outcome, judged

__all__ = ["Comparison", "Measured", "per", "ratio", "summaries", "total"]

Measured = Callable[[dict[str, dict[str, Summary]]], float]
"""Computes a figure from summaries by case label and figure name. Raises `KeyError` if a case has no run."""


@dataclass(frozen=True)
class Comparison:
    """A measured figure and its published counterpart, with the reason if they are not comparable."""

    what: str
    published: Published
    ours: Measured
    better: Better = "smaller"
    because: str = ""
    """Why the figures are not comparable; empty if they are."""
    doubts: tuple[int, ...] = ()
    """The numbers of the paper's contradictions that concern this figure."""
    bound: str = ""
    """``over`` or ``at most``, if the paper prints a bound."""

    def outcome(self, found: dict[str, dict[str, Summary]]) -> Outcome:
        """The outcome of the measurement; without a verdict if a case was not measured."""
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
    """The average of ``over`` divided by the average of ``under``."""
    return lambda s: s[over][figure].average / s[under][figure].average


def per(figure: str, label: str, count: float) -> Measured:
    """A figure divided by ``count``: for each value or client, or in another unit."""
    return lambda s: s[label][figure].average / count


def total(label: str, unit: float, *figures: str) -> Measured:
    """The sum of several figures of a case, in units of ``unit``."""
    return lambda s: sum(s[label][figure].average for figure in figures) / unit
