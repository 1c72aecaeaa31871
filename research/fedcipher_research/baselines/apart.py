"""A library's arithmetic on other people's bytes, in a process of its own.

A C++ library that reads what a client made can be brought down by it: by a segmentation fault, or by an exception where
none may be. That ends this process then and nothing else: the frame is refused, and the sum is made again from what
was added before, which is kept in a temporary file without a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import IO, Any, TypeVar

import numpy as np
from fedcipher import errors
from fedcipher._files import refusal
from fedcipher.bench.sampler import also_measure
from fedcipher.errors import FedcipherError, FrameError, InternalError, RunError
from fedcipher.schemes.library import Adder, Arithmetic, Numbers

__all__ = ["Apart", "main", "running"]

_ASK = struct.Struct("<BIQQ")
_SAID = struct.Struct("<BQ")
_NEW, _ADD, _FINISH, _DROP, _OPENER, _OPEN = range(6)
_FINE, _REFUSED = 0, 1
# Longest wait for an answer: far above what honest bytes take, so that no others are waited for for ever.
_PATIENCE, _PATIENCE_EACH = 120.0, 1e-3
_CHUNK = 1 << 20
# What libraries are found by, and how many threads they take: a library that others' bytes take over gets no secrets.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OMP_NUM_THREADS", "TMPDIR", "SYSTEMROOT", "PATH")
# Not `-m`, which would look for modules in the folder that this process happens to be in.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fedcipher_research.baselines import apart
apart.main()
"""

_T = TypeVar("_T")

_running: weakref.WeakSet[Apart] = weakref.WeakSet()


def running() -> list[int]:
    """The ids of the processes that work for this one: what they use counts as its own."""
    return [pid for pid in (worker.pid for worker in list(_running)) if pid is not None]


also_measure(running)


def _ready(pipe: int, event: int, seconds: float) -> bool:
    """Not by `select`, which knows no descriptor from 1,024 on: a server of many clients has more."""
    waiting = select.poll()
    waiting.register(pipe, event)
    return bool(waiting.poll(1000 * seconds))


class _Lost(Exception):
    """The process has ended, or does not answer."""


