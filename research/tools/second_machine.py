"""Copies the pages of `make bench` and `make bench-hhe` to docs/evidence/benchmarks-second.md.

Afterwards another machine can write the two pages again.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "evidence"
PARTS = {"FLASHE and BFV": "benchmarks.md", "Hybrid HE": "benchmarks-hhe.md"}
HEAD = """# Benchmarks on a second machine

The contents of [benchmarks.md](benchmarks.md) and [benchmarks-hhe.md](benchmarks-hhe.md) before these were made again
on the machine that they name. Compare the two. Each stamp below has its processor and its commit.
"""


def part(title: str, page: str) -> str:
    """A page as a section of the new one: headings one level lower, without the part about the engine."""
    text = (DOCS / page).read_text(encoding="utf-8").partition("\n<!-- offload -->")[0]
    _, _, body = text.partition("\n\n")
    below = re.sub(r"^#", "##", body, flags=re.M).strip()
    return f"## {title}\n\n{below}\n"


def main() -> None:
    """Write the page."""
    parts = [HEAD, *(part(title, page) for title, page in PARTS.items())]
    (DOCS / "benchmarks-second.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
