"""What a server has asked and got, round by round, on disk: so that one that was killed goes on where it was.

A SQLite file beside the run's aggregates, with a rollback journal, so that between two changes it is one whole file,
to be copied as such, and needs no memory that is shared through the file system. A round's number is in it before
anybody is asked, so that no number is asked for twice. A round that has ended is in it together with how far the model
is and what the wrapped strategy keeps: what the folder has beyond that, nobody was sent. ``lock`` is locked while a
server writes.
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
_BUSY = 10.0
"""Seconds to wait for somebody who reads."""
_ROOM = "make room, and see that its disk works"
_REMEDY = (
    "copy the whole folder of the run again. Where there is no other copy, begin a new run from the model of "
    "`fedcipher open`"
)
_ENDINGS = ("", "-wal", "-shm", "-journal")
"""Of the files that SQLite opens for a database."""
_TABLE = """CREATE TABLE rounds (
    number INTEGER PRIMARY KEY,  -- of the key's rounds
    record TEXT NOT NULL,
    ended TEXT                   -- NULL while it is under way
) STRICT"""


@dataclass
class Ended:
    """How a round ended: the model after it."""

    count: int
    """Steps of the chain."""


@dataclass
class Past:
    """What a journal says of the rounds before."""

    rounds: list[RoundRecord] = field(default_factory=list[RoundRecord])
    """In order; those that were under way when the server ended have ``unfinished``."""
    ended: dict[int, Ended] = field(default_factory=dict[int, Ended])
    """By number."""
    inner: bytes | None = None
    """What the wrapped strategy kept after the last round that ended."""
    running: bool = False
    """Whether a server is writing it."""

    @property
    def finished(self) -> list[RoundRecord]:
        """Rounds that have ended, with or without an aggregate."""
        return [record for record in self.rounds if record.number in self.ended]

    @property
    def over(self) -> list[RoundRecord]:
        """Rounds that are not under way: also those in the middle of which the server has ended."""
        return [record for record in self.rounds if record.number in self.ended or record.unfinished is not None]

    @property
    def newest(self) -> Ended | None:
        """The model that the run is at."""
        return self.ended[max(self.ended)] if self.ended else None


class Journal:
    """The journal of the run in ``folder``, to be written by this process alone.

    ``used``: the run has summed something, so that a journal that is not there is lost. Raises `RunError` for that,
    and where another process writes it, or it cannot be written or read.
    """

    def __init__(self, folder: Path, *, used: bool = False) -> None:
        self._folder = folder
        self._lock = locked(folder / _LOCK)
        if self._lock is None:
            raise RunError(f"another process is running {folder}: wait for it, or end it")
        base: sqlite3.Connection | None = None
        try:
            drop_drafts(folder)
            for ending in _ENDINGS:
                check_regular(folder / f"{_NAME}{ending}", MAX_JOURNAL)
            if not (folder / _NAME).exists():
                if used:
                    raise RunError(f"{folder / _NAME} is missing, and the run has aggregates: {_REMEDY}")
                _make(folder / _NAME)
            base = _connect(folder / _NAME)
            self.past = _read(base, folder, running=False)
            # Of a version that kept a log beside it.
            base.executescript("PRAGMA journal_mode=DELETE; PRAGMA locking_mode=NORMAL")
        except BaseException as error:
            if base is not None:
                base.close()
            self._lock.close()
            if isinstance(error, OSError):
                raise unwritten(folder / _NAME, error) from error
            if isinstance(error, sqlite3.OperationalError):
                raise RunError(f"{folder / _NAME} cannot be written: {error}; {_ROOM}") from error
            if isinstance(error, sqlite3.Error):
                raise _damaged(folder / _NAME, error) from error
            raise
        self._base = base

    def begin(self, record: RoundRecord) -> None:
        """``record``'s round is about to be asked for."""
        self._write("INSERT INTO rounds (number, record) VALUES (?, ?)", record.number, _dump(record))

    def change(self, record: RoundRecord) -> None:
        """There is more to say of a round."""
        self._write("UPDATE rounds SET record = ? WHERE number = ?", _dump(record), record.number)

    def end(self, record: RoundRecord, ended: Ended, inner: bytes | None = None) -> None:
        """A round has ended, with or without an aggregate; ``inner``, if it is new, is what the strategy keeps."""
        if inner is not None:
            write_whole(_inner_of(self._folder, record.number), inner)
        self._write(
            "UPDATE rounds SET record = ?, ended = ? WHERE number = ?",
            *(_dump(record), json.dumps(asdict(ended)), record.number),
        )
        if inner is not None:
            for older in self._folder.glob(_inner_name("*")):
                if older != _inner_of(self._folder, record.number):
                    older.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process go on with the run."""
        self._base.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self, statement: str, *values: object) -> None:
        try:
            self._base.execute(statement, values)
        except sqlite3.Error as error:
            raise RunError(f"the run's journal cannot be written: {error}; {_ROOM}, then resume the run") from error


def journal_files(folder: Path) -> list[Path]:
    """What changes whenever the journal in ``folder`` does; an earlier version writes to a log first."""
    return [folder / _NAME, folder / f"{_NAME}-wal"]


def read_journal(folder: Path) -> Past:
    """What the journal in ``folder`` says. Raises `RunError` where there is none, or a damaged one."""
    path = folder / _NAME
    try:
        running = is_locked(folder / _LOCK)
        with open_sqlite_copy(path, MAX_JOURNAL) as base:
            return _read(base, folder, running)
    except (FileNotFoundError, NotADirectoryError):
        if any(folder.glob("aggregate-*.fedc")):
            raise RunError(f"{path} is missing, and the run has aggregates: {_REMEDY}") from None
        raise RunError(f"{folder} has no journal: it is no folder of a run (SecureStrategy's out=)") from None
    except PermissionError as error:
        raise RunError(f"{path} cannot be read: {refusal(error)}") from error
    except (sqlite3.Error, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}; resume the run, or copy its whole folder again") from error


def _make(path: Path) -> None:
    """An empty journal, whole or not at all. Raises `sqlite3.Error` and `OSError`, also where a disk loses what is
    written to it."""
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
    for ending in reversed(_ENDINGS):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        # Alone, so that the log of an earlier version needs no shared memory.
        base.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF; PRAGMA synchronous=FULL")
    except BaseException:
        base.close()
        raise
    return base


def _check_made(base: sqlite3.Connection) -> None:
    """Raises `sqlite3.OperationalError` where a new journal does not read as it was written."""
    try:
        (version,) = base.execute("PRAGMA user_version").fetchone()
        _check_schema(base)
    except ValueError:
        version = None
    if version != _FORMAT:
        raise sqlite3.OperationalError("what was written to it is not there")


def _read(base: sqlite3.Connection, folder: Path, running: bool) -> Past:
    path, past = folder / _NAME, Past(running=running)
    try:
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise RunError(f"{path} is of format {version}, this version of Fedcipher reads {_FORMAT}")
        _check_schema(base)
        rows = list(_rows(base))
        for number, said, ended in rows:
            record = _load(said)
            if ended is not None:
                past.ended[number] = _load_ended(ended)
                with suppress(FileNotFoundError):
                    past.inner = read_file(_inner_of(folder, number), MAX_MODEL)
            elif not past.running or number != rows[-1][0]:
                record.unfinished = "the server ended in the middle of it; its updates are in no sum"
            past.rounds.append(record)
    except sqlite3.OperationalError:
        # The disk's, or the system's.
        raise
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    return past


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} is damaged: {error}; {_REMEDY}")


def _check_schema(base: sqlite3.Connection) -> None:
    """Raises `ValueError` where the database holds anything but our table: a view may have rows without end."""
    found = base.execute("SELECT type, name, sql FROM sqlite_master LIMIT 2").fetchall()
    if found != [("table", "rounds", _TABLE)]:
        raise ValueError("it does not hold the table of a journal, and nothing else")


def _rows(base: sqlite3.Connection) -> Iterator[tuple[int, str, str | None]]:
    """The journal's rows, in order. Raises `ValueError` for more or other rows than a run makes."""
    last, left = 0, MAX_JOURNAL
    for number, said, ended in base.execute("SELECT number, record, ended FROM rounds ORDER BY number"):
        # Pages that lead to each other have rows without end, and say the same again.
        left -= len(said) + len(ended or "")
        if number <= last or left < 0:
            raise ValueError("its rows are not in order, or are more than its file can hold")
        last = number
        yield number, said, ended


def _inner_name(number: str) -> str:
    return f"strategy-{number}.npz"


def _inner_of(folder: Path, number: int) -> Path:
    return folder / _inner_name(str(number))


def _dump(record: RoundRecord) -> str:
    return json.dumps(asdict(record))


def _load(said: str) -> RoundRecord:
    return RoundRecord.parse(parse_json(said))


def _load_ended(said: str) -> Ended:
    values = parse_json(said)
    if set(values) != {"count"} or not all(type(n) is int and n >= 0 for n in values.values()):
        raise ValueError("how a round ended is not what a server writes")
    return Ended(**values)
