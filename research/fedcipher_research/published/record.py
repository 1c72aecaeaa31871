"""The outcomes of an experiment on disk, with the command that runs it again: `outcomes.json` beside the report.

Presets of `fedcipher-research bench` need no such file; every other study writes one. docs/evidence/published.md is
made from all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from fedcipher._machine import machine
from fedcipher.errors import ReportError
from fedcipher.foreign_files import MAX_REPORT, read_json

from fedcipher_research.published import Published, everything
from fedcipher_research.published.verdict import Outcome

__all__ = ["Record"]


@dataclass(frozen=True)
class Record:
    """The outcomes of one command, and how the command was run."""

    command: str
    commit: str
    """The commit of the source that ran. Empty means the commit that added the figures."""
    machine: str
    outcomes: tuple[Outcome, ...]
    differs: tuple[str, ...] = ()
    """Differences from the published set-up."""

    @classmethod
    def of(cls, command: str, outcomes: Sequence[Outcome], differs: Sequence[str] = ()) -> Record:
        """A record with this machine and the current commit."""
        found = machine()
        named = f"{found['processor']}, {found['cores']} cores"
        return cls(command, found.get("commit", ""), named, tuple(outcomes), tuple(differs))

    def save(self, folder: Path) -> None:
        """Write ``outcomes.json``."""
        text = json.dumps(asdict(self), indent=1, default=_plain) + "\n"
        (folder / "outcomes.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record. Raises `ReportError`, also if a published figure is not in the papers' extract any more."""
        try:
            data = read_json(path, MAX_REPORT, follow=True, parse_float=Decimal)
            outcomes = tuple(_outcome(found) for found in data["outcomes"])
            return cls(data["command"], data["commit"], data["machine"], outcomes, tuple(data["differs"]))
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise ReportError(
                f"{path} is not an outcomes.json of this version: {error}; run its command again"
            ) from error


def _plain(value: Any) -> Any:
    # The digits stay the same: JSON writes a float with the fewest digits that identify it.
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{value!r} is not a plain value")


def _outcome(data: dict[str, Any]) -> Outcome:
    found = data["published"]
    printed = Published(**found)
    known = {(p.place, str(p.value)) for p in everything(printed.paper)}
    if (printed.place, str(printed.value)) not in known:
        raise ValueError(f"{printed.named} does not print {printed.value}")
    here = None if data["here"] is None else float(data["here"])
    values: dict[str, Any] = {**data, "published": printed, "here": here, "doubts": tuple(data["doubts"])}
    return Outcome(**values)
