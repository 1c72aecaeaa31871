"""Runs the fuzz targets of ``fuzz/``, as many at a time as there are cores, and prints a table: `make fuzz`.

``add`` and ``open`` run under each variant of every scheme, as targets of their own: ``add_bfv-fast``.

The program exits non-zero if a target found something; the finding is in ``fuzz/artifacts/TARGET/``. With
``--minimise``, a corpus keeps only input that reaches code of its own, and the corpora are packed into the committed
archive. Each target's row in docs/evidence/testing.md is from its last run, with the run's time and date.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from archive import bare
from fedcipher.schemes import Variant, every_scheme
from page import section, written

ROOT = Path(__file__).resolve().parents[1]
FUZZ = ROOT / "fuzz"
# The most memory and time of one input. A frame of some kilobytes must not cost more.
LIMITS = ("-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-timeout=20")
MAX_BYTES = 1 << 16
PACKED = FUZZ / "corpus.tar.xz"
SCHEMES = ("add", "open")
"""Programs that need the name of a variant."""
VARIANT = "FEDCIPHER_FUZZ_VARIANT"


@dataclass(frozen=True)
class Outcome:
    """The result of one target's run."""

    target: str
    code: int
    seconds: float
    tries: int
    coverage: int
    corpus: int
    said: str


def variants() -> list[Variant]:
    """The variants under which frames are fuzzed: all of schemes whose sums are additions, and the first of others."""
    return [variant for variant in every_scheme() if variant.first or not variant.info.workers]


def variant_of(target: str) -> Variant | None:
    """The variant of a target; None for a target without a scheme."""
    what, _, name = target.partition("_")
    return next((v for v in variants() if what in SCHEMES and v.name == name), None)


def targets() -> list[str]:
    """Names of all targets."""
    named = {path.stem for path in (FUZZ / "targets").glob("*.rs")} - set(SCHEMES)
    return sorted(named | {f"{what}_{variant.name}" for what in SCHEMES for variant in variants()})


def in_core(target: str) -> bool:
    """Return True if a program of ``fuzz/`` runs the target. `fuzz_frames.py` runs the others."""
    variant = variant_of(target)
    return variant is None or variant.in_core


def packed(target: str) -> bool:
    """Return True if the target's corpus is committed. Frames with hundreds of kilobytes of keys are not."""
    variant = variant_of(target)
    return variant is None or not variant.info.workers


def environment(target: str) -> dict[str, str]:
    """The environment of a target: one thread, because as many targets run as there are cores, and the variant."""
    variant = variant_of(target)
    return os.environ | {"RAYON_NUM_THREADS": "1"} | ({VARIANT: variant.name} if variant else {})


def program(target: str) -> Path:
    """The target's program, which cargo-fuzz has built for this machine."""
    (found,) = (FUZZ / "target").glob(f"*/release/{target.partition('_')[0] if variant_of(target) else target}")
    return found


def build() -> None:
    """Compile all targets, without a sanitizer: this project's code has no unsafe code, and panics need none."""
    cargo = ["cargo", "fuzz", "build", "--release", "--sanitizer", "none"]
    subprocess.run(cargo, cwd=ROOT, check=True)


def unpack() -> None:
    """Unpack the committed corpora if there are no corpora yet."""
    if PACKED.exists() and not (FUZZ / "corpus").is_dir():
        with tarfile.open(PACKED) as archive:
            archive.extractall(FUZZ, filter="data")


def pack() -> None:
    """Pack the corpora for the next commit."""

    with tarfile.open(PACKED, "w:xz") as archive:
        for corpus in sorted((FUZZ / "corpus").iterdir()):
            if packed(corpus.name):
                archive.add(corpus, f"corpus/{corpus.name}", filter=bare)


def seed(target: str) -> Path:
    """The target's corpus, with honest input of today's formats, because stored input may have older formats."""
    corpus = FUZZ / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    settings = environment(target) | {"FEDCIPHER_SEEDS": str(corpus)}
    subprocess.run([str(program(target)), "-runs=0"], check=True, capture_output=True, env=settings)
    return corpus


