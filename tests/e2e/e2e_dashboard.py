"""The dashboard in a real browser, as wide as a phone and as a desk: `make e2e-dashboard`."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server import journal
from fedcipher.federation.server.journal import Ended
from places import ROOT
from playwright.sync_api import expect
from test_watch import Dashboard, Watched

PICTURES = ROOT / "runs"
EVIL = "<img src=x onerror='window.hurt=1'>" + "a-name-without-a-place-to-break" * 8


@pytest.mark.parametrize(("name", "width", "height"), [("phone", 390, 844), ("desk", 1280, 800)])
def test_a_run_is_watched(browser, tmp_path, name, width, height):
    run = Watched(tmp_path, np.random.default_rng(7))
    said = []
    with Dashboard(run.folder) as shown:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(shown.address)
        expect(page.locator("svg")).to_have_count(4)
        main = page.locator("main")
        expect(main.get_by_text("3 rounds have ended")).to_be_visible()
        # It grows, and nobody loads it again.
        page.evaluate("window.loaded = 1")
        running = journal.Journal(run.folder)
        last = run.strategy.rounds[-1]
        made = RoundRecord(4, number=last.number + 1, wall_seconds=2.0, metrics=last.metrics)
        made.clients = [*last.clients[:3], ClientRecord(1003, 3, {}, EVIL, refused=True)]
        running.begin(made)
        expect(main.get_by_text("round 4 is active")).to_be_visible(timeout=20_000)
        running.end(made, Ended(4))
        expect(main.get_by_text("4 rounds have ended")).to_be_visible(timeout=20_000)
        expect(main.get_by_text("round 4, client 3")).to_be_visible()
        running.close()
        assert page.evaluate("window.loaded") == 1 and page.evaluate("window.hurt") is None
        # Nothing is cut: not at the side of the page, nor in a cell.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = (
            "[...document.querySelectorAll('td, th, dd, li, p')].filter(x => x.scrollWidth > x.clientWidth + 1).length"
        )
        assert page.evaluate(cut) == 0
        PICTURES.mkdir(exist_ok=True)
        page.screenshot(path=PICTURES / f"dashboard-{name}.png", full_page=True)
    expect(page.locator("#lost")).to_be_visible(timeout=20_000)
    # What it said while it was there; now that the server has gone, every look fails.
    assert [text for text in said if "ERR_CONNECTION_REFUSED" not in text] == []
    page.close()


def test_a_training_is_watched(browser, tmp_path):
    command = [sys.executable, "-u", "-m", "fedcipher.cli", "train", "--dashboard", "--clients", "3", "--rounds", "20"]
    # Ray's processes are nice (15) and would wait for those of all other programs.
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        env={**os.environ, "RAY_worker_niceness": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as training:
        address = next(line for line in training.stdout if line.startswith("dashboard: ")).split()[1]
        page = browser.new_page()
        page.goto(address)
        main = page.locator("main")
        expect(main.get_by_text("The run waits for round 1")).to_be_visible(timeout=90_000)
        expect(main.get_by_text("Accuracy", exact=True)).to_be_visible(timeout=90_000)
        # A round may take less time than a page that looks again.
        expect(main.get_by_text(re.compile(r"\b([2-9]|1\d) rounds have ended"))).to_be_visible(timeout=90_000)
        page.close()
        training.stdout.read()
    assert training.returncode == 0
