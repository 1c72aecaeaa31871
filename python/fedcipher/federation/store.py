"""A client's memory, in its key's own state folder. New runs, contexts and processes find the same state.

Each identity has one folder with these files:

- ``facts.json``: facts, such as the run that the client takes part in;
- ``standing.bin`` and ``earlier.bin``: the newest state of the model, and the state before;
- ``work.bin``: the app's result, until its ranges are known and it is encoded;
- ``cut-0.bin`` and ``cut-1.bin``: the values that clip ranges have cut from an update;
- ``unsent.bin``: what an encryptor has not sent yet.

Each file is written whole. It is on disk before anything that depends on it leaves the client. ``site.json``, in the
state folder itself, has counts over all identities of the site.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from fractions import Fraction
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._files import drop_drafts, locked, make_private_folder, same_content, write_whole
from fedcipher.errors import CharterError, PrivacyBudgetError, RunError, StateError
from fedcipher.federation.chain import ChainState
from fedcipher.federation.charter import Charter
from fedcipher.federation.policy import Policy
from fedcipher.foreign_files import MAX_INDEX, MAX_MODEL, open_file, parse_json, read_file

__all__ = ["Store"]

_WAIT_SECONDS = 600.0
_MAX_AHEAD = 86_400
"""Seconds that a run's number may be dated ahead. The core's ledgers allow rounds the same (``ledger::MAX_AHEAD``)."""
_FACTS, _NEWEST, _PREVIOUS, _SITE = "facts.json", "standing.bin", "earlier.bin", "site.json"
_WORK, _CUT = "work.bin", ("cut-0.bin", "cut-1.bin")
Arrays = list[NDArray[Any]]
_DIGEST_LINE = 65
"""Bytes of the line with which a file of arrays begins: a SHA-256 in hexadecimal."""
_FIX = "the runs of this identity are no longer known; use new keys, and do not restore this folder from a copy"


class Store:
    """The memory of one identity, below the folder ``state``. Use it inside `locked`."""

    def __init__(self, state: Path, identity: str) -> None:
        self._site = state
        self._folder = state / "identities" / identity

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep out other processes with this identity.

        Raises `StateError` if the lock stays taken for ten minutes, or if other users may write to the state folder.
        """
        make_private_folder(self._folder)
        if why := _native.changeable(self._site):
            raise StateError(f"the state folder {self._site} {why}")
        with _lock(self._folder / "lock"):
            drop_drafts(self._folder)
            yield

    # --- facts -------------------------------------------------------------------------------

    def recall(self) -> dict[str, Any]:
        """All facts. Raises `StateError` if their file is damaged."""
        return _read(self._folder / _FACTS)

    def remember(self, **values: Any) -> None:
        """Add facts to the file, or replace them; they are on disk when this returns."""
        write_whole(self._folder / _FACTS, json.dumps({**self.recall(), **values}).encode())

    # --- charters ----------------------------------------------------------------------------

    def accepted(self) -> Charter | None:
        """The charter of the run that this identity takes part in; None before the first run."""
        digest = self.recall().get("charter")
        return None if digest is None else Charter.decode(_bytes(self._folder / _charter_name(digest)))

    def accept(self, charter: Charter, policy: Policy, *, counts: bool, signature: bytes = b"") -> None:
        """Take part in ``charter``'s run from now on. This ends every earlier run of this identity.

        ``counts``: whether the run counts against the policy's number of runs. ``signature``: a coordinator's, if there
        is one. Raises `CharterError` for an earlier run, a run dated ahead, or a charter that ``policy`` does not
        accept.
        """
        facts = self.recall()
        digest = charter.digest.hex()
        if charter.run <= int(facts.get("run", 0)):
            raise CharterError(
                f"the charter's run {charter.run} is not after run {facts['run']}, which this identity has taken part "
                f"in: a later run ends all earlier ones{_ahead(int(facts['run']))}"
            )
        _check_date(charter.run)
        policy.judge(charter, signature)
        if counts and policy.runs and not policy.vouched(charter, signature):
            self.count("runs", charter.epoch, digest, policy.runs)
        write_whole(self._folder / _charter_name(digest), charter.encode())
        self.remember(
            run=charter.run, charter=digest, answered=0, index=0, evaluated=[], withdrawn=[], opened=None, waiting=None
        )
        for name in (_NEWEST, _PREVIOUS, _WORK, *_CUT):
            (self._folder / name).unlink(missing_ok=True)
        for path in self._folder.glob(_charter_name("*")):
            if path.name != _charter_name(digest):
                path.unlink(missing_ok=True)

    def count(self, what: str, epoch: int, digest: str, most: int) -> None:
        """Count ``digest`` once among the site's ``what`` of a key epoch. Raises `CharterError` beyond ``most``."""
        with _lock(self._site / f"{_SITE}.lock"):
            path = self._site / _SITE
            site = _read(path)
            held: list[str] = site.setdefault(what, {}).setdefault(str(epoch), [])
            if digest in held:
                return
            if len(held) >= most:
                raise CharterError(
                    f"this site has had {most} {what} in key epoch {epoch}, as many as its policy allows: wait for the "
                    "next epoch, or see `fedcipher policy`"
                )
            held.append(digest)
            write_whole(path, json.dumps(site).encode())

    def charge_privacy_budget(self, key_set: str, client: int, updates: int, budgets: int) -> None:
        """Count one frame of ``client`` against the site's budgets of differential privacy.

        ``updates``: the number of frames of a client that one budget of ``key_set`` allows. ``budgets``: the number of
        budgets that the site may use in total. The use of several key sets adds up, because their frames may come from
        the same data. Clients of one key set hold different data, so only the client with the most frames counts.
        Raises `PrivacyBudgetError`, and counts nothing, if the frame would exceed ``budgets``.
        """
        with _lock(self._site / f"{_SITE}.lock"):
            path = self._site / _SITE
            site = _read(path)
            used: dict[str, Any] = site.setdefault("privacy", {})
            frames: dict[str, int] = used.setdefault(key_set, {"updates": updates, "frames": {}})["frames"]
            frames[str(client)] = frames.get(str(client), 0) + 1
            if sum(Fraction(max(held["frames"].values()), held["updates"]) for held in used.values()) > budgets:
                raise PrivacyBudgetError(
                    f"this site has used its {budgets} budgets of differential privacy, over all of its keys: every "
                    "update under new keys would reveal more of the same data. `privacy_budgets` of the policy allows "
                    "more, and the epsilons add up"
                )
            write_whole(path, json.dumps(site).encode())

    # --- states of the model -----------------------------------------------------------------

    def newest_state(self) -> ChainState | None:
        """The newest state in the accepted charter's run; None before there is one."""
        return self._state(_NEWEST)

    def previous_state(self) -> ChainState | None:
        """The state before the newest one; None if it was not saved."""
        return self._state(_PREVIOUS)

    def save_state(self, state: ChainState, *, previous: ChainState | None = None) -> None:
        """Make ``state`` the newest one, and ``previous``, if given, the one before."""
        if previous is not None:
            write_whole(self._folder / _PREVIOUS, *_packed(previous, self._charter_digest()))
        write_whole(self._folder / _NEWEST, *_packed(state, self._charter_digest()))

    def advance_to(self, state: ChainState) -> None:
        """Make ``state`` the newest one, and the newest one so far the previous one."""
        # A second name for the same file saves one write of the model in each round.
        same_content(self._folder / _NEWEST, self._folder / _PREVIOUS)
        self.save_state(state)

    def _state(self, name: str) -> ChainState | None:
        path = self._folder / name
        # If a process is killed while it accepts a charter, the states of the run before are still there.
        return _unpacked(path, self._charter_digest()) if path.exists() else None

    def _charter_digest(self) -> str:
        return str(self.recall().get("charter"))

    # --- values that an encryptor has not sent -----------------------------------------------

    def keep_unsent(self, state: bytes) -> None:
        """Save an encryptor's state for the next round of this run."""
        write_whole(self._folder / "unsent.bin", self._charter_digest().encode() + b"\n" + state)

    def unsent(self) -> bytes:
        """The state that `keep_unsent` saved in this run; empty if there is none."""
        path = self._folder / "unsent.bin"
        charter, _, state = (_bytes(path) if path.exists() else b"").partition(b"\n")
        return state if charter == self._charter_digest().encode() else b""

    # --- values that a clip range has cut ----------------------------------------------------

    def keep_cut(self, slot: int, arrays: Arrays) -> None:
        """Save in ``slot``, 0 or 1, what was cut from an update of this run."""
        write_whole(self._folder / _CUT[slot], *_with_arrays({}, [arrays]))

    def cut(self, slot: int) -> Arrays:
        """The arrays that `keep_cut` saved; an empty list if none. Raises `StateError` if they are damaged."""
        path = self._folder / _CUT[slot]
        return _arrays_in(path)[1][0] if path.exists() else []

    def drop_cut(self, slot: int) -> None:
        """Delete what `keep_cut` saved in ``slot``."""
        (self._folder / _CUT[slot]).unlink(missing_ok=True)

    # --- the app's result, before it is encoded ----------------------------------------------

    def keep_work(self, name: bytes, content: bytes) -> None:
        """Save the app's result of this run until `drop_work`; ``name`` identifies what it was computed from."""
        write_whole(self._folder / _WORK, b"\n".join([self._charter_digest().encode(), name.hex().encode(), content]))

    def work(self, name: bytes) -> bytes | None:
        """The result that `keep_work` saved under ``name`` in this run; None if there is none."""
        path = self._folder / _WORK
        if not path.exists():
            return None
        charter, named, content = _bytes(path).split(b"\n", 2)
        return content if (charter, named) == (self._charter_digest().encode(), name.hex().encode()) else None

    def drop_work(self) -> None:
        """Delete what `keep_work` saved."""
        (self._folder / _WORK).unlink(missing_ok=True)


