"""The figures of five papers with which Fedcipher is compared: the only source of published figures.

`published.json` is the extract of the papers: tables, figures, claims, set-ups, limits, and contradictions within a
paper. `sections.json` has their headings, and the section of each table (`research/tools/paper_sections.py`). Presets
and pages take published figures from here, so that every figure names its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from fedcipher.errors import ParameterError

__all__ = [
    "PAPERS",
    "Published",
    "cell",
    "claim",
    "doubt",
    "doubts",
    "everything",
    "everything_of",
    "figure",
    "numbers",
    "numbers_in",
    "places",
    "sections",
    "setup",
]

PAPERS = {
    "fedbit": "FedBit",
    "flashe": "FLASHE",
    "hybrid-he": "the hybrid-HE study",
    "resource-study": "the resource study",
    "fednic": "FedNIC",
}
"""The name of each paper on pages."""

_FOLDER = Path(__file__).parent
# The unit of a table's column, by the ending of the column's name.
_UNITS = {"s": "s", "h": "h", "GB": "GB", "KB": "KB", "usd": "$", "x": "x", "B": "B"}
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Published:
    """One figure of a paper, as printed."""

    paper: str
    place: str
    """A table, a figure, or the place of a claim."""
    section: str
    what: str
    value: Any
    """A `Decimal` with the digits of the extract; or an int, a text or a list, if the paper prints one."""
    unit: str

    @property
    def number(self) -> float:
        """The value as a number. Raises `ParameterError` if the paper does not print a number."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, Decimal)):
            raise ParameterError(f"{self.named}: {self.what} is {self.value!r}, which is not a number")
        return float(self.value)

    @property
    def decimals(self) -> int:
        """Digits after the point. A measured value is compared to this many digits."""
        return max(0, -int(self.value.as_tuple().exponent)) if isinstance(self.value, Decimal) else 0

    @property
    def where(self) -> str:
        """Table or figure, with the section that mentions it."""
        return f"{self.place}, section {self.section}" if self.section else self.place

    @property
    def named(self) -> str:
        """The paper and the place in it."""
        return f"{PAPERS[self.paper]}, {self.where}"


@cache
def _papers() -> dict[str, Any]:
    return json.loads((_FOLDER / "published.json").read_text(encoding="utf-8"), parse_float=Decimal)


@cache
def sections() -> dict[str, Any]:
    """For each paper: its ``headings`` (number, title), and the section of each of its ``places``."""
    return json.loads((_FOLDER / "sections.json").read_text(encoding="utf-8"))


def _paper(name: str) -> Any:
    if name not in PAPERS:
        raise ParameterError(f"paper {name!r} is not one of {', '.join(PAPERS)}")
    return _papers()[name]


def _entry(paper: str, kind: str, place: str) -> Any:
    for entry in _paper(paper)[kind]:
        if entry["id"] == place:
            return entry
    known = ", ".join(entry["id"] for entry in _paper(paper)[kind])
    raise ParameterError(f"{PAPERS[paper]} has no {place!r} among its {kind}: {known}")


def places(paper: str) -> dict[str, str]:
    """The tables and figures of a paper, with their captions."""
    found = _paper(paper)
    return {
        **{entry["id"]: entry["caption"] for entry in found["tables"]},
        **{entry["id"]: entry["what"] for entry in found["figures"]},
    }


def _section(paper: str, place: str) -> str:
    return sections()[paper]["places"].get(place, "")


def cell(paper: str, table: str, row: Mapping[str, Any], column: str, unit: str | None = None) -> Published:
    """The cell of a table, in the one row with the values ``row``. Raises `ParameterError` unless one row has them."""
    entry = _entry(paper, "tables", table)
    columns: list[str] = entry["columns"]
    unknown = [name for name in [*row, column] if name not in columns]
    found = [] if unknown else [r for r in entry["rows"] if all(r[columns.index(c)] == v for c, v in row.items())]
    if len(found) != 1:
        raise ParameterError(f"{PAPERS[paper]}, {table}: {dict(row)}, {column!r} names {len(found)} cells")
    what = ", ".join([*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()), column])
    return Published(
        paper,
        table,
        _section(paper, table),
        what,
        found[0][columns.index(column)],
        _unit(entry, column, found[0]) if unit is None else unit,
    )


