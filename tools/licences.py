"""Lists every Rust dependency's licence, and whether it grants patent rights, in docs/reference/licences.md.

With ``--check``, the program fails if the page is out of date. deny.toml lists the allowed licences (`make deny`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "licences.md"
# The main workspace, and the TFHE baseline, which is only built on request.
MANIFESTS = (ROOT / "Cargo.toml", ROOT / "crates" / "fedcipher-tfhe" / "Cargo.toml")


def crates() -> list[tuple[str, str, str, bool]]:
    """(name, version, licence, shipped) of every dependency. A crate that only tests use is not shipped."""
    found: dict[tuple[str, str, str], bool] = {}
    for manifest in MANIFESTS:
        for name, version, licence, shipped in workspace(manifest):
            crate = (name, version, licence)
            found[crate] = shipped or found.get(crate, False)
    return sorted((*crate, shipped) for crate, shipped in found.items())


def workspace(manifest: Path) -> list[tuple[str, str, str, bool]]:
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", str(manifest)],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        ).stdout
    )
    packages = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    shipped, pending = set(), list(metadata["workspace_members"])
    while pending:
        node = pending.pop()
        if node in shipped:
            continue
        shipped.add(node)
        for dependency in nodes[node]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                pending.append(dependency["pkg"])
    return [
        (p["name"], p["version"], p["license"] or "none stated", i in shipped)
        for i, p in packages.items()
        if p["source"] is not None
    ]


GRANTS = ("Apache-2.0", "MPL-2.0")
"""Licences in which contributors grant their patent rights. No other licence of our crates has such words."""


def grants_patents(licence: str) -> bool:
    """Whether each part of ``licence`` that applies together offers one of `GRANTS`."""
    together = re.split(r" AND (?![^(]*\))", licence)
    return all(any(name in part for name in GRANTS) for part in together)


def page(rows: list[tuple[str, str, str, bool]]) -> str:
    lines = [
        "# Licences of the Rust dependencies",
        "",
        "Written by `python tools/licences.py`. Python dependencies are installed by their own packages;",
        "`tfhe` and what it brings are in the package fedcipher-tfhe only.",
        "",
        "Patents: an application (US 2025/0358106) covers a form of one-message secure aggregation in which a",
        "client's key travels encrypted under an additively homomorphic public-key scheme. `oneshot` secret-shares",
        "that key with a committee instead. Whether that makes a difference to the claims has not been judged here.",
        "",
        "*Patent grant*: each part of the licence can be taken as Apache-2.0 or MPL-2.0, in which contributors grant",
        "their patent rights. The other licences have no such words. BSD-3-Clause-Clear refuses such rights.",
        "",
        "| crate | version | licence | patent grant | shipped |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {n} | {v} | {licence} | {'yes' if grants_patents(licence) else 'no'} | {'yes' if s else 'tests only'} |"
        for n, v, licence, s in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    text = page(crates())
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print("docs/reference/licences.md is out of date; run python tools/licences.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
