"""Round numbers: none is asked for twice under a key, whatever the clock says.

A client's ledger refuses a round that is not later than those it has seen. Numbers are of the clock, so that they
increase also where nothing is kept; what is kept is the last one, because a clock may have been ahead, or two runs may
begin in one second.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher._files import drop_drafts, make_private_folder, wait_locked, write_whole
from fedcipher.errors import FedcipherError, RunError
from fedcipher.foreign_files import MAX_NOTE, read_json
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes.base import state_dir

__all__ = ["asked_after", "clock_advice", "reserve"]

_log = quoting_log("fedcipher.federation")
_FILE = "round-numbers.json"
_A_DAY = _native.first_round(86_400)
_MOST_AHEAD = _A_DAY
"""Clients refuse rounds further ahead of their own clocks (``ledger::MOST_AHEAD``), and none of those was used."""


def reserve(count: int) -> int:
    """The first of ``count`` numbers that no server of this user's (`state_dir`) has had, and none will have again.

    Where nothing can be kept, a warning says so, and the numbers are of the clock alone.
    """
    now = _native.first_round(int(time.time()))
    try:
        return _reserved(state_dir(), now, count)
    except (FedcipherError, OSError) as error:
        _log.warning("round numbers are of the clock alone: %s. If it was ever ahead, clients refuse all rounds", error)
        return now


def asked_after(end: int) -> bool:
    """Whether numbers from ``end`` on have been reserved here; False where nobody knows."""
    try:
        return _kept(state_dir() / _FILE) > end
    except (FedcipherError, OSError):
        return False


def clock_advice() -> str:
    """What to do where clients refuse all rounds because a clock was ahead once; empty where none is known of."""
    try:
        ahead = _said(state_dir() / _FILE)["ahead"] - _native.first_round(int(time.time()))
    except (FedcipherError, OSError):
        return ""
    if ahead <= _MOST_AHEAD:
        return ""
    return (
        f"this server once asked for rounds that are {ahead // _A_DAY} days ahead of its clock now, so a clock was "
        "wrong then. Clients whose clocks were wrong too refuse every round until that date: see that the clocks are "
        "right, have new keys made (`fedcipher keygen`, or `fedcipher authority rotate`), and start a new run"
    )


def _reserved(folder: Path, now: int, count: int) -> int:
    make_private_folder(folder)
    with wait_locked(folder / f"{_FILE}.lock"):
        drop_drafts(folder)
        path = folder / _FILE
        said = _said(path)
        kept, ahead = said["next"], said["ahead"]
        first = now if kept - now > _MOST_AHEAD else max(now, kept)
        if first < kept:
            ahead = max(ahead, kept)
        write_whole(path, json.dumps({"next": first + count, "ahead": ahead}).encode())
    if first < kept and (advice := clock_advice()):
        _log.warning("%s", advice)
    return first


def _kept(path: Path) -> int:
    return _said(path)["next"]


def _said(path: Path) -> dict[str, int]:
    """The next number, and the furthest that was given up because no clock is there yet; 0 for none."""
    try:
        said: dict[str, Any] = {"ahead": 0, **read_json(path, MAX_NOTE)}
        made = {name: said[name] for name in ("next", "ahead")}
    except FileNotFoundError:
        return {"next": 0, "ahead": 0}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it") from error
    if not all(type(number) is int and number >= 0 for number in made.values()):
        raise RunError(f"{path} is damaged; remove it")
    return made
