# pyright: basic
"""A summary of a run: its progress, the cost of encryption, the loss of precision, and the missing clients.

Every figure is computed from the records of rounds. If a figure is not in the records, the page says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from fedcipher import _page
from fedcipher._units import duration, seconds, share, size
from fedcipher.app.report import Report, RoundResult
from fedcipher.schemes import scheme_class

__all__ = ["Live", "at_a_glance", "progress", "waiting"]

_UNKNOWN = "not measured"
_STEPS = ("encrypt", "decrypt")
_FLOAT32_BYTES = 4
_SHOWN = 3
"""How many clients the summary names; a list of all clients follows on the page."""


@dataclass(frozen=True)
class Live:
    """The state of the server of a watched run."""

    running: bool
    active_round: int = 0
    """The round that the server has begun and not ended; 0 if there is none."""
    waited: float = 0.0
    """Seconds since the run's journal last changed."""


def progress(report: Report, live: Live | None = None) -> str:
    """HTML: the state of the run, the rounds ended out of those asked for, and the time left."""
    at, asked, count = report.rounds[-1].round, report.asked, len(report.rounds)
    figure = f"{at} of {_rounds(asked)}" if asked else _rounds(count)
    said = [escape(_server(live, count))] if live else []
    took = median(_round_seconds(report.rounds))
    if asked > at and (live is None or not live.running):
        said.append(f"{_rounds(asked - at)} of those asked for did not begin.")
    elif asked > at:
        said.append(f"About {duration(took * (asked - at))} left, at {seconds(took)} a round (median).")
    elif not asked:
        said.append(f"Time left: {_UNKNOWN}, because the records do not say how many rounds were asked for.")
    if live is None:
        said.append(f"All rounds took {duration(sum(r.wall_seconds for r in report.rounds))}.")
    return _page.state("Progress", figure, said, (at, asked) if asked else None)


def waiting(live: Live, missing: str = "") -> str:
    """HTML for a run in which no round has ended: what the run waits for, and since when.

    ``missing``: what the run waits for if it has not begun.
    """
    if not missing and not live.running:
        said = ["The server is not running. Start it again with resume=True to continue this run."]
    else:
        for_ = missing or (
            f"The run waits for round {live.active_round}, in which clients train, encrypt and answer."
            if live.active_round
            else "The run waits for the server to begin round 1, which needs enough connected clients."
        )
        since = f'<span data-since="{live.waited:.0f}">{duration(live.waited)}</span>'
        said = [escape(for_), f"Waiting for {since}.", "This page shows the first figures when a round has ended."]
    return _page.state("Progress", "No round has ended", said)


def at_a_glance(report: Report) -> str:
    """HTML: cost, precision and missing clients."""
    return _page.cards([_cost(report), _precision(report), _missing(report)])


def _server(live: Live, count: int) -> str:
    if live.running:
        active = live.active_round
        said = f"The server is running; round {active} is active." if active else "The server is running."
    else:
        ended = " The server ended in the middle of a round." if live.active_round else ""
        said = f"The server is not running.{ended}"
    return f"{said} {_rounds(count)} {'has' if count == 1 else 'have'} ended."


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _round_seconds(rounds: Sequence[RoundResult]) -> list[float]:
    """Seconds of each round. The first round, which starts the clients, counts only if it is the only one."""
    return [r.wall_seconds for r in rounds[1:] or rounds]


# --- cost --------------------------------------------------------------------------------------------------------


def _cost(report: Report) -> _page.Card:
    if not _hides(report):
        return "Cost of encryption", [("nothing", "")], [f"The scheme {report.scheme} does not encrypt."]
    plain = report.beside if report.beside and not _hides(report.beside) else None
    (added, why), (bytes_, sizes) = _added_time(report, plain), _added_bytes(report, plain)
    return "Cost of encryption", [(added, "time"), (bytes_, "bytes up")], [why, sizes]


def _hides(report: Report) -> bool:
    return scheme_class(report.scheme).info.hides


def _added_time(report: Report, plain: Report | None) -> tuple[str, str]:
    """The time that encryption adds, and a sentence that says how this figure is computed."""
    if report.lanes:
        return _UNKNOWN, "Time: not measured, because the times include the simulation of an accelerator."
    ours, theirs = _work(report), _work(plain) if plain else 0.0
    whole = sum(_round_seconds(report.rounds))
    if ours is None or theirs is None or whole <= 0:
        return _UNKNOWN, "Time: not measured, because no client has reported its times to encrypt and decrypt."
    added = ours - theirs
    if added >= whole:
        return _UNKNOWN, "Time: not measured, because clients claim longer times than the rounds took."
    mean, count = _means(report), len(_round_seconds(report.rounds))
    steps = f"encrypt {seconds(mean['encrypt'])} and decrypt {seconds(mean['decrypt'])} in a client"
    steps += f", aggregate {seconds(mean['aggregate'])} on the server, in a round of {seconds(whole / count)}"
    turns = " Simulated clients count one after the other." if report.simulated else ""
    if plain is None:
        # An upper bound in a simulation: it adds up all clients, though some work in parallel. Elsewhere the slowest
        # client is not known.
        figure = f"{'at most' if report.simulated else 'about'} +{share(added / (whole - added))}"
        return figure, f"Time: {steps} (means).{turns} Without encryption a part of these steps remains."
    figure = f"+{share(added / (whole - added))}" if added > 0 else "none measured"
    return figure, f"Time: {steps} (means), less what these steps took under {plain.scheme}.{turns}"


