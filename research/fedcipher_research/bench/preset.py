"""A published measurement: the cases that repeat it, and the figures to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedcipher.bench.case import Case
from fedcipher.bench.study import Study

from fedcipher_research.bench.comparison import Comparison, summaries
from fedcipher_research.published.verdict import Outcome

__all__ = ["Preset"]


@dataclass(frozen=True)
class Preset:
    """A published scenario with a name."""

    name: str
    summary: str
    source: str
    differs: list[str]
    cases: list[Case]
    comparisons: list[Comparison] = field(default_factory=list[Comparison])

    def outcomes(self, study: Study) -> list[Outcome]:
        """The outcome of every comparison; without a verdict if its cases were not measured."""
        found = summaries(study)
        return [comparison.outcome(found) for comparison in self.comparisons]
