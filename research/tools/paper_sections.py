"""Reads the sections of the five papers from their texts into the package: numbers, titles, and the tables in each.

    python research/tools/paper_sections.py ../shared/papers

A reference in code or docs names number and title. tests/research/test_published.py compares references with the file
that this program writes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "research" / "fedcipher_research" / "published"
SMALL = {"a", "an", "and", "at", "for", "from", "in", "of", "on", "or", "the", "to", "with"}


def roman(lines: list[str]) -> list[tuple[int, str, str]]:
    """Headings in FedBit's form: ``## VI. EXPERIMENT``, ``### B. Accuracy ...``."""
    found: list[tuple[int, str, str]] = []
    part = ""
    for at, line in enumerate(lines):
        if head := re.match(r"#+ ([IVX]+)\. (.+)", line):
            part = head[1]
            found.append((at, part, head[2]))
        elif head := re.match(r"#+ ([A-Z])\. (.+)", line):
            found.append((at, f"{part}-{head[1]}", head[2]))
    return found


def decimal(lines: list[str], *, title_case: bool) -> list[tuple[int, str, str]]:
    """Headings with numbers. Lines of lists look alike, so a number that does not follow the last one is skipped."""
    found: list[tuple[int, str, str]] = []
    at_now: list[int] = []
    for at, line in enumerate(lines):
        head = re.match(r"\s*(\d+(?:\.\d+)*) +([A-Z].*)", line)
        if head is None:
            continue
        number = [int(part) for part in head[1].split(".")]
        follows = [[*at_now, 1], *([*at_now[:k], at_now[k] + 1] for k in range(len(at_now)))]
        words = [word for word in re.split(r"[ -]", head[2]) if word not in SMALL]
        if number in follows and not (title_case and any(word[:1].islower() for word in words)):
            found.append((at, head[1], head[2].strip()))
            at_now = number
    return found


def slides(lines: list[str]) -> list[tuple[int, str, str]]:
    """Headings of slides, which have titles and no numbers."""
    return [(at, "", head[1].strip("* ")) for at, line in enumerate(lines) if (head := re.match(r"# (.+)", line))]


def mentioned(lines: list[str], place: str) -> int | None:
    """The first line of the text that mentions a table or figure. Captions do not count, because they float."""
    kind, _, number = place.partition(" ")
    names = "Table" if kind == "Table" else "Figure|Fig\\."
    number = re.sub(r"(?<=\d)[a-z]$", "", number)
    speaks = re.compile(rf"\b(?:{names}) ?{number}(?![0-9IVX])")
    for at, line in enumerate(lines):
        caption = re.match(rf"\s*(?:{names}) ?{number}[.:]", line)
        if speaks.search(line) and not caption:
            return at
    return None


def sections(paper: dict[str, Any], name: str, text: str) -> dict[str, Any]:
    """A paper's headings, and the section of each of its tables and figures."""
    lines = text.splitlines()
    if name == "fedbit":
        heads = roman(lines)
    elif name == "resource-study":
        heads = slides(lines)
    else:
        heads = decimal(lines, title_case=name == "flashe")
    places: dict[str, str] = {}
    for entry in [*paper["tables"], *paper["figures"]]:
        at = mentioned(lines, entry["id"])
        before = [number for line, number, _ in heads if at is not None and line <= at]
        places[entry["id"]] = before[-1] if before else ""
    return {"headings": [[number, title] for _, number, title in heads], "places": places}


def read(folder: Path) -> dict[str, Any]:
    """The sections of all papers in ``folder``."""
    published = json.loads((folder / "published.json").read_text(encoding="utf-8"))
    out: dict[str, Any] = {}
    for name, paper in published.items():
        # The file's name is the first word, as in "fednic.txt (Front. Comput. Sci. ...)".
        text = (folder / paper["source_file"].split()[0]).read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
        out[name] = sections(paper, name, text)
    return out


def main() -> None:
    """Write sections.json of the package."""
    text = json.dumps(read(Path(sys.argv[1])), indent=1, ensure_ascii=False) + "\n"
    (PACKAGE / "sections.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
