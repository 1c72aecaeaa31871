"""Takes out one check of the Flower layer at a time and expects its tests to notice: `make mutants-flower`.

Works on a copy of the Python sources with this environment's native module; exits non-zero when a mutant survives or no
longer applies. Names on the command line choose files: ``client outgoing``.
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
from collections.abc import Callable, Generator
from functools import partial
from multiprocessing import Queue, get_context
from pathlib import Path

import coverage
import pytest
from mutants import CAUGHT, ROOT, STALE, SURVIVED, Mutant, broken, chosen, reported

TESTS = tuple(
    f"tests/test_{name}.py"
    for name in (
        *(
            "flower_updates",
            "flower",
            "flower_models",
            "attacks_flower",
            "parties",
            "flower_rounds",
            "flower_optimiser",
        ),
        *("flower_resume", "attacks_oneshot", "oneshot", "suspects", "numbers"),
    )
)
SOURCES = "python/fedcipher/flower"
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider")
LONGEST = 1800
# What takes seconds to import, and starts no threads by being imported.
IMPORTED = ("flwr.app", "flwr.clientapp", "flwr.serverapp.strategy", "flwr.simulation", "jax")
COMMAND = "make mutants-flower"


def flower(file: str, what: str, old: str, new: str) -> Mutant:
    """A mutant of ``FILE.py`` of the Flower layer."""
    return Mutant(what, f"{SOURCES}/{file}.py", old, new)


MUTANTS = (
    flower("client", "any message type reaches the app", "if (category, action) in allowed:", "if True:"),
    flower(
        "client",
        "an allowed type's reply is not checked",
        "checked(call_next(msg, ctxt), None)",
        "call_next(msg, ctxt)",
    ),
    flower(
        "client", "a round's reply is not checked", "checked(call.run(call_next), call.expected)", "call.run(call_next)"
    ),
    flower("client", "an error travels with its text", "return refuse(msg, error)", "raise"),
    flower("client", "a round is answered twice", "if self.settings.round <= answered:", "if False:"),
    flower(
        "client", "an answered round is not remembered", "self.model.remember(answered=self.settings.round)", "pass"
    ),
    flower("client", "state of the encryptor is not restored", "if state is not None:", "if False:"),
    flower("client", "state of the encryptor is not kept", "        if state:\n", "        if False:\n"),
    flower("client", "an update is in the app's order", "for name in self.settings.names]", "for name in record]"),
    flower(
        "client", "an update has other names", "if sorted(record.keys()) != sorted(self.settings.names):", "if False:"
    ),
    flower("client", "weights are rounded down", "max(1, round(units))", "max(1, int(units))"),
    flower("client", "a weight may be 0", "max(1, round(units))", "round(units)"),
    flower("client", "an infinite weight", "if not math.isfinite(units):", "if False:"),
    flower("client", "weights with privacy", "if self.party.scheme.codec.privacy is not None:", "if False:"),
    flower("client", "updates are not bound to the model", "model=self.model.digest,", ""),
    flower("client", "several ArrayRecords in a reply", "if len(items) != 1:", "if not items:"),
    flower("client", "nobody hears of clipping", "if clipped > CLIPPED * values.size:", "if False:"),
    flower("client", "deltas are not made", 'if self.party.scheme.codec.target == "delta":', "if False:"),
    flower("outgoing", "arrays in a reply that is no update", "    elif arrays:\n", "    elif False:\n"),
    flower("outgoing", "what leaves need not be one frame", "if len(records) != 1 or len(arrays) != 1 or", "if"),
    flower("outgoing", "what leaves need not be named a frame", " or arrays[0][0] != protocol.UPDATE:", ":"),
    flower(
        "outgoing",
        "a frame of another round leaves",
        "(kind, scheme, number, len(contributions)) != (_UPDATE_KIND, update.scheme, update.round, 1)",
        "(kind, scheme, len(contributions)) != (_UPDATE_KIND, update.scheme, 1)",
    ),
    flower(
        "outgoing",
        "an aggregate leaves as an update",
        "(kind, scheme, number, len(contributions)) != (_UPDATE_KIND, update.scheme, update.round, 1)",
        "(scheme, number, len(contributions)) != (update.scheme, update.round, 1)",
    ),
    flower(
        "outgoing",
        "an update leaves as numbers",
        "if numbers > _MOST_NUMBERS or text > _MOST_TEXT:",
        "if text > _MOST_TEXT:",
    ),
    flower(
        "outgoing",
        "an update leaves as text",
        "if numbers > _MOST_NUMBERS or text > _MOST_TEXT:",
        "if numbers > _MOST_NUMBERS:",
    ),
    flower(
        "outgoing",
        "bytes leave",
        "                else:\n                    raise PlaintextError",
        "                elif not isinstance(value, bytes):\n                    raise PlaintextError",
    ),
    flower("outgoing", "an error reply leaves", "if reply.has_error():", "if False:"),
    flower("settings", "a round before its run", "if made.round <= made.run:", "if False:"),
    flower("settings", "names twice", " or len(set(made.names)) != len(made.names):", ":"),
    flower("settings", "an infinite unit", "if not (math.isfinite(made.unit) and made.unit >= 0):", "if False:"),
    flower(
        "settings",
        "clip ranges of any value",
        "if not all(type(x) is float and math.isfinite(x) and x > 0 for x in made.ranges):",
        "if False:",
    ),
    flower("settings", "types are not checked", "if type(value) is not kind:", "if False:"),
    flower("settings", "numbers out of range", "if not least <= value <= _MOST_ROUND:", "if False:"),
    flower("model", "missing aggregates are skipped", "if sequence != at.have + 1:", "if False:"),
    flower("model", "aggregates are applied twice", "if sequence <= at.have:", "if False:"),
    flower("model", "a withdrawn aggregate stays", "if at.last != settings.last:", "if False:"),
    flower("model", "an aggregate of another run", "if not self._settings.run < number <= self._newest:", "if False:"),
    flower(
        "model",
        "an aggregate of any model",
        "opened = decryptor.open(frame, round=number, model=model,",
        "opened = decryptor.open(frame, round=number, model=None,",
    ),
    flower(
        "model",
        "an aggregate of any round",
        "opened = decryptor.open(frame, round=number, model=model,",
        "opened = decryptor.open(frame, round=None, model=model,",
    ),
    Mutant(
        "ranges as small as the server likes",
        "python/fedcipher/codec.py",
        "float(np.float32(max(self.margin * spread, self._floor(bits))))",
        "float(np.float32(self.margin * spread))",
    ),
    flower("model", "another optimiser in mid-run", 'if self.recall("steps") != steps.identity:', "if False:"),
    flower(
        "model",
        "the digest does not know the values",
        "        add(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)\n",
        "",
    ),
    flower("model", "the digest does not know the weighting", '    add(struct.pack("<d", settings.unit))\n', ""),
    flower(
        "model",
        "the digest does not know the optimiser",
        "    add(Steps(settings.optimiser, settings.run).identity)\n",
        "",
    ),
    flower(
        "model",
        "whole numbers are subtracted as floats",
        'elif new.dtype.kind in "iu" and old.dtype.kind in "iu":',
        "elif False:",
    ),
    flower("model", "arrays of other names", "if initial and initial != self._settings.names:", "if False:"),
    flower(
        "clip_feedback",
        "a range shrinks below what was too little",
        "np.where(cut > 0, np.minimum(2 * self._ranges, _LARGEST), self._least)",
        "self._least",
    ),
    flower(
        "clip_feedback",
        "a range does not grow",
        "np.where(cut > 0, np.minimum(_GROWTH * self._ranges, _LARGEST), fitted)",
        "fitted",
    ),
    flower("clip_feedback", "ranges are not restored", "if len(state) == 16 * self._ranges.size:", "if False:"),
    flower("parties", "a revoked client's update is used", "if client in revoked:", "if False:"),
    flower("parties", "a node takes a second client", "if known != client and known not in revoked:", "if False:"),
    flower("parties", "a node takes another's client", "if owner in there():", "if False:"),
    flower("parties", "a restarted node is locked out", "if owner in there():", "if True:"),
    flower("parties", "who spoils rounds is asked again", "if client not in out]", "]"),
    flower(
        "strategy",
        "an update in the clear is taken",
        "if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:",
        "if len(arrays) != 1:",
    ),
    flower("strategy", "fewer updates than the minimum", "if len(accepted) < self._minimum:", "if False:"),
    flower("strategy", "too few are asked", "if 0 < len(messages) < self._minimum:", "if False:"),
    flower("strategy", "more are asked than fit", "if len(messages) > self._most:", "if False:"),
    flower("strategy", "sizes are not checked", "                self._running.check_size(elements)\n", ""),
    flower(
        "strategy",
        "parties are not checked",
        "                self._parties.check(node, [client for client, _ in contributions], revoked, self._nodes)\n",
        "",
    ),
    flower("strategy", "phases of any size", "if name in PHASES and 0 <= value < LARGEST_PHASE}", "if name in PHASES}"),
    flower(
        "strategy",
        "reasons of any length",
        "return reason if len(reason) <= most else reason[:most]",
        "return reason if True else reason[:most]",
    ),
    flower("strategy", "who is left out is not sent everything again", "        self._running.forget(node)\n", ""),
    flower(
        "server_model",
        "changed ciphertext goes on",
        '        if not self._opens:\n            raise StrategyError(\n                "the arrays that',
        '        if False:\n            raise StrategyError(\n                "the arrays that',
    ),
    flower(
        "server_model",
        "aggregates are sent from the first",
        "range((have if same else 0) + 1, run.count + 1)",
        "range(1, run.count + 1)",
    ),
    flower(
        "server_model",
        "an aggregate is left out",
        "range((have if same else 0) + 1, run.count + 1)",
        "range((have if same else 0) + 2, run.count + 1)",
    ),
    flower("server_model", "an update of any size", "        if elements > most:\n", "        if False:\n"),
    flower("attendance", "a quorum below the minimum", "max(share, self._minimum)", "share"),
    flower(
        "attendance",
        "a deadline is not kept",
        "(seconds if self._deadline is None else min(seconds, self._deadline))",
        "seconds",
    ),
    flower(
        "attendance",
        "late answers are not told of",
        "            record.late.append(node)\n",
        "",
    ),
    flower(
        "attendance", "the SuperLink's word is a late answer", "or reply.metadata.src_node_id != node:", "or False:"
    ),
    flower(
        "replies", "all replies are asked for in one call", "self._together = any(", "self._together = True or any("
    ),
    flower(
        "replies",
        "what the SuperLink answers for a node is its own",
        '        reply.metadata.__dict__["_src_node_id"] = node\n',
        "",
    ),
    flower(
        "replies", "a deadline closes a round whose SuperLink is away", "        if hanging:\n", "        if False:\n"
    ),
    flower("refusal", "a refusal says why", "reason=TEXT + reference)", "reason=TEXT + reference + str(error))"),
    flower(
        "refusal",
        "a refusal's code says why",
        "Error(code=CODE,",
        "Error(code=CODE if isinstance(error, FedcipherError) else 5,",
    ),
    flower("refusal", "the log has lines of the server's", '" ".join(str(error).split())', "str(error)"),
    flower("numbers", "a number is used twice", '{"next": first + count}', '{"next": first}'),
)


class Recorder:
    """What of the sources each test has run, and how long it took: a plug-in of pytest."""

    def __init__(self, tree: Path) -> None:
        self._coverage = coverage.Coverage(data_file=None, source=[str(tree / SOURCES)])
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        outcome = yield
        self._seconds[item.nodeid] = time.perf_counter() - began
        return outcome

    def run(self, into: Path) -> int:
        """Runs all tests; tests by file and line go into ``into``, those of a line that an import runs without any."""
        self._coverage.start()
        status = pytest.main([*OPTIONS, *TESTS], plugins=[self])
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {Path(file).name: data.contexts_by_lineno(file) for file in data.measured_files()}
        into.write_text(json.dumps({"lines": lines, "seconds": self._seconds}))
        return int(status)


class Tests:
    """Which tests can notice a mutant, the quickest first."""

    def __init__(self, recorded: Path) -> None:
        found = json.loads(recorded.read_text())
        self._lines: dict[str, dict[str, list[str]]] = found["lines"]
        self._seconds: dict[str, float] = found["seconds"]

    def of(self, tree: Path, mutant: Mutant) -> list[str]:
        """Those that run its lines; all of them where one of its lines runs at import."""
        text = (tree / mutant.file).read_text(encoding="utf-8")
        first = text[: text.index(mutant.old)].count("\n") + 1
        lines = self._lines.get(Path(mutant.file).name, {})
        found: set[str] = set()
        for line in range(first, first + mutant.old.strip("\n").count("\n") + 1):
            found.update(lines.get(str(line), []))
        named = self._seconds if "" in found or not found else found
        return sorted(named, key=lambda test: self._seconds[test])


def in_fork(tree: Path, work: Callable[[], int]) -> int:
    """The status of ``work`` with the sources of ``tree``: what this process has imported costs seconds anew."""
    if (child := os.fork()) == 0:
        os.chdir(tree)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        # Also of what the tests start.
        os.environ["PYTHONPATH"] = str(tree / "python")
        sys.path[:0] = [str(tree / "python")]
        # A mutant that never ends is noticed too.
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_all(
    tree: Path, tests: Tests, mutants: Queue[Mutant | None], outcomes: Queue[tuple[Mutant, str] | None]
) -> None:
    """A process with sources of its own."""
    for module in IMPORTED:
        importlib.import_module(module)
    while (mutant := mutants.get()) is not None:
        applies = (tree / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
        chosen = tests.of(tree, mutant) if applies else []
        with broken(tree, mutant):
            green = applies and in_fork(tree, partial(pytest.main, [*OPTIONS, *chosen])) == 0
        outcomes.put((mutant, STALE if not applies else SURVIVED if green else CAUGHT))
    outcomes.put(None)


def main() -> int:
    """Command line."""
    wanted = chosen(MUTANTS, COMMAND)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    processes = get_context("fork")
    mutants: Queue[Mutant | None] = processes.Queue()
    outcomes: Queue[tuple[Mutant, str] | None] = processes.Queue()
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        if (ROOT.parent / "shared").is_dir():
            (Path(scratch) / "shared").symlink_to(ROOT.parent / "shared")
        # Half of what a test does is wait.
        trees = [Path(scratch) / f"main-{k}" for k in range(2 * (os.cpu_count() or 1))]
        for tree in trees:
            ignored = shutil.ignore_patterns("target", ".venv", ".git", "runs", "fuzz", "crates", "dist")
            shutil.copytree(ROOT, tree, ignore=ignored)
            (tree / ".venv").symlink_to(ROOT / ".venv")
        recorded = Path(scratch) / "recorded.json"
        if in_fork(trees[0], partial(Recorder(trees[0]).run, recorded)) != 0:
            print("the tests fail without any mutant")
            return 2
        for mutant in [*wanted, *[None for _ in trees]]:
            mutants.put(mutant)
        for tree in trees:
            processes.Process(target=try_all, args=(tree, Tests(recorded), mutants, outcomes)).start()
        found = (outcome for _ in trees for outcome in iter(outcomes.get, None))
        return reported(found, COMMAND, part=bool(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
