"""Measures cases one after the other, each in new processes, and collects the results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from fedcipher._machine import machine, packages
from fedcipher._scratch import scratch_folder
from fedcipher._signals import mark_handled
from fedcipher.bench.case import Case, CaseResult, Run
from fedcipher.bench.groups import Limits, limited_group
from fedcipher.bench.link import Link
from fedcipher.errors import PeerLostError
from fedcipher.schemes import scheme_class

__all__ = ["Study", "run_study"]

_END_SECONDS = 5


@dataclass
class Study:
    """All results of a measurement, with its command, link and machine."""

    preset: str
    command: str
    link: Link
    server: str
    runs: int
    machine: dict[str, str]
    began: str
    results: list[CaseResult] = field(default_factory=list[CaseResult])
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        results = [r.to_dict() for r in self.results]
        return {**vars(self), "link": asdict(self.link), "results": results}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Study:
        """The inverse of `to_dict`."""
        known: dict[str, Any] = dict(data)
        known["link"] = Link(**data["link"])
        known["results"] = [CaseResult.from_dict(r) for r in data["results"]]
        return cls(**known)


def circumstances(cases: list[Case]) -> dict[str, str]:
    """The machine, its memory, and the versions of the measured libraries."""
    import psutil

    libraries = {name: None for case in cases for name in scheme_class(case.scheme).info.packages}
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return {**machine(), "memory": memory, **packages("fedcipher", *libraries, "numpy")}


def run_study(
    preset: str,
    cases: list[Case],
    *,
    runs: int,
    link: Link,
    server: str = "",
    command: str = "",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_run: Callable[[Study], None] | None = None,
) -> Study:
    """Measure every case and return the study. After a failed case the next ones are still measured.

    ``on_run`` is called with the study after each run. ``limits`` apply to the client's process and to the server's
    process, each with its child processes, but not to a ``server`` on another machine. Raises `BenchError` if this
    machine cannot limit a process.

    Ctrl-C ends the running processes and returns the results so far, marked as interrupted.
    """
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = circumstances(cases)
    if limits:
        # Checked before the first case, because otherwise every case would fail for the same reason.
        with limited_group(limits, "try"):
            about["each process"] = f"limited to {limits}"
    study = Study(preset, command, link, server, runs, about, began)
    try:
        for case in cases:
            result = CaseResult(case)
            study.results.append(result)
            for _ in _measured(case, result, runs, link, server, limits):
                if on_run is not None:
                    on_run(study)
            if on_run is not None:
                on_run(study)
    except KeyboardInterrupt:
        mark_handled()
        study.interrupted = True
        for result in study.results[-1:]:
            result.failure = result.failure or "interrupted"
    return study


def _measured(case: Case, result: CaseResult, runs: int, link: Link, server: str, limits: Limits) -> Iterator[Run]:
    try:
        case.made()
        if server:
            yield from _client(case, result, runs, link, server, limits)
        else:
            with _process("fedcipher.bench.server", limits) as own:
                assert own.stdout is not None
                line = own.stdout.readline().decode()
                if not line.startswith("listening on "):
                    raise PeerLostError("this machine's own server did not start")
                address = line.removeprefix("listening on ").strip()
                yield from _client(case, result, runs, link, address, limits)
    except Exception as error:
        result.failure = f"{type(error).__name__}: {error}"


def _client(case: Case, result: CaseResult, runs: int, link: Link, server: str, limits: Limits) -> Iterator[Run]:
    with scratch_folder("fedcipher-bench-") as state, _process("fedcipher.bench.client", limits) as client:
        assert client.stdin is not None and client.stdout is not None
        asked = {"case": case.to_dict(), "link": asdict(link), "server": server, "runs": runs, "state": state}
        client.stdin.write(json.dumps(asked).encode() + b"\n")
        client.stdin.flush()
        for line in client.stdout:
            said = json.loads(line)
            if "failure" in said:
                result.failure = said["failure"]
                return
            result.runs.append(Run.from_dict(said["run"]))
            yield result.runs[-1]
        if len(result.runs) < runs:
            result.failure = "the client's process ended early; out of memory?"


@contextmanager
def _process(module: str, limits: Limits) -> Generator[subprocess.Popen[bytes]]:
    with limited_group(limits, module.rpartition(".")[2]) as group:
        # In a new session, so that only this process handles Ctrl-C. The child ends when its standard input is closed.
        command = [*group.before, sys.executable, "-m", module]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
