"""Reserves round numbers, so that none is used twice under one key, even if the clock jumps.

A client's ledger refuses a round that is not later than all rounds before. Numbers come from the clock, so that they
increase even if nothing is stored. The last number is stored as well, because a clock may have been ahead, or two runs
may begin in one second.
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

__all__ = ["clock_advice", "reserve", "reserved_after"]

_log = quoting_log("fedcipher.federation")
_FILE = "round-numbers.json"
_DAY = _native.first_round(86_400)
_MAX_AHEAD = _DAY
"""Clients refuse rounds further ahead of their clocks (``ledger::MAX_AHEAD``), so such numbers are still unused."""


def reserve(count: int) -> int:
    """Reserve ``count`` numbers and return the first. No server with the same state folder gets them again.

    If the numbers cannot be stored, a warning says so, and they come from the clock alone.
    """
    now = _native.first_round(int(time.time()))
    try:
        return _reserve_in(state_dir(), now, count)
    except (FedcipherError, OSError) as error:
        _log.warning(
            "round numbers come from the clock alone: %s. If the clock was ever ahead, clients refuse all rounds", error
        )
        return now


def reserved_after(end: int) -> bool:
    """Whether numbers from ``end`` on have been reserved in this state folder; False if the file cannot be read."""
    try:
        return _next_number(state_dir() / _FILE) > end
    except (FedcipherError, OSError):
        return False


def clock_advice() -> str:
    """Advice if clients refuse all rounds because a clock was ahead; empty if the stored numbers show no such clock."""
    try:
        ahead = _read_numbers(state_dir() / _FILE)["ahead"] - _native.first_round(int(time.time()))
    except (FedcipherError, OSError):
        return ""
    if ahead <= _MAX_AHEAD:
        return ""
    return (
        f"this server once asked for rounds that are {ahead // _DAY} days ahead of its present clock, so the clock was "
        "wrong. Clients whose clocks were also wrong refuse every round until that date. Set the clocks, make new keys "
        "(`fedcipher keygen`, or `fedcipher authority rotate`), and start a new run"
    )


def _reserve_in(folder: Path, now: int, count: int) -> int:
    make_private_folder(folder)
    with wait_locked(folder / f"{_FILE}.lock"):
        drop_drafts(folder)
        path = folder / _FILE
        numbers = _read_numbers(path)
        stored, ahead = numbers["next"], numbers["ahead"]
        first = now if stored - now > _MAX_AHEAD else max(now, stored)
        if first < stored:
            ahead = max(ahead, stored)
        write_whole(path, json.dumps({"next": first + count, "ahead": ahead}).encode())
    if first < stored and (advice := clock_advice()):
        _log.warning("%s", advice)
    return first


def _next_number(path: Path) -> int:
    return _read_numbers(path)["next"]


def _read_numbers(path: Path) -> dict[str, int]:
    """``next``: the next number. ``ahead``: the largest number that was given up as too far ahead, or 0."""
    try:
        numbers: dict[str, Any] = {"ahead": 0, **read_json(path, MAX_NOTE)}
        made = {name: numbers[name] for name in ("next", "ahead")}
    except FileNotFoundError:
        return {"next": 0, "ahead": 0}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it") from error
    if not all(type(number) is int and number >= 0 for number in made.values()):
        raise RunError(f"{path} is damaged; remove it")
    return made
