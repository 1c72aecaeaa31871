# pyright: basic
"""A training report as one HTML file with its pictures, and the dashboard's page of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedcipher import _figures, _page
from fedcipher._colours import PALETTE
from fedcipher._files import make_private_folder, refusal, write_whole
from fedcipher._units import seconds
from fedcipher.app.overview import Live, at_a_glance, progress
from fedcipher.app.report import PHASES, Report
from fedcipher.errors import ReportError, RunError

__all__ = ["before", "content", "page", "write_report"]

_OURS, _BESIDE = PALETTE["accent"][0], PALETTE["other"][0]
_PARTS = (("rounds", "Rounds"), ("missing", "Left out"), ("figures", "Figures"), ("set-up", "Set-up"))
# A larger metric means that training diverged, and matplotlib finds no ticks for its axis.
_MAX_METRIC = 1e100
# Seconds. The bar of a shorter phase would not be visible.
_MIN_PHASE = 1e-6


def page(report: Report) -> str:
    """The whole page of a run, and of the run beside it."""
    parts = [*content(report)] if report.rounds else [*_head(report), *_notes(report), *_set_up(report)]
    return _page.document(f"Fedcipher: {report.title}", ["<main>", *parts, "</main>"])


def write_report(report: Report, folder: Path) -> None:
    """Write ``report.json`` and ``report.html``, readable by this user only. Raises `ReportError`."""
    try:
        make_private_folder(folder)
        # Readable by this user only, because metrics depend on the clients' data.
        said = json.dumps(report.to_dict(), indent=1) + "\n"
        write_whole(folder / "report.json", said.encode("utf-8", "backslashreplace"))
        write_whole(folder / "report.html", page(report).encode("utf-8", "backslashreplace"))
    except RunError as error:
        raise ReportError(f"the report cannot be written: {error}") from error
    except OSError as error:
        raise ReportError(f"the report cannot be written: {refusal(error, folder)}") from error


def content(report: Report, *, live: Live | None = None, above: str = "", most: int | None = None) -> list[str]:
    """The HTML parts in the `page` of a run that has rounds.

    ``live``: the state of a watched run. ``above``: HTML that follows the summary. ``most``: show only so many rounds
    and omissions, newest first, and draw how many clients took part.
    """
    parts = [*_head(report, _PARTS), progress(report, live), at_a_glance(report), above]
    parts += [*_notes(report), _page.pictures(_drawn(report, clients=most is not None))]
    for run in _runs(report):
        name = "rounds" if run is report else ""
        parts += [_page.heading(f"Rounds: {run.scheme}", name), *_newest_table(run.per_round(), most, "rounds")]
    parts += ["<p>The first round includes the start of the clients, which get the first model unencrypted.</p>"]
    parts += _missing(report, most)
    if rows := report.accelerated():
        parts += [_page.heading("Accelerators, all clients"), *_newest_table(rows, most, "rounds")]
        parts += ["<p>The first round includes giving each accelerator its key.</p>"]
    parts += [_page.heading("Figures", "figures"), "<p>Means over the rounds; metrics are the last round's.</p>"]
    parts += [_page.table(report.summary(), cards=report.beside is not None)]
    parts += [f"<p>{escape(report.compared())}</p>"] if report.compared() else []
    return parts + _set_up(report)


def before(report: Report, state: str, above: str = "") -> list[str]:
    """The HTML parts in the page of a run in which no round has ended: its ``state``, HTML, and its set-up."""
    return [*_head(report), state, above, *_notes(report), *_set_up(report)]


def _head(report: Report, parts: Sequence[tuple[str, str]] = ()) -> list[str]:
    command = [f"<p><code>{escape(report.command)}</code></p>"] if report.command else []
    links = [_page.contents(parts)] if parts else []
    return ['<p class="brand">Fedcipher</p>', f"<h1>{escape(report.title)}</h1>", *command, *links]


def _notes(report: Report) -> list[str]:
    return [
        _page.note(said) for said in (report.threat, report.privacy, report.noise, report.accelerator_note()) if said
    ]


def _missing(report: Report, most: int | None) -> list[str]:
    said = [text for run in _runs(report) for text in run.omissions()]
    listed = "".join(f"<li>{escape(text)}</li>" for text in _newest(said, most))
    parts = [_page.heading("Left out", "missing"), f"<ul>{listed}</ul>" if listed else "<p>No client in any round.</p>"]
    return [*parts, _not_shown(len(said), most, "more")]


def _set_up(report: Report) -> list[str]:
    held = {**report.settings, **report.scheme_params, **report.codec, **report.derived, **report.machine}
    shown = _page.facts((str(name).replace("_", " "), str(value)) for name, value in held.items())
    return [_page.heading("Set-up", "set-up"), shown]


def _newest_table(rows: list[list[str]], most: int | None, what: str) -> list[str]:
    head, *rest = rows
    return [_page.table([head, *_newest(rest, most)]), _not_shown(len(rest), most, what)]


def _newest(rows: list[Any], most: int | None) -> list[Any]:
    """All rows, oldest first; with ``most``, so many of the newest rows, newest first."""
    return rows if most is None else rows[: -most - 1 : -1]


def _not_shown(count: int, most: int | None, what: str) -> str:
    return f"<p>{count - most} {what} before.</p>" if most is not None and count > most else ""


def _runs(report: Report) -> list[Report]:
    return [report, report.beside] if report.beside else [report]


def _drawn(report: Report, clients: bool) -> list[_page.Picture]:
    """Pictures, each with a sentence for readers who cannot see it."""
    metric = report.shown()[0]
    drawn = [(metric.capitalize(), _progress(report), f"{metric} by round, with each value in the table of rounds")]
    if clients:
        drawn += [("Clients", _clients(report), "Clients in the sum and left out, by round")]
    drawn += [("Bytes per client and round", _traffic(report), "Bytes up and down by round, as in the table of rounds")]
    spent = ", ".join(f"{name} {seconds(value)}" for name, value in report.spent().items())
    drawn += [("Time per round and client, and of the server (logarithmic)", _phases(report), f"Mean times: {spent}")]
    return [(caption, _figures.svg(figure, said)) for caption, figure, said in drawn]


def _rounds(axes: Any) -> None:
    axes.set_xlabel("round")
    _whole_numbers(axes.xaxis)
    axes.grid(axis="y", alpha=0.3)


def _progress(report: Report) -> Any:
    figure, axes = _figures.new(3.2)
    name = report.shown()[0]
    scale = 100 if name == "accuracy" else 1
    # This run is drawn last: if both are equal its thin line still shows on the thick one.
    styles = zip(_runs(report), (_OURS, _BESIDE), (1.8, 5), ("o-", "-"), strict=False)
    for run, colour, width, style in reversed(list(styles)):
        values = [r.metrics.get(name, float("nan")) * scale for r in run.rounds]
        values = [value if abs(value) < _MAX_METRIC else float("nan") for value in values]
        axes.plot(
            [r.round for r in run.rounds], values, style, label=run.scheme, color=colour, linewidth=width, markersize=4
        )
    # The name comes from an app and is not a formula.
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
        axes.plot(
            x,
            [r.upload_bytes / 1e3 for r in run.rounds],
            f"o{style}",
            label=f"{run.scheme}, up",
            color=_OURS,
            markersize=4,
        )
        down = [r.download_bytes / 1e3 for r in run.rounds]
        axes.plot(x, down, f"s{style}", label=f"{run.scheme}, down", color=_BESIDE, markersize=4)
    axes.set_ylabel("kB")
    axes.set_ylim(bottom=0)
    _rounds(axes)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _phases(report: Report) -> Any:
    runs = _runs(report)
    totals = [run.spent() for run in runs]
    names = [name for name in (*PHASES, "aggregate") if any(name in spent for spent in totals)] or ["aggregate"]
    figure, axes = _figures.new(1.2 + 0.3 * len(names) * len(runs))
    height = 0.8 / len(runs)
    spent = [[max(known.get(name, 0.0), _MIN_PHASE) for name in names] for known in totals]
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
