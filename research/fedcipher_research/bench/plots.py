"""The pictures of a study: phases, memory and CPU over time, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedcipher import _figures
from fedcipher._figures import COLOURS
from fedcipher._units import seconds, size
from fedcipher.bench.case import CaseResult
from fedcipher.bench.statistics import averaged, summarise

__all__ = ["figures"]

_PHASES = ("keygen", "encrypt", "operate", "decrypt")


def figures(results: list[CaseResult]) -> Iterator[tuple[str, str, Any]]:
    """(file name, caption, matplotlib figure) of every picture. Yields nothing without a finished run."""
    done = [result for result in results if result.runs]
    if not done:
        return
    yield "phases", "Seconds by phase, all updates of a run together (logarithmic)", _phases(done)
    yield "bytes", "Bytes of one update and one aggregate (logarithmic)", _bytes(done)
    for side in ("client", "server"):
        yield f"memory-{side}", f"Resident memory of the {side} over a run", _lines(done, side, "rss")
        yield f"cpu-{side}", f"CPU of the {side} over a run, percent of one core", _lines(done, side, "cpu_percent")


def _phases(results: list[CaseResult]) -> Any:
    figure, axes = _figures.new(1.2 + 0.75 * len(results))
    height = 0.8 / len(_PHASES)
    summaries = [summarise(r) for r in results]
    for k, (phase, colour) in enumerate(zip(_PHASES, COLOURS, strict=True)):
        at = [row + (k - 1.5) * height for row in range(len(results))]
        axes.barh(at, [max(s[phase].average, 1e-7) for s in summaries], height, label=phase, color=colour)
    took = [max(s[phase].average, 1e-7) for s in summaries for phase in _PHASES]
    return _bars(figure, axes, results, took, seconds)


def _bytes(results: list[CaseResult]) -> Any:
    figure, axes = _figures.new(1.2 + 0.6 * len(results))
    summaries = [summarise(r) for r in results]
    for k, (what, colour) in enumerate(zip(("one update", "one aggregate"), COLOURS[1:], strict=False)):
        at = [row + (k - 0.5) * 0.38 for row in range(len(results))]
        axes.barh(at, [s[what].average for s in summaries], 0.38, label=what, color=colour)
    axes.plot(
        [r.case.plain_bytes for r in results], range(len(results)), "k|", markersize=16, label="the update as float32"
    )
    sizes = [s[what].average for s in summaries for what in ("one update", "one aggregate")]
    return _bars(figure, axes, results, [*sizes, *(r.case.plain_bytes for r in results)], size)


def _bars(figure: Any, axes: Any, results: list[CaseResult], values: list[float], text: Callable[[float], str]) -> Any:
    axes.set_yticks(range(len(results)), [r.case.label for r in results])
    axes.invert_yaxis()
    axes.set_xscale("log")
    _figures.decades(axes.xaxis, min(values), max(values), text)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _lines(results: list[CaseResult], side: str, what: str) -> Any:
    from matplotlib import colormaps

    figure, axes = _figures.new(4.2 + 0.12 * len(results))
    for k, result in enumerate(results):
        values = averaged(result, side, what)
        if what == "rss":
            values = [v / 1e6 for v in values]
        share = [100 * k / (len(values) - 1) for k in range(len(values))]
        axes.plot(share, values, label=result.case.label, color=colormaps["tab20"](k % 20), linewidth=1.8)
    axes.set_xlabel("percent of the run, each averaged over runs at 20 points")
    axes.set_ylabel("MB" if what == "rss" else "CPU, percent of one core")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
