"""Values on a command line: out of range they are refused before anything is read, made or started."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["MOST", "filled", "positive", "whole"]

MOST = 2**32
"""Of counts for which nothing else sets a limit."""


def whole(lowest: int, most: int = MOST) -> Callable[[str], int]:
    """An argparse type: whole numbers from ``lowest`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} to {most}")
        return value

    return parse


def filled(text: str) -> str:
    """An argparse type: any text but an empty one, which a variable that is not set leaves. A default must be None."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give it a value, or leave the option out")
    return text


def positive(lowest: float, most: float, *, zero: bool = False) -> Callable[[str], float]:
    """An argparse type: numbers from ``lowest`` to ``most``, and on request 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (lowest <= value <= most or (zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {lowest:g} to {most:g}{', or 0' * zero}")
        return value

    return parse
