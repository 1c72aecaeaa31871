"""Files import each other one way. Python: all imports but those of types. Rust: all uses outside of tests.

A Rust file may use private items of the folder that it stands in: a folder is one module to the language. So a use of
the folder's own `mod.rs` is not counted.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter

import pytest
from places import ROOT

PACKAGES = {"fedcipher": ROOT / "python" / "fedcipher", "fedcipher_research": ROOT / "research" / "fedcipher_research"}
CRATES = sorted(path.parent for path in ROOT.glob("crates/*/src"))
USE = re.compile(r"^[ \t]*(?:pub(?:\(\w+\))? )?use\s+([\w:{][^;]*);", re.M)
TESTS_IN_SOURCE = re.compile(
    r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*(?:pub(?:\(\w+\))? )?mod \w+ \{.*?^\}", re.S | re.M
)


# --- Python ----------------------------------------------------------------------------------


def modules(package):
    found = {}
    for path in sorted(PACKAGES[package].rglob("*.py")):
        parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def for_types_only(tree):
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")]
    return {id(node) for block in blocks for statement in block.body for node in ast.walk(statement)}


def imported(text, known):
    """Those of the modules ``known`` that a source imports. The native module is not a file here."""
    tree = ast.parse(text)
    left_out = for_types_only(tree)
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in whole if not name.endswith("._native"))


def python_graph(package):
    known = modules(package)
    return {name: set(imported(path.read_text(encoding="utf-8"), known)) - {name} for name, path in known.items()}


# --- Rust ------------------------------------------------------------------------------------


def files_of(crate):
    """By the path of its module, each source file of a library."""
    found = {}
    for path in sorted((crate / "src").rglob("*.rs")):
        parts = path.relative_to(crate / "src").with_suffix("").parts
        if parts[0] != "bin":
            found[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = path
    return found


def flat(tree):
    """The paths of `a::{b, c::{d, e}}`."""
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tree.partition(" as ")[0].strip()]
    depth, start, parts = 0, 0, []
    inner = rest[: rest.rindex("}")]
    for at, letter in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inner[start:at].strip())
            start = at + 1
    return [path for part in parts if part for path in flat(head.strip() + part)]


def paths_in(text):
    text = re.sub(r"//[^\n]*", "", TESTS_IN_SOURCE.sub("", text))
    written_out = re.findall(r"(?<![:\w])[a-z_]\w*(?:::\w+)+", USE.sub("", text))
    return [path for tree in USE.findall(text) for path in flat(tree)] + written_out


def used(text, module, known):
    """The modules of this crate that a file uses."""
    for path in paths_in(text):
        parts, at = path.split("::"), list(module)
        if parts[0] == "crate":
            parts, at = parts[1:], []
        elif parts[0] in ("self", "super"):
            while parts and parts[0] in ("self", "super"):
                at = at[:-1] if parts.pop(0) == "super" else at
        elif (*module, parts[0]) not in known:
            continue
        whole = (*at, *parts)
        found = next(whole[:end] for end in range(len(whole), -1, -1) if whole[:end] in known)
        if found and found != module[: len(found)]:
            yield found


def rust_graph(crate):
    known = files_of(crate)
    return {module: set(used(path.read_text(encoding="utf-8"), module, known)) for module, path in known.items()}


# --- tests -----------------------------------------------------------------------------------


def circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_python_files_import_each_other_one_way(package):
    assert circle(python_graph(package)) == []


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_rust_files_use_each_other_one_way(crate):
    assert circle(rust_graph(crate)) == []


def test_imports_are_found():
    text = """
from a import b, _native
import a.c
if TYPE_CHECKING:
    from a.d import e
def f():
    from a.g import h
"""
    assert set(imported(text, {"a", "a.b", "a.c", "a.d", "a.g"})) == {"a.b", "a.c", "a.g"}


def test_uses_are_found():
    text = """
use crate::a::{self, b::{C, d}, E};
use super::sibling::F;
use child::G;
fn f() { crate::deep::call() } // crate::comment::x
#[cfg(test)]
mod tests {
    use crate::only_tests::H;
}
"""
    names = ("a", "a/b", "here/sibling", "here/own/child", "deep", "comment", "only_tests", "here", "here/own")
    known = {tuple(name.split("/")): None for name in names} | {(): None}
    found = {"/".join(one) for one in used(text, ("here", "own"), known)}
    assert found == {"a", "a/b", "here/sibling", "here/own/child", "deep"}


def test_a_circle_is_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
