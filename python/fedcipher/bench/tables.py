"""Tables of a measurement, as text."""

from __future__ import annotations

from fedcipher._units import seconds, size
from fedcipher.bench.statistics import FIGURES, summarise
from fedcipher.bench.study import Study

__all__ = ["overview", "problems"]


_COLUMNS = (
    *("keygen", "encrypt", "operate", "decrypt", "whole run"),
    *("one update", "one aggregate", "client CPU", "server CPU", "client memory", "server memory"),
)


def overview(study: Study) -> list[list[str]]:
    """The table of averages, its head first."""
    units = {figure.name: figure.unit for figure in FIGURES}
    rows = [["case", "runs", *_COLUMNS]]
    for result in study.results:
        summary = summarise(result)
        if not summary:
            rows.append([result.case.label, "0", result.failure, *[""] * (len(_COLUMNS) - 1)])
            continue
        values = [(seconds if units[c] == "s" else size)(summary[c].average) for c in _COLUMNS]
        rows.append([result.case.label, str(len(result.runs)), *values])
    return rows


def problems(study: Study) -> list[str]:
    """Sentences on cases that did not finish, with the reason."""
    out = [
        f"{result.case.label}: {len(result.runs)} of {study.runs} runs; {result.failure}"
        for result in study.results
        if result.failure
    ]
    return out + (["The study was interrupted; these are the results so far."] if study.interrupted else [])
