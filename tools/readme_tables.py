"""Fills the tables of README.md, docs/hybrid.md and docs/study.md from what was measured; nothing is typed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ["mnist-plain", "mnist-flashe", "mnist-bfv", "mnist-flashe-top10"]


def targets() -> str:
    """Rows of docs/benchmarks.md that have a target; the offload engine's stay there, with their paths."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").partition("<!-- offload -->")[0]
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


HHE = ["hhe-pasta-delta", "hhe-plain-delta", "hhe-bfv-delta", "hhe-pasta-published"]

# What the study reports, on other hardware.
PUBLISHED = {"accuracy": "97.6%", "server, s a client": "1,451"}


def hybrid() -> str:
    """The hybrid-HE runs side by side."""
    rows: dict[str, list[str]] = {}
    for name in HHE:
        report = json.loads((ROOT / "docs" / "results" / name / "report.json").read_text())
        t, per_round = report["totals"], report["settings"]["per_round"]
        figures = {
            "accuracy": f"{t['accuracy']:.2%}",
            "loss": f"{t['loss']:.4f}",
            "precision": f"{t['precision']:.4f}",
            "recall": f"{t['recall']:.4f}",
            "F1": f"{t['f1']:.4f}",
            "client training, s a round": f"{t['train']:.2f}",
            "client encoding + encryption, ms": f"{(t['encode'] + t['encrypt']) * 1e3:.2f}",
            "client decryption, ms": f"{t['decrypt'] * 1e3:.2f}",
            "server, s a round": f"{t['aggregate']:.3f}",
            "server, s a client": f"{t['aggregate'] / per_round:.3f}",
            "upload, bytes a round": f"{t['upload_bytes']:,.0f}",
            "upload once a key epoch, bytes": f"{t['setup_bytes']:,.0f}",
            "download, bytes a round (training or evaluation)": f"{t['evaluation_download_bytes']:,.0f}",
        }
        for figure, value in figures.items():
            rows.setdefault(figure, []).append(value)
    lines = ["| figure | published | " + " | ".join(HHE) + " |", "|---" * (len(HHE) + 2) + "|"]
    for figure, values in rows.items():
        lines.append(f"| {figure} | {PUBLISHED.get(figure, '')} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def digits() -> str:
    """The baselines' training runs, beside plain."""
    lines = [
        "| scheme | accuracy | encryption, ms a round | server, ms a round | decryption, ms | upload, bytes |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("plain", "paillier", "bfv-lib", "ckks"):
        t = json.loads((ROOT / "docs" / "results" / f"digits-{name}" / "report.json").read_text())["totals"]
        figures = [f"{t[k] * 1e3:,.2f}" for k in ("encrypt", "aggregate", "decrypt")]
        lines.append(f"| `{name}` | {t['accuracy']:.2%} | {' | '.join(figures)} | {t['upload_bytes']:,.0f} |")
    (tfhe,) = json.loads((ROOT / "docs" / "results" / "tfhe-100-values" / "results.json").read_text())["results"]
    seconds = tfhe["runs"][0]["server"]["phases"]["operate"]
    lines += ["", f"`tfhe` is left out: a round of 12 updates of 100 values takes the server {seconds:.0f} s"]
    lines[-1] += " ([report](results/tfhe-100-values)), and this model has some thousand."
    return "\n".join(lines)


def filled(text: str, marker: str, content: str) -> str:
    """Replaces what stands between the marker's two comments."""
    pattern = rf"(<!-- {marker} -->).*?(<!-- /{marker} -->)"
    return re.sub(pattern, lambda m: m[1] + "\n" + content + "\n" + m[2], text, flags=re.S)


def main() -> None:
    """Rewrite the pages in place."""
    page = ROOT / "README.md"
    text = filled(page.read_text(encoding="utf-8"), "benchmarks", targets())
    page.write_text(filled(text, "results", results()), encoding="utf-8")
    page = ROOT / "docs" / "hybrid.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), "hhe", hybrid()), encoding="utf-8")
    page = ROOT / "docs" / "study.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), "digits", digits()), encoding="utf-8")


if __name__ == "__main__":
    main()