class Apart(Arithmetic):
    """``inner``, with sums and openings in a process that is started when the first of them is asked for.

    Keys and encryption stay here: nobody else's bytes are in them.
    """

    def __init__(self, inner: Arithmetic) -> None:
        self._inner = inner
        self.slots = inner.slots
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._number = 0
        self._dropped: list[int] = []
        self.started = 0
        """How often the process has been started: what was in an earlier one is gone."""
        _running.add(self)

    def keygen(self) -> tuple[bytes, bytes]:
        return self._inner.keygen()

    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        return self._inner.sealer(secret)

    def adder(self, public: bytes) -> Adder:
        return _Sum(self, public)

    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        held = _Held(self, _OPENER, secret)
        _twice(held.there, "no process for the library lives")

        def open_(payload: bytes, elements: int) -> Numbers:
            def asked() -> bytes:
                held.there()
                return held.ask(_OPEN, payload, elements)

            return np.frombuffer(_twice(asked, "the library does not survive this aggregate"), np.uint64)

        return open_

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none of this one."""
        process = self._process
        return process.pid if process is not None and self._owner == os.getpid() and process.poll() is None else None

    def number(self) -> int:
        """Names an object in the process."""
        with self._lock:
            self._number += 1
            return self._number

    def drop(self, number: int) -> None:
        """Forget an object, at the next occasion: this is called where nothing may wait."""
        self._dropped.append(number)

    def ask(self, of: int, what: int, number: int, payload: bytes = b"", elements: int = 0) -> bytes:
        """One question to the ``of``-th process. Raises `_Lost`, and what the arithmetic raised."""
        with self._lock:
            # Another process knows nothing of this one's objects: it would add to an empty sum.
            if self.started != of or self.pid is None:
                raise _Lost("it has ended")
            try:
                while self._dropped:
                    self._exchange(_DROP, self._dropped.pop(), b"", 0)
                code, said = self._exchange(what, number, payload, elements)
            except BaseException:
                # Also Ctrl-C: an answer that nobody waits for any more must not be taken for the next one.
                self._end()
                raise
        if code == _REFUSED:
            name, _, text = said.decode().partition("\n")
            raise getattr(errors, name)(text)
        return said

    def start(self) -> int:
        """Starts the process where it is not there; it goes with this one, or with this object. Says which it is."""
        with self._lock:
            if self.pid is not None:
                return self.started
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What a library says as it dies is no use to anybody.
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                bufsize=0,
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._owner = os.getpid()
            self._dropped.clear()
            self.started += 1
            weakref.finalize(self, _end, self._process, self._owner)
            made = pickle.dumps(self._inner)
            try:
                self._write(struct.pack("<Q", len(made)) + made)
            except _Lost as error:
                self._end()
                raise InternalError(f"no process for the library can be started: {error}") from None
            return self.started

    def _exchange(self, what: int, number: int, payload: bytes, elements: int) -> tuple[int, bytes]:
        self._write(_ASK.pack(what, number, elements, len(payload)))
        self._write(payload)
        patience = _PATIENCE + _PATIENCE_EACH * elements
        code, size = _SAID.unpack(self._read(_SAID.size, patience))
        return code, self._read(size, patience)

    def _write(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        pipe, left = self._process.stdin.fileno(), memoryview(data)
        try:
            while left:
                # A process that has been stopped reads nothing: more than the pipe holds would be waited for for ever.
                if not _ready(pipe, select.POLLOUT, _PATIENCE):
                    raise _Lost(f"it has read nothing for {_PATIENCE:.0f} s")
                left = left[os.write(pipe, left[:_CHUNK]) :]
        except OSError as error:
            raise _Lost(self._why() or str(error)) from None

    def _read(self, size: int, patience: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe, found = self._process.stdout.fileno(), bytearray()
        while len(found) < size:
            if not _ready(pipe, select.POLLIN, patience):
                raise _Lost(f"no answer for {patience:.0f} s")
            part = os.read(pipe, min(_CHUNK, size - len(found)))
            if not part:
                raise _Lost(self._why() or "it has ended")
            found += part
        return bytes(found)

    def _why(self) -> str:
        """What ended the process, if anything has."""
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return ""
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process, self._owner)

    def __reduce__(self) -> tuple[type[Apart], tuple[Arithmetic]]:
        return Apart, (self._inner,)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    # A process forked off has copies of the pipes and no say in the matter.
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class _Held:
    """An object in the process, made again where the process was."""

    def __init__(self, apart: Apart, make: int, key: bytes) -> None:
        self._apart, self._make, self._key = apart, make, key
        self._number = apart.number()
        self._of = 0
        weakref.finalize(self, apart.drop, self._number)

    def there(self) -> bool:
        """Sees to it that the object is there; False where it is a new one, which knows nothing of the old.

        Raises `_Lost`.
        """
        of = self._apart.start()
        if self._of == of:
            return True
        self._apart.ask(of, self._make, self._number, self._key)
        self._of = of
        return False

    def ask(self, what: int, payload: bytes = b"", elements: int = 0) -> bytes:
        return self._apart.ask(self._of, what, self._number, payload, elements)

    def gone(self) -> None:
        """It is not what it should be: it is made again."""
        self._of = 0


def _twice(work: Callable[[], _T], failure: str) -> _T:
    """What ``work`` returns, on its second try where the process was lost in the first: what ended that may have been
    another sum's, or the system. Raises `FrameError`.
    """
    try:
        return work()
    except _Lost:
        try:
            return work()
        except _Lost as error:
            raise FrameError(f"{failure} ({error}); it is refused") from None


class _Sum(Adder):
    def __init__(self, apart: Apart, public: bytes) -> None:
        self._held = _Held(apart, _NEW, public)
        _twice(self._held.there, "no process for the library lives")
        # Closed with this object, whose every frame it holds.
        self._kept: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._sizes: list[tuple[int, int]] = []
        weakref.finalize(self, self._kept.close)

    def _there(self) -> None:
        if self._held.there():
            return
        try:
            self._kept.seek(0)
            for size, elements in self._sizes:
                self._held.ask(_ADD, self._kept.read(size), elements)
        except BaseException:
            # A part of the sum is no sum.
            self._held.gone()
            raise

    def add(self, payload: bytes, elements: int) -> None:
        _twice(self._there, "the sum is lost: the library does not survive what is in it")

        def added() -> None:
            self._there()
            self._held.ask(_ADD, payload, elements)

        # First, over what a refused one has left: what is in the sum and not here would be lost with the process.
        try:
            self._kept.seek(sum(size for size, _ in self._sizes))
            self._kept.write(payload)
            self._kept.flush()
        except OSError as error:
            raise RunError(f"an update cannot be kept: {refusal(error, tempfile.gettempdir())}") from error
        _twice(added, "the library does not survive this ciphertext")
        self._sizes.append((len(payload), elements))

    def finish(self) -> bytes:
        def finished() -> bytes:
            self._there()
            return self._held.ask(_FINISH)

        return _twice(finished, "the sum is lost: the library does not survive what is in it")


# --- the other process ----------------------------------------------------------------------------


def main() -> None:
    """Serves the process at the other end of standard input and output until that ends."""
    # Ctrl-C is the other process's; it ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # pragma: no cover: not where there are no limits
        pass
    # Whatever a library prints is no answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    (size,) = struct.unpack("<Q", _exactly(source, 8))
    arithmetic: Arithmetic = pickle.loads(_exactly(source, size))
    held: dict[int, Any] = {}
    while True:
        what, number, elements, size = _ASK.unpack(_exactly(source, _ASK.size))
        payload = _exactly(source, size)
        try:
            said, code = _answer(arithmetic, held, what, number, payload, elements), _FINE
        except FedcipherError as error:
            said, code = f"{type(error).__name__}\n{error}".encode(), _REFUSED
        except Exception as error:
            # MemoryError too: what a length in a ciphertext can ask for.
            text = f"FrameError\nthe library refuses it: {type(error).__name__}: {error}"
            said, code = text.encode(errors="replace"), _REFUSED
        out.write(_SAID.pack(code, len(said)) + said)
        out.flush()


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        # The other process has ended.
        os._exit(0)
    return data


def _answer(
    arithmetic: Arithmetic, held: dict[int, Any], what: int, number: int, payload: bytes, elements: int
) -> bytes:
    if what == _NEW:
        held[number] = arithmetic.adder(payload)
    elif what == _OPENER:
        held[number] = arithmetic.opener(payload)
    elif what == _DROP:
        held.pop(number, None)
    elif what == _ADD:
        held[number].add(payload, elements)
    elif what == _FINISH:
        return held[number].finish()
    elif what == _OPEN:
        return held[number](payload, elements).tobytes()
    return b""
