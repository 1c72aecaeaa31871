"""What a client must remember, in its key's own state folder: a new run, context or process does not empty it.

One folder an identity: facts in ``facts.json``, the model's position in ``standing.bin``, the one before it in
``earlier.bin``, what an app has made before the ranges for it are known in ``work.bin``, what was cut from an update
in ``cut-0.bin`` and ``cut-1.bin``. Each file is written whole, and is on disk before anything that depends on it
leaves the client.
``site.json``, in the state folder itself, counts over all identities of the site.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._files import drop_drafts, locked, make_private_folder, same_content, write_whole
from fedcipher.errors import CharterError, PrivacyBudgetError, RunError, StateError
from fedcipher.federation.chain import Standing
from fedcipher.federation.charter import Charter
from fedcipher.federation.policy import Policy
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_file

__all__ = ["Store"]

_WAIT_SECONDS = 600.0
_MOST_AHEAD = 86_400
"""Of a run's number, as of a round's (``ledger::MOST_AHEAD``)."""
_FACTS, _STANDING, _EARLIER, _SITE = "facts.json", "standing.bin", "earlier.bin", "site.json"
_WORK, _CUT = "work.bin", ("cut-0.bin", "cut-1.bin")
Arrays = list[NDArray[Any]]
_REMEDY = "what this identity has taken part in is no longer known; use new keys, and leave this folder to its backup"


class Store:
    """The memory of one identity, below ``state``; use it inside `locked`."""

    def __init__(self, state: Path, identity: str) -> None:
        self._site = state
        self._folder = state / "identities" / identity

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes with this identity out. Raises `StateError`, also where others write to the state."""
        make_private_folder(self._folder)
        if why := _native.changeable(self._site):
            raise StateError(f"the state folder {self._site} {why}")
        with _lock(self._folder / "lock"):
            drop_drafts(self._folder)
            yield

    # --- facts -------------------------------------------------------------------------------

    def recall(self) -> dict[str, Any]:
        """All facts. Raises `StateError` where they are damaged."""
        return _read(self._folder / _FACTS)

    def remember(self, **values: Any) -> None:
        """Add facts, durably."""
        write_whole(self._folder / _FACTS, json.dumps({**self.recall(), **values}).encode())

    # --- charters ----------------------------------------------------------------------------

    def accepted(self) -> Charter | None:
        """The charter of the run that this identity takes part in; none before the first."""
        digest = self.recall().get("charter")
        return None if digest is None else Charter.decode(_bytes(self._folder / _charter_name(digest)))

    def accept(self, charter: Charter, policy: Policy, *, counts: bool, signature: bytes = b"") -> None:
        """Take part in ``charter``'s run from here on, which ends every earlier run for ever.

        ``counts`` says whether the policy's number of runs is counted, ``signature`` is a coordinator's. Raises
        `CharterError`.
        """
        facts = self.recall()
        digest = charter.digest.hex()
        if charter.run <= int(facts.get("run", 0)):
            raise CharterError(
                f"the charter's run {charter.run} is not after run {facts['run']}, which this identity has taken part "
                f"in: a later run ends an earlier one for ever{_ahead(int(facts['run']))}"
            )
        _check_date(charter.run)
        policy.judge(charter, signature)
        if counts and policy.runs and not policy.vouched(charter, signature):
            self.count("runs", charter.epoch, digest, policy.runs)
        write_whole(self._folder / _charter_name(digest), charter.encode())
        self.remember(
            run=charter.run, charter=digest, answered=0, index=0, evaluated=[], withdrawn=[], opened=None, waiting=None
        )
        for name in (_STANDING, _EARLIER, _WORK, *_CUT):
            (self._folder / name).unlink(missing_ok=True)
        for path in self._folder.glob(_charter_name("*")):
            if path.name != _charter_name(digest):
                path.unlink(missing_ok=True)

    def count(self, what: str, epoch: int, digest: str, most: int) -> None:
        """Count ``digest`` among the site's ``what`` of a key epoch, once. Raises `CharterError` beyond ``most``."""
        with _lock(self._site / f"{_SITE}.lock"):
            path = self._site / _SITE
            site = _read(path)
            held: list[str] = site.setdefault(what, {}).setdefault(str(epoch), [])
            if digest in held:
                return
            if len(held) >= most:
                raise CharterError(
                    f"this site has had {most} {what} in key epoch {epoch}, which is all that its policy allows: wait "
                    "for the next epoch, or see `fedcipher policy`"
                )
            held.append(digest)
            write_whole(path, json.dumps(site).encode())

    def spend(self, key_set: str, client: int, updates: int, budgets: int) -> None:
        """Count one frame of ``client`` against the site's budgets of differential privacy.

        ``updates``: how many frames of a client one budget of ``key_set`` has. ``budgets``: how many budgets the site
        may spend in all. Key sets add up: their frames may tell of the same data. Clients of one key set hold different
        data, so only the client with the most frames counts. Raises `PrivacyBudgetError`, and counts nothing,
        where the frame would go beyond ``budgets``.
        """
        with _lock(self._site / f"{_SITE}.lock"):
            path = self._site / _SITE
            site = _read(path)
            spent: dict[str, Any] = site.setdefault("privacy", {})
            frames: dict[str, int] = spent.setdefault(key_set, {"updates": updates, "frames": {}})["frames"]
            frames[str(client)] = frames.get(str(client), 0) + 1
            if sum(Fraction(max(held["frames"].values()), held["updates"]) for held in spent.values()) > budgets:
                raise PrivacyBudgetError(
                    f"this site has spent its {budgets} budgets of differential privacy, over all of its keys: every "
                    "update under new keys would tell more of the same data. `privacy_budgets` of the policy allows "
                    "more, and the epsilons add up"
                )
            write_whole(path, json.dumps(site).encode())

    # --- positions ---------------------------------------------------------------------------

    def standing(self) -> Standing | None:
        """The newest position of the accepted charter's run; none before there is one."""
        return self._standing(_STANDING)

    def earlier(self) -> Standing | None:
        """The position before it, where `keep` was given it."""
        return self._standing(_EARLIER)

    def keep(self, standing: Standing, *, earlier: Standing | None = None) -> None:
        """Make ``standing`` the newest position."""
        if earlier is not None:
            write_whole(self._folder / _EARLIER, *_packed(earlier, self._charter_digest()))
        write_whole(self._folder / _STANDING, *_packed(standing, self._charter_digest()))

    def follow(self, standing: Standing) -> None:
        """Make ``standing`` the newest position, and what `standing` has given the one before it."""
        # One more name for the same file: a model is written once a round.
        same_content(self._folder / _STANDING, self._folder / _EARLIER)
        self.keep(standing)

    def _standing(self, name: str) -> Standing | None:
        path = self._folder / name
        # A process that was killed while it accepted a charter has left those of the run before.
        return _unpacked(_bytes(path), path, self._charter_digest()) if path.exists() else None

    def _charter_digest(self) -> str:
        return str(self.recall().get("charter"))

    # --- what an encryptor has not sent ------------------------------------------------------

    def keep_unsent(self, state: bytes) -> None:
        """An encryptor's state, for the next round of this run."""
        write_whole(self._folder / "unsent.bin", self._charter_digest().encode() + b"\n" + state)

    def unsent(self) -> bytes:
        """What `keep_unsent` was given in this run."""
        path = self._folder / "unsent.bin"
        charter, _, state = (_bytes(path) if path.exists() else b"").partition(b"\n")
        return state if charter == self._charter_digest().encode() else b""

    # --- what a clip range has cut -----------------------------------------------------------

    def keep_cut(self, slot: int, arrays: Arrays) -> None:
        """What was cut from an update of this run; two may be kept, in ``slot`` 0 and 1."""
        write_whole(self._folder / _CUT[slot], *_with_arrays({}, [arrays]))

    def cut(self, slot: int) -> Arrays:
        """What `keep_cut` was given; none where that is not there any more. Raises `StateError` where it is damaged."""
        path = self._folder / _CUT[slot]
        return _arrays_in(_bytes(path), path)[1][0] if path.exists() else []

    def drop_cut(self, slot: int) -> None:
        """It is not needed any more."""
        (self._folder / _CUT[slot]).unlink(missing_ok=True)

    # --- what an app has made, before it is encoded -------------------------------------------

    def keep_work(self, name: bytes, content: bytes) -> None:
        """An app's work of this run, until `drop_work`; ``name`` says what it was computed from."""
        write_whole(self._folder / _WORK, b"\n".join([self._charter_digest().encode(), name.hex().encode(), content]))

    def work(self, name: bytes) -> bytes | None:
        """What `keep_work` was given under ``name`` in this run."""
        path = self._folder / _WORK
        if not path.exists():
            return None
        charter, named, content = _bytes(path).split(b"\n", 2)
        return content if (charter, named) == (self._charter_digest().encode(), name.hex().encode()) else None

    def drop_work(self) -> None:
        """It is not needed any more."""
        (self._folder / _WORK).unlink(missing_ok=True)


