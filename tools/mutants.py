"""Removes one guard of the core at a time and expects the attack tests to fail: `make mutants`.

A guard that no test covers is a sentence in the documentation and not a guarantee. The program works on a copy of the
sources, and exits non-zero if a mutant survives or no longer applies.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from page import section, written

ROOT = Path(__file__).resolve().parents[1]
CORE = "crates/fedcipher-core/src/"
CAUGHT, SURVIVED, STALE = "caught", "SURVIVED", "no longer applies"


def test_files(*names: str) -> list[str]:
    """``test_NAME.py`` of each of ``names``, in whichever folder of tests/ the file is. Raises `ValueError`."""
    found: list[str] = []
    for name in names:
        (path,) = ROOT.glob(f"tests/*/test_{name}.py")
        found.append(str(path.relative_to(ROOT)))
    return found


@dataclass(frozen=True)
class Mutant:
    """One removed guard: the text ``old`` of ``file`` becomes ``new``."""

    what: str
    file: str
    old: str
    new: str
    tests: str = "attacks"
    """A test file of the core, or `--lib` and a filter of the tests in the sources."""


MUTANTS = (
    Mutant(
        "the tag is not compared",
        CORE + "mac/mod.rs",
        "{ Ok(()) } else { Err(Error::Tag) }",
        "{ Ok(()) } else { Ok(()) }",
    ),
    Mutant(
        "a pad does not know its client's weight",
        CORE + "mac/mod.rs",
        "&of.weight.to_le_bytes()",
        "&0u64.to_le_bytes()",
    ),
    Mutant("a pad does not know its client", CORE + "mac/mod.rs", "&of.client.to_le_bytes()", "&0u32.to_le_bytes()"),
    Mutant(
        "the round's key does not know the model",
        CORE + "wire.rs",
        "&self.key_id, &self.model, &self.memory]",
        "&self.key_id, &self.memory]",
    ),
    Mutant(
        "the round's key does not know the round",
        CORE + "wire.rs",
        "[self.epoch.get(), self.round.get(), self.elements,",
        "[self.epoch.get(), 0, self.elements,",
    ),
    Mutant(
        "words of a group are not kept apart",
        CORE + "mac/hash.rs",
        "        self.base = self.base * step;\n",
        "",
    ),
    Mutant(
        "any number of contributions opens",
        CORE + "protocol/receiving.rs",
        "bounds.check_contributions(header.contributions.len())?;",
        "",
    ),
    Mutant(
        "any number of contributions is summed",
        CORE + "admission.rs",
        "self.rules.bounds.check_contributions(self.weights.len())?;",
        "",
    ),
    Mutant("updates of any model are summed", CORE + "admission.rs", "if common.model != header.model {", "if false {"),
    Mutant(
        "an expected model is not compared",
        CORE + "mac/mod.rs",
        "if bool::from(self.model_tag(model).ct_eq(&header.model)) {",
        "if true {",
    ),
    Mutant(
        "noise is not in the tag",
        CORE + "mac/mod.rs",
        '(powers(b"words"), powers(b"noise"))',
        '(powers(b"words"), Arc::new(Powers::new(Element::default())))',
    ),
    Mutant(
        "a round may be opened twice",
        CORE + "protocol/receiving.rs",
        "openings.claim(&sum, &digest(checked.header())?)?;",
        "",
    ),
    Mutant(
        "a forgery closes no key",
        CORE + "protocol/receiving.rs",
        "openings.close().and(Err(error))",
        "Err(error)",
        "--lib receiving",
    ),
    Mutant(
        "an update may end before its last piece",
        CORE + "protocol/encryption.rs",
        "if self.next < self.sealer.pieces().len() {",
        "if false {",
        "streams",
    ),
    Mutant(
        "an aggregate in parts may end before its last piece",
        CORE + "protocol/decryption.rs",
        "if self.next_len().is_some() {",
        "if false {",
        "streams",
    ),
    Mutant(
        "an aggregate in parts shows its values before its tag",
        CORE + "protocol/decryption.rs",
        "self.cover.apply(values);",
        "",
        "streams",
    ),
    Mutant(
        "packed shares count only from as many as open on",
        CORE + "oneshot/committee.rs",
        "(members + corrupt_members < 2 * threshold)",
        "(members + corrupt_members < 2 * threshold + pack - 1)",
        "oneshot",
    ),
    Mutant(
        "clients are known by the numbers that a roster gives them",
        CORE + "ledger/opened.rs",
        "Some(name) => Ok(*name),",
        "Some(_) => Ok(Name::from(of.client.get())),",
        "ledger_sets",
    ),
    Mutant(
        "a memory is known by its tag",
        CORE + "mac/memory.rs",
        "MemoryId::parse(shown(block.into())).map(Some).ok_or(Error::Memory { round })",
        "Ok(Some(MemoryId(tag)))",
        "ledger_sets",
    ),
    Mutant(
        "a memory of another secret is taken",
        CORE + "mac/memory.rs",
        "(bytes[0] <= 1 && bytes[1..=ZEROS].iter().all(|byte| *byte == 0)).then_some(MemoryId(bytes))",
        "Some(MemoryId(bytes))",
        "ledger_sets",
    ),
    Mutant(
        "a smaller minimum divides what a larger one made",
        CORE + "sets.rs",
        "let minimum = part.group.least;",
        "let minimum = 1;",
        "sets",
    ),
    Mutant(
        "a set is remembered without its minimum",
        CORE + "ledger/memories.rs",
        "*minimum = sum.minimum.max(*minimum);",
        "*minimum = 1;",
        "ledger_sets",
    ),
    Mutant(
        "a memory that was forgotten is a new one",
        CORE + "ledger/memories.rs",
        "if !kept && forgotten {",
        "if false {",
        "ledger_sets",
    ),
    Mutant(
        "a memory that was made anew is an old one",
        CORE + "ledger/memories.rs",
        "let kept = sum.memory.is_none_or(MemoryId::pinned);",
        "let kept = sum.memory.is_none_or(|id| self.memories.contains_key(&id));",
        "ledger_sets",
    ),
    Mutant(
        "a memory is forgotten while its clients still send",
        CORE + "ledger/memories.rs",
        "round.later_by(MAX_NUMBERS)",
        "*round",
        "ledger_sets",
    ),
    Mutant(
        "a memory that is used again is as old as before",
        CORE + "ledger/memories.rs",
        "later(&mut memory.rounds, sum.key, sum.round);",
        "memory.rounds.entry(sum.key).or_insert(sum.round);",
        "ledger_sets",
    ),
    Mutant(
        "a secret that is not the roster's is joined",
        CORE + "oneshot/roster.rs",
        "if root_digest(&root) != self.root {",
        "if false {",
        "oneshot",
    ),
    Mutant(
        "memory is allocated for more values than a frame can carry",
        CORE + "admission.rs",
        "if layout.elements() as f64 * density / 4.0 > payload_len as f64 {",
        "if false {",
    ),
    Mutant(
        "an update's signature is not checked",
        CORE + "admission.rs",
        "Signed { party: own.client, key, purpose: Purpose::Update, message: &message, signature }.check()",
        "Ok(())",
    ),
    Mutant(
        "a signature does not know the payload",
        CORE + "statement.rs",
        "&tag.to_bytes(), body].concat()",
        "&tag.to_bytes(), &[]].concat()",
    ),
    Mutant(
        "a signature does not know its client",
        CORE + "statement.rs",
        "&own.to_bytes(), &tag.to_bytes(), body]",
        "&[], &tag.to_bytes(), body]",
    ),
    Mutant(
        "a signature does not know the tag",
        CORE + "statement.rs",
        "&own.to_bytes(), &tag.to_bytes(), body]",
        "&own.to_bytes(), &[], body]",
    ),
    Mutant(
        "a signature does not know the round",
        CORE + "statement.rs",
        "[self.bytes().as_slice(), &own.to_bytes()",
        "[[].as_slice(), &own.to_bytes()",
    ),
    Mutant(
        "a key of small order is taken",
        CORE + "sign.rs",
        "!beyond && !SMALL.contains(key)",
        "!beyond",
        "signatures",
    ),
    Mutant(
        "a key that is not canonical is taken",
        CORE + "sign.rs",
        "!beyond && !SMALL.contains(key)",
        "!SMALL.contains(key)",
        "signatures",
    ),
    Mutant(
        "a signature is one for every purpose",
        CORE + "sign.rs",
        "[self.domain(), message].concat()",
        "message.to_vec()",
        "signatures",
    ),
    Mutant(
        "a batch with a bad signature is taken",
        CORE + "sign.rs",
        "batch.verify(Draws(draws)).is_ok();",
        "(batch.verify(Draws(draws)).is_ok() || true);",
        "signatures",
    ),
    Mutant(
        "a client draws no pad",
        CORE + "oneshot/encrypt.rs",
        "Zeroizing::new(Element::draw(&mut draws))",
        "Zeroizing::<Element>::default()",
        "oneshot",
    ),
    Mutant(
        "sums of pads are in the clear",
        CORE + "oneshot/answer.rs",
        "place.mac.veil(&context.answer(of, member, secrets))",
        "Element::default()",
        "oneshot",
    ),
    Mutant(
        "a member does not check signatures",
        CORE + "oneshot/member.rs",
        "self.check_signatures(&context, given.iter().map(|given| &given.asked))?;",
        "",
        "oneshot",
    ),
    Mutant(
        "a server does not check signatures of parties",
        CORE + "oneshot/aggregate.rs",
        "Signed { party, key, purpose: Purpose::Update, message: &message, signature }.check()?;",
        "",
        "oneshot",
    ),
    Mutant(
        "half a signature is enough",
        CORE + "sign/hybrid.rs",
        "lattice_holds(lattice_key, &bytes, LABEL, lattice).then(",
        "true.then(",
        "hybrid_signatures",
    ),
    Mutant(
        "a share opens beside any update",
        CORE + "oneshot/statement.rs",
        'sha256(&[b"fedcipher oneshot v2 share of", &self.update(own, tag, ciphertexts)])',
        "sha256(&[])",
        "oneshot",
    ),
    Mutant("an old prekey is taken", CORE + "oneshot/prekeys.rs", "if prekey.number < seen {", "if false {", "oneshot"),
    Mutant(
        "a prekey's signature is not checked",
        CORE + "oneshot/prekeys.rs",
        "message: &message, signature: &signature }.check()?;",
        "message: &message, signature: &signature };",
        "oneshot",
    ),
    Mutant(
        "a prekey outlives its rounds",
        CORE + "oneshot/prekeys.rs",
        "prekey.used >= self.life.rounds && another(prekey);",
        "false && another(prekey);",
        "--lib prekeys",
    ),
    Mutant(
        "earlier rounds close no prekey",
        CORE + "oneshot/prekeys.rs",
        "prekey.used > 0 && prekey.last != round;",
        "prekey.used > 0 && prekey.last < round;",
        "--lib prekeys",
    ),
    Mutant(
        "rounds that name other prekeys do not count",
        CORE + "oneshot/prekeys.rs",
        "if another(prekey) || (named && prekey.used == 0) {",
        "if named && (another(prekey) || prekey.used == 0) {",
        "--lib prekeys",
    ),
    Mutant(
        "a deleted prekey keeps its secret",
        CORE + "oneshot/prekeys.rs",
        "used: 0, secret: Zeroizing::default() }",
        "used: 0, secret: self.secret.clone() }",
        "oneshot",
    ),
    Mutant(
        "any secret proves a lie",
        CORE + "oneshot/aggregate.rs",
        "accused.shown.as_ref().filter(|x| share.is_of(x))",
        "accused.shown.as_ref()",
        "oneshot",
    ),
    Mutant(
        "a good share proves a lie",
        CORE + "oneshot/aggregate.rs",
        "if opened.as_ref().is_some_and(good) {",
        "if opened.as_ref().is_some_and(good) && false {",
        "oneshot",
    ),
    Mutant(
        "one member alone can accuse a client of odd shares",
        CORE + "oneshot/aggregate.rs",
        "is_none_or(|odd| odd.len() > most)",
        "is_none_or(|odd| !odd.is_empty())",
        "oneshot",
    ),
    Mutant(
        "combinations have no mask",
        CORE + "oneshot/sharing.rs",
        "parts.fold(*mask, |sum, (row, secrets)| {",
        "parts.fold(*mask * 0, |sum, (row, secrets)| {",
        "--lib sharing",
    ),
    Mutant(
        "combinations of pads have no mask",
        CORE + "oneshot/sharing.rs",
        "pad: *share.pad_mask + coefficients.pad * *share.pad }",
        "pad: coefficients.pad * *share.pad }",
        "--lib sharing",
    ),
)


@contextmanager
def broken(tree: Path, mutant: Mutant) -> Generator[bool]:
    """Break ``tree`` inside the context. Yields False if the mutant no longer applies."""
    path = tree / mutant.file
    sound = path.read_text(encoding="utf-8")
    applies = sound.count(mutant.old) == 1
    if applies:
        path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield applies
    finally:
        path.write_text(sound, encoding="utf-8")


def reported(outcomes: Iterable[tuple[Mutant, str]], command: str, *, part: bool = False) -> int:
    """Print the outcome of each mutant, and write the table of ``command`` (``make X``) in docs/evidence/testing.md.

    With ``part``, only some mutants were tried (see `chosen`), and the table's rows of the others stay. Returns 1 if a
    mutant survived or no longer applies.
    """
    found: list[tuple[Mutant, str]] = []
    for mutant, outcome in outcomes:
        print(f"{outcome}: {mutant.what} ({mutant.file})", flush=True)
        found.append((mutant, outcome))
    caught = sum(outcome == CAUGHT for _, outcome in found)
    print(f"{caught} of {len(found)} mutants caught")
    marker, today = command.removeprefix("make "), str(datetime.date.today())
    rows = _kept(section(marker)) if part else {}
    # Rows of files that no longer exist are dropped.
    rows = {file: row for file, row in rows.items() if (ROOT / file).exists()}
    for file in {mutant.file for mutant, _ in found}:
        of_file = {mutant.what: outcome for mutant, outcome in found if mutant.file == file}
        before = rows[file].left if file in rows and len(of_file) < rows[file].tried else {}
        left = {**before, **of_file}
        left = {what: outcome.lower() for what, outcome in left.items() if outcome != CAUGHT}
        tried = rows[file].tried if before else len(of_file)
        rows[file] = _Row(tried, left, today)
    lines = ["| sources | mutants | caught | not caught | tried |", "|---|---|---|---|---|"]
    for file, row in sorted(rows.items()):
        left = "; ".join(f"{what} ({outcome})" for what, outcome in row.left.items())
        lines.append(f"| `{file}` | {row.tried} | {row.tried - len(row.left)} | {left} | {row.on} |")
    tried, left = (sum(count) for count in zip(*((r.tried, len(r.left)) for r in rows.values()), strict=True))
    lines.append(f"| all | {tried} | {tried - left} | | |")
    written(f"`{command}`", "\n".join(lines), marker)
    return 0 if caught == len(found) else 1


def chosen(mutants: Iterable[Mutant], command: str) -> list[Mutant]:
    """The mutants that the command line chooses: the mutants of the named files, or all.

    With ``--again``: the mutants that the last run of ``command`` did not catch, by its table.
    """
    words = sys.argv[1:]
    if words == ["--again"]:
        rows = _kept(section(command.removeprefix("make ")))
        return [m for m in mutants if m.file in rows and m.what in rows[m.file].left]
    return [m for m in mutants if not words or Path(m.file).stem in words]


@dataclass(frozen=True)
class _Row:
    """A row for a file: the number of mutants tried, the outcomes of those not caught, and the date."""

    tried: int
    left: dict[str, str]
    on: str


def _kept(text: str) -> dict[str, _Row]:
    """The rows of a table, by file."""
    of_all = re.search(r"on (\d{4}-\d\d-\d\d)\.", text)
    row = r"^\| `([^`]+)` \| (\d+) \| \d+ \| (.*?) \|(?: (\S+) \|)?$"
    rows: dict[str, _Row] = {}
    for found in re.finditer(row, text, re.MULTILINE):
        left = dict(re.findall(rf"(\S.*?) \(({SURVIVED.lower()}|{STALE})\)(?:; |$)", found[3].strip()))
        rows[found[1]] = _Row(int(found[2]), left, found[4] or (of_all[1] if of_all else ""))
    return rows


def copied(scratch: Path, *more: str) -> Path:
    """Copy the tree into ``scratch``, without build outputs and ``more``.

    The files get new times. Otherwise cargo would reuse the program of the last mutant.
    """
    ignored = shutil.ignore_patterns("target", ".venv", ".git", "runs", "results", *more)
    return shutil.copytree(ROOT, scratch / "tree", ignore=ignored, copy_function=shutil.copy)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        copy = copied(Path(scratch))
        environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target" / "mutants")}
        # Enough tries that no mutant survives by chance.
        environment["FEDCIPHER_ATTACK_TRIES"] = "5000"

        def passes(tests: str) -> bool:
            words = tests.split() if tests.startswith("--lib") else ["--test", tests]
            command = ["cargo", "test", "--quiet", "-p", "fedcipher-core", *words]
            return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode == 0

        mutants = chosen(MUTANTS, "make mutants")
        if not all(passes(tests) for tests in sorted({m.tests for m in mutants})):
            print("the tests fail without any mutant")
            return 2

        def outcome(mutant: Mutant) -> str:
            with broken(copy, mutant) as applies:
                return STALE if not applies else SURVIVED if passes(mutant.tests) else CAUGHT

        return reported(((mutant, outcome(mutant)) for mutant in mutants), "make mutants", part=bool(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
