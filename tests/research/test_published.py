"""What is said of the five papers is what they print: figures, sections, and a row for each of their tables.

Checked are: tables with a column of published figures; sentences that name a paper and say that it prints or states
something, which hold no other figures then; presets; and every "PAPER, section N: Title".
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from fedcipher._machine import commit
from fedcipher.bench import results
from fedcipher.errors import ParameterError, ReportError
from fedcipher_research import published
from fedcipher_research.bench import report
from fedcipher_research.bench.presets import preset, preset_names
from fedcipher_research.published import PAPERS, Published
from fedcipher_research.published.record import Record
from fedcipher_research.published.verdict import judged
from places import ROOT

PACKAGE = ROOT / "research" / "fedcipher_research" / "published"
PAPERS_FOLDER = Path(os.environ.get("FEDCIPHER_PAPERS", ROOT.parent / "shared" / "papers"))
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "research/results").glob("*/README.md")),
]
SOURCES = sorted(
    path
    for folder, ending in (
        *(("python", "py"), ("research", "py"), ("crates", "rs")),
        *(("tools", "py"), ("examples", "py")),
    )
    for path in (ROOT / folder).rglob(f"*.{ending}")
    if "target" not in path.parts
)


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "research" / "tools" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def papers():
    if not PAPERS_FOLDER.is_dir():
        pytest.skip(f"{PAPERS_FOLDER} is absent; set FEDCIPHER_PAPERS to the folder of the papers")
    return PAPERS_FOLDER


# --- the extract -------------------------------------------------------------------------------


def test_the_package_has_the_papers_extract_byte_for_byte(papers):
    assert (PACKAGE / "published.json").read_bytes() == (papers / "published.json").read_bytes()


def test_sections_are_those_of_the_papers_texts(papers):
    assert json.loads((PACKAGE / "sections.json").read_text()) == tool("paper_sections").read(papers)


def test_every_table_and_figure_of_a_paper_with_sections_is_in_one_of_them():
    for paper, found in published.sections().items():
        known = {number for number, _ in found["headings"]}
        assert set(found["places"]) == set(published.places(paper))
        assert paper == "resource-study" or set(found["places"].values()) <= known - {""}


def test_the_sections_that_claims_name_exist():
    seen = 0
    for paper in PAPERS:
        known = {number for number, _ in published.sections()[paper]["headings"]}
        for found in published.everything(paper):
            for number in re.findall(r"section ([\dIVX]+(?:[.-]\w+)*)", found.place):
                assert number in known, found
                seen += 1
    assert seen > 90


def test_a_figure_is_found_by_its_name_and_no_other_is():
    hesd = published.cell("hybrid-he", "Fig. 7b", {"operation": "HESD per client"}, "PASTA+BFV")
    assert (hesd.value, hesd.unit, hesd.number, hesd.decimals) == (Decimal("1451.0"), "s", 1451, 1)
    assert hesd.where == "Fig. 7b, section 6.3"
    size = published.cell("flashe", "Table 2", {"numbers": 16384, "scheme": "FV+bat"}, "ciphertext_size")
    assert (size.value, size.unit) == (Decimal("1.0"), "MB")
    assert published.figure("fedbit", "Fig. 6", "FedBit CIFAR-10 encryption").unit == "s"
    assert published.claim("fedbit", "traffic cut, average").value == Decimal("60.7")
    for wrong in (
        lambda: published.cell("flashe", "Table 2", {"scheme": "FLASHE"}, "encryption_s"),
        lambda: published.cell("flashe", "Table 9", {}, "encryption_s"),
        lambda: published.figure("fedbit", "Fig. 6", "FedBit MNIST encryption"),
        lambda: published.claim("fedbit", "everything"),
        lambda: published.doubt("flashe", "E"),
        lambda: published.places("bfv"),
        lambda: published.cell("flashe", "Table 1", {"scheme": "FV"}, "libraries").number,
    ):
        with pytest.raises(ParameterError):
            wrong()


def test_numbers_of_a_text():
    text = "1,451.0 s at N = 16384, 2^40, 97.60 % and 1e-06 of v2; PASTA-4 65537."
    assert {str(n) for n in published.numbers_in(text)} >= {"1451", "97.6", "65537", "0.000001"}


# --- verdicts ----------------------------------------------------------------------------------


def printed(value, unit="s"):
    return Published("flashe", "Table 2", "2.2", "a figure", value, unit)


@pytest.mark.parametrize(
    ("value", "here", "better", "bound", "verdict"),
    [
        (Decimal("0.46"), 0.4649, "smaller", "", "reproduced"),
        (Decimal("0.46"), 0.4651, "smaller", "", "missed"),
        (Decimal("0.46"), 0.4549, "smaller", "", "beaten"),
        (Decimal("0.46"), 0.4651, "larger", "", "beaten"),
        (2000, 1999.0, "larger", "over", "missed"),
        (2000, 9000.0, "larger", "over", "reproduced"),
        (6, 5.0, "smaller", "at most", "reproduced"),
        (6, None, "smaller", "", ""),
    ],
)
def test_verdicts(value, here, better, bound, verdict):
    assert judged("x", printed(value), here, better=better, bound=bound).verdict == verdict


def test_what_is_not_comparable_says_why_and_what_is_reversed_says_so():
    assert judged("x", printed(1), 2.0, because="another model").verdict == "not comparable"
    assert judged("x", printed(Decimal("3.4"), "x"), 0.2, better="larger").reversed
    assert not judged("x", printed(Decimal("3.4"), "s"), 0.2, better="larger").reversed
    assert judged("x", printed(54, "%"), -3.0, better="larger").reversed
    assert not judged("x", printed(54, "%"), 0.5, better="larger").reversed
    # Less of an overhead than is printed.
    assert not judged("x", printed(Decimal("1.01"), "x"), 0.9998).reversed


def test_a_record_is_read_as_it_was_written_and_only_with_figures_that_are_printed(tmp_path):
    found = published.cell("flashe", "Table 4", {"model": "GRU", "mode": "FLASHE"}, "time_h")
    made = Record.of("a command", [judged("hours", found, 0.5, doubts=(1,))], ["a machine"])
    made.save(tmp_path)
    assert Record.load(tmp_path / "outcomes.json") == made
    path = tmp_path / "outcomes.json"
    path.write_text(path.read_text().replace("0.39", "0.38999"))
    with pytest.raises(ReportError, match="does not print"):
        Record.load(path)


def test_an_experiment_s_own_outcomes_get_into_its_papers_row(tmp_path, monkeypatch):
    page = tool("published_page")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "convergence").mkdir()
    found = published.cell("flashe", "Table 4", {"model": "GRU", "mode": "FLASHE"}, "time_h")
    Record("run it", "abc1234", "a machine", (judged("hours", found, 0.5),)).save(tmp_path / "convergence")
    runs = list(page.recorded())
    _, _, verdict, command, source, machine = page.row("flashe", "Table 4", runs)
    assert (verdict, source, machine) == ("missed 1; 1 of 81 figures", "`abc1234`", "a machine")
    assert command == "`run it` ([report](../../research/results/convergence))"
    assert ("flashe", "Table 4") not in page.missing(runs) and ("flashe", "Fig. 9") in page.missing(runs)


def test_a_measurement_names_the_commit_of_its_source(tmp_path):
    assert commit(tmp_path) == ""

    def git(*command):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *who, *command], check=True, capture_output=True)

    git("init")
    (tmp_path / "docs").mkdir()
    for name in ("source.py", "docs/report.md"):
        (tmp_path / name).write_text("one")
    git("add", ".")
    git("commit", "--message", "first")
    found = commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{9}", found)
    (tmp_path / "docs" / "report.md").write_text("two")
    assert commit(tmp_path) == found
    (tmp_path / "source.py").write_text("two")
    assert commit(tmp_path) == f"{found}+"


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_compares_with_figures_that_are_printed(name):
    chosen = preset(name)
    for comparison in chosen.comparisons:
        found = comparison.published
        same = [(p.place, p.value) for p in published.everything(found.paper)]
        assert (found.place, found.value) in same
        assert found.number > 0
        assert all(1 <= at <= len(published.doubts(found.paper)) for at in comparison.doubts)
    (paper,) = {comparison.published.paper for comparison in chosen.comparisons}
    for text in [*chosen.differs, *(comparison.because for comparison in chosen.comparisons)]:
        for part in re.split(r"[;,:] ", text):
            if "there" in part:
                assert unprinted(part, [paper]) == set(), text


# --- what pages and sources say ----------------------------------------------------------------

NAMES = {
    "FedBit": "fedbit",
    "FLASHE": "flashe",
    "FedNIC": "fednic",
    "hybrid-HE study": "hybrid-he",
    "hybrid HE study": "hybrid-he",
    "resource study": "resource-study",
}
SAYS = re.compile(r"\b(publish\w*|print(?:s|ed)|states?|claims?|reports|abstract)\b")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^[ \t]*(?://[/!]?|#) ?", re.MULTILINE)


def unprinted(text, papers):
    """Numbers of a text that none of these papers' extracts has."""
    known = frozenset().union(*(published.numbers(paper) for paper in papers))
    return {f"{number:f}" for number in published.numbers_in(text) if number not in known}


