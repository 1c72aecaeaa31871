"""Round numbers: none is asked for twice under a key, whatever the clock says.

A client's ledger refuses a round that is not later than those it has seen. Numbers are of the clock, so that they
increase also where nothing is kept; what is kept is the last one, because a clock may have been ahead, or two runs may
begin in one second.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from fedcipher._files import drop_drafts, make_private_folder, wait_locked, write_whole
from fedcipher.errors import RunError
from fedcipher.foreign_files import MAX_NOTE, read_json
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes.base import state_dir

__all__ = ["asked_after", "reserve"]

_log = quoting_log("fedcipher.flower")
_FILE = "round-numbers.json"
_A_SECOND = 20
"""Bits: more rounds than a server can ask for in one."""
_MOST_AHEAD = 86_400 << _A_SECOND
"""Clients refuse rounds further ahead of their own clocks (``ledger::MOST_AHEAD``), and none of those was used."""


def reserve(count: int) -> int:
    """The first of ``count`` numbers that no server of this user's (`state_dir`) has had, and none will have again.

    Where nothing can be kept, a warning says so, and the numbers are of the clock alone.
    """
    now = int(time.time()) << _A_SECOND
    try:
        return _reserved(state_dir(), now, count)
    except (RunError, OSError) as error:
        _log.warning("round numbers are of the clock alone: %s. If it was ever ahead, clients refuse all rounds", error)
        return now


def asked_after(end: int) -> bool:
    """Whether numbers from ``end`` on have been reserved here; False where nobody knows."""
    try:
        return _kept(state_dir() / _FILE) > end
    except (RunError, OSError):
        return False


def _reserved(folder: Path, now: int, count: int) -> int:
    make_private_folder(folder)
    with wait_locked(folder / f"{_FILE}.lock"):
        drop_drafts(folder)
        path = folder / _FILE
        kept = _kept(path)
        first = now if kept - now > _MOST_AHEAD else max(now, kept)
        write_whole(path, json.dumps({"next": first + count}).encode())
        return first


def _kept(path: Path) -> int:
    try:
        kept = read_json(path, MAX_NOTE)["next"]
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it") from error
    if not isinstance(kept, int) or kept < 0:
        raise RunError(f"{path} is damaged; remove it")
    return kept
