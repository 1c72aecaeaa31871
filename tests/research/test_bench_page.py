"""The reports in a real browser, on a desk, on a phone and between the two."""

import base64
import json
import shutil
import struct
import subprocess
import time
import urllib.request
import zlib

import pytest
from fedcipher.app.report import Report
from fedcipher.app.report_page import write_report
from fedcipher.bench import results
from fedcipher.bench.link import Link
from fedcipher.bench.study import run_study
from fedcipher_research.bench import report
from fedcipher_research.bench.presets import Preset, preset, preset_names
from places import ROOT
from test_accelerator import a_report

RESULTS = ROOT / "research" / "results"
WIDTHS = (390, 768, 1000, 1160, 1280)
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and chromedriver (Debian: chromium, chromium-driver) are not installed"
)


class Browser:
    """WebDriver, as much of it as is needed here."""

    def __init__(self, port, profile):
        self.base = f"http://127.0.0.1:{port}"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        options = {"binary": BROWSER, "args": [*flags, f"--user-data-dir={profile}"]}
        self.session = self.call("", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})["sessionId"]

    def call(self, path, body=None):
        url = f"{self.base}/session" + (f"/{self.session}{path}" if path else "")
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def look(self, page, width):
        """(what a script saw, PNG of the whole page) at a window of this width."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self.call("/url", {"url": page.as_uri()})
        script = """
            const box = e => e.getBoundingClientRect();
            const lines = e => { const r = document.createRange(); r.selectNodeContents(e);
              return new Set([...r.getClientRects()].map(b => Math.round(b.top))).size; };
            const cells = [...document.querySelectorAll('td')];
            const numbers = cells.filter(e => /^[<+-]?[0-9]/.test(e.innerText) && e.cellIndex > 0);
            return {page: document.documentElement.scrollWidth, window: innerWidth, numbers: numbers.length,
              cut: cells.filter(e => box(e).right > innerWidth || box(e).left < 0).map(e => e.innerText),
              broken: numbers.filter(e => lines(e) > 1).map(e => e.innerText),
              letters: Math.min(...[...document.querySelectorAll('svg text')].map(e => box(e).height)),
              pictures: [...document.querySelectorAll('figure svg')].map(e => [box(e).width, box(e).height]),
              text: parseFloat(getComputedStyle(document.body).fontSize), rows: document.querySelectorAll('tr').length,
              loaded: performance.getEntriesByType('resource').map(e => e.name)};"""
        seen = self.call("/execute/sync", {"script": script, "args": []})
        params = {"format": "png", "captureBeyondViewport": True}
        shot = self.call("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})
        return seen, base64.b64decode(shot["data"])


@pytest.fixture
def browser(tmp_path):
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            port = next(line.split()[-1].rstrip(".") for line in driver.stdout if "started successfully" in line)
            time.sleep(0.2)
            made = Browser(port, tmp_path / "profile")
            yield made
            urllib.request.urlopen(
                urllib.request.Request(f"{made.base}/session/{made.session}", method="DELETE"), timeout=30
            )
        finally:
            driver.terminate()


def colours(png):
    """Distinct colours among the pixels of an 8-bit RGB(A) PNG, and its width."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8 and kind in (2, 6)
    data, at = b"", 8
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += 12 + size
    return len(set(zlib.decompress(data)[1::97])), width


def test_the_page_is_readable_on_a_desk_and_on_a_phone(browser, tmp_path):
    chosen = preset("phe-vs-fhe")
    cases = [case for case in chosen.cases if case.scheme in ("flashe", "bfv", "bfv-lib")]
    study = run_study("phe-vs-fhe", cases, runs=2, link=Link(), command="fedcipher bench phe-vs-fhe")
    report.write(study, chosen, tmp_path)
    for width in WIDTHS:
        seen = readable(browser, tmp_path, width)
        assert len(seen["pictures"]) == 6
        assert seen["rows"] == 2 + len(cases) + len(chosen.comparisons)
        assert seen["numbers"] >= 12 * len(cases)


def readable(browser, folder, width):
    """What a script saw on ``report.html``, of which everything can be read at this width."""
    seen, png = browser.look(folder / "report.html", width)
    (folder / f"page-{width}.png").write_bytes(png)
    assert seen["window"] == width and seen["page"] <= width, "no sideways scrolling of the page"
    assert seen["cut"] == [] and seen["broken"] == [], width
    assert seen["text"] >= 16 and seen["letters"] >= 9
    # Whole pictures, as wide as a phone or half a desk.
    assert all(0.4 * width < w <= width and h > 60 for w, h in seen["pictures"]), seen["pictures"]
    assert seen["loaded"] == [], "nothing is fetched"
    distinct, across = colours(png)
    assert across == width and distinct > 20, "the picture shows something"
    return seen


@pytest.mark.parametrize("beside", [None, "mnist-plain"])
def test_a_training_report_is_readable_on_a_desk_and_on_a_phone(browser, tmp_path, beside):
    made = Report.load(RESULTS / "mnist-flashe" / "report.json")
    made.beside = Report.load(RESULTS / beside / "report.json") if beside else None
    write_report(made, tmp_path)
    runs = 2 if beside else 1
    for width in WIDTHS:
        seen = readable(browser, tmp_path, width)
        assert len(seen["pictures"]) == 3
        assert seen["rows"] == len(made.summary()) + runs * 11
        assert seen["numbers"] >= runs * 80


def test_a_training_report_with_accelerators_is_readable(browser, tmp_path):
    made = a_report()
    write_report(made, tmp_path)
    for width in WIDTHS:
        seen = readable(browser, tmp_path, width)
        assert seen["rows"] == len(made.summary()) + 2 * 3


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in RESULTS.glob("*/results.json")))
def test_a_committed_study_is_readable(browser, tmp_path, folder):
    study = results.load(RESULTS / folder / "results.json")
    chosen = preset(study.preset) if study.preset in preset_names() else Preset(study.preset, "", "", [], [])
    report.write(study, chosen, tmp_path)
    for width in (390, 1280):
        readable(browser, tmp_path, width)
