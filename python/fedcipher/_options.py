"""Types for argparse that refuse values out of range, before a command reads, makes or starts anything."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["MAX_COUNT", "filled", "positive", "whole"]

MAX_COUNT = 2**32
"""The largest count of an option that has no other limit."""


def whole(lowest: int, most: int = MAX_COUNT) -> Callable[[str], int]:
    """An argparse type: whole numbers from ``lowest`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest} to {most}")
        return value

    return parse


def filled(text: str) -> str:
    """An argparse type: a text that is not empty, as an unset shell variable is. A default must be None."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a value, or leave the option out")
    return text


def positive(lowest: float, most: float, *, zero: bool = False) -> Callable[[str], float]:
    """An argparse type: numbers from ``lowest`` to ``most``, and 0 with ``zero``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (lowest <= value <= most or (zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {lowest:g} to {most:g}{', or 0' * zero}")
        return value

    return parse
