"""Runs a library's arithmetic on other parties' bytes in a process of its own.

Bytes of a client can crash a C++ library, by a segmentation fault or an unexpected exception. Then only the library's
process ends: the frame is refused, and the sum is made again from the frames that were added before. These frames are
kept in a temporary file without a name.
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

__all__ = ["Sandbox", "main", "running"]

_REQUEST = struct.Struct("<BIQQ")
_RESPONSE = struct.Struct("<BQ")
_NEW, _ADD, _FINISH, _DROP, _OPENER, _OPEN = range(6)
_OK, _REFUSED = 0, 1
# The longest wait for an answer, in seconds, and the additional wait for each value. Honest bytes take far less.
_TIMEOUT, _TIMEOUT_PER_VALUE = 120.0, 1e-3
_CHUNK = 1 << 20
# Variables that find libraries and set their threads. The process gets no others, because hostile bytes may take over
# the library, and other variables may hold secrets.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OMP_NUM_THREADS", "TMPDIR", "SYSTEMROOT", "PATH")
# The option `-m` is not used, because it would look for modules in the current folder.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fedcipher_research.baselines import sandbox
sandbox.main()
"""

_T = TypeVar("_T")

_running: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def running() -> list[int]:
    """The ids of this process's sandbox processes. Measurements count their resources as this process's own."""
    return [pid for pid in (worker.pid for worker in list(_running)) if pid is not None]


also_measure(running)


def _ready(pipe: int, event: int, seconds: float) -> bool:
    """Wait for an event on a pipe. `select` is not used: it fails for descriptors from 1,024 on, which servers have."""
    waiting = select.poll()
    waiting.register(pipe, event)
    return bool(waiting.poll(1000 * seconds))


class _ProcessLost(Exception):
    """The sandbox process has ended or does not answer."""


