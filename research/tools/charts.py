"""Draws the charts of docs/evidence/figures.md from the same figures as its tables. `make results` runs this."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from fedcipher import _figures
from fedcipher._colours import PALETTE, variables
from readme_tables import RESULTS, benchmarks, read_report, row

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
PEERS = {
    "TenSEAL CKKS encryption / ours, offline and online": "TenSEAL (CKKS), all of an encryption",
    "TenSEAL CKKS encryption / ours, online only": "TenSEAL (CKKS), after precomputation",
    "SEAL with FedBit's packing / ours, offline and online": "SEAL with FedBit's packing",
}
"""By the beginning of a row of docs/evidence/benchmarks.md: the label of its bar."""
PARTS = {
    "train": "train",
    "offline": "precompute",
    "encode": "encode",
    "encrypt": "encrypt",
    "decrypt": "decrypt",
    "aggregate": "add, on the server",
}
"""By the name of a report's total: the label of its bar."""
_ACCENT, _OTHER, _QUIET = (PALETTE[name][0] for name in ("accent", "other", "quiet"))


def speed() -> dict[str, float]:
    """How many times faster than each peer of the same run `bfv` is."""
    found: dict[str, float] = {}
    for begins, label in PEERS.items():
        (times,) = re.findall(rf"^\| {re.escape(begins)}[^|]*\| ([\d.]+)x \|", benchmarks(), re.M)
        found[label] = float(times)
    forward, *_ = row("ratio")
    found["fhe-math, one transform"] = float(forward.removesuffix("x"))
    return found


def round_parts() -> dict[str, float]:
    """Seconds of each part of a round of the MNIST example under `bfv`."""
    totals = read_report("mnist-bfv")["totals"]
    return {label: totals[name] for name, label in PARTS.items()}


def accuracies() -> dict[str, list[float]]:
    """Percent by round, of each run of the table."""
    return {name: [100 * one["metrics"]["accuracy"] for one in read_report(name)["rounds"]] for name in RESULTS}


def milliseconds(seconds: float) -> str:
    """``seconds`` with two digits that count."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.2g} ms"


def _bars(values: dict[str, float], text: Any, least: float) -> Any:
    figure, axes = _figures.new(0.5 + 0.32 * len(values))
    names = list(values)[::-1]
    axes.set_xscale("log")
    axes.barh(names, [values[name] for name in names], color=_ACCENT, height=0.6)
    _figures.decades(axes.xaxis, least, max(values.values()), text)
    for place, name in enumerate(names):
        axes.text(values[name] * 1.15, place, text(values[name]), va="center", fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _lines(values: dict[str, list[float]]) -> Any:
    figure, axes = _figures.new(3.0)
    looks = ((_QUIET, 4, "-"), (_ACCENT, 1.8, "o-"), (_OTHER, 1.8, "o-"), (_QUIET, 1.8, "s--"))
    for (name, series), (colour, width, line) in zip(values.items(), looks, strict=True):
        axes.plot(range(1, len(series) + 1), series, line, color=colour, linewidth=width, markersize=4, label=name)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    axes.set_xticks(range(1, 1 + max(map(len, values.values()))))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure


def charts() -> dict[str, tuple[str, Any]]:
    """By file name: the chart in words, with every figure, and a function that draws the chart."""
    faster, spent, right = speed(), round_parts(), accuracies()
    return {
        "speed.svg": (
            "Speed of bfv over that of " + "; ".join(f"{name}: {times:g}x" for name, times in faster.items()),
            lambda: _bars(faster, lambda times: f"{times:g}x", 1),
        ),
        "round-cost.svg": (
            "A round under bfv: " + "; ".join(f"{name} {milliseconds(took)}" for name, took in spent.items()),
            lambda: _bars(spent, milliseconds, min(spent.values())),
        ),
        "accuracy.svg": (
            "Accuracy after the last round: "
            + "; ".join(f"{name} {values[-1]:.2f}%" for name, values in right.items()),
            lambda: _lines(right),
        ),
    }


def standing_alone(svg: str) -> str:
    """``svg`` as a file, with the colours of a reader's light or dark ground."""
    ground = '<rect width="100%" height="100%" fill="var(--page)"/>'
    style = f":root{{{variables(dark=False)}}}@media (prefers-color-scheme: dark){{:root{{{variables(dark=True)}}}}}"
    head, rest = svg.split(">", 1)
    return f"{head}><style>{style} text{{fill:var(--ink)}}</style>{ground}{rest}"


def main() -> None:
    """Writes each chart into docs/images."""
    for name, (said, drawn) in charts().items():
        (IMAGES / name).write_text(standing_alone(_figures.svg(drawn(), said)), encoding="utf-8")


def in_words(chart: str) -> str:
    """The words of a chart's file for a reader that does not see the chart."""
    return f'aria-label="{escape(charts()[chart][0])}"'


if __name__ == "__main__":
    main()
