"""Computes the figures of runs: minimum, average, maximum and sum, and profiles averaged over runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from fedcipher.bench.case import CaseResult, Run
from fedcipher.bench.sampler import POINTS, Profile

__all__ = ["FIGURES", "Figure", "Summary", "averaged", "summarise"]


@dataclass(frozen=True)
class Figure:
    """A figure of a run: its name, its unit, and a function that reads it."""

    name: str
    unit: str
    of: Callable[[Run], float]


@dataclass(frozen=True)
class Summary:
    """The summary of a figure over all runs."""

    minimum: float
    average: float
    maximum: float
    total: float


def _phase(side: str, name: str) -> Callable[[Run], float]:
    def of(run: Run) -> float:
        profile: Profile = getattr(run, side)
        return profile.phases.get(name, 0.0)

    return of


FIGURES = [
    Figure("keygen", "s", lambda run: run.keygen_seconds),
    Figure("encrypt", "s", _phase("client", "encrypt")),
    Figure("send", "s", _phase("client", "send")),
    Figure("load key", "s", _phase("server", "load key")),
    Figure("operate", "s", _phase("server", "operate")),
    Figure("reply", "s", _phase("server", "send")),
    Figure("answer", "s", _phase("client", "answer")),
    Figure("decrypt", "s", _phase("client", "decrypt")),
    Figure("whole run", "s", lambda run: run.client.seconds),
    Figure("client CPU", "s", lambda run: run.client.cpu_seconds),
    Figure("server CPU", "s", lambda run: run.server.cpu_seconds),
    Figure("client memory", "B", lambda run: float(run.client.peak_rss)),
    Figure("server memory", "B", lambda run: float(run.server.peak_rss)),
    Figure("bytes up", "B", lambda run: float(run.client.total("sent"))),
    Figure("bytes down", "B", lambda run: float(run.client.total("received"))),
    Figure("client disk read", "B", lambda run: float(run.client.total("disk_read"))),
    Figure("client disk written", "B", lambda run: float(run.client.total("disk_written"))),
    Figure("server disk read", "B", lambda run: float(run.server.total("disk_read"))),
    Figure("server disk written", "B", lambda run: float(run.server.total("disk_written"))),
    Figure("one update", "B", lambda run: float(run.update_bytes)),
    Figure("one aggregate", "B", lambda run: float(run.aggregate_bytes)),
    Figure("server key", "B", lambda run: float(run.server_key_bytes)),
]
"""Every figure of a report; a phase is summed over all updates of a run."""


def summarise(result: CaseResult) -> dict[str, Summary]:
    """The summary of every figure of a case, by name; empty while there is no run."""
    if not result.runs:
        return {}
    out: dict[str, Summary] = {}
    for figure in FIGURES:
        values = [figure.of(run) for run in result.runs]
        out[figure.name] = Summary(min(values), statistics.fmean(values), max(values), sum(values))
    return out


def averaged(result: CaseResult, side: str, what: str) -> list[float]:
    """``cpu_percent`` or ``rss`` of the ``client`` or ``server`` at `POINTS` steps, averaged over runs."""
    lines = [getattr(run, side).interpolated(what) for run in result.runs]
    return [statistics.fmean(values) for values in zip(*lines, strict=True)] if lines else [0.0] * POINTS
