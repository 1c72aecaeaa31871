"""In Rust, rounds, epochs, clients and weights have types of their own (`fedcipher-types`), not bare integers."""

from __future__ import annotations

import re

import pytest
from places import ROOT

CRATES = ROOT / "crates"
CHECKED = ("accel", "core", "engine", "python")

_BARE = r"(?<![\w:])u(?:32|64)\b"
_ONE = r"(?:round|epoch|client|weight|member|reader|party)"
_MANY = (
    r"(?:rounds|epochs|clients|weights|members|readers|parties|contributions|cohort|sampled|usable|held|revoked|issued"
    r"|accused)"
)
_NUMBER = rf"&?\s*(?:mut\s+)?(?:Option<\s*)?{_BARE}"
_LIST = rf"(?:Option<)?&?(?:\[|(?:Vec|(?:BTree|Hash)(?:Map|Set))<)&?\(?(?:\w+, )?{_BARE}"
_RETURNED = r"(?:<[^(]*>)?\([^()]*\) -> (?:(?:Py)?Result<\s*)?"
_MISTAKES = [
    # A parameter, a field or a variable. `clients: u64` is a count, and so no mistake.
    re.compile(rf"\b(?:\w+_)?{_ONE}: {_NUMBER}"),
    re.compile(rf"\b(?:\w+_)?{_MANY}: {_LIST}"),
    re.compile(rf"(?i:\btype {_MANY}(?:<[^>]*>)?) = {_LIST}"),
    # What a function returns.
    re.compile(rf"\bfn (?:\w+_)?{_ONE}{_RETURNED}{_NUMBER}"),
    re.compile(rf"\bfn (?:\w+_)?{_MANY}{_RETURNED}{_LIST}"),
]
_TESTS = {"fedcipher-core/src/flashe/attacks.rs"}
"""Files that are compiled for tests only."""
_SPECS = re.compile(r"(?m)^struct \w+Spec \{[^}]*\}")
"""What a key file says of a scheme, in JSON: `registry.rs` makes the types of it."""
_OTHERS = {
    # Of residues, in a change of primes.
    "fedcipher-core/src/pasta/ring/extend.rs": "weights: Vec<Vec<u64>>",
    # Of the entries in a round, the number of the last.
    "fedcipher-core/src/ledger/memories.rs": "rounds: Vec<&(u64, Vec<Entry>)>",
}
"""Other numbers, which have such a name."""


def mistakes(source: str) -> list[str]:
    """Bare numbers that name a round, an epoch, a client or a weight in a file's code. Tests are at the file's end."""
    code = re.sub(r"//[^\n]*", "", source)
    code = re.split(r"(?m)^#\[cfg\((?:all\()?test", code)[0]
    return [found.group(0) for mistake in _MISTAKES for found in mistake.finditer(_SPECS.sub("", code))]


def _files() -> dict[str, str]:
    paths = [path for name in CHECKED for path in (CRATES / f"fedcipher-{name}" / "src").rglob("*.rs")]
    return {str(path.relative_to(CRATES)): path.read_text() for path in sorted(paths)}


def test_no_bare_number_names_a_round_an_epoch_a_client_or_a_weight() -> None:
    files = _files()
    assert len(files) > 100
    for name in files.keys() - _TESTS:
        found = mistakes(files[name].replace(_OTHERS.get(name, "\0"), ""))
        assert not found, f"{name}: {found}"


def test_every_exception_is_still_there() -> None:
    files = _files()
    assert files.keys() >= _TESTS
    assert all(text in files[name] for name, text in _OTHERS.items())


@pytest.mark.parametrize(
    "line",
    [
        "    pub fn claim(&mut self, round: u64) -> Result<()> {",
        "    pub max_weight: u64,",
        "    UnknownClient { client: u32 },",
        "    fn keygen(&self, cohort: &[u32], epoch: Epoch) -> Result<KeySet>;",
        "    members: BTreeMap<u32, Vec<ClientId>>,",
        "    pub contributions: Vec<(u32, u64)>,",
        "    pub fn total_weight(&self) -> u64 {",
        "    pub fn epochs(&self, device: &str) -> Vec<u64> {",
        "    round: Option<u64>,",
        "pub type Cohort = BTreeMap<u32, [u8; VERIFY_LEN]>;",
    ],
)
def test_a_bare_number_is_found(line: str) -> None:
    assert len(mistakes(line)) == 1


@pytest.mark.parametrize(
    "line", ["clients: u64,", "rounds: u64,", "round: RoundId,", "clients: &[ClientId],", "fn members(&self) -> usize;"]
)
def test_a_count_or_a_type_is_no_mistake(line: str) -> None:
    assert not mistakes(line)
