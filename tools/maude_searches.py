"""Runs the searches of tools/maude/oneshot.maude. Searches of the protocol find nothing; without a guard, the attack.

`make maude` runs all searches, and writes nothing. `--fast` leaves out the slow ones. `--page` writes the table of all
searches into docs/evidence/proof.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tools" / "maude" / "oneshot.maude"
PAGE = ROOT / "docs" / "evidence" / "proof.md"
ABSENT = "maude is not on the PATH: `apt-get install maude` on Debian and Ubuntu, else https://maude.cs.illinois.edu"
# The line above a search: `*** none|attack[, slow]: why`, where the first word is the expected result.
SEARCH = re.compile(
    r"^\*\*\* (none|attack)(, slow)?: (.+)\n(search \[1\] in (\w+) : start\((.+)\) =>\* attack \.)$", re.M
)
TIMEOUT = 600


@dataclass(frozen=True)
class Search:
    """One search. ``finds`` is True if the search must find the attack."""

    module: str
    start: str
    why: str
    command: str
    finds: bool
    slow: bool


@dataclass(frozen=True)
class Outcome:
    """The result of a search: attack found or not, and the number of states."""

    found: bool
    states: int


def model() -> tuple[str, list[Search]]:
    """The text of the modules, and the searches after them."""
    text = MODEL.read_text(encoding="utf-8")
    found = [
        Search(module, start, why, command, finds == "attack", bool(slow))
        for finds, slow, why, command, module, start in SEARCH.findall(text)
    ]
    if len(found) != len(re.findall(r"^search ", text, re.M)):
        raise ValueError(f"{MODEL}: the line above a search does not name the expected result")
    return text[: text.index(found[0].command)], found


def run(modules: str, search: Search) -> Outcome:
    """Run a search with Maude. Raises `RuntimeError` if Maude warns, or reports no result."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "search.maude"
        script.write_text(f"{modules}\nset show timing on .\n{search.command}\nquit\n", encoding="utf-8")
        command = ["maude", "-no-banner", "-batch", "-no-wrap", str(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT, check=False
        )
    if done.returncode or "Warning" in done.stdout + done.stderr or "Error" in done.stderr:
        raise RuntimeError(f"{search.command}\n{done.stdout}{done.stderr}")
    found, none = re.search(r"^Solution 1 ", done.stdout, re.M), re.search(r"^No solution\.", done.stdout, re.M)
    states = re.search(r"^states: (\d+)", done.stdout, re.M)
    if bool(found) == bool(none) or states is None:
        raise RuntimeError(f"{search.command}\n{done.stdout}{done.stderr}")
    return Outcome(bool(found), int(states[1]))


def row(search: Search, outcome: Outcome) -> str:
    """A row of the table."""
    found = "the attack" if outcome.found else "nothing"
    return f"| `{search.module}` | `{search.start}` | {search.why} | {found} | {outcome.states:,} |"


def table(rows: list[str]) -> str:
    """The table of these rows."""
    return "\n".join(["| module | start | what is looked at | found | states |", "|---|---|---|---|---|", *rows])


def written(rows: list[str]) -> None:
    """Write the table into docs/evidence/proof.md."""
    begin, end = "<!-- maude -->", "<!-- /maude -->"
    old = PAGE.read_text(encoding="utf-8")
    made = f"{begin}\n{table(rows)}\n{end}"
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: made, old, flags=re.DOTALL), encoding="utf-8")


def main() -> int:
    """Run the searches. Returns 1 if a search does not give the expected result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave out the slow searches")
    parser.add_argument(
        "--page", action="store_true", help="write the table of all searches into docs/evidence/proof.md"
    )
    options = parser.parse_args()
    if shutil.which("maude") is None:
        print(ABSENT, file=sys.stderr)
        return 1
    modules, searches = model()
    begun, rows, wrong = time.monotonic(), [], 0
    for search in searches:
        if options.fast and search.slow:
            continue
        outcome = run(modules, search)
        rows.append(row(search, outcome))
        print(rows[-1], flush=True)
        if outcome.found != search.finds:
            wrong += 1
            must = "the attack" if search.finds else "nothing"
            print(f"WRONG: the search must find {must}: {search.command}", file=sys.stderr)
    print(f"{len(rows)} searches, {wrong} wrong; {time.monotonic() - begun:.0f} s")
    if options.page and not options.fast and not wrong:
        written(rows)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
