"""Pictures for the reports, by matplotlib: letters that a phone shows at a size one can read."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["COLOURS", "decades", "new", "png", "svg"]

COLOURS = ("#8c96a8", "#1f77b4", "#d9822b", "#2a9d5c")
_SETTINGS = threading.Lock()
# Inches; a phone shows 360 points as they are, half a desk at one and a half times that.
_WIDTH = 5.0


def new(height: float) -> tuple[Any, Any]:
    """A figure of ``height`` inches and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def decades(axis: Any, smallest: float, largest: float, text: Callable[[float], str]) -> None:
    """A logarithmic axis over whole decades, each marked with its ``text``."""
    import math

    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def mark(value: float, _position: int | None = None) -> str:
        return text(value)

    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    high = max(high, low + 1)
    set_limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
    set_limits(10.0**low, 10.0**high)
    # Every second or third decade where there are many: their texts are wide.
    step = 1 + (high - low) // 5
    axis.set_major_locator(LogLocator(10.0**step))
    axis.set_major_formatter(FuncFormatter(mark))
    axis.set_minor_formatter(NullFormatter())


def png(figure: Any) -> bytes:
    """A figure as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=200)
    return out.getvalue()


def svg(figure: Any) -> str:
    """A figure as an SVG element to stand in a page."""
    import matplotlib

    out = io.StringIO()
    # The settings are the process's.
    with _SETTINGS, matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
