"""docs/explanation/security.md promises nothing that it cannot tie to a test; links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fedcipher.schemes import scheme_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
# Long enough that no parameter is called so; or named as tests and attacks are.
NAME = re.compile(r"`([a-z]\w*_\w+_\w+_\w+|(?:test|attack)_\w+)`")
# Attributes and doc comments may stand between the mark and the function.
RUST = re.compile(r"#\[test\]\s*(?:(?:#\[.*\]|//.*)\s*)*fn (\w+)")


def known():
    found = set()
    for path in ROOT.glob("tests/**/*.py"):
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


def test_every_test_that_the_page_of_found_faults_names_is_in_its_file():
    page = (ROOT / "docs" / "evidence" / "found.md").read_text(encoding="utf-8")
    named = [(file, NAME.findall(tests)) for file, tests in re.findall(r"(test_\w+\.py): ((?:`\w+`(?:, )?)+)", page)]
    assert sum(len(tests) for _, tests in named) > 100
    for file, tests in named:
        (path,) = (ROOT / "tests").rglob(file)
        there = path.read_text(encoding="utf-8")
        assert [name for name in tests if f"def {name}(" not in there] == [], file


def test_every_test_of_the_how_to_pages_guarantees_exists_and_the_pages_name_none():
    page = (ROOT / "docs" / "evidence" / "testing.md").read_text(encoding="utf-8")
    section = page.split("\n## Guarantees of the how-to pages\n", 1)[1].split("\n## ")[0]
    tables = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    for name, table in zip(tables[1::2], tables[2::2], strict=True):
        here = ROOT / "docs" / "how-to" / name
        rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
        assert rows and [row for row in rows if not NAME.search(row)] == [], name
        assert set(NAME.findall(table)) - known() == set(), name
        assert re.findall(r"`(?:test|attack)_\w+`", here.read_text(encoding="utf-8")) == [], name


def test_every_scheme_is_in_the_table_of_adversaries():
    assert set(scheme_names()) <= {name for names, _ in rows() for name in names}


@pytest.mark.parametrize(("names", "cells"), list(rows()))
def test_every_cell_names_a_test_or_promises_nothing(names, cells):
    assert len(cells) == 5
    for adversary, cell in zip("ABCDE", cells, strict=True):
        assert NAME.search(cell) or "not promised" in cell, f"{names}, adversary {adversary}: {cell}"


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", CODE.sub("", page.read_text())):
        there = page.parent / target if target else page
        assert there.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page} links to #{anchor} of {target}"


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed: make docs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "library.html", "api.html"} <= {page.name for page in pages}
    assert "fedcipher.codec.Codec" in (tmp_path / "reference" / "api.html").read_text()
    # mkdocs looks at links between pages only: here also those to reports, pictures and sources.
    for page in pages:
        text = page.read_text()
        for target in re.findall(r"""(?:href|src)="(?![a-z]+:|//|#|/)([^"#?]*)""", text):
            assert (page.parent / target).exists(), f"{page.relative_to(tmp_path)} links to {target}"
        # A reader's browser tells nobody what is read. (A report's namespaces are addresses, and are not fetched.)
        if "report" not in page.name:
            fetched = re.findall(r"""(?:src=|<link[^>]*href=|importScripts\()["']?(?:https?:)?//[^"'>]*""", text)
            assert not fetched, f"{page.name}: {fetched}"
