"""Control groups of Linux: a measurement's process and all that it starts, held to processors and to memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedcipher._units import number, size
from fedcipher.errors import BenchError, ParameterError

__all__ = ["Group", "Limits", "held"]

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
        parts = [f"{number(self.cpus)} processor{'' if self.cpus == 1 else 's'}"] if self.cpus else []
        return " and ".join([*parts, *([size(self.memory)] if self.memory else [])])


class Group:
    """A group that is there; one of no limits is none, and has no processor time to tell."""

    def __init__(self, folders: dict[Path, Path]) -> None:
        self._folders = folders
        """Of each controller, with the one that this process is in."""

    @property
    def before(self) -> list[str]:
        """What goes before a command for it to run in the group."""
        return ["sh", "-c", _JOIN, "join", *map(str, self._folders), "--"] if self._folders else []

    def take(self, pid: int) -> None:
        """Moves a process into it, with all its threads. Raises `BenchError`."""
        _move(pid, self._folders)

    @contextmanager
    def around(self) -> Generator[None]:
        """This process is in it, and what it starts; it is back where it was afterwards. Raises `BenchError`."""
        try:
            self.take(os.getpid())
            yield
        finally:
            _move(os.getpid(), self._folders.values())

    def seconds(self) -> float:
        """Processor time of all that has run in it. Raises `BenchError`."""
        for folder in self._folders:
            with suppress(OSError, ValueError):
                return int((folder / "cpuacct.usage").read_text(encoding="ascii")) / 1e9
            with suppress(OSError, ValueError, KeyError):
                facts = dict(line.split() for line in (folder / "cpu.stat").read_text(encoding="ascii").splitlines())
                return int(facts["usage_usec"]) / 1e6
        raise BenchError("the control group does not tell the processor time of what ran in it")


def _move(pid: int, folders: Iterable[Path]) -> None:
    try:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except OSError as error:
        raise BenchError(f"process {pid} cannot be moved to a control group: {error.strerror}") from error


@contextmanager
def held(limits: Limits, name: str) -> Generator[Group]:
    """A group of these ``limits``, which is gone afterwards.

    Raises `BenchError` where the machine has no control groups that this process may make.
    """
    if not limits:
        yield Group({})
        return
    made: dict[Path, Path] = {}
    try:
        try:
            for parent, own, settings in _wanted(limits):
                folder = parent / f"fedcipher-{os.getpid()}-{name}"
                # Two controllers may be one folder by two names.
                if not any(folder.resolve() == other.resolve() for other in made):
                    folder.mkdir()
                    made[folder] = own
                for file, value in settings.items():
                    (folder / file).write_text(value, encoding="ascii")
        except OSError as error:
            raise BenchError(
                f"no control group can be made to hold a process to {limits} ({error.strerror}: {error.filename}); "
                "run as root or in a group that is delegated to you, or leave out --cpus and --memory if you gave them"
            ) from error
        yield Group(made)
    finally:
        for folder in made:
            _remove(folder)


def _wanted(limits: Limits) -> list[tuple[Path, Path, dict[str, str]]]:
    """Folders to make a group in, with those of this process, and what to write into it."""
    own = _own()
    quota = str(int(limits.cpus * _PERIOD_US))
    if "" in own:
        # Version 2: a group with processes in it has no limited groups below, so ours lies beside this process's.
        ours = _GROUPS / own[""].lstrip("/")
        parent = ours if ours == _GROUPS else ours.parent
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")
        settings = {"cpu.max": f"{quota} {_PERIOD_US}"} if limits.cpus else {}
        if limits.memory:
            settings |= {"memory.max": str(limits.memory)}
            # As on the machine that is stood for: what does not fit ends, and does not swap.
            if any((group / "memory.swap.max").exists() for group in parent.iterdir()):
                settings |= {"memory.swap.max": "0"}
        return [(parent, ours, settings)]
    wanted: list[tuple[str, dict[str, str]]] = []
    if limits.cpus:
        wanted.append(("cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}))
        # Not to limit: it tells what was used, where there is one.
        if (_GROUPS / "cpuacct").is_dir():
            wanted.append(("cpuacct", {}))
    if limits.memory:
        wanted.append(("memory", {"memory.limit_in_bytes": str(limits.memory)}))
    return [(folder, folder, settings) for name, settings in wanted for folder in [_folder(name, own)]]


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
