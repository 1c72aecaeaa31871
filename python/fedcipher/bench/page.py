"""The report as one HTML file that needs nothing else, readable on a phone."""

from __future__ import annotations

from html import escape

from fedcipher.bench.presets import Preset
from fedcipher.bench.study import Study
from fedcipher.bench.tables import compared, facts, overview, problems

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light; --ink: #1d2433; --line: #d8dde6; --soft: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
.text td { white-space: normal; } .text td:first-child, .text th:first-child { min-width: 8rem; position: static; }
thead th { background: var(--soft); } .beaten { color: #1a7f45; } .missed { color: #b3261e; }
.pictures { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: 0.3rem; } svg { width: 100%; height: auto; }
.problem { background: #fdeceb; padding: 0.6rem 0.9rem; border-left: 4px solid #b3261e; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; } dd { margin: 0; }
"""


def page(study: Study, preset: Preset, pictures: list[tuple[str, str]]) -> str:
    """The page; ``pictures`` are captions and SVG elements."""
    parts = [f"<h1>{escape(preset.name)}</h1><p>{escape(preset.summary)}.</p>"]
    parts += [f'<p class="problem">{escape(text)}</p>' for text in problems(study)]
    parts += ["<h2>Averages</h2>", _table(overview(study), "figures")]
    if preset.comparisons:
        parts += ["<h2>Beside the published figures</h2>", f"<p>Source: {escape(preset.source)}.</p>"]
        parts += [_table(compared(study, preset), "text")]
        parts += ["<p>What differs:</p><ul>", *(f"<li>{escape(text)}</li>" for text in preset.differs), "</ul>"]
    parts += ['<h2>Pictures</h2><div class="pictures">']
    parts += [f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in pictures]
    parts += ["</div><h2>How it was measured</h2><dl>"]
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(text.strip('`'))}</dd>" for name, text in facts(study)]
    parts += ["</dl>"]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(preset.name)}: what encryption costs</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(rows: list[list[str]], kind: str) -> str:
    def line(cells: list[str], tag: str) -> str:
        marked = (f'<{tag} class="{c}">' if c in ("beaten", "missed") else f"<{tag}>" for c in cells)
        return "<tr>" + "".join(f"{m}{escape(c)}</{tag}>" for m, c in zip(marked, cells, strict=True)) + "</tr>"

    body = "".join(line(row, "td") for row in rows[1:])
    head = line(rows[0], "th")
    return f'<div class="wide"><table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>'
