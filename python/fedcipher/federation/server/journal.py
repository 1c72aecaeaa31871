"""The journal of a run's rounds on disk, from which a server that was killed resumes.

The journal is a SQLite file beside the run's aggregates. It uses a rollback journal: between two changes it is one
complete file that can be copied, and it needs no shared memory. A round's number is written before any client is asked,
so that no number is used twice. When a round ends, the journal gets the number of model steps and the state of the
wrapped strategy. Steps in the folder beyond that number were never sent to a client. A server that writes holds the
file ``lock``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedcipher._files import (
    create_private,
    drop_drafts,
    flush_folder,
    is_locked,
    locked,
    refusal,
    unwritten,
    write_whole,
)
from fedcipher.errors import RunError
from fedcipher.federation.records import RoundRecord
from fedcipher.foreign_files import MAX_JOURNAL, MAX_MODEL, check_regular, open_sqlite_copy, parse_json, read_file

__all__ = ["Ended", "Journal", "Past", "journal_files", "read_journal"]

_NAME = "journal.db"
_LOCK = "lock"
_FORMAT = 1
_LOCK_SECONDS = 10.0
"""Seconds to wait while another process reads."""
_DISK_FIX = "free some space, and check the disk"
_COPY_FIX = (
    "copy the whole folder of the run again. If there is no other copy, start a new run from the model of "
    "`fedcipher open`"
)
_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite opens for a database."""
# SQLite stores this text, and `_check_schema` compares it: a change would make every stored journal unreadable.
_TABLE = """CREATE TABLE rounds (
    number INTEGER PRIMARY KEY,  -- of the key's rounds
    record TEXT NOT NULL,
    ended TEXT                   -- NULL while it is under way
) STRICT"""


@dataclass
class Ended:
    """The model after a round that has ended."""

    count: int
    """Number of steps of the chain."""


@dataclass
class Past:
    """The earlier rounds of a journal."""

    rounds: list[RoundRecord] = field(default_factory=list[RoundRecord])
    """All rounds, in order. A round that the server did not finish has ``unfinished`` set."""
    ended: dict[int, Ended] = field(default_factory=dict[int, Ended])
    """The end of each finished round, by the round's number."""
    strategy_state: bytes | None = None
    """State of the wrapped strategy after the last round that ended."""
    running: bool = False
    """Whether a server is writing the journal."""

    @property
    def finished(self) -> list[RoundRecord]:
        """Rounds that have ended, with or without an aggregate."""
        return [record for record in self.rounds if record.number in self.ended]

    @property
    def over(self) -> list[RoundRecord]:
        """Rounds that are not active. This includes rounds that a server left unfinished when it ended."""
        return [record for record in self.rounds if record.number in self.ended or record.unfinished is not None]

    @property
    def newest(self) -> Ended | None:
        """The model after the last round that ended; None if no round has ended."""
        return self.ended[max(self.ended)] if self.ended else None


