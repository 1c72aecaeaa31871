"""Gives the source folder a fixed name in the wheels of a folder: ``wheel_paths.py dist``, after each build.

maturin puts a list of the Rust crates into a wheel (CycloneDX). The list names the workspace's crates by where they lie
on the machine that built them. Such a path differs from machine to machine, and it tells of the machine.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = b"path+file:///fedcipher"


def main() -> int:
    """Every wheel below the folder; one whose paths have their name already stays as it is."""
    for wheel in sorted(Path(sys.argv[1]).rglob("*.whl")):
        settle(wheel, ROOT)
    return 0


def settle(wheel: Path, source: Path) -> None:
    """Rewrites ``wheel``, which was built in ``source``, with the same dates, modes and order of files."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    found = f"path+{source.as_uri()}".encode()
    named = {
        info.filename: data.replace(found, NAMED)
        for info, data in members
        if info.filename.endswith(".cyclonedx.json") and found in data
    }
    if not named:
        return
    done = wheel.with_suffix(".part")
    with zipfile.ZipFile(done, "w") as archive:
        for info, data in members:
            text = recorded(data, named) if info.filename.endswith(".dist-info/RECORD") else data
            archive.writestr(info, named.get(info.filename, text))
    done.replace(wheel)


def recorded(record: bytes, changed: dict[str, bytes]) -> bytes:
    """RECORD with the digests and lengths of the changed files. None of their names has a comma."""
    lines = record.decode().splitlines(keepends=True)
    return "".join(row(line, changed) for line in lines).encode()


def row(line: str, changed: dict[str, bytes]) -> str:
    """One line of RECORD: name, digest, length."""
    name = line.partition(",")[0]
    if name not in changed:
        return line
    digest = base64.urlsafe_b64encode(hashlib.sha256(changed[name]).digest()).decode().rstrip("=")
    end = line[len(line.rstrip("\r\n")) :]
    return f"{name},sha256={digest},{len(changed[name])}{end}"


if __name__ == "__main__":
    sys.exit(main())
