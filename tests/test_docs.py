"""docs/security.md promises nothing that it cannot tie to a test: the tests it names exist, no scheme is left out."""

import re
from pathlib import Path

import pytest
from fedcipher.schemes import scheme_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
# Long enough that no parameter is called so; or named as tests and attacks are.
NAME = re.compile(r"`([a-z]\w*_\w+_\w+_\w+|(?:test|attack)_\w+)`")
# Attributes and doc comments may stand between the mark and the function.
RUST = re.compile(r"#\[test\]\s*(?:(?:#\[.*\]|//.*)\s*)*fn (\w+)")


def known():
    found = set()
    for path in ROOT.glob("tests/*.py"):
        found.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    for folder in ("tests", "src"):
        for path in ROOT.glob(f"crates/*/{folder}/**/*.rs"):
            found.update(RUST.findall(path.read_text()))
    return found


def rows():
    """Of the table of schemes: its first cells' schemes, and the cells of the adversaries."""
    lines = PAGE.split("\n## Schemes\n", 1)[1].split("\n\n")[0].strip().splitlines()
    assert lines[0] == "| scheme | A | B | C | D | E |"
    for line in lines[2:]:
        first, *cells = line.strip("| ").split(" | ")
        yield re.findall(r"`([\w-]+)`", first), cells


def test_every_test_that_the_security_page_names_exists():
    named = set(NAME.findall(PAGE))
    assert len(named) > 40
    assert named - known() == set()


def test_every_scheme_is_in_the_table_of_adversaries():
    assert set(scheme_names()) <= {name for names, _ in rows() for name in names}


@pytest.mark.parametrize(("names", "cells"), list(rows()))
def test_every_cell_names_a_test_or_promises_nothing(names, cells):
    assert len(cells) == 5
    for adversary, cell in zip("ABCDE", cells, strict=True):
        assert NAME.search(cell) or "not promised" in cell, f"{names}, adversary {adversary}: {cell}"


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", (ROOT / "docs" / page).read_text()):
        assert (ROOT / "docs" / target).exists(), f"{page} links to {target}"
