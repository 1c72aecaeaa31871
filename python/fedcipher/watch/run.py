"""A run's folder as it grows, for who watches it from outside."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fedcipher.app.report import Report, RoundResult
from fedcipher.errors import RunError
from fedcipher.flower.journal import Past, journal_files, read_journal
from fedcipher.flower.run_folder import read_scheme
from fedcipher.foreign_text import MAX_LINE, quoted

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
        files = [path.lstat() for path in journal_files(self.folder) if os.path.lexists(path)]
        seen = [(about.st_ino, about.st_mtime_ns, about.st_size) for about in files]
        if seen != self._seen or self._past.running:
            self._past, self._seen = read_journal(self.folder), seen
        return self._past

    def report(self, past: Past) -> Report:
        """``past`` as a training's report has it. Raises `RunError`."""
        made = Report.begin({"run": quoted(self.folder.name)}, read_scheme(self.folder), "", 0.0)
        # Of who looks at it, not of the server.
        made.machine = {}
        made.rounds = [RoundResult.of(record) for record in past.finished]
        return made

    def state(self) -> str:
        """Changes when there is something new to see."""
        try:
            past = self.past()
        except RunError as error:
            return hashlib.sha256(quoted(error, MAX_LINE).encode()).hexdigest()[:16]
        rounds = [(r.number, r.number in past.ended, r.wall_seconds, r.unfinished, len(r.late)) for r in past.rounds]
        said = repr((past.running, rounds))
        return hashlib.sha256(said.encode()).hexdigest()[:16]
