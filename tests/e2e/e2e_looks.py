"""Report and dashboard in Chromium, light and dark, as wide as a phone and as a desk: `make e2e-looks`.

axe's rules for WCAG 2 A and AA find nothing, the keyboard reaches every link in order, and no page is wider than its
window.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fedcipher.app.report_page import write_report
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server import journal
from fedcipher.federation.server.journal import Ended
from playwright.sync_api import expect
from test_looks import EVIL, a_run
from test_watch import Dashboard, Watched

AXE = Path(os.environ["FEDCIPHER_AXE"]).read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
WINDOWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
LINKS = ["#rounds", "#missing", "#figures", "#set-up"]


@pytest.fixture(params=WINDOWS, ids=lambda window: f"{window[1]}-{window[0]}")
def page(browser, request):
    width, scheme = request.param
    made = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
    yield made
    made.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return Watched(tmp_path_factory.mktemp("looks"), np.random.default_rng(7))


def check(page):
    """What axe finds wrong, and whether the page is wider than its window."""
    page.evaluate(AXE)
    found = page.evaluate("rules => axe.run({runOnly: {type: 'tag', values: rules}})", RULES)
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert {rule["id"] for rule in found["passes"]} >= {"color-contrast", "document-title", "html-has-lang"}
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def reached(page, count):
    """The targets that so many presses of Tab reach, each with a ring that one sees."""
    targets = []
    for _ in range(count):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        targets.append(page.evaluate("document.activeElement.getAttribute('href')"))
    return targets


def test_a_report_is_for_everybody(page, tmp_path):
    made = a_run(evaluated={f"score {EVIL}": 0.5})
    made.beside = a_run("plain", evaluated={f"score {EVIL}": 0.5})
    made.rounds[1].left_out, made.rounds[2].unfinished = [f"client 1: {EVIL}{'long' * 60}"], EVIL
    write_report(made, tmp_path)
    page.goto((tmp_path / "report.html").as_uri())
    check(page)
    assert reached(page, len(LINKS)) == LINKS
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Set-up")).to_be_in_viewport()


def test_a_dashboard_is_for_everybody_and_keeps_a_readers_place(page, watched, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(watched.folder, run)
    with Dashboard(run, "--key", str(watched.keys / "client-1.key")) as shown:
        page.goto(shown.address)
        check(page)
        assert reached(page, 2) == LINKS[:2]
        growing = journal.Journal(run)
        made = RoundRecord(4, number=watched.strategy.rounds[-1].number + 1, planned=10, wall_seconds=2.0)
        growing.begin(made)
        expect(page.get_by_text("round 4 is active").first).to_be_visible(timeout=20_000)
        growing.end(made, Ended(3))
        expect(page.locator(".figure").first).to_have_text("4 of 10 rounds", timeout=20_000)
        assert page.evaluate("document.activeElement.getAttribute('href')") == LINKS[1]
        # What a screen reader is told of.
        assert "4 of 10 rounds" in page.locator("[role=status]").text_content()
        check(page)
        growing.close()


def test_a_page_before_the_first_round_is_for_everybody_and_counts_the_wait(page, watched, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(watched.folder / "run.json", run)
    begun = journal.Journal(run)
    begun.begin(RoundRecord(1, number=1, planned=5))
    os.utime(run / "journal.db", (0, (run / "journal.db").stat().st_mtime - 3598))
    with Dashboard(run) as shown:
        page.goto(shown.address)
        check(page)
        assert page.locator("svg, table, progress").count() == 0
        # Nobody loads it again.
        expect(page.locator("[data-since]")).to_have_text("1 h 0 min", timeout=10_000)
    expect(page.locator("#lost")).to_be_visible(timeout=20_000)
    check(page)
    begun.close()
