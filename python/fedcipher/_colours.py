"""The colours of all pages, on light and on dark ground, for stylesheets and pictures."""

from __future__ import annotations

import re

__all__ = ["GROUNDS", "MARKS", "PALETTE", "TEXTS", "themed", "variables"]

PALETTE = {
    "page": ("#ffffff", "#11151b"),
    "panel": ("#f5f7f9", "#1a2029"),
    "alarm": ("#fdf0ee", "#2c1c1e"),
    "ink": ("#18202c", "#e7ebf1"),
    "quiet": ("#566071", "#a5b0c0"),
    "line": ("#dbe1e8", "#303a48"),
    "accent": ("#0b6a93", "#5db9e6"),
    "other": ("#b45309", "#f2a65e"),
    "good": ("#17723b", "#68cb8e"),
    "bad": ("#b3261e", "#ff968d"),
}
"""The colours on (light ground, dark ground), by the name of the CSS variable."""
GROUNDS = ("page", "panel", "alarm")
TEXTS = ("ink", "quiet", "accent", "good", "bad")
"""Colours of text on any ground. Each pair needs a contrast of 4.5 (WCAG 2.2, 1.4.3)."""
MARKS = ("accent", "other")
"""Colours of lines and bars of pictures on a page. They need a contrast of 3 (WCAG 2.2, 1.4.11)."""


_MATPLOTLIB = {"#000000": "var(--ink)", "#b0b0b0": "var(--quiet)"}
"""matplotlib's own colours of lines and grids, with their replacements."""


def variables(dark: bool) -> str:
    """The palette as declarations for a stylesheet, in its dark or light form."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in PALETTE.items())


def themed(svg: str) -> str:
    """Replace this palette's light colours and matplotlib's own colours in ``svg`` by CSS variables."""
    by_colour = {pair[0]: f"var(--{name})" for name, pair in PALETTE.items()} | _MATPLOTLIB
    # Replace only values of styles, because a text may look like a colour.
    return re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", lambda found: by_colour.get(found[0], found[0]), svg)
