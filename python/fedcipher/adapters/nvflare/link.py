"""The server's link to a job's sites: each message is one task for one site. No framework."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.errors import FrameError, RunError, StrategyError
from fedcipher.federation.messages import COMMITTEE, REPORT, Message, Reply, split_type
from fedcipher.federation.server.link import reply_from

__all__ = ["APP_TASKS", "JobLink", "Tasks", "node_of"]

_TASKS = {"train": "train", "evaluate": "validate"}
"""NVFlare's name of a task for each category of messages."""
APP_TASKS = list(_TASKS.values())
"""The tasks that the app executes."""
_POLL_SECONDS = 0.5
_MAX_SECONDS = 1 << 30


class Tasks(Protocol):
    """The tasks of one job: `start` returns a handle, and `ended` says whether it can have no result any more."""

    def start(self, site: str, task: str, raw: bytes | None, seconds: int, received: Callable[[object], None]) -> Any:
        """Start a ``task`` with the bytes ``raw``, if any. ``received`` gets the result's bytes, or None."""
        ...

    def ended(self, handle: Any) -> bool: ...
    def sites(self) -> Iterable[str]: ...
    def aborted(self) -> bool: ...


def node_of(name: str) -> int:
    """The number of the site called ``name``. It is the same in every run and process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


class JobLink:
    """The `fedcipher.federation.server.link.Link` of a job's sites."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._names: dict[int, str] = {}
        self._arrived: queue.Queue[tuple[str, Reply]] = queue.Queue()
        self.unclaimed: list[tuple[str, Reply]] = []
        """Replies to ended exchanges, for `late`."""
        self._handles: dict[str, Any] = {}
        self._sent = 0

    def nodes(self) -> Collection[int]:
        """Like `Link.nodes`."""
        connected = {node_of(name): name for name in self._tasks.sites()}
        self._names.update(connected)
        return list(connected)

    def wait_for(self, count: int, seconds: float) -> list[int]:
        """The connected nodes, as soon as there are ``count``. Raises `StrategyError` after ``seconds``."""
        until = time.monotonic() + seconds
        while len(nodes := self.nodes()) < count:
            self.check()
            if time.monotonic() > until:
                raise StrategyError(
                    f"{len(nodes)} sites are connected, and a round needs {count}: start the other sites, or make keys "
                    f"with min_contributions={max(2, len(nodes))}"
                )
            time.sleep(_POLL_SECONDS)
        return list(nodes)

    def check(self) -> None:
        """Raise `RunError` if NVFlare ends the job."""
        if self._tasks.aborted():
            raise RunError("NVFlare has ended the job; a new job with resume=True continues the run")

    def exchange(self, messages: Iterable[Message], **ends: Any) -> _Exchange:
        """Like `Link.exchange`."""
        return _Exchange(self, messages, **ends)

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Like `Link.late`."""
        self.unclaimed.extend(self.replies(0.0))
        found = [(name, reply) for name, reply in self.unclaimed if name in names]
        self.unclaimed = [(name, reply) for name, reply in self.unclaimed if name not in names]
        yield from found

    def send(self, message: Message, until: float) -> str:
        """Send ``message`` as a task, and return its id."""
        self._sent += 1
        name = str(self._sent)
        needs_no_app = REPORT in message.content or COMMITTEE in message.content
        task_name = MESSAGE if needs_no_app else _TASKS.get(split_type(message.type)[0], MESSAGE)
        self._start(name, task_name, message.node, message.to_bytes(), until)
        return name

    def _start(self, name: str, task_name: str, node: int, raw: bytes | None, until: float) -> None:
        def received(found: object) -> None:
            if found is None and raw is not None:
                # The app was not called, or it raised an error. The site has a reply all the same.
                self._start(name, MESSAGE, node, None, until)
            else:
                self._arrived.put((name, _reply_of(node, found)))

        seconds = min(max(1, int(until - time.monotonic()) + 1), _MAX_SECONDS)
        self._handles[name] = self._tasks.start(self._names[node], task_name, raw, seconds, received)

    def replies(self, seconds: float) -> list[tuple[str, Reply]]:
        """The replies that have arrived, each with its message's id; waits up to ``seconds`` for the first one."""
        found: list[tuple[str, Reply]] = []
        try:
            found.append(self._arrived.get(timeout=seconds) if seconds > 0 else self._arrived.get_nowait())
            while True:
                found.append(self._arrived.get_nowait())
        except queue.Empty:
            for name, _ in found:
                self._handles.pop(name, None)
            return found

    def lost(self, name: str) -> bool:
        """Whether the message ``name`` will have no reply."""
        handle = self._handles.get(name)
        return handle is not None and self._arrived.empty() and self._tasks.ended(handle)


class _Exchange:
    """The messages of one `exchange`, and the replies as they arrive."""

    def __init__(
        self,
        link: JobLink,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self._link, self._until, self._enough, self._grace = link, until, enough, grace
        self._began, self.asked, self.waiting = time.monotonic(), list[int](), dict[str, int]()
        for message in messages:
            self.waiting[link.send(message, until)] = message.node
            self.asked.append(message.node)

    def __iter__(self) -> Iterator[Reply]:
        until, satisfied = self._until, False
        while self.waiting and (now := time.monotonic()) < until:
            self._link.check()
            for name, reply in self._link.replies(min(until - now, _POLL_SECONDS)):
                if self.waiting.pop(name, None) is None:
                    self._link.unclaimed.append((name, reply))
                else:
                    yield reply
            for name, node in list(self.waiting.items()):
                if self._link.lost(name):
                    del self.waiting[name]
                    yield Reply(node, error="NVFlare has lost this site")
            if not satisfied and self._enough():
                satisfied, now = True, time.monotonic()
                until = min(until, now + self._grace(now - self._began))


def _reply_of(node: int, raw: object) -> Reply:
    if not isinstance(raw, bytes):
        return Reply(node, error="the site has answered without a message of Fedcipher")
    try:
        return reply_from(node, Message.parse(raw, node))
    except FrameError as error:
        return Reply(node, error=str(error))