def sentences(text):
    """That name a paper and say that it prints something, each with the papers it names."""
    for sentence in re.split(r"(?<=[.;:!?])\s|\n\s*\n|\n[|*]", MARK.sub("", CODE.sub("", text))):
        named = [paper for name, paper in NAMES.items() if name in " ".join(sentence.split())]
        if named and SAYS.search(sentence):
            yield " ".join(sentence.split()), named


def tables(text):
    """(heads, row) of each row of the tables of a page."""
    heads = None
    for line in text.splitlines():
        cells = None
        if line.startswith("|"):
            # A bar of a cell's own has a backslash before it.
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if cells is None:
            heads = None
        elif heads is None:
            heads = cells
        elif not set(line) <= set("|- :"):
            yield heads, cells


def wrong_cells(text):
    """Cells under a head that says "published" with a figure that no paper prints."""
    for heads, cells in tables(text):
        for head, cell in zip(heads, cells, strict=True):
            if head.startswith("published") and unprinted(cell, PAPERS):
                yield cell


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_quotes_figures_that_are_printed(page):
    text = page.read_text()
    assert list(wrong_cells(text)) == []
    for sentence, named in sentences(text):
        assert unprinted(sentence, named) == set(), sentence


def by_paper(text):
    """Each section of the page of all papers, and the paper that its title names, in a list."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        yield section, sorted({paper for name, paper in NAMES.items() if name in title})


def wrong_sections(text):
    """Cells of the page of all papers with a figure that its own section's paper does not print."""
    for section, named in by_paper(text):
        for heads, cells in tables(section):
            for head, cell in zip(heads, cells, strict=True):
                if head == "published" and unprinted(cell, named or PAPERS):
                    yield cell


