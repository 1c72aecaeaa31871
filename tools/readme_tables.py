"""Fills the tables of README.md from docs/benchmarks.md and docs/results; nothing is typed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ["mnist-plain", "mnist-flashe", "mnist-bfv", "mnist-flashe-top10"]


def targets() -> str:
    """Rows of docs/benchmarks.md that have a target."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+: (?:reached|missed)) \|$", text, re.M)
    lines = ["| figure | measured | target |", "|---|---|---|"]
    return "\n".join(lines + [f"| {a.strip()} | {b.strip()} | {c.strip()} |" for a, b, c in rows])


def results() -> str:
    """Accuracy and traffic of the committed runs."""
    lines = ["| run | accuracy | F1 | upload, bytes | download, bytes | for evaluation |", "|---|---|---|---|---|---|"]
    for name in RESULTS:
        totals = json.loads((ROOT / "docs" / "results" / name / "report.json").read_text())["totals"]
        traffic = f"{totals['upload_bytes']:,.0f} | {totals['download_bytes']:,.0f}"
        traffic += f" | {totals['evaluation_download_bytes']:,.0f}"
        lines.append(f"| {name} | {totals['accuracy']:.2%} | {totals['f1']:.4f} | {traffic} |")
    return "\n".join(lines)


def filled(text: str, marker: str, content: str) -> str:
    """Replaces what stands between the marker's two comments."""
    pattern = rf"(<!-- {marker} -->).*?(<!-- /{marker} -->)"
    return re.sub(pattern, lambda m: m[1] + "\n" + content + "\n" + m[2], text, flags=re.S)


def main() -> None:
    """Rewrite README.md in place."""
    page = ROOT / "README.md"
    text = filled(page.read_text(encoding="utf-8"), "benchmarks", targets())
    page.write_text(filled(text, "results", results()), encoding="utf-8")


if __name__ == "__main__":
    main()
