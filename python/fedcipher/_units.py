"""Seconds, bytes and shares for people."""

from __future__ import annotations

__all__ = ["duration", "number", "seconds", "share", "size"]


_LONGEST = 1e9


def number(value: float) -> str:
    """Four digits, never in the form 1e+04."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: float) -> str:
    """Seconds for people."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{number(value)} s"


def duration(value: float) -> str:
    """Whole seconds, minutes and hours: how long somebody waits. The dashboard's script says the same."""
    # A journal may hold a number of any size, or none.
    whole = round(min(max(0.0, value), _LONGEST))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def share(value: float) -> str:
    """A fraction in percent: two digits after the point, and nothing that is more than 0 shown as 0."""
    return f"{value:.2%}" if value == 0 or value >= 1e-4 else "<0.01%"