def command(target: str, seconds: int, artifacts: Path) -> list[str]:
    """The command that fuzzes ``target`` for ``seconds``."""
    if not in_core(target):
        what, _, name = target.partition("_")
        return [sys.executable, str(ROOT / "tools" / "fuzz_frames.py"), what, name, str(seconds)]
    words = [str(program(target)), f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", *LIMITS]
    return [*words, f"-artifact_prefix={artifacts}/", "-print_final_stats=1", str(FUZZ / "corpus" / target)]


def fuzz(target: str, seconds: int) -> Outcome:
    """Fuzz one target for ``seconds``."""
    artifacts = FUZZ / "artifacts" / target
    artifacts.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        command(target, seconds, artifacts), capture_output=True, text=True, check=False, env=environment(target)
    )
    tries = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    reached = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", done.stderr)
    coverage, corpus = map(int, reached[-1]) if reached else (0, 0)
    outcome = Outcome(
        target,
        done.returncode,
        time.monotonic() - began,
        int(tries[1]) if tries else 0,
        coverage,
        corpus,
        done.stderr[-4000:],
    )
    print(
        f"{target}: {outcome.tries:,} tries in {outcome.seconds:.0f} s, exit {outcome.code}",
        file=sys.stderr,
        flush=True,
    )
    return outcome


def minimise(target: str) -> None:
    """Reduce a corpus to the least input that reaches as much code."""
    corpus = FUZZ / "corpus" / target
    less = corpus.with_name(f"{target}.less")
    less.mkdir()
    words = [str(program(target)), "-merge=1", f"-max_len={MAX_BYTES}", *LIMITS, str(less), str(corpus)]
    subprocess.run(words, check=True, capture_output=True, env=environment(target))
    shutil.rmtree(corpus)
    less.rename(corpus)


def rows(outcomes: list[Outcome]) -> dict[str, str]:
    """The rows for docs/evidence/testing.md, by target."""
    today = datetime.date.today()
    made: dict[str, str] = {}
    for o in outcomes:
        found = "nothing" if o.code == 0 else f"exit {o.code}"
        cells = (f"{o.seconds:.0f} s, {today}", f"{o.tries:,}", f"{o.tries / o.seconds:,.0f}", f"{o.coverage:,}")
        made[o.target] = f"| `{o.target}` | {' | '.join(cells)} | {o.corpus:,} | {found} |"
    return made


def table(outcomes: list[Outcome]) -> str:
    """The page's rows, with the rows of ``outcomes`` in their places. Targets that no longer exist are left out."""
    kept = {row[1]: row[0] for row in re.finditer(r"^\| `([\w-]+)` \|.*$", section("fuzz"), re.MULTILINE)}
    now = {target: row for target, row in (kept | rows(outcomes)).items() if target in targets() and in_core(target)}
    head = (
        "| target | fuzzed | tries | tries a second | edges reached | corpus | found |\n|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(now[target] for target in sorted(now))])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="seconds for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    parser.add_argument("--minimise", action="store_true", help="minimise and pack the corpora; fuzz nothing")
    parser.add_argument("only", nargs="*", help="run only these targets")
    given = parser.parse_args()
    unknown = set(given.only) - set(targets())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    chosen = given.only or targets()
    programs = [target for target in chosen if in_core(target)]
    if programs:
        build()
        unpack()
    for target in programs:
        seed(target)
    with ThreadPoolExecutor(given.jobs) as pool:
        if given.minimise:
            list(pool.map(minimise, programs))
            pack()
            return 0
        outcomes = list(pool.map(lambda target: fuzz(target, given.seconds), chosen))
    print("\n".join(rows(outcomes).values()))
    if programs:
        written("`make fuzz`, last", table(outcomes), "fuzz")
    broken = [o for o in outcomes if o.code]
    for o in broken:
        print(f"\n{o.target}:\n{o.said}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