def _work(report: Report) -> float | None:
    """Seconds of encryption in all rounds but the first; None if the time of a step is not known.

    Clients work in parallel, so the mean client counts once. Simulated clients share one machine, so each one counts.
    """
    rounds = report.rounds[1:] or report.rounds
    if any(step not in r.seconds for r in rounds for step in (*_STEPS, "aggregate")):
        return None
    turns = [r.clients if report.simulated else 1 for r in rounds]
    return sum(
        turn * sum(r.seconds[step] for step in _STEPS) + r.seconds["aggregate"]
        for turn, r in zip(turns, rounds, strict=True)
    )


def _means(report: Report) -> dict[str, float]:
    rounds = report.rounds[1:] or report.rounds
    return {step: sum(r.seconds[step] for r in rounds) / len(rounds) for step in (*_STEPS, "aggregate")}


def _added_bytes(report: Report, plain: Report | None) -> tuple[str, str]:
    up = report.totals()["upload_bytes"]
    if not up:
        return _UNKNOWN, "Bytes: not measured, because no client has reported how much it sent."
    if plain and (theirs := plain.totals()["upload_bytes"]):
        of = f"{size(theirs)} under {plain.scheme}"
        return f"{up / theirs - 1:+.1%}", f"Bytes: a client sends {size(up)} a round, against {of}."
    values = max((r.elements for r in report.rounds), default=0.0) * _FLOAT32_BYTES
    if not values:
        return _UNKNOWN, "Bytes: not measured, because the records do not say how many values an update has."
    return f"{up / values - 1:+.1%}", f"Bytes: a client sends {size(up)} a round, against {size(values)} as float32."


# --- precision ---------------------------------------------------------------------------------------------------


def _precision(report: Report) -> _page.Card:
    totals, title = report.totals(), "Precision lost"
    kept, cut = totals.get("kept_fraction"), totals.get("clipped_fraction")
    figures = [(_UNKNOWN, "")]
    if kept is not None:
        figures = [(share(max(0.0, 1 - kept)), "per update")]
    elif cut is not None:
        figures = [(share(cut), "values cut")]
    said = [_coded(report, kept, cut)]
    saturated = sum(r.saturated or 0.0 for r in report.rounds)
    if saturated:
        said.append(f"{saturated:,.0f} values were not finite numbers.")
    if report.beside and report.same_model():
        said.append(f"Encryption lost nothing: the model equals the model of {report.beside.scheme}, bit for bit.")
    return title, figures, said


def _coded(report: Report, kept: float | None, cut: float | None) -> str:
    bits = f"Values are coded in {report.bits}."
    if cut is None:
        why = "the clients' counts are encrypted, and this page has no key for them"
        if report.privacy:
            why = "clients with differential privacy send no counts"
        return f"{bits} Clipping and rounding: not measured, because {why}."
    clipped = f"{share(cut)} of the values were cut to their range."
    if kept is None:
        return f"{bits} {clipped} Rounding: not measured for this kind of update."
    return f"{bits} Rounding and clipping together, in the round that lost most. {clipped}"


# --- missing clients ---------------------------------------------------------------------------------------------


def _missing(report: Report) -> _page.Card:
    runs, lost = _absent(report.rounds), [r for r in report.rounds if r.unfinished]
    figures = [(f"{len(runs)} client{'s' * (len(runs) != 1)}" if runs else "None", "")]
    of = f"of {_rounds(len(report.rounds))}, last in round"
    said = [f"{name}: not in {len(causes)} {of} {max(causes)}: {causes[max(causes)]}" for name, causes in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        said.append(f"{len(runs) - _SHOWN} more clients are listed below.")
    if lost:
        said.append(f"No aggregate in {_rounds(len(lost))}, last in round {lost[-1].round}: {lost[-1].unfinished}")
    return "Missing clients", figures, said or ["Every client that was asked is in the sum of its round."]


def _absent(rounds: Sequence[RoundResult]) -> list[tuple[str, dict[int, str]]]:
    """The clients that were left out, most often first, with the causes by round."""
    found: dict[str, dict[int, str]] = {}
    for r in rounds:
        for said in r.left_out:
            name, _, cause = said.partition(": ")
            found.setdefault(name, {})[r.round] = cause
    return sorted(found.items(), key=lambda pair: -len(pair[1]))