class Sandbox(Arithmetic):
    """The arithmetic ``inner``, with sums and decryption in a sandbox process.

    The process starts with the first sum or decryption. Key generation and encryption run in this process, because
    they read no other party's bytes.
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
        """The number of process starts. Objects of an earlier process are lost."""
        _running.add(self)

    def keygen(self) -> tuple[bytes, bytes]:
        return self._inner.keygen()

    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        return self._inner.sealer(secret)

    def adder(self, public: bytes) -> Adder:
        return _Sum(self, public)

    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        held = _RemoteObject(self, _OPENER, secret)
        _with_retry(held.ensure, "no process of the library stays up")

        def open_(payload: bytes, elements: int) -> Numbers:
            def opened() -> bytes:
                held.ensure()
                return held.ask(_OPEN, payload, elements)

            return np.frombuffer(_with_retry(opened, "the library crashes on this aggregate"), np.uint64)

        return open_

    @property
    def pid(self) -> int | None:
        """The id of the sandbox process; None if it does not run, or if a parent process started it."""
        process = self._process
        return process.pid if process is not None and self._owner == os.getpid() and process.poll() is None else None

    def number(self) -> int:
        """A new number for an object in the sandbox process."""
        with self._lock:
            self._number += 1
            return self._number

    def drop(self, number: int) -> None:
        """Drop an object of the sandbox process, with the next request: a finaliser calls this and must not wait."""
        self._dropped.append(number)

    def ask(self, of: int, what: int, number: int, payload: bytes = b"", elements: int = 0) -> bytes:
        """Send one request to the process of start number ``of``. Raises `_ProcessLost`, or the arithmetic's error."""
        with self._lock:
            # A later process does not have the objects of an earlier one, and would add to an empty sum.
            if self.started != of or self.pid is None:
                raise _ProcessLost("it has ended")
            try:
                while self._dropped:
                    self._exchange(_DROP, self._dropped.pop(), b"", 0)
                code, response = self._exchange(what, number, payload, elements)
            except BaseException:
                # Also after Ctrl-C: the late answer to this request must not be read as the answer to the next one.
                self._end()
                raise
        if code == _REFUSED:
            name, _, text = response.decode().partition("\n")
            raise getattr(errors, name)(text)
        return response

    def start(self) -> int:
        """Start the process if it does not run. It ends with this process or this object. Returns its start number."""
        with self._lock:
            if self.pid is not None:
                return self.started
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # The last words of a crashing library do not help a user.
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
            except _ProcessLost as error:
                self._end()
                raise InternalError(f"the library's process cannot be started: {error}") from None
            return self.started

    def _exchange(self, what: int, number: int, payload: bytes, elements: int) -> tuple[int, bytes]:
        self._write(_REQUEST.pack(what, number, elements, len(payload)))
        self._write(payload)
        timeout = _TIMEOUT + _TIMEOUT_PER_VALUE * elements
        code, size = _RESPONSE.unpack(self._read(_RESPONSE.size, timeout))
        return code, self._read(size, timeout)

    def _write(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        pipe, left = self._process.stdin.fileno(), memoryview(data)
        try:
            while left:
                # A stopped process reads nothing, so a write of more than the pipe holds would never end.
                if not _ready(pipe, select.POLLOUT, _TIMEOUT):
                    raise _ProcessLost(f"it has read nothing for {_TIMEOUT:.0f} s")
                left = left[os.write(pipe, left[:_CHUNK]) :]
        except OSError as error:
            raise _ProcessLost(self._cause() or str(error)) from None

    def _read(self, size: int, timeout: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe, found = self._process.stdout.fileno(), bytearray()
        while len(found) < size:
            if not _ready(pipe, select.POLLIN, timeout):
                raise _ProcessLost(f"no answer for {timeout:.0f} s")
            part = os.read(pipe, min(_CHUNK, size - len(found)))
            if not part:
                raise _ProcessLost(self._cause() or "it has ended")
            found += part
        return bytes(found)

    def _cause(self) -> str:
        """The signal or the exit status that ended the process; empty if it still runs."""
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

    def __reduce__(self) -> tuple[type[Sandbox], tuple[Arithmetic]]:
        return Sandbox, (self._inner,)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    # A forked process has copies of the pipes, but must not end the process.
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class _RemoteObject:
    """An object in the sandbox process. It is made again if the process was restarted."""

    def __init__(self, sandbox: Sandbox, make: int, key: bytes) -> None:
        self._sandbox, self._make, self._key = sandbox, make, key
        self._number = sandbox.number()
        self._of = 0
        weakref.finalize(self, sandbox.drop, self._number)

    def ensure(self) -> bool:
        """Make sure that the object exists. Returns False if it was made again and is empty. Raises `_ProcessLost`."""
        of = self._sandbox.start()
        if self._of == of:
            return True
        self._sandbox.ask(of, self._make, self._number, self._key)
        self._of = of
        return False

    def ask(self, what: int, payload: bytes = b"", elements: int = 0) -> bytes:
        return self._sandbox.ask(self._of, what, self._number, payload, elements)

    def discard(self) -> None:
        """Have the object made again at the next use."""
        self._of = 0


def _with_retry(work: Callable[[], _T], failure: str) -> _T:
    """Run ``work``. If the process is lost, run it once more, because another sum or the system may have ended the
    process. Raises `FrameError`.
    """
    try:
        return work()
    except _ProcessLost:
        try:
            return work()
        except _ProcessLost as error:
            raise FrameError(f"{failure} ({error}); it is refused") from None


class _Sum(Adder):
    def __init__(self, sandbox: Sandbox, public: bytes) -> None:
        self._held = _RemoteObject(sandbox, _NEW, public)
        _with_retry(self._held.ensure, "no process of the library stays up")
        # Holds every added frame, and is closed with this object.
        self._kept: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._sizes: list[tuple[int, int]] = []
        weakref.finalize(self, self._kept.close)

    def _restore(self) -> None:
        if self._held.ensure():
            return
        try:
            self._kept.seek(0)
            for size, elements in self._sizes:
                self._held.ask(_ADD, self._kept.read(size), elements)
        except BaseException:
            # The sum is incomplete, so it must not be used.
            self._held.discard()
            raise

    def add(self, payload: bytes, elements: int) -> None:
        _with_retry(self._restore, "the sum is lost: the library crashes on it")

        def added() -> None:
            self._restore()
            self._held.ask(_ADD, payload, elements)

        # The frame is written before it is added: a frame that is only in the process would be lost with the process.
        # A refused frame is written over.
        try:
            self._kept.seek(sum(size for size, _ in self._sizes))
            self._kept.write(payload)
            self._kept.flush()
        except OSError as error:
            raise RunError(f"an update cannot be stored: {refusal(error, tempfile.gettempdir())}") from error
        _with_retry(added, "the library crashes on this ciphertext")
        self._sizes.append((len(payload), elements))

    def finish(self) -> bytes:
        def finished() -> bytes:
            self._restore()
            return self._held.ask(_FINISH)

        return _with_retry(finished, "the sum is lost: the library crashes on it")


# --- the sandbox process --------------------------------------------------------------------------


def main() -> None:
    """Serve the process at the other end of standard input and output until that process ends."""
    # Ctrl-C is for the other process, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # pragma: no cover: systems without resource limits
        pass
    # A library may print. Its output must not be read as an answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    (size,) = struct.unpack("<Q", _read_exactly(source, 8))
    arithmetic: Arithmetic = pickle.loads(_read_exactly(source, size))
    held: dict[int, Any] = {}
    while True:
        what, number, elements, size = _REQUEST.unpack(_read_exactly(source, _REQUEST.size))
        payload = _read_exactly(source, size)
        try:
            response, code = _answer(arithmetic, held, what, number, payload, elements), _OK
        except FedcipherError as error:
            response, code = f"{type(error).__name__}\n{error}".encode(), _REFUSED
        except Exception as error:
            # Includes MemoryError, which a length in a ciphertext can cause.
            text = f"FrameError\nthe library refuses it: {type(error).__name__}: {error}"
            response, code = text.encode(errors="replace"), _REFUSED
        out.write(_RESPONSE.pack(code, len(response)) + response)
        out.flush()


def _read_exactly(source: IO[bytes], size: int) -> bytes:
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
