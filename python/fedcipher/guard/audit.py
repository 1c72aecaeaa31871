"""Checks logs against each other, against a run's folder, and against the keys of their sites; needs no network.

All these files come from other parties. A log proves what its site has signed. It does not
prove that the site wrote everything down: that follows from other logs, and from heads that others have kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fedcipher import _native
from fedcipher._files import refusal
from fedcipher.errors import FedcipherError, RunError, StateError
from fedcipher.federation.client.evidence import APPROVAL, CHARTER, FRAME, OPENED, QUERY, REFUSAL
from fedcipher.federation.server.journal import read_journal
from fedcipher.federation.server.run_folder import StoredRun, read_run
from fedcipher.foreign_text import MAX_LINE, MAX_NAME, quoted
from fedcipher.frame import inspect
from fedcipher.guard.log import START, Head, Line, Parsed, parse_log, read_log

__all__ = ["Audit", "Fate", "Opened", "SiteLog", "Sum", "audit"]

_MAX_NUMBER = 2**64
Rule = Callable[[Any], bool]


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_NUMBER


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _are_clients(value: Any) -> bool:
    pairs = cast("list[Any]", value) if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list) and list(map(_is_number, cast("list[Any]", pair))) == [True] * 2 for pair in pairs
    )


def _are_sums(value: Any) -> bool:
    rules = {"round": _is_number, "clients": _are_clients, "sha256": _is_digest, "opened": _is_truth}
    return isinstance(value, list) and all(_fits(each, rules) for each in cast("list[Any]", value))


def _fits(facts: Any, rules: Mapping[str, Rule]) -> bool:
    return (
        isinstance(facts, dict)
        and set(cast("dict[str, Any]", facts)) == set(rules)
        and all(rule(facts[name]) for name, rule in rules.items())
    )


_KEYS = {"key_set": _is_text, "epoch": _is_number, "context": _is_digest}
_RULES: Mapping[str, Mapping[str, Rule]] = {
    START: {
        "fedcipher_log": lambda value: value == 1,
        "log": lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None,
        "key_set": _is_text,
        "epoch": _is_number,
        "scheme": _is_text,
        "client": _is_number,
        "verify": _is_digest,
    },
    CHARTER: {
        **_KEYS,
        "charter": _is_digest,
        "run": _is_number,
        "rounds": _is_number,
        "reader": _is_text,
        "sets_models": _is_truth,
    },
    QUERY: {**_KEYS, "charter": _is_digest, "round": _is_number},
    APPROVAL: {"charter": _is_digest, "app": _is_text, "settings": _is_text, "by": _is_text},
    FRAME: {
        "charter": _is_digest,
        "purpose": _is_text,
        "index": _is_number,
        "round": _is_number,
        "bound": _is_digest,
        "sha256": _is_digest,
        "bytes": _is_number,
    },
    OPENED: {
        "charter": _is_digest,
        "purpose": _is_text,
        "index": _is_number,
        "bound": _is_digest,
        "before": _is_digest,
        "after": _is_digest,
        "sums": _are_sums,
    },
    REFUSAL: {"reference": _is_text},
}
"""The facts of each kind of line."""


@dataclass(frozen=True)
class Sum:
    """A sum as its header states it: its round number, its clients, and whether it opened."""

    round: int
    clients: tuple[int, ...]
    opened: bool


@dataclass(frozen=True)
class Opened:
    """A line of opened sums. ``withdrawn`` says that the site opened other sums from the same position later."""

    charter: str
    purpose: str
    index: int
    bound: str
    before: str
    after: str
    sums: tuple[Sum, ...]
    withdrawn: bool = False


@dataclass
class SiteLog:
    """One log whose lines are those that its head signs."""

    name: str
    parsed: Parsed
    lines: list[Line]

    @property
    def start(self) -> Mapping[str, Any]:
        """The facts of the first line, which name the site's key."""
        return self.lines[0].facts

    @property
    def key(self) -> tuple[str, int]:
        """The key set and the client's number."""
        return self.start["key_set"], self.start["client"]

    @property
    def site(self) -> str:
        """The site's name in a report."""
        return f"client {self.start['client']} ({self.name})"

    def of(self, *kinds: str) -> Iterator[Mapping[str, Any]]:
        """The facts of the lines of these ``kinds``, in order."""
        return (line.facts for line in self.lines if line.kind in kinds)

    @property
    def opened(self) -> list[Opened]:
        """The lines of opened sums, in order."""
        made: list[Opened] = []
        later: set[tuple[str, ...]] = set()
        for facts in reversed(list(self.of(OPENED))):
            at = facts["charter"], facts["purpose"], facts["before"]
            sums = tuple(Sum(s["round"], tuple(sorted(c for c, _ in s["clients"])), s["opened"]) for s in facts["sums"])
            withdrawn = facts["purpose"] != "evaluate" and at in later
            later.add(at)
            named = {name: facts[name] for name in ("charter", "purpose", "index", "bound", "before", "after")}
            made.append(Opened(**named, sums=sums, withdrawn=withdrawn))
        return made[::-1]


