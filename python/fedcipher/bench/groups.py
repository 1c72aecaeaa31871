"""Limits the processors and memory of a measurement's processes, with Linux's control groups."""

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

__all__ = ["Group", "Limits", "limited_group"]

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
# The kernel's smallest quota is a hundredth of a processor. A Python interpreter alone takes some ten MB.
_MIN_CPUS, _MAX_CPUS = 0.01, 4096.0
_MIN_MEMORY = 16 << 20
_UNITS = {"MB": 10**6, "GB": 10**9, "MIB": 1 << 20, "GIB": 1 << 30}
_END_SECONDS = 5.0
# A process joins the group before it starts the measured command, so that all of the command is inside.
_JOIN = 'until [ "$1" = -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Limits:
    """Limits of each process: processors at a time, and bytes of memory; 0 means no limit."""

    cpus: float = 0.0
    memory: int = 0

    @classmethod
    def parse(cls, cpus: float = 0.0, memory: str = "") -> Limits:
        """Limits from a number of processors and a text such as ``2GiB``. Raises `ParameterError`."""
        if cpus and not _MIN_CPUS <= cpus <= _MAX_CPUS:
            raise ParameterError(f"--cpus {cpus:g} is not between {_MIN_CPUS:g} and {_MAX_CPUS:g}")
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(MB|GB|MIB|GIB)", memory.upper()) if memory else None
        if memory and found is None:
            raise ParameterError(f"--memory {memory!r}: write it as 2GiB or 500MB")
        most = int(float(found[1]) * _UNITS[found[2]]) if found else 0
        if found and most < _MIN_MEMORY:
            raise ParameterError(f"--memory {memory} is below {_MIN_MEMORY >> 20}MiB, too little for any process")
        return cls(cpus, most)

    def __bool__(self) -> bool:
        return bool(self.cpus or self.memory)

    def __str__(self) -> str:
        parts = [f"{number(self.cpus)} processor{'' if self.cpus == 1 else 's'}"] if self.cpus else []
        return " and ".join([*parts, *([size(self.memory)] if self.memory else [])])


class Group:
    """A control group. Without folders it limits nothing and cannot tell processor time."""

    def __init__(self, folders: dict[Path, Path]) -> None:
        self._folders = folders
        """The group's folder for each controller, with the folder of the group that this process is in."""

    @property
    def before(self) -> list[str]:
        """Words to put before a command, so that the command runs in the group."""
        return ["sh", "-c", _JOIN, "join", *map(str, self._folders), "--"] if self._folders else []

    def take(self, pid: int) -> None:
        """Move a process with all its threads into the group. Raises `BenchError`."""
        _move(pid, self._folders)

    @contextmanager
    def around(self) -> Generator[None]:
        """Move this process into the group during the block, and back afterwards. Raises `BenchError`."""
        try:
            self.take(os.getpid())
            yield
        finally:
            _move(os.getpid(), self._folders.values())

    def seconds(self) -> float:
        """Processor seconds of all processes that have run in the group. Raises `BenchError`."""
        for folder in self._folders:
            with suppress(OSError, ValueError):
                return int((folder / "cpuacct.usage").read_text(encoding="ascii")) / 1e9
            with suppress(OSError, ValueError, KeyError):
                facts = dict(line.split() for line in (folder / "cpu.stat").read_text(encoding="ascii").splitlines())
                return int(facts["usage_usec"]) / 1e6
        raise BenchError("the control group does not tell the processor time of its processes")


def _move(pid: int, folders: Iterable[Path]) -> None:
    try:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except OSError as error:
        raise BenchError(f"process {pid} cannot be moved to a control group: {error.strerror}") from error


@contextmanager
def limited_group(limits: Limits, name: str) -> Generator[Group]:
    """Make a group with these ``limits`` for the block, and remove the group afterwards.

    Raises `BenchError` if this process may not make control groups on this machine.
    """
    if not limits:
        yield Group({})
        return
    made: dict[Path, Path] = {}
    try:
        try:
            for parent, own, settings in _wanted(limits):
                folder = parent / f"fedcipher-{os.getpid()}-{name}"
                # Two controllers may share one folder under two names.
                if not any(folder.resolve() == other.resolve() for other in made):
                    folder.mkdir()
                    made[folder] = own
                for file, value in settings.items():
                    (folder / file).write_text(value, encoding="ascii")
        except OSError as error:
            raise BenchError(
                f"no control group can be made to limit a process to {limits} ({error.strerror}: {error.filename}); "
                "run as root or in a group that is delegated to you, or leave out --cpus and --memory"
            ) from error
        yield Group(made)
    finally:
        for folder in made:
            _remove(folder)


def _wanted(limits: Limits) -> list[tuple[Path, Path, dict[str, str]]]:
    """For each controller: the parent folder for the new group, this process's group, and the settings to write."""
    own = _own()
    quota = str(int(limits.cpus * _PERIOD_US))
    if "" in own:
        # In version 2 a group with processes cannot have limited subgroups. So the new group is made beside this
        # process's group.
        ours = _GROUPS / own[""].lstrip("/")
        parent = ours if ours == _GROUPS else ours.parent
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")
        settings = {"cpu.max": f"{quota} {_PERIOD_US}"} if limits.cpus else {}
        if limits.memory:
            settings |= {"memory.max": str(limits.memory)}
            # Like a machine with so much memory: a process that needs more is killed instead of swapped.
            if any((group / "memory.swap.max").exists() for group in parent.iterdir()):
                settings |= {"memory.swap.max": "0"}
        return [(parent, ours, settings)]
    wanted: list[tuple[str, dict[str, str]]] = []
    if limits.cpus:
        wanted.append(("cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}))
        # This controller limits nothing, but reports the processor time.
        if (_GROUPS / "cpuacct").is_dir():
            wanted.append(("cpuacct", {}))
    if limits.memory:
        wanted.append(("memory", {"memory.limit_in_bytes": str(limits.memory)}))
    return [(folder, folder, settings) for name, settings in wanted for folder in [_folder(name, own)]]


def _own() -> dict[str, str]:
    """This process's group for each controller. The empty name is version 2, left out if it controls no memory."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    # If version 1 controls memory, version 2 has no controllers that limit.
    if "memory" in found:
        found.pop("", None)
    return found


def _folder(controller: str, own: dict[str, str]) -> Path:
    below = _GROUPS / controller / own.get(controller, "/").lstrip("/")
    # In a container its own group may be mounted as the root.
    return below if below.is_dir() else _GROUPS / controller


def _remove(folder: Path) -> None:
    """Remove a group's folder; wait for the group's processes to end, because the kernel keeps the group until then."""
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
