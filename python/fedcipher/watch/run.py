"""A run's folder as it grows, for who watches it from outside."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fedcipher.app.report import Report, RoundResult
from fedcipher.engine import Engine
from fedcipher.errors import FedcipherError, RunError
from fedcipher.federation.curves import Curves
from fedcipher.federation.server.journal import Past, journal_files, read_journal
from fedcipher.federation.server.run_folder import read_scheme
from fedcipher.foreign_text import MAX_LINE, quoted, quoting_log
from fedcipher.watch.metrics import Metrics

__all__ = ["WatchedRun"]

_log = quoting_log("fedcipher")
_LOOK_SECONDS = 1.0


class WatchedRun:
    """The run in ``folder``, which may not have begun yet, read again only where its journal has changed.

    ``key`` and ``curves`` say who opens its metrics, see `Metrics`.
    """

    def __init__(
        self, folder: Path, key: Path | Engine | None = None, curves: Callable[[], Curves | None] | None = None
    ) -> None:
        self.folder = folder
        self.metrics = Metrics(folder, key, curves)
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

    def opened(self) -> Past:
        """`past` with the metrics that a key opens."""
        return self.metrics.filled(self.past())

    def report(self, past: Past) -> Report:
        """``past`` as a training's report has it. Raises `RunError`."""
        made = Report.begin({"run": quoted(self.folder.name)}, read_scheme(self.folder), "", 0.0)
        # Of who looks at it, not of the server.
        made.machine = {}
        made.rounds = [
            RoundResult.of(record, model=self.metrics.model(record), not_opened=self.metrics.missed(record))
            for record in past.finished
        ]
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

    def open_while(self, ended: threading.Event) -> None:
        """With an engine: open sums as they come, because it opens nothing older than its client has opened."""
        said = ""
        while self.metrics.remembers and not ended.wait(_LOOK_SECONDS):
            try:
                self.metrics.read()
            except FedcipherError as error:
                # Once: the run may not have begun.
                if str(error) != said:
                    said = str(error)
                    _log.info("no metrics are opened yet: %s", said)