@dataclass(frozen=True)
class Fate:
    """The fate of one frame of a site."""

    site: str
    client: int
    facts: Mapping[str, Any]
    in_sum: bool | None
    """Whether the frame is in the sum of its number; None if no log here has opened one."""
    shown_by: tuple[str, ...]
    """The sites whose logs show it."""
    why: str
    """The server's reason, from the run's folder; empty if unknown."""


@dataclass
class Audit:
    """The result: logs that could be read, findings, notes, and the fate of every frame."""

    logs: list[SiteLog] = field(default_factory=list[SiteLog])
    findings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    fates: list[Fate] = field(default_factory=list[Fate])
    heads: int = 0
    """Number of heads in runs' folders that fit their logs."""


def audit(folders: Sequence[Path], runs: Sequence[Path] = (), keys: Sequence[_native.ServerKey] = ()) -> Audit:
    """Check the logs in ``folders``. ``runs`` are folders of runs, and ``keys`` the public keys of key sets.

    Nothing in these files raises an error: what is wrong with them becomes a finding.
    """
    made = Audit()
    for folder in folders:
        _read_site(folder, made)
    _check_keys(made, keys)
    _check_copies(made)
    for log in made.logs:
        _check_site(log, made)
    stored = [run for folder in runs if (run := _read_run(folder, made)) is not None]
    _check_charters(made)
    _check_sums(made)
    for run in stored:
        _check_heads(run, made)
        _check_run(run, made)
    _follow_frames(made, _reasons(stored, made))
    return made


# --- one log ---------------------------------------------------------------------------------


def _read_site(folder: Path, made: Audit) -> None:
    name, content = quoted(folder, MAX_LINE), b""
    try:
        head_file, content = read_log(folder)
        parsed = parse_log(head_file, content)
        lines = [Line.parse(raw) for raw in parsed.lines]
        start = lines[0]
        if start.kind != START or not _fits(start.facts, _RULES[START]) or start.facts["log"] != parsed.head.log.hex():
            raise StateError("its first line is not the start of the log that its head names")
        if not parsed.head.holds(bytes.fromhex(start.facts["verify"])):
            raise StateError("its head is not signed with the key that its first line names")
    except OSError as error:
        made.findings.append(f"{name} cannot be read as a log: {refusal(error)}")
        return
    except StateError as error:
        made.findings.append(f"{name} was changed after it was signed: {error}{_first_odd(content)}")
        return
    made.logs.append(SiteLog(name, parsed, lines))


def _first_odd(content: bytes) -> str:
    """The first line of a changed log that is out of place, as text; empty if all are in their places."""
    for number, raw in enumerate(content.split(b"\n")[:-1]):
        try:
            line = Line.parse(raw)
        except StateError as error:
            return f"; line {number} is not one of a log: {error}"
        if line.n != number:
            return f"; line {number} has the number {line.n}"
    return ""


def _check_site(log: SiteLog, made: Audit) -> None:
    """Check the lines of one log against each other."""
    accepted: set[str] = set()
    rounds: set[int] = set()
    for number, line in enumerate(log.lines):
        rules = _RULES.get(line.kind)
        if line.n != number or (line.kind == START) != (number == 0):
            made.findings.append(f"{log.site}: line {number} is out of place")
        if rules is None:
            made.notes.append(f"{log.site}: line {number} is of the unknown kind {quoted(line.kind, MAX_NAME)}")
        elif not _fits(line.facts, rules):
            made.findings.append(f"{log.site}: line {number} does not have the facts of its kind, {line.kind}")
            # Its facts must not be used, because they may have any types.
            log.lines[number] = Line(line.n, line.at, "", {}, line.raw)
            continue
        if line.kind in (CHARTER, QUERY):
            accepted.add(line.facts["charter"])
        if line.kind in (FRAME, OPENED) and line.facts["charter"] not in accepted:
            made.findings.append(f"{log.site}: line {number} is of a charter that no line before accepts")
        if line.kind == FRAME:
            if line.facts["round"] in rounds:
                made.findings.append(f"{log.site}: line {number} is a second frame of number {line.facts['round']}")
            rounds.add(line.facts["round"])


