"""Outcomes as the rows of a table, with the notes that its cells point to; and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedcipher_research.published import PAPERS, doubts
from fedcipher_research.published.verdict import Outcome

__all__ = ["Beside", "beside", "markdown_table"]


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the head first, as a table of Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


@dataclass
class Beside:
    """A table of published figures beside ours, its head first, and what stands below and above it."""

    rows: list[list[str]]
    notes: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    """Reasons and contradictions, each list behind its heading."""
    reversed: list[str] = field(default_factory=list[str])
    """Printed advantages that are disadvantages here: to be said first."""


def beside(outcomes: Sequence[Outcome]) -> Beside:
    """Cells stay short, as columns of a table must: why something is not comparable stands below, by its number."""
    shown = Beside([["figure", "printed in", "published", "here", "here / published", "verdict"]])
    reasons: list[str] = []
    contradictions: dict[tuple[str, int], None] = {}
    for outcome in outcomes:
        verdict = outcome.verdict
        if outcome.because and verdict:
            if outcome.because not in reasons:
                reasons.append(outcome.because)
            verdict += f" ({reasons.index(outcome.because) + 1})"
        for at in outcome.doubts:
            contradictions[outcome.published.paper, at] = None
        if outcome.doubts and verdict:
            verdict += f" [{', '.join(map(str, outcome.doubts))}]"
        shown.rows.append(
            [outcome.what, outcome.published.where, outcome.printed, outcome.measured, outcome.factor, verdict]
        )
        if outcome.reversed:
            shown.reversed.append(f"Reversed here: {outcome.what}: {outcome.printed} printed, {outcome.measured} here.")
    if reasons:
        shown.notes.append(("Not comparable, because", [f"({at}) {text}" for at, text in enumerate(reasons, 1)]))
    if contradictions:
        texts = [f"[{at}] {PAPERS[paper]}: {doubts(paper)[at - 1]}" for paper, at in sorted(contradictions)]
        shown.notes.append(("Where the paper contradicts itself or leaves open what it means", texts))
    return shown
