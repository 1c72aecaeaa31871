"""The searches of `make maude`: the protocol's find nothing, those without a guard find the attack."""

import re
import shutil
import sys

import pytest
from places import ROOT

sys.path.append(str(ROOT / "tools"))
import maude_searches
from maude_searches import Search

MODULES, SEARCHES = maude_searches.model()
PAGE = maude_searches.PAGE.read_text(encoding="utf-8")
FAST = [search for search in SEARCHES if not search.slow]
needs_maude = pytest.mark.skipif(shutil.which("maude") is None, reason=maude_searches.ABSENT)


def name(search: Search) -> str:
    return f"{search.module} {search.start}"


@needs_maude
@pytest.mark.parametrize("search", FAST, ids=name)
def test_a_search_finds_what_it_must(search: Search) -> None:
    outcome = maude_searches.run(MODULES, search)
    assert outcome.found == search.finds, search.why
    # Where something is found, which states came before it is Maude's choice.
    assert outcome.found or maude_searches.row(search, outcome) in PAGE


@needs_maude
def test_a_model_that_maude_warns_of_is_an_error() -> None:
    broken = MODULES.replace("eq k = 3 .", "eq k = three .")
    assert broken != MODULES
    with pytest.raises(RuntimeError, match="Warning"):
        maude_searches.run(broken, FAST[0])


@needs_maude
def test_a_search_that_finds_nothing_fails_where_it_must_find_the_attack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    safe = next(search for search in FAST if search.module == "ROSTERS" and not search.finds)
    wrong = Search(safe.module, safe.start, safe.why, safe.command, finds=True, slow=False)
    monkeypatch.setattr(maude_searches, "model", lambda: (MODULES, [wrong]))
    monkeypatch.setattr(sys, "argv", ["maude_searches.py"])
    assert maude_searches.main() == 1
    assert "WRONG" in capsys.readouterr().err


def test_without_maude_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["maude_searches.py"])
    assert maude_searches.main() == 1
    assert "apt-get install maude" in capsys.readouterr().err


@pytest.mark.parametrize("module", sorted({search.module for search in SEARCHES}))
def test_each_guard_is_taken_out_by_a_search_that_finds_the_attack(module: str) -> None:
    text = MODULES.split(f"mod {module} is", 1)[1].split("endm", 1)[0]
    (guards,) = re.findall(r"ops nothing (.+) : -> Guard", text)
    of_module = [search for search in SEARCHES if search.module == module]
    taken_out = {search.start.split(",")[0] for search in of_module if search.finds}
    assert set(guards.split()) <= taken_out
    assert any(not search.finds and search.start.startswith("nothing") for search in of_module)


def test_the_page_has_a_row_for_each_search() -> None:
    rows = PAGE.split("<!-- maude -->", 1)[1].split("<!-- /maude -->", 1)[0].strip().splitlines()[2:]
    assert len(rows) == len(SEARCHES)
    for row, search in zip(rows, SEARCHES, strict=True):
        states = int(row.strip("| ").rsplit(" | ", 1)[1].replace(",", ""))
        assert row == maude_searches.row(search, maude_searches.Outcome(search.finds, states))
