"""The colours of all pages, on light and on dark ground: stylesheet and pictures take theirs from here."""

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
"""By the name of a CSS variable: the colour on light ground and on dark."""
GROUNDS = ("page", "panel", "alarm")
TEXTS = ("ink", "quiet", "accent", "good", "bad")
"""Stand as text on each ground, so that each pair needs a contrast of 4.5 (WCAG 2.2, 1.4.3)."""
MARKS = ("accent", "other")
"""Lines and bars of pictures, on a page: a contrast of 3 (WCAG 2.2, 1.4.11)."""


_MATPLOTLIB = {"#000000": "var(--ink)", "#b0b0b0": "var(--quiet)"}
"""Its own colours of lines and of grids."""


def variables(dark: bool) -> str:
    """The declarations of a stylesheet."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in PALETTE.items())


def themed(svg: str) -> str:
    """``svg`` with variables in the place of this palette's light colours, and of matplotlib's own."""
    by_colour = {pair[0]: f"var(--{name})" for name, pair in PALETTE.items()} | _MATPLOTLIB
    # A style's value alone: a text may look like a colour.
    return re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", lambda found: by_colour.get(found[0], found[0]), svg)
