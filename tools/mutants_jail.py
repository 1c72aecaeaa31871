"""Removes one wall of the jail at a time: `make mutants-jail`.

The tests of the crate, or of tests/guard/test_jail.py, must fail. The program works on a copy of the sources. There the
guard starts apps by a native module that has the jail and nothing else, because the whole one takes minutes to compile.
Run the program as root on a machine with Landlock of ABI 6 or later: only there can every wall be told from the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import CAUGHT, ROOT, STALE, SURVIVED, Mutant, broken, chosen, copied, reported, test_files

TESTS = test_files("jail")
COMMAND = "make mutants-jail"


def jail(file: str, what: str, old: str, new: str = "") -> Mutant:
    """A mutant of ``FILE.rs`` of the crate."""
    return Mutant(what, f"crates/fedcipher-jail/src/{file}.rs", old, new)


MUTANTS = (
    *(
        jail("process", f"the jail has the {what} outside", f"    | libc::CLONE_NEW{flag}\n")
        for flag, what in (
            ("NS", "mounts"),
            ("PID", "processes"),
            ("NET", "network"),
            ("IPC", "shared memory"),
            ("UTS", "host name"),
        )
    ),
    jail("process", "the jail has the control groups outside", "\n    | libc::CLONE_NEWCGROUP;", ";"),
    jail(
        "root",
        "files to read can be written",
        "MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)?",
        "MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)?",
    ),
    jail(
        "root",
        "a mount below a folder to read can be written",
        "set_attributes(&mount, attributes, libc::AT_RECURSIVE)",
        "set_attributes(&mount, attributes, 0)",
    ),
    jail(
        "root",
        "the work has set-uid programs and devices",
        "taken(std::slice::from_ref(&jail.work), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)",
        "taken(std::slice::from_ref(&jail.work), 0)",
    ),
    jail("root", "the new root can be written", "set_attributes(&root, MOUNT_ATTR_RDONLY | ", "set_attributes(&root, "),
    jail("root", "the old root stays", '        unmount(".", UnmountFlags::DETACH)?;\n'),
    jail(
        "root", "a path to read may lie in the work", "tree.path.starts_with(&work[0].path)", "tree.path.is_relative()"
    ),
    jail("root", "the machine's own folders can be listed", "if own || (", "if own && ("),
    jail("root", "the app has the list of the machine's users", "app:x:{user}", "root:x:{user}"),
    jail("privileges", "the bounding set stays", "    empty_bounding_set()?;\n"),
    jail(
        "privileges",
        "securebits stay",
        'set_capabilities_secure_bits(locked).step(WALL, || "securebits".to_owned())?;',
        "let _ = locked;",
    ),
    jail("privileges", "the app is root", "    user.assume()?;\n", "    let _ = user;\n"),
    jail("privileges", "root's groups stay", '        set_thread_groups(&[]).step(WALL, || "groups".to_owned())?;\n'),
    jail(
        "privileges",
        "capabilities stay",
        'set_capabilities(None, none).step(WALL, || "capabilities".to_owned())?;',
        "",
    ),
    *(
        jail("privileges", f"no limit of {what}", f"        (Resource::{name}, {most}),\n")
        for name, most, what in (
            ("Core", "0", "core dumps"),
            ("Memlock", "0", "locked memory"),
            ("Data", "limits.memory", "memory"),
            ("As", "limits.memory.saturating_mul(4)", "addresses"),
            ("Fsize", "limits.file_size", "a file"),
            ("Nofile", "limits.open_files", "descriptors"),
            ("Nproc", "limits.processes", "processes"),
        )
    ),
    jail(
        "privileges",
        "the guard is killed first",
        '"/proc/self/oom_score_adj", "1000"',
        '"/proc/self/oom_score_adj", "0"',
    ),
    jail("root", "no limit of a file system in memory", '("size", &size)', '("size", "90%")'),
    jail(
        "init",
        "another user's id clears the signal of a parent's end",
        "    end_with_parent()?;\n    set_dumpable",
        "    set_dumpable",
    ),
    jail(
        "init",
        "the app looks into the jail's first process",
        "DumpableBehavior::NotDumpable",
        "DumpableBehavior::Dumpable",
    ),
    jail("init", "descriptors of the guard's stay open", ".and_then(|_| process::close_on_exec())", ".map(|_| ())"),
    jail("init", "the environment is not the app's alone", "        .env_clear()\n"),
    jail(
        "lib",
        "the guard's end goes unseen",
        "Ok(_) if fds[1].revents().is_empty() => break end(init),",
        "Ok(_) if fds[1].revents().is_empty() => {}",
    ),
    jail(
        "files",
        "Landlock lets the app write what it reads",
        "beneath(path, AccessFs::from_read(ABI_ASKED))",
        "beneath(path, everything)",
    ),
    jail(
        "files",
        "Landlock lets the app listen",
        "AccessNet::from_all(ABI_ASKED)",
        "BitFlags::from(AccessNet::ConnectTcp)",
    ),
    jail(
        "files",
        "Landlock lets the app connect to any port",
        "AccessNet::from_all(ABI_ASKED)",
        "BitFlags::from(AccessNet::BindTcp)",
    ),
    jail("files", "Landlock has no scope", "        .scope(Scope::from_all(ABI_ASKED))?\n"),
    jail("files", "a kernel without Landlock is taken", '.ok_or("the kernel has none")', ".or(Some(0)).ok_or(0)"),
    *(
        jail("calls", f"{call} is allowed", f"    libc::SYS_{call},\n    {after}", f"    {after}")
        for call, after in (
            ("ptrace", "libc::SYS_process_vm_readv,"),
            ("process_vm_readv", "libc::SYS_process_vm_writev,"),
            ("unshare", "libc::SYS_setns,"),
            ("mount", "libc::SYS_umount2,"),
            ("bpf", "libc::SYS_perf_event_open,"),
        )
    ),
    jail("calls", "clone3 is allowed", "&[libc::SYS_clone3, ", "&["),
    jail("calls", "io_uring is allowed", "libc::SYS_clone3, libc::SYS_io_uring_setup, ", "libc::SYS_clone3, "),
    jail("calls", "clone makes namespaces", "    rules.insert(libc::SYS_clone, flags.collect::<Outcome<_>>()?);\n"),
    jail(
        "calls",
        "any protocol of streams",
        "    socket.push(rule(&[\n        not_unix.clone(),\n        (2,",
        "    let _ = (rule(&[\n        not_unix.clone(),\n        (2,",
    ),
    jail("calls", "any family of sockets", "vec![rule(&others)?]", "Vec::new()"),
    jail("calls", "calls of tomorrow are allowed", "statement(IF_GREATER, 0, 1,", "statement(IF_GREATER, 1, 1,"),
)


MODULE = """
[package]
name = "fedcipher-jail-alone"
version = "0.0.0"
edition = "2024"

