"""Shared by the benchmarks: repeated timing, and what machine this is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from fedcipher import _machine

ROOT = Path(__file__).resolve().parents[2]


class Times(float):
    """The median of some seconds, and the ``least`` of them: what others do on a machine only adds to it."""

    least: float

    def __new__(cls, seconds: Sequence[float], least: float | None = None) -> Times:
        made = super().__new__(cls, statistics.median(seconds))
        made.least = min(seconds) if least is None else least
        return made

    def __add__(self, other: float) -> Times:
        return Times([float(self) + float(other)], self.least + getattr(other, "least", other))


def dumps(value: Any) -> str:
    """JSON that `in_own_process` reads, with the least of what is `Times`."""

    def plain(value: Any) -> Any:
        if isinstance(value, Times):
            return {"median": float(value), "least": value.least}
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return json.dumps(plain(value))


def _timed(found: dict[str, Any]) -> Any:
    return Times([found["median"]], found["least"]) if found.keys() == {"median", "least"} else found


def median_seconds(work: Callable[[], Any], *, repeats: int = 9, setup: Callable[[], Any] | None = None) -> Times:
    """Wall seconds of ``work``, with ``setup`` before each run untimed, after one warm-up."""
    times: list[float] = []
    for k in range(repeats + 1):
        if setup is not None:
            setup()
        began = time.perf_counter()
        work()
        if k > 0:
            times.append(time.perf_counter() - began)
    return Times(times)


_BEGAN = psutil.cpu_times()


def machine() -> str:
    """One line about the processor, and about its parts that could not be measured."""
    found = _machine.machine()
    now = psutil.cpu_times()
    # Only Linux counts what a virtual machine's host takes.
    stolen = getattr(now, "steal", 0.0) - getattr(_BEGAN, "steal", 0.0)
    busy = sum(now) - sum(_BEGAN) - (now.idle - _BEGAN.idle)
    host = f", of whose time its host took {stolen / busy:.0%}" if busy and stolen > 0.01 * busy else ""
    vectors = _machine.vectors()
    sets = f" with {', '.join(vectors)}" if vectors else ""
    source = f", commit {found['commit']}" if "commit" in found else ""
    return f"{found['processor']}{sets}, {found['cores']} cores{host}, not pinned, Python {found['python']}{source}"


def openssl_rate(cipher: str) -> float:
    """Bytes per second of ``openssl speed -evp CIPHER`` at 16 KiB blocks, one process."""
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", cipher]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.strip().splitlines()[-1].split()[-1].rstrip("k")) * 1000


def in_own_process(
    function: str, threads: int, script: str = "cases.py", *arguments: object, processor: str | None = None
) -> Any:
    """Run ``SCRIPT FUNCTION ARGUMENTS`` of this folder with this many native threads, as on ``processor``; its JSON."""
    env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    command = [sys.executable, str(ROOT / "research" / "benches" / script), function, *map(str, arguments)]
    if processor is not None:
        command = [str(ROOT / "tools" / "without_avx512.sh"), processor, *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return json.loads(done.stdout.strip().splitlines()[-1], object_hook=_timed)
