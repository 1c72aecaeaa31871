"""The security page promises nothing without a test behind it; links lead somewhere.

docs/explanation/security.md says what is promised. docs/evidence/promises.md says which tests show it. Both have the
same schemes, symbols and rows. What other pages state is on that page too.
"""

import os
import re
import subprocess
import sys

import pytest
from fedcipher.schemes import scheme_names
from places import ROOT

SECURITY = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "docs" / "evidence" / "promises.md").read_text(encoding="utf-8")
# The pages that explain, by their titles.
EXPLAINED = {
    re.search(r"^# (.+)$", page, re.MULTILINE)[1]: page
    for page in (path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "explanation").glob("*.md"))
}
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


def sections(page):
    """The text below each heading of ``page``, up to the next heading of any level."""
    headings = re.split(r"^#{1,3} (.+)$", page, flags=re.MULTILINE)[1:]
    return dict(zip(headings[::2], headings[1::2], strict=True))


def plain(text):
    """``text`` without links and line breaks."""
    return re.sub(r"\s+", " ", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def tables(text):
    """The tables of ``text`` by their heads; each is a list of rows of cells."""
    found = {}
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [tuple(cell.strip() for cell in line.strip()[1:-1].split("|")) for line in lines.splitlines()]
        found[head] = rows
    return found


def rows():
    """Of the table of schemes: each first cell, and the cells of the adversaries."""
    table = tables(sections(SECURITY)["Schemes"])["scheme", "A", "B", "C", "D", "E"]
    return [(plain(first), tuple(map(plain, cells))) for first, *cells in table]


def evidence(scheme):
    """Of ``scheme``: its promise and the cell of its tests, by adversary."""
    table = tables(sections(PROMISES)[scheme])["adversary", "promise", "tests"]
    return {adversary: (promise, tests) for adversary, promise, tests in table}


def has_evidence(promise, tests):
    """Whether the cell ``tests`` fits ``promise``: a promise has tests, and what is not promised has none."""
    shown, excepted = bool(NAME.search(tests)), "not promised" in tests
    if promise == "✓ holds":
        return shown and not excepted
    if re.fullmatch(r"◐ in part \d+", promise):
        return shown
    return promise == "✗ not promised" and excepted and not shown


def test_every_test_that_the_promises_name_exists():
    named = set(NAME.findall(PROMISES))
    assert len(named) > 200
    assert named - known() == set()


def test_every_control_of_the_page_of_controls_has_a_test_that_exists():
    page = (ROOT / "docs" / "evidence" / "compliance.md").read_text(encoding="utf-8")
    controls = [row for row in re.findall(r"^\| (.+) \|$", page, re.MULTILINE) if row != "control | feature | tests"]
    assert len(controls) > 15
    assert [row for row in controls if not NAME.search(row.rsplit(" | ", 1)[1])] == []
    assert set(NAME.findall(page)) - known() == set()


def test_pages_for_users_leave_the_names_of_tests_to_the_promises():
    assert {title: NAME.findall(page) for title, page in EXPLAINED.items() if NAME.search(page)} == {}


def test_every_scheme_is_in_the_table_of_adversaries():
    assert set(scheme_names()) <= {name for first, _ in rows() for name in re.findall(r"`([\w-]+)`", first)}


@pytest.mark.parametrize(("scheme", "cells"), rows(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_symbol_has_its_evidence(scheme, cells):
    shown = evidence(scheme)
    assert {adversary: promise for adversary, (promise, _) in shown.items()} == dict(zip("ABCDE", cells, strict=True))
    assert [adversary for adversary, (promise, tests) in shown.items() if not has_evidence(promise, tests)] == []


def test_a_promise_without_a_test_is_no_promise():
    name = "`attack_00_an_example`"
    assert has_evidence("✓ holds", name) and not has_evidence("✓ holds", "as `flashe`")
    assert not has_evidence("✓ holds", f"{name}; the rest: not promised")
    assert has_evidence("◐ in part 1", f"{name}; the rest: not promised") and not has_evidence("◐ in part 1", "")
    assert has_evidence("✗ not promised", "not promised") and not has_evidence("✗ not promised", "")
    assert not has_evidence("✗ not promised", f"not promised, {name}") and not has_evidence("holds", name)


def test_both_pages_have_the_same_schemes():
    schemes = PROMISES.split("\n## Schemes\n", 1)[1].split("\n### Baselines\n", 1)[0]
    assert re.findall(r"^### (.+)$", schemes, re.MULTILINE) == [scheme for scheme, _ in rows()]


def test_every_condition_of_the_table_is_explained_and_every_explained_one_is_used():
    used = {cell.rsplit(" ", 1)[1] for _, cells in rows() for cell in cells if cell.startswith("◐")}
    assert used == set(re.findall(r"^(\d+)\. ", sections(SECURITY)["Conditions"], re.MULTILINE))


def compared():
    """The tables of both pages with the same rows: heading, the rows of the security page, those of the promises."""
    for heading, text in sections(PROMISES).items():
        for head, shown in tables(text).items():
            if head[0] not in ("adversary", "statement"):
                (said,) = [rows for other, rows in tables(sections(SECURITY)[heading]).items() if other[0] == head[0]]
                yield heading, said, shown


@pytest.mark.parametrize(
    ("heading", "said", "shown"), list(compared()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_both_pages_have_the_same_rows_and_each_has_a_test(heading, said, shown):
    assert [row[:-1] for row in said if row[0] != "28 to 30"] == [row[:-1] for row in shown], heading
    assert [row for row in shown if not NAME.search(row[-1])] == []


def test_five_tables_are_compared():
    assert [heading for heading, _, _ in compared()] == [
        "The attacks",
        "`min_contributions`",
        "Which sums may exist",
        "Nonces and ledgers",
        "Files and text from elsewhere",
    ]


def statements():
    for heading, text in sections(PROMISES).items():
        for statement, tests in tables(text).get(("statement", "tests"), []):
            yield heading, statement, tests


@pytest.mark.parametrize(("heading", "statement", "tests"), list(statements()))
def test_every_statement_with_tests_is_word_for_word_on_its_page(heading, statement, tests):
    """Its page is the section of that name of the security page, or the page with that title."""
    assert statement in plain(EXPLAINED.get(heading) or sections(SECURITY)[heading])
    assert NAME.search(tests)


def test_every_section_that_links_to_its_tests_has_some_there():
    linked = set(re.findall(r"\(\.\./evidence/promises\.md#([^)]*)\)", SECURITY))
    assert len(linked) > 10
    shown = {anchor(heading) for heading, text in sections(PROMISES).items() if NAME.search(text)}
    assert linked <= shown


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


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {anchor(heading) for heading in headings}


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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
