"""Takes out one check of the Flower layer at a time and expects its tests to notice: `make mutants-flower`.

Works on a copy of the Python sources with this environment's native module; exits non-zero when a mutant survives or no
longer applies. Names on the command line choose files: ``client outgoing``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/test_flower.py", "tests/test_flower_models.py", "tests/test_attacks_flower.py", "tests/test_parties.py")
TESTS += ("tests/test_flower_rounds.py", "tests/test_flower_optimiser.py", "tests/test_flower_resume.py")
TESTS += ("tests/test_attacks_oneshot.py", "tests/test_oneshot.py", "tests/test_suspects.py", "tests/test_numbers.py")


@dataclass(frozen=True)
class Mutant:
    """``old`` of a file of ``python/fedcipher/flower`` becomes ``new``."""

    file: str
    what: str
    old: str
    new: str


MUTANTS = (
    Mutant("client", "any message type reaches the app", "if (category, action) in allowed:", "if True:"),
    Mutant(
        "client",
        "an allowed type's reply is not checked",
        "checked(call_next(msg, ctxt), None)",
        "call_next(msg, ctxt)",
    ),
    Mutant(
        "client", "a round's reply is not checked", "checked(call.run(call_next), call.expected)", "call.run(call_next)"
    ),
    Mutant("client", "an error travels with its text", "return refuse(msg, error)", "raise"),
    Mutant("client", "a round is answered twice", "if self.settings.round <= answered:", "if False:"),
    Mutant(
        "client", "an answered round is not remembered", "self.model.remember(answered=self.settings.round)", "pass"
    ),
    Mutant("client", "state of the encryptor is not restored", "if state is not None:", "if False:"),
    Mutant("client", "state of the encryptor is not kept", "        if state:\n", "        if False:\n"),
    Mutant("client", "an update is in the app's order", "for name in self.settings.names]", "for name in record]"),
    Mutant(
        "client", "an update has other names", "if sorted(record.keys()) != sorted(self.settings.names):", "if False:"
    ),
    Mutant("client", "weights are rounded down", "max(1, round(units))", "max(1, int(units))"),
    Mutant("client", "a weight may be 0", "max(1, round(units))", "round(units)"),
    Mutant("client", "an infinite weight", "if not math.isfinite(units):", "if False:"),
    Mutant("client", "weights with privacy", "if self.party.scheme.codec.privacy is not None:", "if False:"),
    Mutant("client", "updates are not bound to the model", "model=self.model.digest,", ""),
    Mutant("client", "several ArrayRecords in a reply", "if len(items) != 1:", "if not items:"),
    Mutant("client", "nobody hears of clipping", "if clipped > CLIPPED * values.size:", "if False:"),
    Mutant("client", "deltas are not made", 'if self.party.scheme.codec.target == "delta":', "if False:"),
    Mutant("outgoing", "arrays in a reply that is no update", "    elif arrays:\n", "    elif False:\n"),
    Mutant("outgoing", "what leaves need not be one frame", "if len(records) != 1 or len(arrays) != 1 or", "if"),
    Mutant("outgoing", "what leaves need not be named a frame", " or arrays[0][0] != protocol.UPDATE:", ":"),
    Mutant(
        "outgoing",
        "a frame of another round leaves",
        "(kind, scheme, number, len(contributions)) != (_UPDATE_KIND, update.scheme, update.round, 1)",
        "(kind, scheme, len(contributions)) != (_UPDATE_KIND, update.scheme, 1)",
    ),
    Mutant(
        "outgoing",
        "an aggregate leaves as an update",
        "(kind, scheme, number, len(contributions)) != (_UPDATE_KIND, update.scheme, update.round, 1)",
        "(scheme, number, len(contributions)) != (update.scheme, update.round, 1)",
    ),
    Mutant(
        "outgoing",
        "an update leaves as numbers",
        "if numbers > _MOST_NUMBERS or text > _MOST_TEXT:",
        "if text > _MOST_TEXT:",
    ),
    Mutant(
        "outgoing",
        "an update leaves as text",
        "if numbers > _MOST_NUMBERS or text > _MOST_TEXT:",
        "if numbers > _MOST_NUMBERS:",
    ),
    Mutant(
        "outgoing",
        "bytes leave",
        "                else:\n                    raise PlaintextError",
        "                elif not isinstance(value, bytes):\n                    raise PlaintextError",
    ),
    Mutant("outgoing", "an error reply leaves", "if reply.has_error():", "if False:"),
    Mutant("settings", "a round before its run", "if made.round <= made.run:", "if False:"),
    Mutant("settings", "names twice", " or len(set(made.names)) != len(made.names):", ":"),
    Mutant("settings", "an infinite unit", "if not (math.isfinite(made.unit) and made.unit >= 0):", "if False:"),
    Mutant(
        "settings",
        "clip ranges of any value",
        "if not all(type(x) is float and math.isfinite(x) and x > 0 for x in made.ranges):",
        "if False:",
    ),
    Mutant("settings", "types are not checked", "if type(value) is not kind:", "if False:"),
    Mutant("settings", "numbers out of range", "if not least <= value <= _MOST_ROUND:", "if False:"),
    Mutant("model", "missing aggregates are skipped", "if sequence != at.have + 1:", "if False:"),
    Mutant("model", "aggregates are applied twice", "if sequence <= at.have:", "if False:"),
    Mutant("model", "a withdrawn aggregate stays", "if at.last != settings.last:", "if False:"),
    Mutant("model", "an aggregate of another run", "if not self._settings.run < number <= self._newest:", "if False:"),
    Mutant(
        "model",
        "an aggregate of any model",
        "opened = decryptor.open(frame, round=number, model=model,",
        "opened = decryptor.open(frame, round=number, model=None,",
    ),
    Mutant(
        "model",
        "an aggregate of any round",
        "opened = decryptor.open(frame, round=number, model=model,",
        "opened = decryptor.open(frame, round=None, model=model,",
    ),
    Mutant(
        "model",
        "ranges as small as the server likes",
        "ranges = [max(r, self._codec.smallest) for r in self._settings.ranges]",
        "ranges = list(self._settings.ranges)",
    ),
    Mutant("model", "another optimiser in mid-run", 'if self.recall("steps") != steps.identity:', "if False:"),
    Mutant(
        "model",
        "the digest does not know the values",
        "        add(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)\n",
        "",
    ),
    Mutant("model", "the digest does not know the weighting", '    add(struct.pack("<d", settings.unit))\n', ""),
    Mutant(
        "model",
        "the digest does not know the optimiser",
        "    add(Steps(settings.optimiser, settings.run).identity)\n",
        "",
    ),
    Mutant(
        "model",
        "whole numbers are subtracted as floats",
        'elif new.dtype.kind in "iu" and old.dtype.kind in "iu":',
        "elif False:",
    ),
    Mutant("model", "arrays of other names", "if initial and initial != self._settings.names:", "if False:"),
    Mutant(
        "clip_feedback",
        "a range shrinks below what was too little",
        "np.where(cut > 0, np.minimum(2 * self._ranges, _LARGEST), self._least)",
        "self._least",
    ),
    Mutant(
        "clip_feedback",
        "a range does not grow",
        "np.where(cut > 0, np.minimum(_GROWTH * self._ranges, _LARGEST), fitted)",
        "fitted",
    ),
    Mutant("clip_feedback", "ranges are not restored", "if len(state) == 16 * self._ranges.size:", "if False:"),
    Mutant("parties", "a revoked client's update is used", "if client in revoked:", "if False:"),
    Mutant("parties", "a node takes a second client", "if known != client and known not in revoked:", "if False:"),
    Mutant("parties", "a node takes another's client", "if owner in there():", "if False:"),
    Mutant("parties", "a restarted node is locked out", "if owner in there():", "if True:"),
    Mutant("parties", "who spoils rounds is asked again", "if client not in out]", "]"),
    Mutant(
        "strategy",
        "an update in the clear is taken",
        "if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:",
        "if len(arrays) != 1:",
    ),
    Mutant("strategy", "fewer updates than the minimum", "if len(accepted) < self._minimum:", "if False:"),
    Mutant("strategy", "too few are asked", "if 0 < len(messages) < self._minimum:", "if False:"),
    Mutant("strategy", "more are asked than fit", "if len(messages) > self._most:", "if False:"),
    Mutant("strategy", "sizes are not checked", "                self._running.check_size(elements)\n", ""),
    Mutant(
        "strategy",
        "parties are not checked",
        "                self._parties.check(node, [client for client, _ in contributions], revoked, self._nodes)\n",
        "",
    ),
    Mutant("strategy", "phases of any size", "if name in PHASES and 0 <= value < LARGEST_PHASE}", "if name in PHASES}"),
    Mutant(
        "strategy",
        "reasons of any length",
        "return reason if len(reason) <= most else reason[:most]",
        "return reason if True else reason[:most]",
    ),
    Mutant("strategy", "who is left out is not sent everything again", "        self._running.forget(node)\n", ""),
    Mutant(
        "server_model",
        "changed ciphertext goes on",
        '        if not self._opens:\n            raise StrategyError(\n                "the arrays that',
        '        if False:\n            raise StrategyError(\n                "the arrays that',
    ),
    Mutant(
        "server_model",
        "aggregates are sent from the first",
        "range((have if same else 0) + 1, run.count + 1)",
        "range(1, run.count + 1)",
    ),
    Mutant(
        "server_model",
        "an aggregate is left out",
        "range((have if same else 0) + 1, run.count + 1)",
        "range((have if same else 0) + 2, run.count + 1)",
    ),
    Mutant("server_model", "an update of any size", "        if elements > most:\n", "        if False:\n"),
    Mutant("attendance", "a quorum below the minimum", "max(share, self._minimum)", "share"),
    Mutant(
        "attendance",
        "a deadline is not kept",
        "(seconds if self._deadline is None else min(seconds, self._deadline))",
        "seconds",
    ),
    Mutant(
        "attendance",
        "late answers are not told of",
        "                record.late.append(reply.metadata.src_node_id)\n",
        "",
    ),
    Mutant("refusal", "a refusal says why", "reason=TEXT + reference)", "reason=TEXT + reference + str(error))"),
    Mutant(
        "refusal",
        "a refusal's code says why",
        "Error(code=CODE,",
        "Error(code=CODE if isinstance(error, FedcipherError) else 5,",
    ),
    Mutant("refusal", "the log has lines of the server's", '" ".join(str(error).split())', "str(error)"),
    Mutant("numbers", "a number is used twice", '{"next": first + count}', '{"next": first}'),
)


def passes(tree: Path) -> bool:
    """Whether the Flower layer's tests are green on the copy."""
    environment = os.environ | {"PYTHONPATH": str(tree / "python"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "4", "--dist", "loadfile", "-p", "no:cacheprovider"]
    return (
        subprocess.run([*command, *TESTS], cwd=tree, env=environment, capture_output=True, check=False).returncode == 0
    )


def main() -> int:
    """Command line."""
    chosen = [m for m in MUTANTS if not sys.argv[1:] or m.file in sys.argv[1:]]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        tree = Path(scratch) / "main"
        ignored = shutil.ignore_patterns("target", ".venv", ".git", "runs", "fuzz", "crates", "dist")
        shutil.copytree(ROOT, tree, ignore=ignored)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        if (ROOT.parent / "shared").is_dir():
            (Path(scratch) / "shared").symlink_to(ROOT.parent / "shared")
        if not passes(tree):
            print("the tests fail without any mutant")
            return 2
        for mutant in chosen:
            path = tree / "python/fedcipher/flower" / f"{mutant.file}.py"
            sound = path.read_text(encoding="utf-8")
            if sound.count(mutant.old) != 1:
                print(f"no longer applies: {mutant.file}: {mutant.what}", flush=True)
                survivors += 1
                continue
            path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
            alive = passes(tree)
            path.write_text(sound, encoding="utf-8")
            print(f"{'SURVIVED' if alive else 'caught'}: {mutant.file}: {mutant.what}", flush=True)
            survivors += alive
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
