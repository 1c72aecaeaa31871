"""Takes the documentation's pictures of report and dashboard, from a training of 12 clients like in `make demo`.

    python tools/screenshots.py

Writes docs/images/. Needs Chromium, playwright and pillow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
MAX_BYTES = 150_000
TRAINING = ["--scheme", "bfv", "--dataset", "digits", "--clients", "12", "--rounds", "10", "--compare", "plain"]
SHOWN_ROUNDS = 6
"""The picture of the dashboard is taken after this many rounds."""


def take(browser: Browser, address: str, name: str, scheme: str, ready: str) -> None:
    """Take a picture of the first screen of a page, in 128 colours, when the page has the text ``ready``."""
    page = browser.new_page(viewport={"width": 1280, "height": 980}, color_scheme=scheme)
    page.goto(address)
    page.get_by_text(ready).first.wait_for(timeout=300_000)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MAX_BYTES}: take fewer colours")


def main() -> None:
    """Train, and take the pictures."""
    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "-u", "-m", "fedcipher.cli", "train", "--dashboard", *TRAINING, "--out", "runs/demo"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        environment = {**os.environ, "FEDCIPHER_STATE_DIR": f"{folder}/state"}
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as training:
            if training.stdout is None:
                raise SystemExit("the training has no output")
            address = next(line for line in training.stdout if line.startswith("dashboard: ")).split()[1]
            take(browser, address, "dashboard", "light", f"{SHOWN_ROUNDS} of 10 rounds")
            training.stdout.read()
        if training.returncode:
            raise SystemExit(f"the training has failed: {training.returncode}")
        report = (Path(folder) / "runs" / "demo" / "report.html").as_uri()
        for scheme in ("light", "dark"):
            take(browser, report, f"report-{scheme}", scheme, "10 of 10 rounds")
        browser.close()


if __name__ == "__main__":
    main()
