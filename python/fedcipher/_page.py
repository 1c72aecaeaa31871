"""The design of the HTML pages: a stylesheet and components, for reports and dashboard.

A page is a single file. It follows the reader's choice of light or dark, and is readable on a phone, on a desktop and
on paper. Numbers never break, and tables are never cut off. If columns do not fit, each row becomes a card: the first
cell is the heading, and each other cell is a line with its column's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fedcipher._colours import variables

__all__ = ["Card", "Picture", "cards", "contents", "document", "facts", "heading", "note", "pictures", "state", "table"]

Picture = tuple[str, str]
"""(caption, SVG element)"""
Card = tuple[str, Sequence[tuple[str, str]], Sequence[str]]
"""(title, figures with their units or totals, sentences)"""

_WIDE = 10
"""Tables with more columns become cards even on a tablet."""
_AS_CARDS = """
  .KIND, .KIND tbody { display: block; } .KIND thead { display: none; }
  .KIND tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); column-gap: 1.4rem;
    padding: 0.6rem 0; border-bottom: 1px solid var(--line); }
  .KIND tbody th, .KIND td { display: flex; justify-content: space-between; gap: 0.5rem; border: 0;
    padding: 0.1rem 0; }
  .KIND td::before { content: attr(data-column); color: var(--quiet); white-space: normal; text-align: left; }
  .KIND tbody th, .KIND td.said { grid-column: 1 / -1; display: block; }
  .KIND tbody th { font-weight: 600; }
  .KIND td.said::before { content: none; }
  .KIND tbody th::before { content: attr(data-column) " "; }
  .KIND .named th::before { content: none; }
"""
_STYLE = f"""
:root {{ color-scheme: light dark; {variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}
* {{ box-sizing: border-box; }}
html {{ scroll-behavior: smooth; }}
@media (prefers-reduced-motion: reduce) {{ html {{ scroll-behavior: auto; }} }}
body {{ margin: 0 auto; max-width: 76rem; padding: 1.5rem clamp(1rem, 4vw, 2.5rem) 4rem; color: var(--ink);
  background: var(--page); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 4px; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 1rem; }}
h2 {{ font-size: 1.25rem; line-height: 1.3; letter-spacing: -0.01em; margin: 2.75rem 0 0.75rem; }}
p, li, dd, dt, code {{ overflow-wrap: anywhere; }} p, li {{ max-width: 46rem; }}
a {{ color: var(--accent); }}
code {{ background: var(--panel); padding: 0.15em 0.4em; border-radius: 4px; font-size: 0.85em;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }}
.brand {{ color: var(--quiet); font-size: 0.85rem; margin: 0 0 0.3rem; }}
.contents {{ display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; margin: 0 0 1.25rem; font-size: 0.9rem; }}
.contents a {{ text-decoration: none; padding: 0.2rem 0; }} .contents a:hover {{ text-decoration: underline; }}
.state, .card {{ background: var(--panel); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.1rem 1.25rem; }}
.state h2, .card h2 {{ margin: 0 0 0.4rem; font-size: 0.9rem; font-weight: 600; letter-spacing: 0;
  color: var(--quiet); }}
.state p, .card p {{ margin: 0.5rem 0 0; font-size: 0.9rem; }}
.figure {{ font-size: 1.6rem; font-weight: 650; line-height: 1.25; letter-spacing: -0.015em;
  font-variant-numeric: tabular-nums; }}
.figure small {{ font-size: 0.9rem; line-height: 1; font-weight: 400; letter-spacing: 0; color: var(--quiet); }}
progress {{ display: block; width: 100%; height: 0.6rem; margin-top: 0.7rem; appearance: none; border: 0;
  border-radius: 99px; overflow: hidden; background: var(--line); }}
progress::-webkit-progress-bar {{ background: var(--line); }}
progress::-webkit-progress-value {{ background: var(--accent); }} progress::-moz-progress-bar {{
  background: var(--accent); }}
.glance {{ display: grid; gap: 1rem; margin-top: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem),
  1fr)); }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.45rem 0.8rem 0.45rem 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; font-weight: 400; }}
thead th {{ white-space: normal; vertical-align: bottom; font-weight: 600; color: var(--quiet); }}
th:first-child, td.said {{ text-align: left; white-space: normal; }}
tr > :last-child {{ padding-right: 0; }}
.beaten {{ color: var(--good); }} .missed {{ color: var(--bad); }}
.pictures {{ display: grid; gap: 2rem 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  margin: 1.5rem 0; }}
figure {{ margin: 0; }} figcaption {{ font-weight: 600; font-size: 0.9rem; margin-bottom: 0.4rem; }}
svg {{ display: block; width: 100%; height: auto; }}
svg * {{ stroke-linejoin: round; }} svg text {{ fill: var(--quiet); font-family: inherit !important; }}
.note, .problem {{ background: var(--panel); padding: 0.8rem 1.1rem; border-left: 4px solid var(--accent);
  border-radius: 0 8px 8px 0; max-width: none; font-size: 0.9rem; }}
