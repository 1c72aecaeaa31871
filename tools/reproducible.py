"""Builds this machine's wheel twice and compares the bytes: `make reproducible`.

The two builds are of the last commit. They differ in source folder, Cargo home and time zone. ``reproducible.py A B``
compares two wheels that exist.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The folders have different lengths, so that a path left in a file moves the bytes after it.
PLACES = (("one", "cargo", "UTC"), ("another/folder", "another-cargo", "Asia/Kathmandu"))


def main() -> int:
    """Build or read two wheels. Returns 0 if they are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="*", type=Path, help="two wheels to compare; none are built")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment with maturin")
    parser.add_argument("--target", help="a target and its platform tag, like in the Makefile's WHEELS")
    arguments = parser.parse_args()
    if arguments.wheels:
        first, second = arguments.wheels
        return report(first, second)
    with tempfile.TemporaryDirectory(prefix="fedcipher-wheels-") as scratch:
        # Both builds use one commit, even if another commit is made meanwhile.
        made = {"commit": git("rev-parse", "HEAD").decode().strip(), "target": arguments.target}
        return report(*(built(Path(scratch), *place, arguments.venv.absolute(), **made) for place in PLACES))


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def built(scratch: Path, folder: str, cargo_home: str, zone: str, venv: Path, *, commit: str, target: str) -> Path:
    """Build the wheel of ``commit`` in ``scratch/folder`` with `make wheels`."""
    source = scratch / folder
    archive = git("archive", commit)
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    # The same downloads under another path.
    home = scratch / cargo_home
    home.symlink_to(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    # With variables of an outer make, the build would also run the targets of that make.
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CARGO_TARGET_DIR"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    date = git("log", "-1", "--format=%ct", commit).decode().strip()
    environment |= {"CARGO_HOME": str(home), "TZ": zone, "SOURCE_DATE_EPOCH": date}
    command = ["make", "--no-print-directory", "wheels", f"VENV={venv}", f"WHEELS={target}"]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = (source / "dist").rglob("*.whl")
    kept = Path(shutil.move(wheel, scratch / f"{cargo_home}.whl"))
    shutil.rmtree(source)
    return kept


def report(first: Path, second: Path) -> int:
    """Print both digests, and the differences of the wheels."""
    for wheel in (first, second):
        print(hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.name)
    if first.read_bytes() == second.read_bytes():
        print("the wheels are equal")
        return 0
    for line in differences(first, second):
        print(line, file=sys.stderr)
    print("the wheels differ", file=sys.stderr)
    return 1


def differences(first: Path, second: Path) -> Iterator[str]:
    """A sentence for each file that differs between the wheels."""
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        names = [set(wheel.namelist()) for wheel in (one, other)]
        for name in sorted(names[0] ^ names[1]):
            yield f"{name}: only in the {'first' if name in names[0] else 'second'}"
        for name in sorted(names[0] & names[1]):
            data = one.read(name), other.read(name)
            if data[0] != data[1]:
                yield f"{name}: {around(*data)}"
            elif described(one.getinfo(name)) != described(other.getinfo(name)):
                yield f"{name}: dates or modes"
        if one.namelist() != other.namelist() and names[0] == names[1]:
            yield "the order of the files"


def described(member: zipfile.ZipInfo) -> tuple[object, ...]:
    return member.date_time, member.external_attr, member.compress_size


def around(first: bytes, second: bytes, context: int = 60) -> str:
    """The first place where two files differ, with the bytes around it."""
    pairs = zip(first, second, strict=False)
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    cut = slice(max(0, place - context), place + context)
    return f"{len(first)} and {len(second)} bytes, from byte {place} on: {first[cut]!r} and {second[cut]!r}"


if __name__ == "__main__":
    sys.exit(main())