def _check_date(run: int) -> None:
    """Refuse a run that is dated ahead, like the core refuses such rounds: it would block every later run."""
    seconds = _native.round_date(run) or 0
    if seconds > datetime.now(timezone.utc).timestamp() + _MAX_AHEAD:
        raise CharterError(
            f"the charter's run {run} is dated more than a day ahead of this machine's clock: correct the server's "
            "clock or this machine's"
        )


def _ahead(run: int) -> str:
    """Advice if an accepted run is dated ahead, else empty. At least one clock was wrong when it was accepted."""
    try:
        _check_date(run)
    except CharterError:
        return (
            ". That run is dated ahead of this machine's clock, so a clock was wrong then: correct the clocks, have "
            "new keys made (`fedcipher keygen`, or `fedcipher authority rotate`), and start a new run"
        )
    return ""


@contextmanager
def _lock(path: Path) -> Generator[None]:
    make_private_folder(path.parent)
    until = time.monotonic() + _WAIT_SECONDS
    try:
        while (held := locked(path)) is None:
            if time.monotonic() > until:
                raise StateError(f"{path} stays locked: end the process that holds the lock")
            time.sleep(0.005)
    except RunError as error:
        raise StateError(str(error)) from error
    with held:
        yield


def _charter_name(digest: str) -> str:
    return f"charter-{digest}.json"


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path, MAX_MODEL)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}; {_FIX}") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        held: dict[str, Any] = parse_json(_bytes(path))
        return {**held}
    except (ValueError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_FIX}") from error