def _check_date(run: int) -> None:
    """Refuse a run that is dated ahead, as the core refuses such rounds: it would shut out every later one."""
    seconds = _native.round_date(run) or 0
    if seconds > datetime.now(timezone.utc).timestamp() + _MOST_AHEAD:
        raise CharterError(
            f"the charter's run {run} is dated more than a day ahead of this machine's clock: set the server's clock, "
            "or this one's"
        )


def _ahead(run: int) -> str:
    """What to do where a run that was accepted is dated ahead: every clock was wrong then."""
    try:
        _check_date(run)
    except CharterError:
        return (
            ". That run is dated ahead of this machine's clock, so a clock was wrong then: see that the clocks are "
            "right, have new keys made (`fedcipher keygen`, or `fedcipher authority rotate`), and start a new run"
        )
    return ""


@contextmanager
def _lock(path: Path) -> Generator[None]:
    make_private_folder(path.parent)
    until = time.monotonic() + _WAIT_SECONDS
    try:
        while (held := locked(path)) is None:
            if time.monotonic() > until:
                raise StateError(f"{path} stays locked: end the process that has it")
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
        raise StateError(f"{path} cannot be read: {error}; {_REMEDY}") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        held: dict[str, Any] = parse_json(_bytes(path))
        return {**held}
    except (ValueError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_REMEDY}") from error


