"""The guard's work: takes tasks from the SuperNode, lets the app compute, and answers with frames and nothing else."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import httpx
import uvicorn
from flwr.app import Message, RecordDict

from fedcipher._files import make_private_folder, write_whole
from fedcipher.adapters.flower.no_run import is_refusal, refuse_without_run
from fedcipher.adapters.flower.records import message_of, record_dict, refuse, result_of
from fedcipher.errors import FedcipherError, FrameError, GuardError, PlaintextError
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import KeyHolder
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import Arrays
from fedcipher.federation.messages import Message as FederationMessage
from fedcipher.foreign_files import parse_json, read_file
from fedcipher.foreign_text import MAX_LINE, quoted, quoting_log
from fedcipher.guard.app_api import AppApi, Limits, inner_message
from fedcipher.guard.app_program import app_arguments, app_environment
from fedcipher.guard.consent import Consents
from fedcipher.guard.day_counts import DayCounts
from fedcipher.guard.log import logged_holder
from fedcipher.guard.policy import AppRules
from fedcipher.guard.supernode import Claim, SuperNode, Task, TaskInput

__all__ = ["AppProcess", "Guard", "StartApp"]

_log = quoting_log("fedcipher.guard")
_LOOK_SECONDS = 0.25
"""Seconds between two looks for a task."""
_RETRY_SECONDS = 2.0
_MAX_STATE = 64 << 20
_MAX_STATES = 50
"""Runs whose apps' states are kept; the states of older runs are deleted."""
_MAX_CLAIM = 1 << 16
_MAX_OUTPUT = 1 << 20
"""Bytes of an app's output that go to the log for one message."""
_REPLY_ROOM = 16 << 20
_MMAP_THRESHOLD, _LARGE = -3, 1 << 20
"""``M_MMAP_THRESHOLD`` of glibc's ``mallopt``, and bytes of memory that goes back to the system when it is freed."""


class AppProcess(Protocol):
    """A started app. ``listener`` accepts its connections, and ``output`` is what it prints."""

    @property
    def listener(self) -> socket.socket: ...
    @property
    def output(self) -> IO[bytes]: ...

    def poll(self) -> int | None:
        """The exit status of the app; None while it runs."""
        ...

    def kill(self) -> None:
        """End the app and every process that it has started."""
        ...

    def close(self) -> None:
        """Close the socket and the pipe, after `kill`."""
        ...


StartApp = Callable[[list[str], Mapping[str, str], Path], AppProcess]
"""Starts a program behind walls, from its arguments, its environment and the one folder that it may write to."""


@dataclass(frozen=True)
class _Folders:
    """The guard's folders: the claimed task, apps' states, and apps' work folders."""

    root: Path

    @property
    def task(self) -> Path:
        return self.root / "task"

    @property
    def states(self) -> Path:
        return self.root / "states"

    @property
    def work(self) -> Path:
        return self.root / "work"


