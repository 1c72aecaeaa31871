"""Installs this machine's wheel like a user and runs the tutorial: ``check_wheels.py dist``.

The wheel is installed in a new virtual environment, without Rust or a compiler on the path, and nothing is built from
source. The check needs Python only. On Linux a round goes through the wheel's own engine and authority. With
``--train``, `fedcipher train` does a round too, which needs the packages of the extra `demo`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from finish_wheels import AUTHORITY, ENGINE, NAMED

ROOT = Path(__file__).resolve().parents[1]
# Runs after the tutorial, which compares its means with the unencrypted ones itself.
AFTERWARDS = """
import sys
expected = ["engine-client", *(["guard"] if sys.platform == "linux" else []), "hhe"]
assert sorted(fedcipher._native.features) == expected, fedcipher._native.features
"""
# A round through the programs of the wheel, which pip has installed.
ROUND = """
from pathlib import Path
import fedcipher, numpy as np
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import start_engines
made = fedcipher.scheme("bfv", clients=3, codec=fedcipher.Codec(bits=16))
if __name__ == "__main__":
    with start_engines(made, 3, Path("engines")) as local:
        engines = [connect(local.target, device=f"client-{k}") for k in range(3)]
        keys = Authority(local.authority.address, local.server_credentials)
        sums = made.aggregator(keys.current())
        for k, engine in enumerate(engines):
            sums.add(engine.encryptor().encrypt([np.full(5, 0.1 * k, np.float32)], round=1))
        (mean,) = engines[0].decryptor().decrypt(sums.finish())
    np.testing.assert_allclose(mean, 0.1, atol=1e-3)
"""
WITHOUT = ("rustc", "cargo", "cc", "gcc", "clang", "cl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--train", action="store_true", help="also a round of `fedcipher train --engine auto`")
    options = parser.parse_args()
    dist = options.dist.resolve()
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

        # The wheel comes from the folder, not from an index. Its requirements are installed as binaries.
        run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", dist, "fedcipher")
        required = run("-c", "from importlib import metadata; print(*metadata.requires('fedcipher'), sep='\\n')")
        plain = [line for line in required.splitlines() if "extra ==" not in line]
        run("-m", "pip", "install", "--quiet", "--only-binary", ":all:", *plain)
        (folder / "tutorial.py").write_text(tutorial() + AFTERWARDS, encoding="utf-8")
        print(run("tutorial.py").strip())
        version = run("-m", "fedcipher.cli", "--version").strip()
        print("fedcipher", version)
        listed = run("-m", "fedcipher.cli", "schemes")
        assert "\nflashe\n" in listed, listed
        if sys.platform == "linux":
            for name in ("engine", "authority"):
                said = run("-m", "fedcipher.cli", name, "--version").strip()
                assert said == f"fedcipher-{name} {version}", said
            (folder / "round.py").write_text(ROUND, encoding="utf-8")
            run("round.py")
        if options.train:
            extra = [line.partition(";")[0] for line in required.splitlines() if re.search("extra == .demo", line)]
            run("-m", "pip", "install", "--quiet", "--only-binary", ":all:", *extra)
            # Ray starts its workers with bash.
            bare["PATH"] += ":/usr/bin:/bin"
            run(
                "-m", "fedcipher.cli", "train", "--engine", "auto", "--rounds", "1", "--clients", "3", "--out", "report"
            )
    print(f"{dist}: the wheel for this machine installs and runs")
    return 0


def which(name: str, folder: Path) -> bool:
    return any((folder / f"{name}{suffix}").exists() for suffix in ("", ".exe"))


def tutorial() -> str:
    text = (ROOT / "docs" / "tutorial" / "library.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, "the tutorial has no code"
    return "\n".join(blocks)


def complete(wheel: Path) -> None:
    """Check that a wheel has both licences and the list of the native module's crates, and that no list has a path."""
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    for name in names:
        named = archive.read(name).replace(NAMED, b"") if name.endswith(".cyclonedx.json") else b""
        assert b"path+file://" not in named, f"{name} of {wheel.name} names a folder of the machine that built it"
    programs = [f"scripts/{name}" for name in (ENGINE, AUTHORITY)] if "linux" in wheel.name else []
    parts = ("licenses/LICENSE-MIT", "licenses/LICENSE-APACHE", ".cyclonedx.json", "_native.", "py.typed")
    for part in (*parts, *programs):
        assert any(part in name for name in names), f"{wheel.name} has no {part}"


if __name__ == "__main__":
    sys.exit(main())
