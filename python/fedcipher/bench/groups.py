"""Control groups of Linux: a measurement's process and all that it starts, held to processors and to memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedcipher._units import number, size
from fedcipher.errors import BenchError, ParameterError

__all__ = ["Limits", "held"]

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
# The kernel's own least quota is a hundredth of a processor; a Python interpreter alone takes some ten MB.
_LEAST_CPUS, _MOST_CPUS = 0.01, 4096.0
_LEAST_MEMORY = 16 << 20
_UNITS = {"MB": 10**6, "GB": 10**9, "MIB": 1 << 20, "GIB": 1 << 30}
_END_SECONDS = 5.0
# A process joins before it becomes what is measured: nothing of it is outside.
_JOIN = 'until [ "$1" = -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Limits:
    """Of each process: processors at once and bytes of memory; 0 is no limit."""

    cpus: float = 0.0
    memory: int = 0

    @classmethod
    def parse(cls, cpus: float = 0.0, memory: str = "") -> Limits:
        """From a number of processors and ``2GiB``; `ParameterError` for anything else."""
        if cpus and not _LEAST_CPUS <= cpus <= _MOST_CPUS:
            raise ParameterError(f"--cpus {cpus:g} is not between {_LEAST_CPUS:g} and {_MOST_CPUS:g}")
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(MB|GB|MIB|GIB)", memory.upper()) if memory else None
        if memory and found is None:
            raise ParameterError(f"--memory {memory!r}: write it as 2GiB or 500MB")
        most = int(float(found[1]) * _UNITS[found[2]]) if found else 0
        if found and most < _LEAST_MEMORY:
            raise ParameterError(f"--memory {memory} is below {_LEAST_MEMORY >> 20}MiB, which no process here fits in")
        return cls(cpus, most)

    def __bool__(self) -> bool:
        return bool(self.cpus or self.memory)

    def __str__(self) -> str:
        parts = [f"{number(self.cpus)} processors"] if self.cpus else []
        return " and ".join([*parts, *([size(self.memory)] if self.memory else [])])


@contextmanager
def held(limits: Limits, name: str) -> Generator[list[str]]:
    """What goes before a command for it to run in a group of these ``limits``; the group is gone afterwards.

    Raises `BenchError` where the machine has no control groups that this process may make.
    """
    if not limits:
        yield []
        return
    made: list[Path] = []
    try:
        try:
            for parent, settings in _wanted(limits):
                folder = parent / f"fedcipher-{os.getpid()}-{name}"
                folder.mkdir()
                made.append(folder)
                for file, value in settings.items():
                    (folder / file).write_text(value, encoding="ascii")
        except OSError as error:
            raise BenchError(
                f"no control group can be made to hold a process to {limits} ({error.strerror}: {error.filename}); "
                "leave out --cpus and --memory, or run as root or in a group that is delegated to you"
            ) from error
        yield ["sh", "-c", _JOIN, "join", *map(str, made), "--"]
    finally:
        for folder in made:
            _remove(folder)


def _wanted(limits: Limits) -> list[tuple[Path, dict[str, str]]]:
    """Folders to make a group in, and what to write into it."""
    own = _own()
    quota = str(int(limits.cpus * _PERIOD_US))
    if "" in own:
        # Version 2: a group with processes in it has no limited groups below, so ours lies beside this process's.
        parent = _GROUPS / own[""].lstrip("/")
        parent = parent if parent == _GROUPS else parent.parent
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")
        settings = {"cpu.max": f"{quota} {_PERIOD_US}"} if limits.cpus else {}
        if limits.memory:
            settings |= {"memory.max": str(limits.memory)}
            # As on the machine that is stood for: what does not fit ends, and does not swap.
            if any((group / "memory.swap.max").exists() for group in parent.iterdir()):
                settings |= {"memory.swap.max": "0"}
        return [(parent, settings)]
    found: list[tuple[Path, dict[str, str]]] = []
    if limits.cpus:
        settings = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}
        found.append((_folder("cpu", own), settings))
    if limits.memory:
        found.append((_folder("memory", own), {"memory.limit_in_bytes": str(limits.memory)}))
    return found


def _own() -> dict[str, str]:
    """This process's groups by controller; the one without a name is version 2's, left out where it has no memory."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    # With both versions mounted the second has what the first does not, which is nothing that limits.
    if "memory" in found:
        found.pop("", None)
    return found


def _folder(controller: str, own: dict[str, str]) -> Path:
    below = _GROUPS / controller / own.get(controller, "/").lstrip("/")
    # A container may see its own group as the root.
    return below if below.is_dir() else _GROUPS / controller


def _remove(folder: Path) -> None:
    """The kernel keeps a group as long as a process that was in it takes to end."""
    until = time.monotonic() + _END_SECONDS
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.05)
        else:
            return
