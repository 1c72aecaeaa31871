"""The searches of tools/maude/oneshot.maude: the protocol's find nothing, those without a guard find the attack.

`make maude` runs them all, and writes nothing. `--fast` leaves out the slow ones. `--page` puts the table of all into
docs/evidence/proof.md.
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
# `*** what it must find[, slow]: why`, then the search.
SEARCH = re.compile(
    r"^\*\*\* (none|attack)(, slow)?: (.+)\n(search \[1\] in (\w+) : start\((.+)\) =>\* attack \.)$", re.M
)
LONGEST = 600


@dataclass(frozen=True)
class Search:
    """One search, and whether it must find the attack."""

    module: str
    start: str
    why: str
    command: str
    finds: bool
    slow: bool


@dataclass(frozen=True)
class Outcome:
    """Whether the attack was found, and how many states were seen."""

    found: bool
    states: int


def model() -> tuple[str, list[Search]]:
    """The modules, and the searches behind them."""
    text = MODEL.read_text(encoding="utf-8")
    found = [
        Search(module, start, why, command, finds == "attack", bool(slow))
        for finds, slow, why, command, module, start in SEARCH.findall(text)
    ]
    if len(found) != len(re.findall(r"^search ", text, re.M)):
        raise ValueError(f"{MODEL}: a search without a line above it that says what it must find")
    return text[: text.index(found[0].command)], found


def run(modules: str, search: Search) -> Outcome:
    """What Maude says; an error where it warns, or says neither."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "search.maude"
        script.write_text(f"{modules}\nset show timing on .\n{search.command}\nquit\n", encoding="utf-8")
        command = ["maude", "-no-banner", "-batch", "-no-wrap", str(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LONGEST, check=False
        )
    if done.returncode or "Warning" in done.stdout + done.stderr or "Error" in done.stderr:
        raise RuntimeError(f"{search.command}\n{done.stdout}{done.stderr}")
    found, none = re.search(r"^Solution 1 ", done.stdout, re.M), re.search(r"^No solution\.", done.stdout, re.M)
    states = re.search(r"^states: (\d+)", done.stdout, re.M)
    if bool(found) == bool(none) or states is None:
        raise RuntimeError(f"{search.command}\n{done.stdout}{done.stderr}")
    return Outcome(bool(found), int(states[1]))


def row(search: Search, outcome: Outcome) -> str:
    """A line of the table."""
    found = "the attack" if outcome.found else "nothing"
    return f"| `{search.module}` | `{search.start}` | {search.why} | {found} | {outcome.states:,} |"


def table(rows: list[str]) -> str:
    """The table of these lines."""
    return "\n".join(["| module | start | what is looked at | found | states |", "|---|---|---|---|---|", *rows])


def written(rows: list[str]) -> None:
    """Puts the table into docs/evidence/proof.md."""
    begin, end = "<!-- maude -->", "<!-- /maude -->"
    old = PAGE.read_text(encoding="utf-8")
    made = f"{begin}\n{table(rows)}\n{end}"
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: made, old, flags=re.DOTALL), encoding="utf-8")


def main() -> int:
    """Run the searches; 1 where one does not find what it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="without the slow ones")
    parser.add_argument("--page", action="store_true", help="put the table of all into docs/evidence/proof.md")
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
            print(f"NOT SO: it must find {must}: {search.command}", file=sys.stderr)
    print(f"{len(rows)} searches, {wrong} not as they must be; {time.monotonic() - begun:.0f} s")
    if options.page and not options.fast and not wrong:
        written(rows)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
