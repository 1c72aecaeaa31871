"""Describes the machine that produced figures, for their readers."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["commit", "machine", "packages", "processor", "vectors"]


# The instruction sets that the code chooses among at run time, by Linux's names for x86 and ARM.
_VECTORS = ("avx2", "avx512f", "avx512ifma", "vaes", "aes", "asimd", "sve")


def _described() -> dict[str, str]:
    """Linux's description of the first processor, as names and values."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if info.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def processor() -> str:
    """The processor's name. A virtual machine's name without digits is followed by family and model."""
    found = _described()
    name = found.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in found and not any(c.isdigit() for c in name):
        name += f" (family {found['cpu family']}, model {found.get('model', '?')})"
    return name


def vectors() -> list[str]:
    """The processor's vector instruction sets that matter here, by Linux's names; empty on other systems."""
    found = _described()
    flags = found.get("flags", found.get("Features", "")).split()
    return [name for name in _VECTORS if name in flags]


def machine() -> dict[str, str]:
    """Processor, cores and Python version, and the commit in a source tree."""
    found = {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    source = commit(Path(__file__).resolve().parents[2])
    return {**found, "commit": source} if source else found


def commit(root: Path) -> str:
    """The short id of a source tree's commit, with a + if tracked files have changed; empty without a commit."""
    if not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True)
        # Ignore the folders of reports, which change while a report is made.
        sources = (".", ":!docs", ":!research/results")
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *sources], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.returncode else "")


def packages(*names: str) -> dict[str, str]:
    """The versions of the packages in ``names`` that are installed."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
