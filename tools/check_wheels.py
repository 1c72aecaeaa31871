"""Installs this machine's wheel as a user would and runs the README's snippet: ``check_wheels.py dist``.

In a new virtual environment, in a folder of its own, with neither Rust nor a compiler on the path and nothing built
from source. Needs Python only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from wheel_paths import NAMED

ROOT = Path(__file__).resolve().parents[1]
# The snippet's updates are the reader's own.
PRELUDE = """
import numpy as np
update = [[np.full((3, 2), 0.01 * j, np.float32), np.array(0.02 * j, np.float32)] for j in range(10)]
"""
AFTERWARDS = """
expected = [np.mean([u[k] for u in update], axis=0) for k in range(2)]
for got, want in zip(mean, expected, strict=True):
    np.testing.assert_allclose(np.asarray(got).reshape(want.shape), want, atol=1e-4)
print("features:", fedcipher._native.features)
"""
WITHOUT = ("rustc", "cargo", "cc", "gcc", "clang", "cl")


def main() -> int:
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    for wheel in sorted(dist.rglob("*.whl")):
        complete(wheel)
    with tempfile.TemporaryDirectory(prefix="fedcipher-wheel-") as scratch:
        folder = Path(scratch)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = programs / Path(sys.executable).name
        python = python if python.exists() else programs / ("python.exe" if os.name == "nt" else "python")
        kept = ("HOME", "SYSTEMROOT", "TEMP", "TMP", "PIP_CERT", "SSL_CERT_FILE")
        bare = {name: os.environ[name] for name in kept if name in os.environ}
        bare |= {"PATH": str(programs), "FEDCIPHER_STATE_DIR": str(folder / "state")}
        found = [name for name in WITHOUT if which(name, programs)]
        assert not found, f"{found} on the path of the environment"

        def run(*command: str | Path) -> str:
            return subprocess.run(
                [python, *command], cwd=folder, env=bare, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        # The wheel from the folder, whatever an index has of that name; what it requires as binaries.
        run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", dist, "fedcipher")
        required = run("-c", "from importlib import metadata; print(*metadata.requires('fedcipher'), sep='\\n')")
        plain = [line for line in required.splitlines() if "extra ==" not in line]
        run("-m", "pip", "install", "--quiet", "--only-binary", ":all:", *plain)
        (folder / "snippet.py").write_text(PRELUDE + snippet() + AFTERWARDS, encoding="utf-8")
        print(run("snippet.py").strip())
        print("fedcipher", run("-m", "fedcipher.cli", "--version").strip())
        listed = run("-m", "fedcipher.cli", "schemes")
        assert "\nflashe\n" in listed, listed
    print(f"{dist}: the wheel for this machine installs and runs")
    return 0


def which(name: str, folder: Path) -> bool:
    return any((folder / f"{name}{suffix}").exists() for suffix in ("", ".exe"))


def snippet() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text.partition("\n## Without Flower\n")[2], re.DOTALL)
    return blocks[0]


def complete(wheel: Path) -> None:
    """Both licences and the list of what the native module is made of are in it; the list names no folder."""
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    for name in names:
        named = archive.read(name).replace(NAMED, b"") if name.endswith(".cyclonedx.json") else b""
        assert b"path+file://" not in named, f"{name} of {wheel.name} names a folder of the machine that built it"
    for part in ("licenses/LICENSE-MIT", "licenses/LICENSE-APACHE", ".cyclonedx.json", "_native.", "py.typed"):
        assert any(part in name for name in names), f"{wheel.name} has no {part}"


if __name__ == "__main__":
    sys.exit(main())
