"""Fills the tables of docs/evidence/figures.md, hybrid.md and study.md, and README.md's line, from measured reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedcipher_research.baselines import QUICK
from fedcipher_research.published import cell, doubt, doubts

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ["mnist-plain", "mnist-flashe", "mnist-bfv", "mnist-flashe-top10"]


# Rows without a target, which a reader needs beside the rows with one.
BESIDE = ["TenSEAL CKKS encryption / ours, offline and online"]


def read_report(name: str) -> dict[str, Any]:
    """The report of the committed run ``name``."""
    return json.loads((ROOT / "research" / "results" / name / "report.json").read_text(encoding="utf-8"))


def benchmarks() -> str:
    """The figures of `make bench`, without the offload engine's."""
    return (ROOT / "docs" / "evidence" / "benchmarks.md").read_text(encoding="utf-8").partition("<!-- offload -->")[0]


def targets() -> str:
    """The rows of docs/evidence/benchmarks.md with a target, and the rows of `BESIDE`."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", benchmarks(), re.M)
    lines = ["| figure | measured | target |", "|---|---|---|"]
    for figure, measured, target in rows:
        if re.search(": (reached|missed)$", target.strip()) or figure.strip() in BESIDE:
            lines.append(f"| {figure.strip()} | {measured.strip()} | {target.strip()} |")
    return "\n".join(lines)


def row(first: str) -> list[str]:
    """The cells of the row of docs/evidence/benchmarks.md that begins with ``first``, without that cell."""
    found = next(line for line in benchmarks().splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in found.strip("|").split("|")[1:]]


def round_cost() -> str:
    """README.md's line: the cost of `bfv` in a round of the MNIST example."""
    bfv, plain = (read_report(f"mnist-{name}")["totals"] for name in ("bfv", "plain"))
    # A client's part of a round, then the server's.
    spent = [bfv[part] for part in ("encode", "encrypt", "offline", "decrypt", "aggregate")]
    sent, clear = bfv["upload_bytes"], plain["upload_bytes"]
    lines = [
        f"In the MNIST example a client trains {bfv['train']:.2f} s a round. Under `bfv`, encoding, encryption,",
        f"addition and decryption together take {sum(spent) * 1e3:.0f} ms. An upload is {sent:,.0f} bytes.",
        f"Without encryption an upload is {clear:,.0f} bytes.",
    ]
    return "\n".join(lines)


def transforms() -> str:
    """The speed-up of the default crate's transforms."""
    forward, inverse, *_ = row("ratio")
    return f"{forward} forward, {inverse} with a product and back"


def in_words(bits: int | list[int]) -> str:
    """The bits of a value in words. A run may choose among several."""
    return str(bits) if isinstance(bits, int) else f"{', '.join(map(str, bits[:-1]))} or {bits[-1]}"


def results() -> str:
    """Accuracy and traffic of the committed runs."""
    lines = [
        "| run | bits | accuracy | F1 | upload, bytes | download, bytes | for evaluation |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in RESULTS:
        report = read_report(name)
        totals, bits = report["totals"], in_words(report["codec"]["bits"])
        traffic = f"{totals['upload_bytes']:,.0f} | {totals['download_bytes']:,.0f}"
        traffic += f" | {totals['evaluation_download_bytes']:,.0f}"
        lines.append(f"| {name} | {bits} | {totals['accuracy']:.2%} | {totals['f1']:.4f} | {traffic} |")
    return "\n".join(lines)


HHE = ["hhe-pasta-study", "hhe-pasta-patient", "hhe-bfv-patient", "hhe-plain-patient", "hhe-pasta-delta"]
HHE_SCHEMES = ["PASTA+BFV", "FL without encryption"]


def published() -> dict[str, tuple[str, str]]:
    """The hybrid-HE study's figures, as printed, under PASTA+BFV and without encryption, for the rows of `hybrid`."""

    def quality(name: str, unit: str = "%") -> tuple[str, str]:
        pasta, plain = (cell("hybrid-he", "Table 2", {"scheme": s}, name).value for s in HHE_SCHEMES)
        return f"{pasta}{unit}", f"{plain}{unit}"

    def cost(table: str, operation: str) -> tuple[str, str]:
        return f"{cell('hybrid-he', table, {'operation': operation}, 'PASTA+BFV').value:,} s", ""

    return {
        "accuracy": quality("accuracy"),
        "loss": quality("loss", ""),
        **{name: quality(name) for name in ("precision", "recall", "F1")},
        "client training, s a round": cost("Fig. 7a", "Training"),
        "client encoding + encryption, ms": cost("Fig. 7a", "Encryption"),
        "client decryption, ms": cost("Fig. 7a", "Decryption"),
        "server, s a round": cost("Fig. 7b", "Total runtime"),
        "server, s a client": cost("Fig. 7b", "HESD per client"),
    }


def hybrid() -> str:
    """The table of the hybrid-HE runs, with the study's own figures first."""
    rows: dict[str, list[str]] = {}
    for name in HHE:
        report = read_report(name)
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
    heads = ["figure", "published, PASTA+BFV", "published, without encryption", *HHE]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    theirs = published()
    for figure, values in rows.items():
        lines.append("| " + " | ".join([figure, *theirs.get(figure, ("", "")), *values]) + " |")
    contradiction = doubts("hybrid-he")[doubt("hybrid-he", "Final accuracy differs between text and Table 2") - 1]
    return "\n".join([*lines, "", f"Published: Table 2, Fig. 7a and Fig. 7b. {contradiction}"])


def digits() -> str:
    """The table of the baselines' training runs, with plain first."""
    lines = [
        "| scheme | accuracy | encryption, ms a round | server, ms a round | decryption, ms | upload, bytes |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("plain", *(cls.name for cls in QUICK)):
        t = read_report(f"digits-{name}")["totals"]
        figures = [f"{t[k] * 1e3:,.2f}" for k in ("encrypt", "aggregate", "decrypt")]
        lines.append(f"| `{name}` | {t['accuracy']:.2%} | {' | '.join(figures)} | {t['upload_bytes']:,.0f} |")
    (tfhe,) = json.loads((ROOT / "research" / "results" / "tfhe-100-values" / "results.json").read_text())["results"]
    seconds = tfhe["runs"][0]["server"]["phases"]["operate"]
    lines += ["", f"`tfhe` is left out: a round of 12 updates of 100 values takes the server {seconds:.0f} s"]
    lines[-1] += " ([report](../../research/results/tfhe-100-values)), and this model has some thousand."
    return "\n".join(lines)


def filled(text: str, marker: str, content: str, around: str = "\n") -> str:
    """Replace the text between the marker's two comments."""
    pattern = rf"(<!-- {marker} -->).*?(<!-- /{marker} -->)"
    return re.sub(pattern, lambda m: m[1] + around + content + around + m[2], text, flags=re.S)


def main() -> None:
    """Rewrite the pages in place."""
    page = ROOT / "docs" / "evidence" / "figures.md"
    text = filled(page.read_text(encoding="utf-8"), "benchmarks", targets())
    text = filled(text, "ntt", transforms(), "")
    page.write_text(filled(text, "results", results()), encoding="utf-8")
    page = ROOT / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), "round", round_cost()), encoding="utf-8")
    page = ROOT / "docs" / "explanation" / "hybrid.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), "hhe", hybrid()), encoding="utf-8")
    page = ROOT / "docs" / "evidence" / "study.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), "digits", digits()), encoding="utf-8")


if __name__ == "__main__":
    main()