.problem {{ background: var(--alarm); border-color: var(--bad); }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 0 2.5rem;
  font-size: 0.9rem; }}
dl div {{ display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; padding: 0.35rem 0;
  border-bottom: 1px solid var(--line); }}
dt {{ color: var(--quiet); }} dd {{ margin: 0; font-variant-numeric: tabular-nums; }}
.heard {{ position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); }}
@media (min-width: 72.01rem) {{ .named th {{ min-width: 11rem; }} }}
@media (max-width: 72rem) {{{_AS_CARDS.replace("KIND", "wide")}}}
@media (max-width: 52rem) {{{_AS_CARDS.replace("KIND", "slim")}}}
@media print {{
  :root {{ color-scheme: light; {variables(dark=False)} }}
  body {{ max-width: none; padding: 0; font-size: 11pt; }} .contents {{ display: none; }}
  .card, .state, figure, tr {{ break-inside: avoid; }} h2 {{ break-after: avoid; }}
}}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Make the whole page. ``parts`` are HTML, and one of them has or opens the element ``main``."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def heading(text: str, name: str = "") -> str:
    """Make the heading of a section. `contents` links to its ``name``."""
    return f'<h2 id="{escape(name)}">{escape(text)}</h2>' if name else f"<h2>{escape(text)}</h2>"


def contents(names: Iterable[tuple[str, str]]) -> str:
    """Make links to headings, from (name of the heading, text)."""
    links = "".join(f'<a href="#{escape(name)}">{escape(text)}</a>' for name, text in names)
    return f'<nav class="contents" aria-label="On this page">{links}</nav>'


def state(title: str, figure: str, parts: Iterable[str], done: tuple[int, int] | None = None) -> str:
    """Show the progress of a run: a ``figure``, a bar for ``done`` (steps done, all steps), and ``parts``, HTML."""
    bar = (
        "" if done is None else f'<progress aria-label="{escape(title)}" value="{done[0]}" max="{done[1]}"></progress>'
    )
    paragraphs = "".join(f"<p>{part}</p>" for part in parts)
    head = f'<h2>{escape(title)}</h2><div class="figure">{escape(figure)}</div>'
    return f'<section class="state">{head}{bar}{paragraphs}</section>'


def cards(shown: Iterable[Card]) -> str:
    """Show cards side by side if there is room."""
    made: list[str] = []
    for title, figures, texts in shown:
        large = "".join(
            f'<div class="figure">{escape(figure)} <small>{escape(of)}</small></div>' for figure, of in figures
        )
        paragraphs = "".join(f"<p>{escape(text)}</p>" for text in texts)
        made.append(f'<section class="card"><h2>{escape(title)}</h2>{large}{paragraphs}</section>')
    return f'<div class="glance">{"".join(made)}</div>'


def note(text: str, kind: str = "note") -> str:
    """Make a highlighted paragraph: a ``"note"`` or a ``"problem"``."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table(rows: Sequence[Sequence[str]], *, cards: bool = True) -> str:
    """Make a table from rows, the head first. With ``cards``, rows become cards on narrow screens.

    Switch ``cards`` off for few columns. If a row is empty after its third cell, the third cell is a text that takes
    the rest of the row.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "".join(f"<tr>{_cells(rows[0], row)}</tr>" for row in rows[1:])
    # On a card, show the column's name before a number, but not before a name.
    named = "" if all(row[0].isdecimal() for row in rows[1:]) else ' class="named"'
    kind = f' class="{"wide" if len(rows[0]) > _WIDE else "slim"}"' if cards else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody{named}>{body}</tbody></table>"


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    has_text = len(row) > 3 and not any(row[3:])
    out = [f'<th scope="row" data-column="{escape(head[0])}">{escape(row[0])}</th>']
    for k, (column, cell) in enumerate(zip(head[1:], row[1:], strict=True), 1):
        if has_text and k == 2:
            out.append(f'<td class="said" colspan="{len(row) - 2}">{escape(cell)}</td>')
            break
        # A verdict may refer to notes: "missed [1]".
        verdict = cell.partition(" ")[0]
        marked = f' class="{verdict}"' if verdict in ("beaten", "missed") else ""
        out.append(f'<td{marked} data-column="{escape(column)}">{escape(cell)}</td>')
    return "".join(out)


def pictures(drawn: Iterable[Picture]) -> str:
    """Show pictures side by side if there is room."""
    figures = (f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in drawn)
    return f'<div class="pictures">{"".join(figures)}</div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Make a list of (name, text)."""
    shown = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in pairs)
    return f"<dl>{''.join(shown)}</dl>"
