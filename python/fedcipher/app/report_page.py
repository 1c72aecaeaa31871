# pyright: basic
"""A training report as one HTML file with its pictures."""

from __future__ import annotations

from html import escape
from typing import Any

from fedcipher import _figures, _page
from fedcipher._units import seconds
from fedcipher.app.report import PHASES, Report

__all__ = ["content", "page"]

_OURS, _BESIDE = "#0b6e99", "#d9822b"
# Above it a metric is a training that diverged, and matplotlib finds no marks for its axis.
_LARGEST = 1e100
# Below this a phase's bar is nothing but its axis.
_SHORTEST = 1e-6


def page(report: Report) -> str:
    """The page of a run, and of the run beside it."""
    return _page.document(f"Fedcipher: {report.title}", content(report))


def content(report: Report, *, above: str = "", most: int | None = None) -> list[str]:
    """What is in the `page`; ``above``, HTML, follows the heading.

    ``most``: the newest so many rounds and who was left out of them, drawn with how many clients took part.
    """
    parts = [f"<h1>{escape(report.title)}</h1>", above, _page.note(report.threat)]
    parts += [_page.note(said) for said in (report.privacy, report.noise, report.accelerator_said()) if said]
    parts += [f"<p><code>{escape(report.command)}</code></p>"] if report.command else []
    pictures = _drawn(report)
    if most is not None:
        pictures.insert(1, ("Clients", _figures.svg(_clients(report))))
    parts += [_page.pictures(pictures)]
    parts += ["<h2>Result</h2>", "<p>Means over the rounds; metrics are the last round's.</p>"]
    parts += [_page.table(report.summary(), cards=report.beside is not None)]
    parts += [f"<p>{escape(report.compared())}</p>"] if report.compared() else []
    for run in _runs(report):
        head, *rows = run.per_round()
        parts += [f"<h2>Rounds: {escape(run.scheme)}</h2>", _page.table([head, *_newest(rows, most)])]
        parts += [_not_shown(len(rows), most, "rounds")]
    parts += ["<p>The first round includes starting the clients, and brings them the first model in the clear.</p>"]
    if rows := report.accelerated():
        parts += ["<h2>Accelerators, all clients</h2>", _page.table([rows[0], *_newest(rows[1:], most)])]
        parts += ["<p>The first round includes giving each its key.</p>"]
    said = [text for run in _runs(report) for text in run.omissions()]
    left_out = "".join(f"<li>{escape(text)}</li>" for text in _newest(said, most))
    parts += ["<h2>Left out</h2>", f"<ul>{left_out}</ul>" if left_out else "<p>Nobody, in no round.</p>"]
    parts += [_not_shown(len(said), most, "more")]
    set_up = {**report.settings, **report.scheme_params, **report.codec, **report.derived, **report.machine}
    parts += ["<h2>Set-up</h2>", _page.facts((str(k).replace("_", " "), str(v)) for k, v in set_up.items())]
    return parts


def _newest(rows: list[Any], most: int | None) -> list[Any]:
    """In the order of a file, oldest first, or where it is cut newest first: that is what one wants to see."""
    return rows if most is None else rows[: -most - 1 : -1]


def _not_shown(count: int, most: int | None, what: str) -> str:
    return f"<p>{count - most} {what} before.</p>" if most is not None and count > most else ""


def _runs(report: Report) -> list[Report]:
    return [report, report.beside] if report.beside else [report]


def _drawn(report: Report) -> list[_page.Picture]:
    pictures = [(report.shown()[0].capitalize(), _progress(report)), ("Bytes per client and round", _traffic(report))]
    pictures += [("Time per round and client, and of the server (logarithmic)", _phases(report))]
    return [(caption, _figures.svg(figure)) for caption, figure in pictures]


def _rounds(axes: Any) -> None:
    axes.set_xlabel("round")
    _whole_numbers(axes.xaxis)
    axes.grid(alpha=0.3)


def _progress(report: Report) -> Any:
    figure, axes = _figures.new(3.2)
    name = report.shown()[0]
    scale = 100 if name == "accuracy" else 1
    # Ours last, on top: where the two are equal the thin line still shows on the thick one.
    for run, colour, width in reversed(list(zip(_runs(report), (_OURS, _BESIDE), (1.8, 5), strict=False))):
        values = [r.metrics.get(name, float("nan")) * scale for r in run.rounds]
        values = [value if abs(value) < _LARGEST else float("nan") for value in values]
        axes.plot([r.round for r in run.rounds], values, "o-", label=run.scheme, color=colour, linewidth=width)
    # An app's name, and no formula.
    axes.set_ylabel("percent" if name == "accuracy" else name, parse_math=False)
    _rounds(axes)
    axes.legend(loc="best", frameon=False, reverse=True)
    return figure


def _clients(report: Report) -> Any:
    figure, axes = _figures.new(3.2)
    x = [r.round for r in report.rounds]
    accepted = [r.clients for r in report.rounds]
    axes.bar(x, accepted, label="in the sum", color=_OURS)
    axes.bar(x, [len(r.left_out) for r in report.rounds], bottom=accepted, label="left out", color=_BESIDE)
    _rounds(axes)
    _whole_numbers(axes.yaxis)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _traffic(report: Report) -> Any:
    figure, axes = _figures.new(3.2)
    for run, style in zip(_runs(report), ("-", ":"), strict=False):
        x = [r.round for r in run.rounds]
        axes.plot(x, [r.upload_bytes / 1e3 for r in run.rounds], f"o{style}", label=f"{run.scheme}, up", color=_OURS)
        down = [r.download_bytes / 1e3 for r in run.rounds]
        axes.plot(x, down, f"s{style}", label=f"{run.scheme}, down", color=_BESIDE)
    axes.set_ylabel("kB")
    axes.set_ylim(bottom=0)
    _rounds(axes)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _phases(report: Report) -> Any:
    runs = _runs(report)
    totals = [run.totals() for run in runs]
    names = [name for name in (*PHASES, "aggregate") if any(name in spent for spent in totals)] or ["aggregate"]
    figure, axes = _figures.new(1.2 + 0.3 * len(names) * len(runs))
    height = 0.8 / len(runs)
    spent = [[max(known.get(name, 0.0), _SHORTEST) for name in names] for known in totals]
    for k, (run, values, colour) in enumerate(zip(runs, spent, (_OURS, _BESIDE), strict=False)):
        at = [row + (k - (len(runs) - 1) / 2) * height for row in range(len(names))]
        axes.barh(at, values, height, label=run.scheme, color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    flat = [value for values in spent for value in values]
    _figures.decades(axes.xaxis, min(flat), max(flat), seconds)
    axes.grid(axis="x", alpha=0.3)
    if len(runs) > 1:
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
