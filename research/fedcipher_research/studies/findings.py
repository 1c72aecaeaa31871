"""The findings of a study, and their report: README.md, figures.json and outcomes.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedcipher._files import refusal
from fedcipher._machine import machine, packages
from fedcipher.bench.link import Link
from fedcipher.errors import ReportError

from fedcipher_research.published.record import Record
from fedcipher_research.published.tables import beside, markdown_table
from fedcipher_research.published.verdict import RULE, Outcome

__all__ = ["Findings", "StudySettings", "Table", "circumstances", "markdown", "write"]

_LIBRARIES = ("fedcipher", "phe", "gmpy2", "tenseal", "jax", "numpy")


@dataclass(frozen=True)
class StudySettings:
    """The settings of a study."""

    runs: int = 3
    data_dir: str = ""
    """A folder with a folder for each data set: mnist, cifar10, shakespeare."""
    link: Link = field(default_factory=Link)
    say: Callable[[str], None] = print
    """Called with a line of text after each step."""


@dataclass(frozen=True)
class Table:
    """A table of measurements, head first."""

    title: str
    rows: Sequence[Sequence[str]]


@dataclass
class Findings:
    """The measurements of a study, and the outcomes for published figures."""

    summary: str
    outcomes: list[Outcome]
    differs: list[str]
    tables: list[Table] = field(default_factory=list[Table])
    notes: list[str] = field(default_factory=list[str])
    """Notes on how the figures were measured."""
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    """Every measured number, for figures.json."""


def circumstances() -> dict[str, str]:
    """Facts about the machine now. The load average of the last minute shows how busy other work keeps the machine."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    # Before a study starts, the load comes from other work.
    times = "processor time of all threads, without the work of others on the machine"
    return {"begun": now, "load average at the start": load, "times": times, **machine(), **packages(*_LIBRARIES)}


def markdown(name: str, found: Findings, command: str, facts: dict[str, str]) -> str:
    """The report as Markdown."""
    shown = beside(found.outcomes)
    parts = [f"# {name}", f"{found.summary}.", *(f"**{text}**" for text in shown.reversed)]
    for table in found.tables:
        parts += [f"## {table.title}", markdown_table(table.rows)]
    if found.outcomes:
        parts += ["## Beside the published figures", RULE, markdown_table(shown.rows)]
    parts += [f"{head}:\n\n" + "\n".join(f"* {text}" for text in texts) for head, texts in shown.notes]
    if found.differs:
        parts += ["Differences from the published set-up:\n\n" + "\n".join(f"* {text}" for text in found.differs)]
    lines = [f"command: `{command}`", *(f"{fact}: {text}" for fact, text in facts.items()), *found.notes]
    parts += ["## How it was measured", "\n".join(f"* {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def write(name: str, found: Findings, command: str, facts: dict[str, str], folder: Path) -> None:
    """Write the report into ``folder``. Raises `ReportError`."""
    text = json.dumps({"command": command, "machine": facts, **found.figures}, indent=1) + "\n"
    try:
        (folder / "figures.json").write_text(text, encoding="utf-8")
        (folder / "README.md").write_text(markdown(name, found, command, facts), encoding="utf-8")
        Record.of(command, found.outcomes, found.differs).save(folder)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {refusal(error, folder)}") from error
