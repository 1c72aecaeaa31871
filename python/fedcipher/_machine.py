"""What a reader of figures must know of the machine that made them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["commit", "machine", "packages", "processor"]


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, str]:
    """Processor, cores and Python; of a source tree its commit too."""
    found = {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    source = commit(Path(__file__).resolve().parents[2])
    return {**found, "commit": source} if source else found


def commit(root: Path) -> str:
    """The short id of a source tree's commit, with a + where tracked files differ from it; empty where it has none."""
    if not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True)
        # A report's own folder differs from the commit while it is being made.
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", ".", ":!docs"], capture_output=True, check=False
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.returncode else "")


def packages(*names: str) -> dict[str, str]:
    """Versions of those that are installed."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
