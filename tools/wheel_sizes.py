"""Prints the packed size of each part of the wheels in a folder, in MB: ``wheel_sizes.py dist``.

The output is the table of docs/contributor/release.md.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

PARTS = ("native module", "programs", "Python and lists")


def main() -> int:
    """Print a row for each wheel."""
    print("| wheel | " + " | ".join(PARTS) + " | whole, MB |")
    print("|---" * (len(PARTS) + 2) + "|")
    for wheel in sorted(Path(sys.argv[1]).rglob("*.whl")):
        sizes = dict.fromkeys(PARTS, 0)
        for member in zipfile.ZipFile(wheel).infolist():
            sizes[part(member.filename)] += member.compress_size
        figures = [*sizes.values(), wheel.stat().st_size]
        platform = wheel.stem.rpartition("-")[2].rpartition(".")[2]
        print(f"| {platform} | " + " | ".join(f"{size / 1e6:.1f}" for size in figures) + " |")
    return 0


def part(name: str) -> str:
    """The one of `PARTS` to which a file of a wheel belongs."""
    if ".data/scripts/" in name:
        return PARTS[1]
    return PARTS[0] if "/_native." in name else PARTS[2]


if __name__ == "__main__":
    sys.exit(main())
