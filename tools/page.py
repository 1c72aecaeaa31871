"""Reads and writes a campaign's table in the documentation."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

__all__ = ["section", "written"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "testing.md"


def section(marker: str) -> str:
    """The text between the two comments named ``marker`` of docs/evidence/testing.md."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]


def written(command: str, text: str, marker: str, page: Path = PAGE) -> None:
    """Write ``text``, its command and the date between the two comments named ``marker`` of ``page``."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    made = f"{begin}\n\nWritten by {command} on {datetime.date.today()}.\n\n{text}\n\n{end}"
    old = page.read_text(encoding="utf-8")
    page.write_text(re.sub(f"{begin}.*{end}", lambda _: made, old, flags=re.DOTALL), encoding="utf-8")
