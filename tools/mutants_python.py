"""Removes one check of the Python sources at a time, and runs the tests that can notice.

The program works on a copy of the sources with this environment's native module. Each test is recorded once with the
lines that it runs, so that a mutant meets the tests of its lines only, the quickest first.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from multiprocessing import Queue, get_context
from pathlib import Path

import coverage
import pytest
from mutants import CAUGHT, ROOT, STALE, SURVIVED, Mutant, broken, chosen, reported

__all__ = ["campaign", "python"]

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider")
TIMEOUT = 1800
# Modules that take seconds to import, and that start no threads when imported.
IMPORTED = ("flwr.app", "flwr.clientapp", "flwr.serverapp.strategy", "flwr.simulation", "jax")


def python(file: str, what: str, old: str, new: str) -> Mutant:
    """A mutant of ``FILE.py`` of the package."""
    return Mutant(what, f"python/fedcipher/{file}.py", old, new)


class Recorder:
    """A plug-in of pytest that records the lines each test runs, and the seconds each test takes."""

    def __init__(self, tree: Path, sources: Sequence[str], tests: Sequence[str]) -> None:
        self._coverage = coverage.Coverage(data_file=None, source=[str(tree / folder) for folder in sources])
        self._tree, self._tests = tree, tests
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        outcome = yield
        self._seconds[item.nodeid] = time.perf_counter() - began
        return outcome

    def run(self, into: Path) -> int:
        """Run all tests. Writes the tests by file and line into ``into``; a line that runs at import has no tests."""
        self._coverage.start()
        status = pytest.main([*OPTIONS, *self._tests], plugins=[self])
        self._coverage.stop()
        data = self._coverage.get_data()
        files = {str(Path(file).relative_to(self._tree)): file for file in data.measured_files()}
        lines = {name: data.contexts_by_lineno(file) for name, file in files.items()}
        into.write_text(json.dumps({"lines": lines, "seconds": self._seconds}))
        return int(status)


class Tests:
    """Finds the tests that can notice a mutant, the quickest first."""

    def __init__(self, recorded: Path) -> None:
        found = json.loads(recorded.read_text())
        self._lines: dict[str, dict[str, list[str]]] = found["lines"]
        self._seconds: dict[str, float] = found["seconds"]

    def of(self, tree: Path, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's lines; all tests if one of the lines runs at import."""
        text = (tree / mutant.file).read_text(encoding="utf-8")
        first = text[: text.index(mutant.old)].count("\n") + 1
        lines = self._lines.get(mutant.file, {})
        found: set[str] = set()
        for line in range(first, first + mutant.old.strip("\n").count("\n") + 1):
            found.update(lines.get(str(line), []))
        named = self._seconds if "" in found or not found else found
        return sorted(named, key=lambda test: self._seconds[test])


def in_fork(tree: Path, work: Callable[[], int]) -> int:
    """Run ``work`` in a fork with the sources of ``tree``, and return its status.

    The fork keeps this process's imports, which take seconds.
    """
    if (child := os.fork()) == 0:
        os.chdir(tree)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        # The processes that tests start use the tree's sources too.
        os.environ["PYTHONPATH"] = str(tree / "python")
        sys.path[:0] = [str(tree / "python")]
        # A mutant that never ends fails too.
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_all(
    tree: Path, tests: Tests, mutants: Queue[Mutant | None], outcomes: Queue[tuple[Mutant, str] | None]
) -> None:
    """Try mutants from a queue, in a process with its own copy of the sources."""
    for module in IMPORTED:
        importlib.import_module(module)
    while (mutant := mutants.get()) is not None:
        applies = (tree / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
        chosen = tests.of(tree, mutant) if applies else []
        with broken(tree, mutant):
            green = applies and in_fork(tree, partial(pytest.main, [*OPTIONS, *chosen])) == 0
        outcomes.put((mutant, STALE if not applies else SURVIVED if green else CAUGHT))
    outcomes.put(None)


def campaign(mutants: Sequence[Mutant], sources: Sequence[str], tests: Sequence[str], command: str) -> int:
    """Try the ``mutants`` of the files on the command line, or all, by ``tests``. The mutants are in ``sources``.

    Returns 1 if a mutant survives or no longer applies, and 2 if the tests fail without any mutant.
    """
    wanted = chosen(mutants, command)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    processes = get_context("fork")
    waiting: Queue[Mutant | None] = processes.Queue()
    outcomes: Queue[tuple[Mutant, str] | None] = processes.Queue()
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        if (ROOT.parent / "shared").is_dir():
            (Path(scratch) / "shared").symlink_to(ROOT.parent / "shared")
        # A test waits half of its time, so there are two trees for each processor.
        trees = [Path(scratch) / f"main-{k}" for k in range(2 * (os.cpu_count() or 1))]
        for tree in trees:
            ignored = shutil.ignore_patterns("target", ".venv", ".git", "runs", "fuzz", "crates", "dist")
            shutil.copytree(ROOT, tree, ignore=ignored)
            (tree / ".venv").symlink_to(ROOT / ".venv")
        recorded = Path(scratch) / "recorded.json"
        if in_fork(trees[0], partial(Recorder(trees[0], sources, tests).run, recorded)) != 0:
            print("the tests fail without any mutant")
            return 2
        for mutant in [*wanted, *[None for _ in trees]]:
            waiting.put(mutant)
        for tree in trees:
            processes.Process(target=try_all, args=(tree, Tests(recorded), waiting, outcomes)).start()
        found = (outcome for _ in trees for outcome in iter(outcomes.get, None))
        return reported(found, command, part=bool(sys.argv[1:]))
