"""What the HTML reports share: one file that needs nothing else, for a desk and for a phone.

Numbers never break and no table is cut: where the columns do not fit, a row becomes a card, its first cell the
heading and each other cell a line with its column's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["Picture", "document", "facts", "note", "pictures", "table"]

Picture = tuple[str, str]
"""A caption, and an SVG element."""

_STYLE = """
:root { color-scheme: light; --ink: #1d2433; --line: #d8dde6; --soft: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p, li, dd, code { overflow-wrap: anywhere; max-width: 72rem; }
code { background: var(--soft); padding: 0.1em 0.3em; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
thead th { background: var(--soft); white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child, td.said { text-align: left; white-space: normal; }
.beaten { color: #1a7f45; } .missed { color: #b3261e; }
.pictures { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: 0.3rem; } svg { width: 100%; height: auto; }
.note { background: var(--soft); padding: 0.6rem 0.9rem; border-left: 4px solid #0b6e99; }
.problem { background: #fdeceb; padding: 0.6rem 0.9rem; border-left: 4px solid #b3261e; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: 0.2rem 1rem; } dd { margin: 0; }
dt { overflow-wrap: anywhere; }
@media (min-width: 72.01rem) { .named td:first-child { min-width: 11rem; } }
@media (max-width: 72rem) {
  .cards, .cards tbody { display: block; } .cards thead { display: none; }
  .cards tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); column-gap: 1.2rem;
    padding: 0.5rem 0; border-bottom: 1px solid var(--line); }
  .cards td { display: flex; justify-content: space-between; gap: 0.5rem; border: 0; padding: 0.1rem 0; }
  .cards td::before { content: attr(data-column); color: #5a6475; white-space: normal; text-align: left; }
  .cards td:first-child, .cards td.said { grid-column: 1 / -1; display: block; }
  .cards td:first-child { font-weight: 600; }
  .cards td.said::before { content: none; }
  .cards td:first-child::before { content: attr(data-column) " "; }
  .cards .named td:first-child::before { content: none; }
}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page; ``parts`` are HTML."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def note(text: str, kind: str = "note") -> str:
    """A paragraph that stands out: a ``"note"`` or a ``"problem"``."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table(rows: Sequence[Sequence[str]], *, cards: bool = True) -> str:
    """A table, its head first. ``cards``: its rows become cards where it is narrow; leave out for few columns.

    A row that is empty after its third cell has a text there, which takes the rest of the row.
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{_cells(rows[0], row)}</tr>" for row in rows[1:])
    # A name needs no column's name before it, a number does.
    named = "" if all(row[0].isdecimal() for row in rows[1:]) else ' class="named"'
    kind = ' class="cards"' if cards else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody{named}>{body}</tbody></table>"


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    said = len(row) > 3 and not any(row[3:])
    out: list[str] = []
    for k, (column, cell) in enumerate(zip(head, row, strict=True)):
        if said and k == 2:
            out.append(f'<td class="said" colspan="{len(row) - 2}">{escape(cell)}</td>')
            break
        # A verdict may point to notes: "missed [1]".
        verdict = cell.partition(" ")[0]
        marked = f' class="{verdict}"' if verdict in ("beaten", "missed") else ""
        out.append(f'<td{marked} data-column="{escape(column)}">{escape(cell)}</td>')
    return "".join(out)


def pictures(drawn: Iterable[Picture]) -> str:
    """Pictures side by side where there is room."""
    figures = (f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in drawn)
    return f'<div class="pictures">{"".join(figures)}</div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what there is to say of each."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in pairs)}</dl>"