def _packed(state: ChainState, charter: str) -> list[bytes | memoryview]:
    head = {
        "charter": charter,
        "position": state.position.hex(),
        "steps": state.steps,
        "last": state.last.hex(),
        "moved": state.moved.hex(),
        "ranges": state.ranges.hex(),
        "delta": state.delta is not None,
    }
    return _with_arrays(head, [state.model, state.delta or [], *state.moments])


def _unpacked(path: Path, charter: str) -> ChainState | None:
    head, groups = _arrays_in(path)
    try:
        if head["charter"] != charter:
            return None
        model, delta, *moments = groups
        return ChainState(
            model=model,
            delta=delta if head["delta"] else None,
            moments=moments,
            ranges=bytes.fromhex(head["ranges"]),
            position=bytes.fromhex(head["position"]),
            steps=int(head["steps"]),
            last=bytes.fromhex(head["last"]),
            moved=bytes.fromhex(head["moved"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_FIX}") from error


def _with_arrays(head: dict[str, Any], groups: list[Arrays]) -> list[bytes | memoryview]:
    """A file of arrays: a line with the SHA-256 of the rest, a line of JSON, then the arrays' bytes."""
    head = {**head, "arrays": [[[x.dtype.str, list(x.shape)] for x in group] for group in groups]}
    flat = [np.ascontiguousarray(x).reshape(-1) for group in groups for x in group]
    rest = [json.dumps(head).encode() + b"\n", *(x.view(np.uint8).data for x in flat)]
    digest = hashlib.sha256()
    for part in rest:
        digest.update(part)
    return [digest.hexdigest().encode() + b"\n", *rest]


def _arrays_in(path: Path) -> tuple[dict[str, Any], list[Arrays]]:
    """The head and the groups of arrays in the file ``path`` of `_with_arrays`. Raises `StateError` if it is damaged.

    Each array is read into memory of its own, which is freed with the array.
    """
    try:
        with open_file(path, MAX_MODEL) as file:
            expected, line = file.readline(_DIGEST_LINE), file.readline(MAX_INDEX)
            left = os.fstat(file.fileno()).st_size - len(expected) - len(line)
            digest, head = hashlib.sha256(line), cast("dict[str, Any]", parse_json(line))
            groups: list[Arrays] = []
            for group in head["arrays"]:
                groups.append([])
                for dtype, shape in group:
                    array = _array_in(file, dtype, shape, left)
                    digest.update(array.reshape(-1).view(np.uint8).data)
                    left -= array.nbytes
                    groups[-1].append(array)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}; {_FIX}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_FIX}") from error
    if left or digest.hexdigest().encode() + b"\n" != expected:
        raise StateError(f"{path} is damaged; {_FIX}")
    return head, groups


def _array_in(file: BufferedReader, dtype: str, shape: Sequence[int], left: int) -> NDArray[Any]:
    """The next array of ``file``, which has ``left`` bytes. Raises `ValueError` for a larger array."""
    count = math.prod(shape)
    if not 0 <= count * np.dtype(dtype).itemsize <= left:
        raise ValueError("the head names more bytes than there are")
    array = np.empty(count, dtype)
    if file.readinto(array.view(np.uint8).data) != array.nbytes:
        raise ValueError("the file has become shorter")
    return array.reshape(shape)
