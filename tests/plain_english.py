"""Sentences of a page: how many words each has. Tables, code and lists of links are no sentences."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_WORDS, MAX_MEAN = 35, 16

_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*>]|\d+\.) +")
_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9`])")


def sentences(page: str) -> list[str]:
    """The sentences of ``page``, a text in Markdown. A cell of a table is looked at as a sentence of its own."""
    text = _LINK.sub(r"\1", _COMMENT.sub("", without_code(page)))
    found: list[str] = []
    for paragraph in _paragraphs(text):
        found += [part for part in _END.split(paragraph) if re.search(r"[A-Za-z]", part)]
    return found


def without_code(page: str) -> str:
    """``page`` without its blocks of code."""
    return _CODE.sub("\n\n", page)


def words(sentence: str) -> int:
    """Words of ``sentence``; a name in code is one."""
    return len(re.findall(r"[\w'-]+(?:[.,/][\w'-]+)*", re.sub(r"`[^`]*`", "code", sentence)))


def mean(page: str) -> float:
    """Words of a sentence of ``page``, on average. Headings and cells of tables do not count."""
    counts = [words(sentence) for sentence in sentences(_without_tables(page))]
    return sum(counts) / max(len(counts), 1)


def too_long(page: str) -> list[str]:
    """Sentences of ``page`` with more than `MAX_WORDS` words."""
    return [sentence for sentence in sentences(page) if words(sentence) > MAX_WORDS]


def _without_tables(page: str) -> str:
    return "\n".join(line for line in page.splitlines() if not line.lstrip().startswith(("|", "#")))


def _paragraphs(text: str) -> list[str]:
    paragraphs: list[str] = [""]
    for line in text.splitlines():
        if line.lstrip().startswith("|"):
            paragraphs += [*line.strip().strip("|").split("|"), ""]
        elif not line.strip() or line.startswith("#"):
            paragraphs.append("")
        elif _ITEM.match(line):
            paragraphs.append(_ITEM.sub("", line))
        else:
            paragraphs[-1] += f" {line.strip()}"
    return [re.sub(r"\s+", " ", paragraph).strip() for paragraph in paragraphs if paragraph.strip()]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name).read_text(encoding="utf-8")
        print(f"{name}: mean {mean(page):.1f}, {len(too_long(page))} of {len(sentences(page))} too long")
        if len(sys.argv) == 2:
            print(*(f"  {words(s)}: {s}" for s in too_long(page)), sep="\n")
