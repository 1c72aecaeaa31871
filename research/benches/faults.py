"""The counts of `make e2e` and `make e2e-resume`: the last table of docs/evidence/scale.md.

A run's row is that of its last time on this machine; rows of others stay.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from measure import ROOT
from report import into_page, section, table

_HEAD = ["run", "killed with SIGKILL", "rounds asked for", "ended", "updates lost", "took", "on"]


def _row(made: dict[str, Any]) -> list[str]:
    killed = ", ".join(kind if n == 1 else f"{n} x {kind}" for kind, n in Counter(made["killed"]).items())
    numbers = [str(made[name]) for name in ("rounds", "ended", "lost")]
    return [f"`{made['run']}`", killed, *numbers, f"{made['seconds']:,} s", made["date"]]


def main() -> None:
    """Reads the counts, and writes the table into the page."""
    lines = re.findall(r"^\| (`.*) \|$", section("evidence/scale.md", "faults"), re.MULTILINE)
    rows = {row[0]: row for row in (line.split(" | ") for line in lines)}
    for path in (ROOT / "runs" / "faults").glob("*.json"):
        row = _row(json.loads(path.read_text(encoding="utf-8")))
        rows[row[0]] = row
    text = table(_HEAD, [rows[run] for run in sorted(rows)])
    print(text)
    into_page("evidence/scale.md", "faults", f"Written by `make e2e` and `make e2e-resume`.\n\n{text}")


if __name__ == "__main__":
    main()