def _check_keys(made: Audit, keys: Sequence[_native.ServerKey]) -> None:
    """Check the key of each log against the public keys of its key set, if they are given."""
    for log in list(made.logs):
        key_set, client = log.key
        known = [key for key in keys if key.fingerprint == key_set]
        verify = log.start["verify"]
        if not known:
            made.notes.append(
                f"{log.site}: its signing key is {verify}, which no file of public keys here has: compare it with the "
                "site, or name the file with --keys"
            )
        elif known[0].verify_keys.get(client, b"").hex() != verify:
            made.findings.append(f"{log.site}: its signing key is not the key of client {client} in the key set")
            made.logs.remove(log)


def _check_copies(made: Audit) -> None:
    """Check logs of one key against each other: one must be the beginning of the other. Keep the longest."""
    longest: dict[tuple[str, int], SiteLog] = {}
    for log in sorted(made.logs, key=lambda log: -len(log.lines)):
        longer = longest.setdefault(log.key, log)
        if longer is log:
            continue
        if _covers(longer, log.parsed.head):
            made.notes.append(f"{log.name} is an earlier state of {longer.name}")
        else:
            made.findings.append(f"{log.name} and {longer.name} are two different logs of one key")
    made.logs = [log for log in made.logs if longest[log.key] is log]


def _covers(log: SiteLog, head: Head) -> bool:
    """Whether ``head`` is a head of ``log``: of all of its lines, or of the first of them."""
    own = log.parsed.head
    if head.log != own.log or not 1 <= head.size <= own.size:
        return False
    proof = log.parsed.tree.consistency(head.size)
    return _native.log_continues((head.size, head.root), (own.size, own.root), proof)


# --- across logs -----------------------------------------------------------------------------


def _check_charters(made: Audit) -> None:
    """Check that sites with one key set accepted the same charter for the same run."""
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for log in made.logs:
        for facts in log.of(CHARTER):
            found.setdefault((facts["key_set"], facts["run"]), {}).setdefault(facts["charter"], log.site)
    for (_, run), charters in found.items():
        if len(charters) > 1:
            shown = "; ".join(f"{site}: {digest}" for digest, site in charters.items())
            made.findings.append(f"sites accepted different charters of run {run}: {shown}")


def _check_sums(made: Audit) -> None:
    """Check that sites opened the same sums from the same position."""
    by_position: dict[tuple[Any, ...], dict[str, list[Opened]]] = {}
    for log in made.logs:
        for opened in log.opened:
            at = opened.charter, opened.purpose, opened.before, opened.index if opened.purpose == "evaluate" else 0
            by_position.setdefault(at, {}).setdefault(log.site, []).append(opened)
    for sites in by_position.values():
        (first, known), *others = sorted(sites.items(), key=lambda pair: -len(pair[1]))
        for site, opened in others:
            if not _agree(known, opened):
                made.findings.append(
                    f"{first} and {site} opened different sums in round {opened[-1].index}: {_shown(known[-1])}, and "
                    f"{_shown(opened[-1])}. The server showed the sites different sums, or withdrew one from one site"
                )


def _agree(longer: list[Opened], shorter: list[Opened]) -> bool:
    """Whether two sites' sums from one position fit: the last is the same, or one site saw only the first of them."""
    ours, theirs = ([(o.index, o.after, o.sums) for o in site] for site in (longer, shorter))
    return ours[-1] == theirs[-1] or ours[: len(theirs)] == theirs


def _shown(opened: Opened) -> str:
    sums = "; ".join(f"clients {', '.join(map(str, s.clients))} of number {s.round}" for s in opened.sums)
    return quoted(f"{sums}, to position {opened.after[:16]}")


