"""The report as one HTML file."""

from __future__ import annotations

from html import escape

from fedcipher import _page
from fedcipher.bench.study import Study
from fedcipher.bench.tables import overview, problems

from fedcipher_research.bench.preset import Preset
from fedcipher_research.bench.tables import compared, facts
from fedcipher_research.published.verdict import RULE

__all__ = ["page"]


def page(study: Study, preset: Preset, pictures: list[_page.Picture]) -> str:
    """The page of a study."""
    parts = [f"<main><h1>{escape(preset.name)}</h1><p>{escape(preset.summary)}.</p>"]
    parts += [_page.note(text, "problem") for text in problems(study)]
    parts += ["<h2>Averages</h2>", _page.table(overview(study))]
    if preset.comparisons:
        parts += ["<h2>Beside the published figures</h2>", f"<p>Source: {escape(preset.source)}.</p>"]
        shown = compared(study, preset)
        parts += [f"<p>{escape(RULE.replace('*', ''))}</p>", *(_page.note(text, "problem") for text in shown.reversed)]
        parts += [_page.table(shown.rows)]
        for head, texts in shown.notes:
            parts += [f"<p>{escape(head)}:</p><ul>", *(f"<li>{escape(text)}</li>" for text in texts), "</ul>"]
        parts += ["<p>Differences from the published set-up:</p><ul>"]
        parts += [*(f"<li>{escape(text)}</li>" for text in preset.differs), "</ul>"]
    parts += ["<h2>Pictures</h2>", _page.pictures(pictures)]
    parts += ["<h2>How it was measured</h2>", _page.facts((name, text.strip("`")) for name, text in facts(study))]
    return _page.document(f"{preset.name}: what encryption costs", [*parts, "</main>"])
