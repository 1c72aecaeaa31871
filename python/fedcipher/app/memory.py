"""Computes how many simulated clients fit into memory at once, before Ray starts and would kill some of them."""

from __future__ import annotations

import os
from pathlib import Path

from fedcipher._units import size

__all__ = ["at_once", "available", "resident"]

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def resident() -> int:
    """Bytes of memory that this process has; 0 if the system does not tell."""
    try:
        pages = int((_PROC / "self" / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes free for new processes, in the machine or in this process's control group; 0 if unknown."""
    found: list[int] = []
    try:
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    for most, used, cached in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            limit, now = (int((cgroup / name).read_text(encoding="ascii")) for name in (most, used))
        except (OSError, ValueError):
            # "max" means no limit.
            continue
        # Cached files count as used memory, but the kernel frees them on demand.
        found.append(max(1, limit - now + _inactive(cgroup / cached)))
    return min(found, default=0)


def _inactive(path: Path) -> int:
    try:
        pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        return next((int(value) for name, value in pairs if name in ("inactive_file", "total_inactive_file")), 0)
    except (OSError, ValueError):
        return 0


def at_once(cores: int, clients: int, each: int, free: int) -> tuple[int, str]:
    """The number of clients to simulate at a time, and a warning if memory allows fewer clients than cores.

    ``each``: bytes that a client's process needs at least. The caller measures its own process after it has loaded
    what a client loads, with the scheme's tables. The same amount is reserved for the server's work.
    ``free``: bytes of free memory. If ``each`` or ``free`` is 0, memory sets no limit.
    """
    wanted = min(cores, clients)
    if not each or not free:
        return wanted, ""
    fit = free // each - 1
    if fit >= wanted:
        return wanted, ""
    said = f"memory: a client needs {size(each)} or more and {size(free)} are free, so {max(1, fit)} of {wanted} "
    said += "clients at a time are simulated"
    if fit < 1:
        said += ", and even that may be too much: end other programs, or choose a scheme or data set with less memory"
    return max(1, fit), said
