"""Samples what a process uses over time, in a thread: CPU, resident memory, network and disk."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from fedcipher._optional import require

__all__ = ["POINTS", "Profile", "Sample", "Sampler", "also_measure", "profile_resources"]

INTERVAL = 0.1
"""Seconds between two samples."""
POINTS = 20
"""The number of points of an interpolated run, so that runs of different length can be averaged."""

_others: list[Callable[[], list[int]]] = []

P = ParamSpec("P")
R = TypeVar("R")


def also_measure(processes: Callable[[], list[int]]) -> None:
    """Also measure other processes that work for this one; ``processes`` gives their ids at each sample.

    Call this from a scheme whose library runs in a process of its own.
    """
    _others.append(processes)


@dataclass(frozen=True)
class Sample:
    """One sample: seconds since the start, CPU in percent of one core since the last sample, and bytes."""

    seconds: float
    cpu_percent: float
    rss: int
    sent: int
    received: int
    disk_read: int
    disk_written: int


@dataclass
class Profile:
    """The profile of a piece of work: samples, the first one at 0 seconds, and seconds by phase."""

    samples: list[Sample] = field(default_factory=list[Sample])
    phases: dict[str, float] = field(default_factory=dict[str, float])
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last sample."""
        return self.samples[-1].seconds if self.samples else 0.0

    @property
    def peak_rss(self) -> int:
        """The largest resident memory of all samples, in bytes."""
        return max((s.rss for s in self.samples), default=0)

    def total(self, counter: str) -> int:
        """The growth of ``sent``, ``received``, ``disk_read`` or ``disk_written``, in bytes."""
        values: list[int] = [getattr(s, counter) for s in self.samples]
        return values[-1] - values[0] if values else 0

    def interpolated(self, what: str, points: int = POINTS) -> list[float]:
        """``cpu_percent`` or another figure at ``points`` equal steps from start to end."""
        import numpy as np

        if not self.samples:
            return [0.0] * points
        at = np.linspace(0.0, self.seconds, points)
        values = [float(getattr(s, what)) for s in self.samples]
        if what == "cpu_percent":
            # A sample has the CPU use since the sample before it, so the first one takes the second's.
            values[0] = values[min(1, len(values) - 1)]
        return [float(x) for x in np.interp(at, [s.seconds for s in self.samples], values)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """The inverse of `to_dict`."""
        samples = [Sample(**s) for s in data["samples"]]
        return cls(samples, {str(k): float(v) for k, v in data["phases"].items()}, float(data["cpu_seconds"]))

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")


class Sampler:
    """Samples the calling process during a ``with`` block; `phase` adds up seconds by name.

    ``network`` gives the bytes sent and received so far. Without it the counters of the whole machine are read, which
    include other processes. ``interval``: seconds between samples.
    """

    def __init__(self, network: Callable[[], tuple[int, int]] | None = None, interval: float = INTERVAL) -> None:
        require("measuring resources", "bench", "psutil")
        import psutil

        self.profile = Profile()
        self._process = psutil.Process()
        self._network = network or _machine_network
        self._interval = interval
        self._used: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._began = time.perf_counter()
        self._cpu = self._first_cpu = self._cpu_seconds()
        self._last = self._began
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self.profile.cpu_seconds = self._cpu - self._first_cpu

    def phase(self, name: str) -> _Phase:
        """``with sampler.phase("encrypt"):`` adds the seconds inside to that phase."""
        return _Phase(self.profile.phases, name)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._look()

    def _each(self, read: Callable[[Any], float]) -> dict[int, float]:
        """The result of ``read`` for this process and those of `also_measure`, by process id."""
        import psutil

        found: dict[int, float] = {}
        for pid in (self._process.pid, *(pid for processes in _others for pid in processes())):
            # A process that has ended is left out.
            with suppress(psutil.Error):
                found[pid] = read(psutil.Process(pid))
        return found

    def _cpu_seconds(self) -> float:
        # User and system time. The time of a process stays in the sum after the process has ended.
        self._used.update(self._each(lambda process: sum(process.cpu_times()[:2])))
        return sum(self._used.values())

    def _look(self) -> None:
        now, cpu = time.perf_counter(), self._cpu_seconds()
        busy = (cpu - self._cpu) / (now - self._last) * 100 if now > self._last else 0.0
        self._last, self._cpu = now, cpu
        sent, received = self._network()
        read, written = self._disk()
        rss = int(sum(self._each(lambda process: process.memory_info().rss).values()))
        self.profile.samples.append(Sample(now - self._began, busy, rss, sent, received, read, written))

    def _disk(self) -> tuple[int, int]:
        # macOS has no such counters.
        if not hasattr(self._process, "io_counters"):
            return 0, 0
        counters = self._process.io_counters()
        return counters.read_bytes, counters.write_bytes


def _machine_network() -> tuple[int, int]:
    import psutil

    counters = psutil.net_io_counters()
    return counters.bytes_sent, counters.bytes_recv


class _Phase:
    def __init__(self, phases: dict[str, float], name: str) -> None:
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._phases[self._name] = self._phases.get(self._name, 0.0) + time.perf_counter() - self._began


@overload
def profile_resources(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def profile_resources(
    *, interval: float = INTERVAL, on_profile: Callable[[Profile], None] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def profile_resources(
    function: Callable[P, R] | None = None,
    *,
    interval: float = INTERVAL,
    on_profile: Callable[[Profile], None] | None = None,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Measure every call of a function: ``@profile_resources`` or ``@profile_resources(on_profile=...)``.

    The function's attribute ``profile`` is the `Profile` of the last call. ``on_profile`` is called with each one,
    even if the function raises.
    """

    def decorate(wrapped: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(wrapped)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            sampler = Sampler(interval=interval)
            try:
                with sampler, sampler.phase(wrapped.__name__):
                    return wrapped(*args, **kwargs)
            finally:
                measured.profile = sampler.profile  # type: ignore[attr-defined]
                if on_profile is not None:
                    on_profile(sampler.profile)

        return measured

    return decorate if function is None else decorate(function)