[lib]
name = "_native"
crate-type = ["cdylib"]

[dependencies]
fedcipher-jail = { path = "../crates/fedcipher-jail" }
pyo3 = { version = "0.30", features = ["abi3-py310"] }

[workspace]
"""
CODE = """
#[path = "../../crates/fedcipher-python/src/jail.rs"]
mod jail;
use pyo3::prelude::*;

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(jail::run_in_jail, m)?)
}
"""
WHOLE = "str(_native.__file__)"


def alone(copy: Path) -> Path:
    """Make the crate of a native module with nothing but the jail, which the guard of ``copy`` then starts apps by."""
    crate = copy / "jail-alone"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text(MODULE, encoding="utf-8")
    (crate / "src" / "lib.rs").write_text(CODE, encoding="utf-8")
    shutil.copy(ROOT / "Cargo.lock", crate)
    guard = copy / "python" / "fedcipher" / "guard" / "jail.py"
    text = guard.read_text(encoding="utf-8")
    if text.count(WHOLE) != 1:
        raise SystemExit(f"{guard.name} no longer has {WHOLE}; name there the module that starts apps")
    guard.write_text(text.replace(WHOLE, repr(str(crate / "_native.so"))), encoding="utf-8")
    return crate


def main() -> int:
    """Try the mutants of the files on the command line, or all. ``--again`` tries those that were not caught before."""
    wanted = chosen(MUTANTS, COMMAND)
    target = ROOT / "target" / "mutants"
    with tempfile.TemporaryDirectory(prefix="fedcipher-mutants-") as scratch:
        # The tests' other user reaches the copy too.
        Path(scratch).chmod(0o755)
        copy = copied(Path(scratch), "fuzz", "dist")
        (copy / ".venv").symlink_to(ROOT / ".venv")
        crate = alone(copy)
        build = ("build", "--quiet", "--manifest-path", crate / "Cargo.toml")
        python = ROOT / ".venv" / "bin" / "python"
        # A hundred jails in a row look for what a jail leaves behind, and no wall.
        pytest = (python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not hundred", *TESTS)
        settings = {**os.environ, "CARGO_TARGET_DIR": str(target), "PYTHONPATH": str(copy / "python")}

        def works(*command: str | Path) -> bool:
            return subprocess.run(command, cwd=copy, env=settings, capture_output=True, check=False).returncode == 0

        def passes() -> bool:
            if not works("cargo", *build):
                raise SystemExit("a mutant does not compile")
            shutil.copy(target / "debug" / "lib_native.so", crate / "_native.so")
            return works(*pytest) and works("cargo", "test", "--quiet", "--package", "fedcipher-jail")

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