def _unit(table: Any, column: str, row: list[Any]) -> str:
    """The unit in the column's name, or in a column of units beside it, or of the whole table."""
    columns: list[str] = table["columns"]
    beside = next((c for c in (column.replace("_size", "_unit"), "unit") if c in columns and c != column), None)
    if beside is not None and ("_size" in column or beside == "unit"):
        return str(row[columns.index(beside)])
    ending = column.rpartition("_")[2]
    if "_" in column and ending in _UNITS:
        return _UNITS[ending]
    return table["units"] if table["units"] in _UNITS or table["units"] == "MB" else ""


def figure(paper: str, place: str, name: str, at: int | None = None) -> Published:
    """A value that the text gives for a figure; for a range, its value number ``at``. Raises `ParameterError`."""
    for entry in _values(_entry(paper, "figures", place)):
        value = entry["value"]
        if entry["name"] != name or isinstance(value, list) != (at is not None):
            continue
        if at is not None and not 0 <= at < len(value):
            break
        return Published(paper, place, _section(paper, place), name, value if at is None else value[at], entry["unit"])
    raise ParameterError(f"{PAPERS[paper]}, {place} has no value {name!r}{'' if at is None else f' at {at}'}")


def setup(paper: str) -> dict[str, Any]:
    """A paper's set-up, from the extract. Raises `ParameterError`."""
    return dict(_paper(paper)["setup"])


def _values(entry: Any) -> list[Any]:
    # Hybrid HE's Fig. 7 is printed as two tables: its entry has a text instead of values.
    return entry["values"] if isinstance(entry["values"], list) else []


def claim(paper: str, what: str) -> Published:
    """A number that the text claims. Raises `ParameterError`."""
    for entry in _paper(paper)["claims"]:
        if entry["what"] == what:
            return Published(paper, entry["where"], "", what, entry["value"], entry["unit"])
    raise ParameterError(f"{PAPERS[paper]} claims no {what!r}")


def doubts(paper: str) -> list[str]:
    """A paper's contradictions, and the points it leaves open that a comparison needs, in the extract's order."""
    return list(_paper(paper)["doubts"])


def doubt(paper: str, begins: str) -> int:
    """The number, from 1, of the contradiction that begins with ``begins``. Raises `ParameterError`."""
    found = [at for at, text in enumerate(doubts(paper), 1) if text.startswith(begins)]
    if len(found) != 1:
        raise ParameterError(f"{PAPERS[paper]}: {len(found)} contradictions begin with {begins!r}")
    return found[0]


def everything(paper: str) -> Iterator[Published]:
    """Each cell, value and claim that is printed."""
    return (printed for printed, _ in everything_of(paper))


def everything_of(paper: str) -> Iterator[tuple[Published, str]]:
    """Each cell, value and claim that is printed, with the texts in its row of a table."""
    found = _paper(paper)
    for table in found["tables"]:
        for row in table["rows"]:
            of = ", ".join(text for text in row if isinstance(text, str))
            for column, value in zip(table["columns"], row, strict=True):
                section = _section(paper, table["id"])
                yield Published(paper, table["id"], section, column, value, _unit(table, column, row)), of
    for entry in found["figures"]:
        for value in _values(entry):
            several = value["value"] if isinstance(value["value"], list) else None
            for at in [None] if several is None else range(len(several)):
                yield figure(paper, entry["id"], value["name"], at), ""
    for entry in found["claims"]:
        yield Published(paper, entry["where"], "", entry["what"], entry["value"], entry["unit"]), ""


@cache
def numbers(paper: str) -> frozenset[Decimal]:
    """Every number in the extract of a paper, including numbers in its texts."""
    return frozenset(_numbers(_paper(paper)))


def _numbers(found: Any) -> Iterator[Decimal]:
    if isinstance(found, dict):
        for value in found.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _numbers(value)
    elif isinstance(found, list):
        for value in found:  # pyright: ignore[reportUnknownVariableType]
            yield from _numbers(value)
    elif isinstance(found, str):
        yield from numbers_in(found)
    elif isinstance(found, (int, Decimal)) and not isinstance(found, bool):
        yield Decimal(found).normalize()


def numbers_in(text: str) -> Iterator[Decimal]:
    """The numbers of a text, without the commas of thousands."""
    for number in _NUMBER.findall(text):
        yield Decimal(number.replace(",", "")).normalize()