class Journal:
    """The journal of the run in ``folder``, which only this process may write.

    ``used`` says that the run has a sum, so that a missing journal is an error. Raises `RunError` for a missing journal
    of a used run, if another process is writing the journal, and if it cannot be read or written.
    """

    def __init__(self, folder: Path, *, used: bool = False) -> None:
        self._folder = folder
        self._lock = locked(folder / _LOCK)
        if self._lock is None:
            raise RunError(f"another process is running {folder}: wait until it ends, or stop it")
        base: sqlite3.Connection | None = None
        try:
            drop_drafts(folder)
            for ending in _SUFFIXES:
                check_regular(folder / f"{_NAME}{ending}", MAX_JOURNAL)
            if not (folder / _NAME).exists():
                if used:
                    raise RunError(f"{folder / _NAME} is missing, and the run has aggregates: {_COPY_FIX}")
                _make(folder / _NAME)
            base = _connect(folder / _NAME)
            self.past = _read(base, folder, running=False)
            # An earlier version used SQLite's write-ahead log.
            base.executescript("PRAGMA journal_mode=DELETE; PRAGMA locking_mode=NORMAL")
        except BaseException as error:
            if base is not None:
                base.close()
            self._lock.close()
            if isinstance(error, OSError):
                raise unwritten(folder / _NAME, error) from error
            if isinstance(error, sqlite3.OperationalError):
                raise RunError(f"{folder / _NAME} cannot be written: {error}; {_DISK_FIX}") from error
            if isinstance(error, sqlite3.Error):
                raise _damaged(folder / _NAME, error) from error
            raise
        self._base = base

    def begin(self, record: RoundRecord) -> None:
        """Add the round of ``record``, before any client is asked."""
        self._write("INSERT INTO rounds (number, record) VALUES (?, ?)", record.number, _dump(record))

    def change(self, record: RoundRecord) -> None:
        """Replace the record of a round."""
        self._write("UPDATE rounds SET record = ? WHERE number = ?", _dump(record), record.number)

    def end(self, record: RoundRecord, ended: Ended, strategy_state: bytes | None = None) -> None:
        """Record that a round has ended, with or without an aggregate.

        ``strategy_state`` is the wrapped strategy's state if it has changed.
        """
        if strategy_state is not None:
            write_whole(_state_file(self._folder, record.number), strategy_state)
        self._write(
            "UPDATE rounds SET record = ?, ended = ? WHERE number = ?",
            *(_dump(record), json.dumps(asdict(ended)), record.number),
        )
        if strategy_state is not None:
            for older in self._folder.glob(_state_name("*")):
                if older != _state_file(self._folder, record.number):
                    older.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the journal, so that another process can resume the run."""
        self._base.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self, statement: str, *values: object) -> None:
        try:
            self._base.execute(statement, values)
        except sqlite3.Error as error:
            raise RunError(f"the run's journal cannot be written: {error}; {_DISK_FIX}, then resume the run") from error


def journal_files(folder: Path) -> list[Path]:
    """The files whose times show a change of the journal in ``folder``; an earlier version writes to a log first."""
    return [folder / _NAME, folder / f"{_NAME}-wal"]


def read_journal(folder: Path) -> Past:
    """The earlier rounds in the journal of ``folder``. Raises `RunError` if the journal is missing or damaged."""
    path = folder / _NAME
    try:
        running = is_locked(folder / _LOCK)
        with open_sqlite_copy(path, MAX_JOURNAL) as base:
            return _read(base, folder, running)
    except (FileNotFoundError, NotADirectoryError):
        if any(folder.glob("aggregate-*.fedc")):
            raise RunError(f"{path} is missing, and the run has aggregates: {_COPY_FIX}") from None
        raise RunError(f"{folder} has no journal, so it is not the folder of a run (SecureStrategy's out=)") from None
    except PermissionError as error:
        raise RunError(f"{path} cannot be read: {refusal(error)}") from error
    except (sqlite3.Error, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}; resume the run, or copy its whole folder again") from error


def _make(path: Path) -> None:
    """Create an empty journal atomically.

    Raises `sqlite3.Error` and `OSError`, also if the disk loses the written data.
    """
    draft = path.with_name(f".{path.name}.draft")
    _drop(draft)
    try:
        create_private(draft).close()
        with closing(_connect(draft)) as base:
            base.executescript(f"BEGIN; {_TABLE}; PRAGMA user_version={_FORMAT}; COMMIT")
        with closing(_connect(draft)) as base:
            _check_made(base)
        draft.rename(path)
        flush_folder(path.parent)
    except BaseException:
        _drop(draft)
        raise


def _drop(path: Path) -> None:
    for ending in reversed(_SUFFIXES):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # With the exclusive lock, the log of an earlier version needs no shared memory.
        base.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF; PRAGMA synchronous=FULL")
    except BaseException:
        base.close()
        raise
    return base


def _check_made(base: sqlite3.Connection) -> None:
    """Raise `sqlite3.OperationalError` if a new journal does not read back as it was written."""
    try:
        (version,) = base.execute("PRAGMA user_version").fetchone()
        _check_schema(base)
    except ValueError:
        version = None
    if version != _FORMAT:
        raise sqlite3.OperationalError("the written data is not there")


def _read(base: sqlite3.Connection, folder: Path, running: bool) -> Past:
    path, past = folder / _NAME, Past(running=running)
    try:
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise RunError(f"{path} has format {version}, and this version of Fedcipher reads format {_FORMAT}")
        _check_schema(base)
        rows = list(_rows(base))
        for number, text, ended in rows:
            record = _load(text)
            if ended is not None:
                past.ended[number] = _load_ended(ended)
                with suppress(FileNotFoundError):
                    past.strategy_state = read_file(_state_file(folder, number), MAX_MODEL)
            elif not past.running or number != rows[-1][0]:
                record.unfinished = "the server ended during this round; its updates are not in a sum"
            past.rounds.append(record)
    except sqlite3.OperationalError:
        # An error of the disk or the system: the journal itself may be whole.
        raise
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    return past


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} is damaged: {error}; {_COPY_FIX}")


def _check_schema(base: sqlite3.Connection) -> None:
    """Raise `ValueError` if the database holds more than the journal's table: a view could have endless rows."""
    found = base.execute("SELECT type, name, sql FROM sqlite_master LIMIT 2").fetchall()
    if found != [("table", "rounds", _TABLE)]:
        raise ValueError("it must hold the table of a journal and nothing else")


def _rows(base: sqlite3.Connection) -> Iterator[tuple[int, str, str | None]]:
    """The journal's rows, in order. Raises `ValueError` for rows that a run does not write, or too many of them."""
    last, left = 0, MAX_JOURNAL
    for number, text, ended in base.execute("SELECT number, record, ended FROM rounds ORDER BY number"):
        # Pages that point to each other give the same rows again and again, without end.
        left -= len(text) + len(ended or "")
        if number <= last or left < 0:
            raise ValueError("its rows are not in order, or are more than its file can hold")
        last = number
        yield number, text, ended


def _state_name(number: str) -> str:
    return f"strategy-{number}.npz"


def _state_file(folder: Path, number: int) -> Path:
    return folder / _state_name(str(number))


def _dump(record: RoundRecord) -> str:
    return json.dumps(asdict(record))


def _load(text: str) -> RoundRecord:
    return RoundRecord.parse(parse_json(text))


def _load_ended(text: str) -> Ended:
    values = parse_json(text)
    if set(values) != {"count"} or not all(type(n) is int and n >= 0 for n in values.values()):
        raise ValueError("the end of a round is not in the form that a server writes")
    return Ended(**values)
