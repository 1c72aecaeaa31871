"""Formats seconds, bytes and shares for people."""

from __future__ import annotations

__all__ = ["duration", "number", "seconds", "share", "size"]


_LONGEST = 1e9


def number(value: float) -> str:
    """Format with four digits, never in the form 1e+04."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: float) -> str:
    """Format seconds, as ms below 1 s."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{number(value)} s"


def duration(value: float) -> str:
    """Format a waiting time in whole seconds, minutes and hours, as the dashboard's script does."""
    # A journal may hold a number of any size, or NaN, which max turns into 0.
    whole = round(min(max(0.0, value), _LONGEST))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float) -> str:
    """Format bytes, in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def share(value: float) -> str:
    """Format a fraction in percent with two decimals. Small positive fractions are never shown as 0."""
    return f"{value:.2%}" if value == 0 or value >= 1e-4 else "<0.01%"
