"""A run's folder as it grows, for who watches it from outside."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedcipher.app.report import Report, RoundResult
from fedcipher.errors import RunError
from fedcipher.flower.journal import Past, journal_files, read_journal
from fedcipher.flower.run_folder import read_scheme

__all__ = ["WatchedRun"]


class WatchedRun:
    """The run in ``folder``, which may not have begun yet, read again only where its journal has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: object = None
        self._past = Past()

    def past(self) -> Past:
        """What its journal says. Raises `RunError` where there is none, or a damaged one."""
        # A server that ends changes nothing, so that whether one runs is always looked up.
        seen = [(path.stat().st_mtime_ns, path.stat().st_size) for path in journal_files(self.folder) if path.exists()]
        if seen != self._seen or self._past.running:
            self._past, self._seen = read_journal(self.folder), seen
        return self._past

    def report(self, past: Past) -> Report:
        """``past`` as a training's report has it. Raises `RunError`."""
        made = Report.begin({"run": self.folder.name}, read_scheme(self.folder), "", 0.0)
        # Of who looks at it, not of the server.
        made.machine = {}
        made.rounds = [RoundResult.of(record) for record in past.finished]
        return made

    def state(self) -> str:
        """Changes when there is something new to see."""
        try:
            past = self.past()
        except RunError as error:
            return hashlib.sha256(str(error).encode()).hexdigest()[:16]
        rounds = [(r.number, r.number in past.ended, r.wall_seconds, r.unfinished, len(r.late)) for r in past.rounds]
        said = repr((past.running, rounds))
        return hashlib.sha256(said.encode()).hexdigest()[:16]