class Guard:
    """Answers the tasks of one SuperNode for the holder of one key.

    ``own`` are the operator's settings, which name the key: those of `logged_holder`. ``folder`` is the guard's own. No
    app can read it. ``start_app`` starts an app behind walls.
    """

    def __init__(
        self, supernode: SuperNode, own: Mapping[str, Any], folder: Path, rules: AppRules, start_app: StartApp
    ) -> None:
        self._supernode, self._own, self._rules, self._start_app = supernode, own, rules, start_app
        self._folders = _Folders(folder)
        for part in (self._folders.root, self._folders.task, self._folders.states, self._folders.work):
            make_private_folder(part)
        self._consents = Consents(folder, rules)
        self._counts = DayCounts(folder / "day.json")
        self._ended = threading.Event()

    def stop(self) -> None:
        """Let `run` return after the present task."""
        self._ended.set()

    def run(self) -> None:
        """Answer tasks until `stop`. A task that an earlier guard has left is answered first."""
        self._drop_work()
        _return_large_memory()
        reachable, claim = True, self._left_claim()
        while not self._ended.is_set():
            try:
                claim = claim or self._supernode.acquire()
                if not reachable:
                    _log.warning("the SuperNode can be reached again")
                reachable = True
            except httpx.TransportError as error:
                if reachable:
                    _log.warning("the SuperNode cannot be reached, and is tried again: %s", error)
                reachable = False
                self._ended.wait(_RETRY_SECONDS)
                continue
            if claim is None:
                self._ended.wait(_LOOK_SECONDS)
                continue
            self._work_on(claim)
            claim = None

    # --- one task ----------------------------------------------------------------------------

    def _work_on(self, claim: Claim) -> None:
        folder = self._folders.task
        # The claim is on disk before the message is taken, so that a guard that is started again can go on.
        content = {"task": claim.task, "token": claim.token, "supernode": self._supernode.name}
        write_whole(folder / "claim", json.dumps(content).encode())
        task = self._supernode.task(claim, folder)
        try:
            with task.kept_alive():
                self._answer(task)
        except httpx.HTTPError as error:
            _log.warning("the SuperNode has given up a task, whose round goes on without this site: %s", error)
        finally:
            task.close()
            for name in ("claim", "input", "head"):
                with suppress(FileNotFoundError):
                    (folder / name).unlink()

    def _left_claim(self) -> Claim | None:
        """The claim of a guard that was killed at work; None if there is none."""
        try:
            content = parse_json(read_file(self._folders.task / "claim", _MAX_CLAIM))
            if content["supernode"] != self._supernode.name:
                # `fedcipher supernode` gives each start a secret of its own, and no SuperNode has this task any more.
                return None
            return Claim(int(content["task"]), str(content["token"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            _log.warning("the claim of an earlier guard cannot be read, and is left: %s", error)
            return None

    def _answer(self, task: Task) -> None:
        began = time.monotonic()
        try:
            given = task.pull()
        except GuardError:
            raise
        except FedcipherError as error:
            given, reply = None, refuse(task.head, error)
        else:
            if given is None and not task.has_message:
                # The SuperNode itself answers with an error, when the task's token has expired.
                _log.warning("the message of a task is lost, because an earlier guard was killed while it took it")
                return
            lost = PlaintextError("an earlier guard was killed while it took this message")
            reply = refuse(task.head, lost) if given is None else self._reply_to(given)
        del given
        self._wait_for_slot(began)
        task.push(reply)
        task.finish()

    def _wait_for_slot(self, began: float) -> None:
        """Wait until a whole number of `answer_every` seconds has passed since the message."""
        every = self._rules.answer_every
        if every:
            until = began + math.ceil((time.monotonic() - began) / every) * every
            time.sleep(max(0.0, until - time.monotonic()))

    def _reply_to(self, given: TaskInput) -> Message:
        """The reply to a message: a frame, an answer that needs no app, "waiting", or the constant refusal."""
        outer = given.message
        session = ClientSession(
            self._holder,
            lambda: digest_of_context(given.app.settings, given.folder),
            consents=self._consents.of(given.app, lambda: self._holder().recorder),
        )
        try:
            message = message_of(outer)
            outer.content = RecordDict()
            opened = session.open(message, queries_too=True)
            if isinstance(opened, Work):
                with opened as work:
                    opened = session.seal(message, work, self._computed(given, message, work))
            if opened is None:
                return refuse_without_run(outer, message.content, "wrap the server's strategy")
            return Message(record_dict(opened.content), reply_to=outer)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return refuse(outer, error, session.recorder)

    def _holder(self) -> KeyHolder:
        return logged_holder(self._own, {})

    # --- the app -----------------------------------------------------------------------------

    def _computed(self, given: TaskInput, message: FederationMessage, work: Work) -> AppResult:
        """The result of the app, which runs for this message alone. Whatever it does, there is a result."""
        began = time.perf_counter()
        try:
            self._count(work)
            reply = self._run_app(given, message, work)
            seconds = time.perf_counter() - began
            if reply is None:
                return AppResult(seconds=seconds, failed="the app ended without a complete reply, or took too long")
            if is_refusal(reply):
                return AppResult(seconds=seconds, failed="the app has a client_mod, which has no key here: remove it")
            return result_of(reply, work, seconds)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return AppResult.raised(error, time.perf_counter() - began)

    def _count(self, work: Work) -> None:
        """Count the message among the day's. Raises `CharterError` beyond the rules' number."""
        if work.record:
            self._counts.add("rounds", self._rules.rounds_a_day)
        else:
            self._counts.add("queries", self._rules.queries_a_day)

    def _run_app(self, given: TaskInput, message: FederationMessage, work: Work) -> Message | None:
        if work.record:
            # The sums of a message can be as large as several models.
            message.content[work.record] = Arrays()
        content = record_dict(work.inputs(message.content))
        limits = Limits(reply=2 * sum(array.nbytes for array in work.arrays) + _REPLY_ROOM)
        state = self._folders.states / f"{given.received.run.run_id}-{given.app.package[:16]}"
        api = AppApi(given, inner_message(given.message, content), _content_or_empty(state), limits)
        # The model that is shown to the app lives in `api` until the app has taken it.
        del content
        folder = Path(tempfile.mkdtemp(dir=self._folders.work))
        try:
            self._serve(api, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if api.state is not None:
            self._keep_state(state, api.state)
        return api.reply()

    def _serve(self, api: AppApi, folder: Path) -> None:
        """Start the app with ``folder`` to write to, and serve its calls until it ends or its time is over."""
        token = folder / "token"
        write_whole(token, api.token.encode())
        deadline = time.monotonic() + self._rules.app_seconds
        process = self._start_app(app_arguments(token), self._environment(folder), folder)
        try:
            printed = threading.Thread(target=_log_output, args=(process.output,), daemon=True)
            printed.start()
            with _Served(api, process.listener):
                while not api.done.wait(0.02) and process.poll() is None:
                    if time.monotonic() >= deadline:
                        _log.warning("the app has run for %s s and is ended", self._rules.app_seconds)
                        break
                # First, so that a connection that the app keeps open delays nothing.
                process.kill()
            printed.join(1.0)
        finally:
            process.close()

    def _environment(self, folder: Path) -> dict[str, str]:
        return {**app_environment(folder), **dict(item.split("=", 1) for item in self._rules.environment)}

    def _keep_state(self, path: Path, state: bytes) -> None:
        write_whole(path, state)
        kept = sorted(self._folders.states.iterdir(), key=lambda found: found.stat().st_mtime)
        for old in kept[:-_MAX_STATES]:
            old.unlink(missing_ok=True)

    def _drop_work(self) -> None:
        for folder in self._folders.work.iterdir():
            shutil.rmtree(folder, ignore_errors=True)


class _Served:
    """Serves ``api`` on ``listener`` in a thread, inside a `with` statement."""

    def __init__(self, api: AppApi, listener: socket.socket) -> None:
        config = uvicorn.Config(
            api,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _return_large_memory() -> None:
    """Let glibc give the memory of every large array back to the system, as soon as the array is freed.

    Otherwise, glibc keeps the memory of arrays of up to 32 MiB, and a guard grows by several models. Other C libraries
    have no such call.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _content_or_empty(path: Path) -> bytes:
    try:
        return read_file(path, _MAX_STATE)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise FrameError(f"the app's state {path} cannot be read: {error}") from error


def _log_output(output: IO[bytes]) -> None:
    """Log what an app prints, up to a limit. It may quote data, so it goes to this site's log only."""
    left = _MAX_OUTPUT
    # An app waits at a full pipe.
    for line in iter(lambda: output.readline(MAX_LINE), b""):
        if left > 0:
            left -= len(line)
            _log.info("app: %s", quoted(line.decode(errors="replace").rstrip(), MAX_LINE))