def test_each_section_quotes_its_own_paper():
    page = (ROOT / "docs" / "evidence" / "published.md").read_text()
    assert list(wrong_sections(page)) == []
    head = "| figure | published | here |\n|---|---|---|\n"
    # A figure of FLASHE's.
    assert list(wrong_sections(f"## FedBit\n\n{head}| a | 0.479 s | 1 |\n")) == ["0.479 s"]


def test_every_single_number_is_on_the_page_in_its_papers_section():
    page = (ROOT / "docs" / "evidence" / "published.md").read_text()
    given = tool("published_page")
    for section, named in by_paper(page):
        for paper in named:
            there = set(published.numbers_in(section.replace(",", "")))
            for single in published.everything(paper):
                number = isinstance(single.value, (int, Decimal))
                cited = single.what.startswith("cited") or (paper, single.place) in given.WORDS
                if number and not cited and single.what not in given._GIVEN:
                    assert Decimal(single.value) in there, f"{paper}, {single.place}: {single.what}"


def test_a_source_quotes_figures_that_are_printed():
    seen = 0
    for path in SOURCES:
        for sentence, named in sentences(path.read_text()):
            assert unprinted(sentence, named) == set(), f"{path.relative_to(ROOT)}: {sentence}"
            seen += 1
    assert seen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FedBit publishes t = 2281701377 and a modulus of 109 bits.", {"109"}),
        ("FLASHE prints\n/// 0.479 s there.", {"0.479"}),
        ("FedBit states t = 2281701377. Here q has 106 bits.", set()),
        ("The resource study claims 500 times.", {"500"}),
    ],
)
def test_a_figure_that_no_paper_prints_is_found_in_a_sentence(text, found):
    assert {n for sentence, named in sentences(text) for n in unprinted(sentence, named)} == found


def test_a_figure_that_no_paper_prints_is_found_in_a_table():
    head = "| what | published | here |\n|---|---|---|\n"
    assert list(wrong_cells(f"{head}| a | 97.6% | 12.34 |\n| b | 97.61% | 1 |\n")) == ["97.61%"]


SECTION = re.compile(r"\bsections? (\d+(?:[.-]\d+)*|[IVX]+(?:-[A-Z])?)\b(?:: ([^.;()\"|]+))?")
# Other works, by their authors or title.
OTHERS = re.compile(r"et al\.|Hacker's Delight|New Hope|HE standard")


def sections_in(text):
    """(section, title, what stands before it) of each mention in comments, docstrings and prose."""
    flat = re.sub(r'"\s*\n\s*f?"', "", MARK.sub("", text))
    flat = " ".join(flat.split())
    for found in SECTION.finditer(flat):
        yield found[1], (found[2] or "").strip(), flat[max(0, found.start() - 90) : found.start()]


