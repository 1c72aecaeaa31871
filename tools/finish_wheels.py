"""Finishes the wheels of a folder after maturin: ``finish_wheels.py dist --programs target``, after each build.

maturin puts a list of the Rust crates into a wheel (CycloneDX). The list names the workspace's crates by their paths on
the machine that built them. Such a path differs from machine to machine and reveals something about the machine, so it
is replaced by a fixed name. A wheel for Linux also gets the engine and the authority, which pip installs like other
programs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = b"path+file:///fedcipher"
ENGINE, AUTHORITY = "fedcipher-engine", "fedcipher-authority"
# One file holds both programs, because most of each are libraries that the other uses too.
AUTHORITY_SCRIPT = f'#!/bin/sh\nexec "${{0%/*}}/{ENGINE}" authority "$@"\n'.encode()
Member = tuple[zipfile.ZipInfo, bytes]


def main() -> int:
    """Finish every wheel below the folder. A finished wheel stays as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--programs", type=Path, help="Cargo's target folder, with the static programs")
    options = parser.parse_args()
    for wheel in sorted(options.dist.rglob("*.whl")):
        finish(wheel, ROOT, programs_for(wheel, options.programs) if options.programs else {})
    return 0


def programs_for(wheel: Path, target: Path) -> dict[str, bytes]:
    """The programs for the processor of ``wheel``, by name; empty if the wheel is not for Linux."""
    platform = wheel.stem.rpartition("-")[2]
    if "linux" not in platform:
        return {}
    processor = next(name for name in ("x86_64", "aarch64") if platform.endswith(name))
    engine = target / f"{processor}-unknown-linux-musl" / "release" / ENGINE
    return {ENGINE: engine.read_bytes(), AUTHORITY: AUTHORITY_SCRIPT}


def finish(wheel: Path, source: Path, programs: dict[str, bytes]) -> None:
    """Rewrite ``wheel``, which was built in ``source``, with the same dates, modes and order of files."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    found = f"path+{source.as_uri()}".encode()
    named = {
        info.filename: data.replace(found, NAMED)
        for info, data in members
        if info.filename.endswith(".cyclonedx.json") and found in data
    }
    there = {info.filename for info, _ in members}
    folder = "-".join(wheel.name.split("-")[:2]) + ".data/scripts/"
    added = {folder + name: data for name, data in programs.items() if folder + name not in there}
    if not named and not added:
        return
    *others, (record, text) = sorted(members, key=lambda member: member[0].filename.endswith(".dist-info/RECORD"))
    done = wheel.with_suffix(".part")
    with zipfile.ZipFile(done, "w") as archive:
        for info, data in others:
            archive.writestr(info, named.get(info.filename, data))
        for name, data in added.items():
            archive.writestr(executable(name, record), data)
        archive.writestr(record, recorded(text, named, added))
    done.replace(wheel)


def executable(name: str, like: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A member that all users may execute, with the date of ``like``."""
    info = zipfile.ZipInfo(name, like.date_time)
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100755 << 16
    return info


def recorded(record: bytes, changed: dict[str, bytes], added: dict[str, bytes]) -> bytes:
    """RECORD with the digests and lengths of the changed and added files. Their names must not have a comma."""
    lines = record.decode().splitlines(keepends=True)
    names = [line.partition(",")[0] for line in lines]
    kept = [
        row(name, changed[name], line) if name in changed else line for name, line in zip(names, lines, strict=True)
    ]
    return "".join([*(row(name, data, lines[0]) for name, data in added.items()), *kept]).encode()


def row(name: str, data: bytes, like: str) -> str:
    """One line of RECORD: name, digest, length. The line has the same end of line as ``like``."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    end = like[len(like.rstrip("\r\n")) :]
    return f"{name},sha256={digest},{len(data)}{end}"


if __name__ == "__main__":
    sys.exit(main())
