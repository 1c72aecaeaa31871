"""Removes one guard of the engine or the key authority at a time: `make mutants-engine`.

Their unit tests, or the tests that start both programs, must fail. The program works on a copy of the sources, and on
an environment of links to this one that holds the broken programs. It exits non-zero if a mutant survives or no longer
applies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import CAUGHT, ROOT, STALE, SURVIVED, Mutant, broken, chosen, copied, reported, test_files

TESTS = test_files(
    "engine", "engine_attacks", "engine_faults", "engine_oneshot", "engine_tls", "attacks_engine", "store"
)
PROGRAMS = ("fedcipher-engine", "fedcipher-authority")
COMMAND = "make mutants-engine"


def engine(file: str, what: str, old: str, new: str) -> Mutant:
    """A mutant of ``FILE.rs`` of the engine."""
    return Mutant(what, f"crates/fedcipher-engine/src/{file}.rs", old, new)


MUTANTS = (
    engine(
        "authority",
        "a party may call as what it is not",
        "Some((role, false)) if role == party.role.name() => Ok(()),",
        "Some((_, false)) => Ok(()),",
    ),
    engine(
        "authority",
        "a revoked party may call",
        "Some((_, true)) => Err(Error::Revoked(party.to_string())),",
        "Some((_, true)) => Ok(()),",
    ),
    engine(
        "authority",
        "a device's key goes to a second engine",
        ".is_some_and(|o| o != instance);",
        ".is_some_and(|_| false);",
    ),
    engine(
        "authority",
        "a revoked device is in the next epoch",
        "WHERE role = 'device' AND revoked = 0",
        "WHERE role = 'device'",
    ),
    engine(
        "authority",
        "keys of ended epochs stay in the store",
        'tx.execute(&format!("UPDATE keys SET key = NULL WHERE epoch IN ({which})"), bound.clone())?;',
        "",
    ),
    engine(
        "authority",
        "a rotation ends an epoch that is in use",
        "in_use.filter(|_| !force)",
        "in_use.filter(|_| false)",
    ),
    engine(
        "authority",
        "a device may show another identity",
        "Some(_) => return Err(Error::OtherIdentity { device: device.to_owned() }),",
        "Some(_) => return Ok(()),",
    ),
    engine(
        "authority",
        "two devices may show one identity",
        'if taken {\n                    return Err(Error::Access(format!("the identity',
        'if taken && false {\n                    return Err(Error::Access(format!("the identity',
    ),
    engine(
        "authority",
        "others may read the store",
        "if mode & 0o077 != 0 {",
        "if false {",
    ),
    engine(
        "authority_service",
        "a party may call what is for another role",
        "if party.role != role {",
        "if false {",
    ),
    engine(
        "authority_service",
        "a device gets another's keys by name",
        "if request.device != party.name {",
        "if false {",
    ),
    engine(
        "authority_service",
        "a key is bound to no identity",
        "let show_card = store.has_rosters() && request.card.is_none();",
        "let show_card = false;",
    ),
    engine("connection_limiter", "one peer has all places", "(own < most.div_ceil(2) ||", "(true ||"),
    engine(
        "connection_limiter",
        "a silent connection keeps its place in a full engine",
        "(open.all.len() < most || open.make_room(None))",
        "open.all.len() < most",
    ),
    engine(
        "connection_limiter",
        "a silent connection stays open",
        "} else if until.as_mut().poll(cx).is_ready() {",
        "} else if until.as_mut().poll(cx).is_ready() && false {",
    ),
    engine(
        "engine_service",
        "a call of a host that is revoked goes on",
        "error = self.hosts.cut(host) => Err(error),",
        "error = self.hosts.cut(host.filter(|_| false)) => Err(error),",
    ),
    engine(
        "streams",
        "a silent host keeps its call",
        "tokio::time::timeout(stall, requests.next())",
        "tokio::time::timeout(stall * 1000, requests.next())",
    ),
    engine(
        "engine_service",
        "an imported state is of any size",
        "if state.len() + data.len() <= MAX_MESSAGE =>",
        "if true =>",
    ),
    engine(
        "engine_service",
        "a precomputation is of any size",
        "let made = layout.elements() <= self.ahead_elements;",
        "let made = true;",
    ),
    engine(
        "keyring", "an engine that starts after its run began sits it out", "ledger::register(key, &self.state)?;", ""
    ),
    engine(
        "keyring",
        "the authority changes a device's scheme",
        "Some((text, scheme)) if *text == *spec => (text, scheme),",
        "Some((text, scheme)) => (text, scheme),",
    ),
    engine("files", "others may read a key", "if mode & 0o077 != 0 && !by_group {", "if false {"),
    Mutant(
        "others may replace a key",
        "crates/fedcipher-core/src/os/unix.rs",
        "if others_write && !sticky {",
        "if false {",
    ),
    engine("files", "others may replace a certificate", "if mode & OTHERS_WRITE != 0 {", "if false {"),
    engine("files", "a pipe is read", "if !about.is_file() || about.len() > LARGEST {", "if false {"),
    engine("listen", "any certificate may use an engine", "if party.role == Role::Host && self", "if self"),
    engine(
        "listen",
        "any host may use an engine",
        "&& self.hosts.contains(&party.name) {",
        "{",
    ),
    engine(
        "listen",
        "any user may use an engine",
        "let all = user == rustix::process::geteuid().as_raw() || user == 0;",
        "let all = true;",
    ),
    engine("keyring", "a caller uses any device", "Devices::Named(names) => names.contains(name),", "_ => true,"),
    engine(
        "certificates",
        "a host's certificate may name no devices",
        "(Role::Host, 0) => Err(",
        "(Role::Host, 1000) => Err(",
    ),
    engine(
        "authority",
        "one device's word replaces keys",
        "if store.query_row(CLOSED_KEYS, [], |r| r.get::<_, u64>(0))? <= most {",
        "if store.query_row(CLOSED_KEYS, [], |r| r.get::<_, u64>(0))? == 0 {",
    ),
    engine(
        "authority",
        "keys are replaced at will",
        "if seconds < REPLACE_SECONDS => Due::Later,",
        "if seconds == u64::MAX => Due::Later,",
    ),
    engine(
        "authority",
        "a revoked device's word counts",
        "WHERE state = 'current' AND revoked = 0",
        "WHERE state = 'current'",
    ),
    engine(
        "tls",
        "TLS without the hybrid group",
        "kx_groups: vec![kx_group::X25519MLKEM768],",
        "kx_groups: vec![kx_group::X25519],",
    ),
    engine("text", "a peer's text begins a line", "c.is_control() || matches!", "matches!"),
    engine("listen", "a revoked host may call", "if self.revoked.is_revoked(&party.name) {", "if false {"),
    engine("listen", "a file in the socket's place is deleted", "if !there.file_type().is_socket() {", "if false {"),
    engine(
        "sealed_keys",
        "a sealed key is of any device",
        'format!("fedcipher v1 key|{epoch}|{device}")',
        'format!("fedcipher v1 key|{epoch}|{}", device.len() * 0)',
    ),
)


def environment(folder: Path) -> Path:
    """Make an environment in ``folder`` by links to this one, without the programs. Returns its Python."""
    real = ROOT / ".venv"
    programs = folder / "bin"
    programs.mkdir(parents=True)
    shutil.copy(real / "pyvenv.cfg", folder)
    for name in ("lib", "lib64", "include"):
        if (real / name).exists():
            (folder / name).symlink_to(real / name)
    for path in (real / "bin").iterdir():
        if path.name not in PROGRAMS:
            (programs / path.name).symlink_to(path)
    return programs / "python"


def main() -> int:
    """Try the mutants of the files on the command line, or all. ``--again`` tries those that were not caught before."""
    wanted = chosen(MUTANTS, COMMAND)
    target = ROOT / "target" / "mutants"
    build = ("build", "--quiet", "--package", "fedcipher-engine", "--bins")
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        copy = copied(Path(scratch), "fuzz", "dist")
        python = environment(copy / ".venv")
        pytest = (python, "-m", "pytest", "-x", "-q", "-n", "4", "-p", "no:cacheprovider", *TESTS)
        settings = {**os.environ, "CARGO_TARGET_DIR": str(target)}

        def works(*command: str | Path) -> bool:
            return subprocess.run(command, cwd=copy, env=settings, capture_output=True, check=False).returncode == 0

        def passes() -> bool:
            if not works("cargo", *build):
                raise SystemExit("a mutant does not compile")
            for program in PROGRAMS:
                shutil.copy(target / "debug" / program, python.parent)
            return works("cargo", "test", "--quiet", "--package", "fedcipher-engine") and works(*pytest)

        if not passes():
            print("the tests fail without any mutant")
            return 2

        def outcome(mutant: Mutant) -> str:
            with broken(copy, mutant) as applies:
                return STALE if not applies else SURVIVED if passes() else CAUGHT

        found = ((mutant, outcome(mutant)) for mutant in wanted)
        return reported(found, COMMAND, part=bool(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