def wrong_section(number, title, before):
    """What is wrong with a mention of a section, or nothing."""
    named = [(before.rfind(name), paper) for name, paper in NAMES.items() if name in before]
    if not named:
        return "" if OTHERS.search(before) else "whose section it is does not stand before it"
    paper = max(named)[1]
    titles = {n: t for n, t in published.sections()[paper]["headings"] if n}
    if number not in titles:
        return f"{PAPERS[paper]} has no section {number}"
    return "" if title.startswith(titles[number]) else f"that section's title is {titles[number]!r}"


def test_sections_of_papers_are_named_with_their_titles():
    seen = 0
    # Generated pages name a table's section beside the table; theirs are held against the texts above.
    for path in [*SOURCES, *(page for page in PAGES if page.name != "published.md" and "results" not in page.parts)]:
        if PACKAGE in path.parents or path.name in ("published_page.py", "paper_sections.py"):
            continue
        for number, title, before in sections_in(path.read_text()):
            assert not wrong_section(number, title, before), f"{path.relative_to(ROOT)}: ...{before}section {number}"
            seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("(FLASHE, section 3.3: The Base Cryptosystem)", False),
        ("(FLASHE, section\n/// 3.3: The Base Cryptosystem)", False),
        ("(FLASHE section 4.2)", True),
        ("(FLASHE, section 9: Nothing)", True),
        ("double masking (section 4.2)", True),
        ("(ACIQ, Banner et al. 2019, section 3)", False),
    ],
)
def test_a_wrong_section_is_found(text, wrong):
    ((number, title, before),) = sections_in(text)
    assert bool(wrong_section(number, title, before)) == wrong


# --- pages that are made of data ---------------------------------------------------------------


def whole_history():
    git = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip() == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


def test_every_table_and_figure_has_a_row():
    text = (ROOT / "docs" / "evidence" / "published.md").read_text()
    extract = json.loads((PACKAGE / "published.json").read_text())
    for paper, name in PAPERS.items():
        part = text.split(f"\n## {name[0].upper()}{name[1:]}\n", 1)[1].split("\n### ")[0]
        rows = [cells for heads, cells in tables(part) if heads[0].startswith("table or figure")]
        ids = [entry["id"] for kind in ("tables", "figures") for entry in extract[paper][kind]]
        assert [re.sub(r" \([\dIVX.A-Z-]+\)$", "", row[0]) for row in rows] == ids
        for shown, _, verdict, command, source, machine in rows:
            known = verdict == "**not run**" or verdict.startswith(("not comparable, because ", "see "))
            assert known or all((command, source, machine)), shown
            assert re.match(r"\*\*not run|see |(?:reproduced|beaten|missed|not comparable)\b", verdict), shown


def test_what_has_not_been_run_is_listed_as_remaining_work():
    made = tool("published_page")
    text = (ROOT / "docs" / "evidence" / "published.md").read_text()
    listed = text.partition("\n## Not run yet\n")[2]
    assert text.count("| **not run** |") == sum(line.count(",") + 1 for line in listed.splitlines() if line[:1] == "*")
    assert set(made.WORDS) | set(made.ELSEWHERE) <= {(p, place) for p in PAPERS for place in published.places(p)}


@pytest.mark.skipif(not whole_history(), reason="the page names commits, and this is no clone with its history")
def test_the_page_is_what_the_reports_make_it():
    assert tool("published_page").page() == (ROOT / "docs" / "evidence" / "published.md").read_text(), "make published"


@pytest.mark.parametrize("name", preset_names())
def test_a_committed_study_is_judged_by_today_s_figures(name):
    folder = ROOT / "research" / "results" / name
    text = report.markdown(results.load(folder / "results.json"), preset(name), []).partition("## Pictures")[0]
    shown = (folder / "README.md").read_text().partition("## Pictures")[0]
    assert shown == text, f"fedcipher bench report --out research/results/{name}"


def test_charts_have_the_figures_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "research" / "tools")
    made = tool("charts")
    for name in made.charts():
        assert made.in_words(name) in (made.IMAGES / name).read_text(), "python research/tools/charts.py"
        assert f"images/{name})" in (ROOT / "docs" / "evidence" / "figures.md").read_text()


def test_the_tables_of_pages_are_what_the_reports_make_them():
    made = tool("readme_tables")
    for page, marker, content in (
        ("docs/evidence/figures.md", "benchmarks", made.targets()),
        ("docs/evidence/figures.md", "results", made.results()),
        ("README.md", "round", made.round_cost()),
        ("docs/explanation/hybrid.md", "hhe", made.hybrid()),
        ("docs/evidence/study.md", "digits", made.digits()),
    ):
        text = (ROOT / page).read_text()
        assert f"<!-- {marker} -->" in text
        assert made.filled(text, marker, content) == text, "python research/tools/readme_tables.py"