def _follow_frames(made: Audit, reasons: Mapping[tuple[str, int, int], str]) -> None:
    """Find each frame of each log in the sums that any log has opened, and each sum's clients in their logs."""
    sums: dict[tuple[str, int], list[tuple[str, Opened, Sum]]] = {}
    for log in made.logs:
        for opened in log.opened:
            for each in opened.sums:
                if each.opened:
                    sums.setdefault((opened.charter, each.round), []).append((log.site, opened, each))
    for log in made.logs:
        _, client = log.key
        frames = {(facts["charter"], facts["round"]): facts for facts in log.of(FRAME)}
        for at, facts in frames.items():
            found = [(site, o, s) for site, o, s in sums.get(at, []) if not o.withdrawn]
            inside = [(site, o) for site, o, s in found if client in s.clients]
            if any(o.bound != facts["bound"] for _, o in inside):
                made.findings.append(
                    f"{log.site}: the sum of number {at[1]} names this client, and its frame of this number was made "
                    "for another model or round"
                )
            shown_by = tuple(sorted({site for site, *_ in (inside or found)}))
            in_sum = bool(inside) if found else None
            why = "" if in_sum else reasons.get((at[0], at[1], client), "")
            made.fates.append(Fate(log.site, client, facts, in_sum, shown_by, why))
        charters = {facts["charter"] for facts in log.of(CHARTER, QUERY)}
        for at, opened in sums.items():
            if at not in frames and at[0] in charters and any(client in s.clients for _, _, s in opened):
                made.findings.append(
                    f"{log.site}: {opened[0][0]} opened a sum of number {at[1]} that names this client, and this log "
                    "has no such frame: the frame was made before the log was begun, or beside it"
                )


# --- a run's folder --------------------------------------------------------------------------


def _read_run(folder: Path, made: Audit) -> StoredRun | None:
    try:
        run = read_run(folder)
        run.heads()
    except RunError as error:
        made.findings.append(quoted(error))
        return None
    digest = run.charter.digest.hex()
    if not any(facts["charter"] == digest for log in made.logs for facts in log.of(CHARTER)):
        made.notes.append(f"no log here has accepted the charter of {quoted(folder, MAX_LINE)}")
    return run


def _check_heads(run: StoredRun, made: Audit) -> None:
    """Check the heads that the server got with frames against the logs that are here."""
    logs = {log.start["client"]: log for log in made.logs if log.start["key_set"] == run.charter.key_set}
    absent: set[int] = set()
    wrong: set[str] = set()
    for client, content in run.heads():
        log, head = logs.get(client), Head.decode(content)
        if log is None:
            absent.add(client)
        elif not head.holds(bytes.fromhex(log.start["verify"])):
            wrong.add(f"{log.site}: the server holds a head of this client that its key did not sign")
        elif head.log != log.parsed.head.log:
            wrong.add(f"{log.site}: the server holds a head of another log of this client: the log was begun again")
        elif head.size > log.parsed.head.size:
            wrong.add(f"{log.site}: the server holds a head of more lines: the end of this log is missing")
        elif not _covers(log, head):
            wrong.add(f"{log.site}: the server holds a head of other lines: this log was rewritten")
        else:
            made.heads += 1
    made.findings += sorted(wrong)
    if absent:
        made.notes.append(
            f"the server holds heads of logs that are not here: clients {', '.join(map(str, sorted(absent)))}"
        )


def _check_run(run: StoredRun, made: Audit) -> None:
    """Check that the sums in the run's folder are those that sites have opened."""
    digest = run.charter.digest.hex()
    opened = {
        (s.round, s.clients)
        for log in made.logs
        for o in log.opened
        if o.charter == digest and not o.withdrawn and o.purpose != "evaluate"
        for s in o.sums
    }
    try:
        headers = [inspect(frame) for step in range(1, run.count + 1) for frame in run.step(step)]
    except FedcipherError as error:
        made.findings.append(quoted(error))
        return
    stored = {header.round: tuple(sorted(header.clients)) for header in headers}
    for number, clients in sorted(opened):
        if stored.get(number, clients) != clients:
            made.findings.append(
                f"sites opened a sum of number {number} of clients {', '.join(map(str, clients))}, and the run's "
                "folder has another sum of this number"
            )


def _reasons(runs: Sequence[StoredRun], made: Audit) -> dict[tuple[str, int, int], str]:
    """Why frames are in no sum, as servers recorded it: by charter, round number and client."""
    reasons: dict[tuple[str, int, int], str] = {}
    for run in runs:
        try:
            rounds = read_journal(run.folder).rounds
        except RunError as error:
            made.notes.append(f"the server's reasons are not known: {quoted(error)}")
            continue
        for record in rounds:
            for number in filter(None, (record.number, record.measured, record.evaluated)):
                listed = record.evaluations if number == record.evaluated else record.clients
                for each in listed:
                    why = each.left_out or record.unfinished
                    if each.client is not None and why:
                        reasons[run.charter.digest.hex(), number, each.client] = quoted(why)
    return reasons
