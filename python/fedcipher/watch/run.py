"""Reads the folder of a run that is still growing, for a process other than the run's server."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcipher.app.overview import Live
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
_POLL_SECONDS = 1.0


class WatchedRun:
    """The run in ``folder``, which may not have begun yet. Its journal is read again only after a change.

    ``key`` and ``curves`` open its metrics (see `Metrics`); ``settings`` are the settings of a training.
    """

    def __init__(
        self,
        folder: Path,
        key: Path | Engine | None = None,
        curves: Callable[[], Curves | None] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._settings = settings or {"run": quoted(folder.name)}
        self._began = time.time()
        self.metrics = Metrics(folder, key, curves)
        self._seen: object = None
        self._past = Past()

    def past(self) -> Past:
        """The content of the run's journal. Raises `RunError` for a missing or damaged journal."""
        # A server that ends does not change the journal, so a running one is read again every time.
        files = [path.lstat() for path in journal_files(self.folder) if os.path.lexists(path)]
        seen = [(about.st_ino, about.st_mtime_ns, about.st_size) for about in files]
        if seen != self._seen or self._past.running:
            self._past, self._seen = read_journal(self.folder), seen
        return self._past

    def opened(self) -> Past:
        """`past` with the metrics that a key opens."""
        return self.metrics.filled(self.past())

    def report(self, past: Past) -> Report:
        """A training's report of the rounds in ``past``. Raises `RunError`."""
        made = Report.begin(self._settings, read_scheme(self.folder), "", 0.0)
        planned = past.rounds[-1].planned if past.rounds else 0
        made.settings |= {"rounds": planned} if planned else {}
        # `Report.begin` describes this machine, which need not be the server's.
        made.machine = {}
        made.rounds = [
            RoundResult.of(record, model=self.metrics.model(record), not_opened=self.metrics.missed(record))
            for record in past.finished
        ]
        return made

    def live(self, past: Past) -> Live:
        """The server's state according to ``past``."""
        last = past.rounds[-1] if past.rounds else None
        active = last.round if last is not None and last.number not in past.ended else 0
        return Live(past.running, active, self.waited())

    def waited(self) -> float:
        """Seconds since the run's journal last changed or, without a journal, since this object was made."""
        changed = [path.lstat().st_mtime for path in journal_files(self.folder) if os.path.lexists(path)]
        return max(0.0, time.time() - max(changed, default=self._began))

    def is_new(self) -> bool:
        """Whether the server has not begun the run: the folder has at most an empty journal."""
        if (self.folder / "run.json").exists() or any(self.folder.glob("aggregate-*")):
            return False
        try:
            return not any(os.path.lexists(path) for path in journal_files(self.folder)) or not self.past().rounds
        except RunError:
            return False

    def state(self) -> str:
        """A digest that changes when the page has something new to show."""
        try:
            past = self.past()
        except RunError as error:
            return hashlib.sha256(quoted(error, MAX_LINE).encode()).hexdigest()[:16]
        rounds = [(r.number, r.number in past.ended, r.wall_seconds, r.unfinished, len(r.late)) for r in past.rounds]
        said = repr((past.running, rounds))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def open_while(self, ended: threading.Event) -> None:
        """With an engine, open each new sum until ``ended``.

        An engine opens no sum older than its newest one, so a sum that is not opened in time stays closed.
        """
        said = ""
        while self.metrics.is_engine and not ended.wait(_POLL_SECONDS):
            try:
                self.metrics.read()
            except FedcipherError as error:
                # Logged once, because the run may not have begun.
                if str(error) != said:
                    said = str(error)
                    _log.info("no metrics are opened yet: %s", said)
