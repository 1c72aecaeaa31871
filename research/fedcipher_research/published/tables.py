"""Writes outcomes as the rows of a table, with notes to its cells, and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedcipher_research.published import PAPERS, doubts
from fedcipher_research.published.verdict import Outcome

__all__ = ["Beside", "beside", "markdown_table"]


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of these rows. The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


@dataclass
class Beside:
    """A table of published figures beside ours, head first, with the notes below it and the warnings above it."""

    rows: list[list[str]]
    notes: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    """Reasons and contradictions: (heading, texts)."""
    reversed: list[str] = field(default_factory=list[str])
    """Printed advantages that are disadvantages here. A page shows them before the table."""


def beside(outcomes: Sequence[Outcome]) -> Beside:
    """Make the table. Cells are short: the reason why a figure is not comparable is a numbered note below."""
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
