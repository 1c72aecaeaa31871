"""A site's log: what the site has accepted, sent, opened and refused, as lines that cannot be changed unseen.

The folder of a log has two files:

- ``lines.jsonl``: one line for each event, in the canonical encoding of `fedcipher.federation.canonical`;
- ``head.json``: the newest signed head, and the text of the newest line.

A head is the log's number, the number of lines, and the root of their Merkle tree (RFC 6962), signed with the client's
key. The head is on disk before its line, and has the line's text. So a crash between the two files loses nothing, and a
line without a signature never exists. Heads leave the site in frames. A party that keeps one can find
that the log has been cut, rewritten or replaced since.

Lines have public facts only. Each has a random salt, because the lines of a log could be guessed otherwise: a head then
reveals nothing but its number of lines.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from fedcipher import _native
from fedcipher._files import (
    create_private,
    drop_drafts,
    flush_folder,
    make_private_folder,
    unwritten,
    wait_locked,
    write_whole,
)
from fedcipher.errors import CharterError, StateError
from fedcipher.federation.canonical import decode, encode
from fedcipher.federation.client.evidence import HEAD_BYTES
from fedcipher.federation.client.key_holder import KeyHolder, key_holder_of, own_setting
from fedcipher.foreign_files import MAX_LOG, read_file

__all__ = ["START", "Head", "Line", "Log", "LogKey", "Parsed", "is_log", "logged_holder", "parse_log", "read_log"]

_SIGNED_BYTES = HEAD_BYTES - 64
_LINES, _HEAD, _LOCK = "lines.jsonl", "head.json", "lock"
_MAX_HEAD_FILE = 1 << 26
START = "log"
"""Kind of a log's first line, which names the log and its key."""
_VERSION = 1
_FIELDS = ["at", "facts", "kind", "n", "salt"]
_ADVICE = "keep the folder for an inspection, and give the log a new folder"


