"""Prints on the terminal with rich, without rich's markup.

rich interprets text in brackets as style and text between colons as emoji, so ``fedcipher[tfhe]`` would lose its end.
Paths, package names and error texts contain both. Therefore no console or column of this project reads markup.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedcipher.foreign_text import MAX_LINE, quoted

__all__ = ["console", "print_table", "progress"]

# The width of output to a pipe, which has none of its own.
_PIPE_WIDTH = 140


def console(*, stderr: bool = False) -> Console:
    """Make a console that prints brackets and colons unchanged."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, markup=False, emoji=False, width=None if stream.isatty() else _PIPE_WIDTH)


def progress(on: Console, title: str = "", *last: ProgressColumn) -> Progress:
    """Make a progress bar: title, bar, steps, the task's description, elapsed time, and the ``last`` columns."""
    first = [TextColumn(title, style="bold", markup=False)] if title else []
    text = TextColumn("{task.description}", markup=False)
    return Progress(*first, BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn(), *last, console=on)


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows`` on standard output. The first row is the head. All columns but the first align to the right."""
    table = Table(title=quoted(title, MAX_LINE))
    for k, name in enumerate(rows[0]):
        table.add_column(quoted(name, MAX_LINE), justify="left" if k == 0 else "right")
    for row in rows[1:]:
        table.add_row(*(quoted(cell, MAX_LINE) for cell in row))
    console().print(table)
