"""Pictures for reports, by matplotlib, with text that is readable on a phone."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from html import escape
from typing import Any

from fedcipher._colours import PALETTE, themed

__all__ = ["COLOURS", "decades", "new", "png", "svg"]

COLOURS = ("#8c96a8", "#1f77b4", "#d9822b", "#2a9d5c")
_SETTINGS = threading.Lock()
# Inches. A phone shows these 324 points a tenth larger, and half a desktop screen one and a half times as large.
_WIDTH = 4.5


def new(height: float) -> tuple[Any, Any]:
    """Make a figure of ``height`` inches. Returns the figure and its axes, which have only a baseline."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALETTE["line"][0])
    axes.tick_params(length=0, which="both")
    return figure, axes


def decades(axis: Any, smallest: float, largest: float, text: Callable[[float], str]) -> None:
    """Make ``axis`` logarithmic over whole decades that contain both values. ``text`` labels the ticks."""
    import math

    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def mark(value: float, _position: int | None = None) -> str:
        return text(value)

    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    high = max(high, low + 1)
    set_limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
    set_limits(10.0**low, 10.0**high)
    # Many labels would overlap, so label only every second or third of many decades.
    step = 1 + (high - low) // 5
    axis.set_major_locator(LogLocator(10.0**step))
    axis.set_major_formatter(FuncFormatter(mark))
    axis.set_minor_formatter(NullFormatter())


def png(figure: Any) -> bytes:
    """Convert a figure to PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=200)
    return out.getvalue()


def svg(figure: Any, description: str) -> str:
    """Convert a figure to an SVG element in the page's colours. Screen readers read ``description`` instead."""
    import matplotlib

    out = io.StringIO()
    # matplotlib's settings are global to the process.
    with _SETTINGS, matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style .*?</style>", "", out.getvalue(), flags=re.DOTALL)
    # Several figures in a page would have groups with equal ids. No reference uses these ids.
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    return themed(text).replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