def _packed(standing: Standing, charter: str) -> list[bytes | memoryview]:
    head = {
        "charter": charter,
        "position": standing.position.hex(),
        "steps": standing.steps,
        "last": standing.last.hex(),
        "moved": standing.moved.hex(),
        "ranges": standing.ranges.hex(),
        "delta": standing.delta is not None,
    }
    return _with_arrays(head, [standing.model, standing.delta or [], *standing.moments])


def _unpacked(content: bytes, path: Path, charter: str) -> Standing | None:
    said, groups = _arrays_in(content, path)
    try:
        if said["charter"] != charter:
            return None
        model, delta, *moments = groups
        return Standing(
            model=[np.array(x) for x in model],
            delta=delta if said["delta"] else None,
            moments=moments,
            ranges=bytes.fromhex(said["ranges"]),
            position=bytes.fromhex(said["position"]),
            steps=int(said["steps"]),
            last=bytes.fromhex(said["last"]),
            moved=bytes.fromhex(said["moved"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_REMEDY}") from error


def _with_arrays(head: dict[str, Any], groups: list[Arrays]) -> list[bytes | memoryview]:
    """A file of arrays: a line with the SHA-256 of the rest, a line of JSON, then the arrays' bytes."""
    said = {**head, "arrays": [[[x.dtype.str, list(x.shape)] for x in group] for group in groups]}
    flat = [np.ascontiguousarray(x).reshape(-1) for group in groups for x in group]
    rest = [json.dumps(said).encode() + b"\n", *(x.view(np.uint8).data for x in flat)]
    digest = hashlib.sha256()
    for part in rest:
        digest.update(part)
    return [digest.hexdigest().encode() + b"\n", *rest]


def _arrays_in(content: bytes, path: Path) -> tuple[dict[str, Any], list[Arrays]]:
    """The head and the groups of arrays of what `_with_arrays` has made."""
    begin = content.find(b"\n") + 1
    end = content.find(b"\n", begin) + 1
    if hashlib.sha256(memoryview(content)[begin:]).hexdigest().encode() != content[: begin - 1]:
        raise StateError(f"{path} is damaged; {_REMEDY}")
    try:
        said: dict[str, Any] = parse_json(content[begin : end - 1])
        groups: list[Arrays] = []
        for group in said["arrays"]:
            made: Arrays = []
            for dtype, shape in group:
                count = int(np.prod(shape, dtype=np.int64))
                held = np.frombuffer(content, dtype, count, end) if count else np.zeros(0, dtype)
                made.append(held.reshape(shape))
                end += held.nbytes
            groups.append(made)
        return said, groups
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged; {_REMEDY}") from error