class LogKey(Protocol):
    """The key that signs a log: a client's key."""

    @property
    def client(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def scheme(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def verify_key(self) -> bytes: ...
    def sign_log(self, head: bytes) -> bytes: ...


@dataclass(frozen=True)
class Head:
    """A signed head of a log. ``log`` is the log's number, ``size`` its lines, ``root`` the root of their tree."""

    log: bytes
    size: int
    root: bytes
    signature: bytes

    def encode(self) -> bytes:
        """The head in `HEAD_BYTES` bytes."""
        return _signed_part(self.log, self.size, self.root) + self.signature

    @classmethod
    def decode(cls, content: bytes) -> Head:
        """The head of `encode`. Raises `StateError` for bytes of another length."""
        if len(content) != HEAD_BYTES:
            raise StateError(f"a head of a log has {HEAD_BYTES} bytes, not {len(content)}")
        size = int.from_bytes(content[16:24], "little")
        return cls(content[:16], size, content[24:_SIGNED_BYTES], content[_SIGNED_BYTES:])

    def holds(self, verify: bytes) -> bool:
        """Whether the signature is valid under the public key ``verify``."""
        return len(verify) == 32 and _native.log_signature_holds(verify, self.encode()[:_SIGNED_BYTES], self.signature)


def _signed_part(log: bytes, size: int, root: bytes) -> bytes:
    return log + size.to_bytes(8, "little") + root


@dataclass(frozen=True)
class Line:
    """One line: its number (from 0), when it was written (seconds since 1970), what happened, and the facts of it."""

    n: int
    at: int
    kind: str
    facts: Mapping[str, Any]
    raw: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Line:
        """The line of canonical bytes. Raises `StateError` for other bytes."""
        try:
            found: Any = decode(raw)
        except CharterError as error:
            raise StateError(str(error)) from error
        if not isinstance(found, dict) or sorted(cast("dict[str, Any]", found)) != _FIELDS:
            raise StateError("it does not have the fields of a line")
        fields = cast("dict[str, Any]", found)
        kinds = {"at": int, "facts": dict, "kind": str, "n": int, "salt": str}
        if any(type(fields[name]) is not kind for name, kind in kinds.items()):
            raise StateError("one of its fields has another type")
        return cls(fields["n"], fields["at"], fields["kind"], fields["facts"], raw)


@dataclass
class Parsed:
    """A log's files, read: its lines as bytes, its head, and the bytes that a crash kept from the file of lines."""

    lines: list[bytes]
    head: Head
    missing: bytes
    tree: _native.LogTree


def is_log(folder: Path) -> bool:
    """Whether ``folder`` has one of the files of a log."""
    return any(os.path.lexists(folder / name) for name in (_HEAD, _LINES))


def read_log(folder: Path) -> tuple[bytes, bytes]:
    """The contents of a log's two files: head and lines. Raises the errors of `open_file`."""
    # The head comes first: a line that is written meanwhile is then beyond it, not missing.
    head = read_file(folder / _HEAD, _MAX_HEAD_FILE)
    try:
        return head, read_file(folder / _LINES, MAX_LOG)
    except FileNotFoundError:
        return head, b""


def parse_log(head_file: bytes, content: bytes) -> Parsed:
    """Check a log's files against each other. Raises `StateError` if the head is not that of the lines.

    This does not check the head's signature, nor what the lines say.
    """
    head, newest = _parse_head(head_file)
    *whole, rest = content.split(b"\n")
    missing = b""
    if len(whole) == head.size - 1 and (newest + b"\n").startswith(rest):
        # A crash came between the head and its line.
        missing = (newest + b"\n")[len(rest) :]
        whole.append(newest)
    elif rest:
        raise StateError("the file of lines does not end with a whole line")
    if len(whole) != head.size:
        raise StateError(f"the log has {len(whole)} lines, and its signed head counts {head.size}")
    tree = _native.LogTree()
    for line in whole:
        tree.push(line)
    if whole[-1] != newest or tree.root() != head.root:
        raise StateError("a line is not the one that was signed: the tree of the lines has another root than the head")
    return Parsed(whole, head, missing, tree)


def _parse_head(content: bytes) -> tuple[Head, bytes]:
    """The head of a file, and the newest line."""
    try:
        found: Any = decode(content)
        if sorted(found) != ["head", "line"]:
            raise ValueError("other fields")
        head, line = Head.decode(bytes.fromhex(found["head"])), found["line"].encode("ascii")
        if found["head"] != head.encode().hex():
            raise ValueError("other digits")
    except (CharterError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise StateError("the file of the head is damaged") from error
    if not head.size or b"\n" in line:
        raise StateError("the head counts no line, or its newest line is not one line")
    return head, line


class Log:
    """The log in ``folder`` of the holder of ``key``. Makes the folder if it does not exist.

    Threads and processes may write one log at a time in turns. Raises `StateError` if the folder has another key's log,
    or one that was changed, and `RunError` if it cannot be written.
    """

    def __init__(self, folder: Path, key: LogKey) -> None:
        self._folder, self._key = folder, key
        self._lock = threading.Lock()
        self._head_file, self._left = b"", (0, 0)
        self._parsed: Parsed | None = None
        self._recorded: set[bytes] = set()
        self.log = b""
        with self._lock:
            try:
                make_private_folder(folder)
            except OSError as error:
                raise unwritten(folder, error) from error
            with wait_locked(folder / _LOCK):
                drop_drafts(folder)
                self._load()

    @property
    def head(self) -> Head:
        """The newest head."""
        assert self._parsed is not None
        return self._parsed.head

    def record(self, kind: str, facts: Mapping[str, Any], *, once: bool = False) -> bytes:
        """Write a line, and return the signed head that covers it. Both are on disk when this returns.

        ``facts`` must be public, and have a canonical encoding. With ``once``, a line with this kind and these facts is
        written only if the log has none. Raises `StateError` if the log was changed by another party, and `RunError` if
        the disk refuses the line; then the caller must let nothing out.
        """
        with self._lock, wait_locked(self._folder / _LOCK):
            self._load()
            if not once or encode([kind, dict(facts)]) not in self._recorded:
                self._append(kind, facts)
            return self.head.encode()

    def _load(self) -> None:
        """Read the log, unless it is as this object has left it; then write what a crash has left out."""
        try:
            head_file = read_file(self._folder / _HEAD, _MAX_HEAD_FILE)
        except FileNotFoundError:
            self._begin()
            return
        if head_file == self._head_file and self._state_of_lines() == self._left:
            return
        head_file, content = read_log(self._folder)
        try:
            parsed = parse_log(head_file, content)
        except StateError as error:
            raise StateError(f"the log {self._folder} was changed: {error}; {_ADVICE}") from error
        if not parsed.head.holds(self._key.verify_key):
            raise StateError(f"the log {self._folder} was signed with another key; {_ADVICE}")
        if self._parsed is not None and not _continues(self._parsed, parsed):
            raise StateError(f"the log {self._folder} no longer begins with the lines that it had; {_ADVICE}")
        self._parsed, self.log = parsed, parsed.head.log
        self._recorded = {encode([line.kind, line.facts]) for line in map(Line.parse, parsed.lines)}
        self._write_line(parsed.missing)
        self._head_file, self._left = head_file, self._state_of_lines()

    def _begin(self) -> None:
        """Write the first line of a new log."""
        if self._parsed is not None or (self._folder / _LINES).exists():
            raise StateError(f"the log {self._folder} has lost its head; {_ADVICE}")
        key, self.log = self._key, secrets.token_bytes(16)
        self._append(
            START,
            {
                "fedcipher_log": _VERSION,
                "log": self.log.hex(),
                "key_set": key.fingerprint,
                "epoch": key.epoch,
                "scheme": key.scheme,
                "client": key.client,
                "verify": key.verify_key.hex(),
            },
        )

    def _append(self, kind: str, facts: Mapping[str, Any]) -> None:
        before = self._parsed
        tree = _native.LogTree() if before is None else before.tree
        lines = [] if before is None else before.lines
        document = {"n": len(lines), "at": int(time.time()), "kind": kind, "salt": secrets.token_hex(16)}
        line = encode({**document, "facts": dict(facts)})
        # From here to the end, this object's tree is ahead of the disk: a failure makes the next call read it again.
        self._head_file = b""
        tree.push(line)
        root = tree.root()
        head = Head(self.log, len(tree), root, self._key.sign_log(_signed_part(self.log, len(tree), root)))
        content = encode({"head": head.encode().hex(), "line": line.decode("ascii")})
        # The line counts from here on, even if the next write fails.
        write_whole(self._folder / _HEAD, content)
        self._write_line(line + b"\n")
        lines.append(line)
        self._parsed = Parsed(lines, head, b"", tree)
        self._recorded.add(encode([kind, dict(facts)]))
        self._head_file, self._left = content, self._state_of_lines()

    def _state_of_lines(self) -> tuple[int, int]:
        """Size and time of change of the file of lines, by which another party's change is noticed early."""
        try:
            about = (self._folder / _LINES).stat()
        except FileNotFoundError:
            return 0, 0
        return about.st_size, about.st_mtime_ns

    def _write_line(self, content: bytes) -> None:
        """Append bytes to the file of lines, synced. Raises `RunError`."""
        if not content:
            return
        path = self._folder / _LINES
        new = not path.exists()
        try:
            with create_private(path, append=True) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if new:
                flush_folder(self._folder)
        except OSError as error:
            raise unwritten(path, error) from error


def logged_holder(own: Mapping[str, Any], run: Mapping[str, Any]) -> KeyHolder:
    """`key_holder_of`, which writes to a log if the operator's ``own`` settings name a folder as ``fedcipher-log``.

    The folder has one log for each key. Raises the errors of `Log`, and `UnsupportedError` if an engine holds the key.
    """
    holder = key_holder_of(own, run)
    folder = own_setting(own, "fedcipher-log")
    if folder and holder.recorder is None:
        key = holder.log_key()
        holder.recorder = Log(Path(folder) / f"{key.fingerprint}-{key.client}", key)
    return holder


def _continues(before: Parsed, now: Parsed) -> bool:
    return now.head.log == before.head.log and now.lines[: len(before.lines)] == before.lines
