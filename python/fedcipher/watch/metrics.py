"""A run's rounds with their metrics: those known to the server, and those that a client's key opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedcipher.adapters.flower.wrapped_strategy import aggregate_by
from fedcipher.app.answers import has_app_answers, pool_evaluations
from fedcipher.engine import Engine
from fedcipher.errors import RunError
from fedcipher.federation.charter import Charter
from fedcipher.federation.curves import Curves
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.journal import Past, read_journal
from fedcipher.federation.server.run_folder import read_run
from fedcipher.foreign_text import MAX_NAME, quoted

__all__ = ["Metrics"]

_HIDDEN = "Metrics are encrypted: --key FILE (a client's key file), or --engine, shows them."


class Metrics:
    """The rounds of the run in ``folder``, with the metrics that ``key`` opens; ``key`` may be None.

    ``curves``: a function used instead of ``key``; it gives the `Curves` that open the run, or None while there are
    none. Raises the errors of `Curves`.
    """

    def __init__(
        self, folder: Path, key: str | Path | Engine | None = None, curves: Callable[[], Curves | None] | None = None
    ) -> None:
        self._folder = folder
        made = None if key is None else Curves(folder, key)
        self._curves = curves or (lambda: made)
        self.is_engine = isinstance(key, Engine)
        """Whether the key is an engine, which opens no sum older than the newest one that it has opened."""

    def past(self) -> Past:
        """The run's journal with the opened metrics. Raises the errors of `read_journal` and `Curves.read`."""
        return self.filled(read_journal(self._folder))

    def filled(self, past: Past) -> Past:
        """``past`` with the opened metrics."""
        curves = self.read()
        if curves is None:
            return past
        return replace(past, rounds=[curves.filled(record) for record in past.rounds])

    def read(self) -> Curves | None:
        """Open the run's new sums and return the `Curves`; None without a key."""
        curves = self._curves()
        if curves is None:
            return None
        curves.read()
        if curves.charter is not None and curves.aggregates["evaluate"] is None and has_app_answers(curves.charter):
            curves.aggregates["evaluate"] = aggregate_by(pool_evaluations)
        return curves

    def model(self, record: RoundRecord) -> str:
        """SHA-256 of the model after the round; empty if it was not opened."""
        curves = self._curves()
        opened = None if curves is None else curves.rounds.get(record.round)
        return "" if opened is None else opened.model

    def missed(self, record: RoundRecord) -> str:
        """Why the round's metrics were not opened; empty if they were opened, or if there is no key."""
        curves = self._curves()
        return "" if curves is None else curves.missed.get(record.round, "")

    def figures(self, record: RoundRecord) -> str:
        """One line with the round's metrics that are single numbers."""
        parts = [("", "evaluate"), ("training ", "train"), ("server ", "server")]
        held = [(f"{of}{name}", value) for of, part in parts for name, value in record.metrics.get(part, {}).items()]
        # The names come from an app and are quoted.
        return ", ".join(
            f"{quoted(name, MAX_NAME)} {value:.4g}" for name, value in held if isinstance(value, (int, float))
        )

    def losses(self, record: RoundRecord) -> list[str]:
        """Sentences on values that are missing from the round's opened sums."""
        curves = self._curves()
        return [] if curves is None else curves.losses(record)

    def notice(self) -> str:
        """One line that metrics are encrypted or could not be opened; empty if all metrics are known."""
        curves = self._curves()
        if curves is not None:
            return curves.notice()
        try:
            charter = read_run(self._folder).charter
        except RunError:
            return ""
        return _HIDDEN if charter.reader == "clients" and _answers(charter) else ""


def _answers(charter: Charter) -> bool:
    return any(charter.answers.values())
