"""Comments of the Rust crates keep to plain English: words of a private grammar become fewer and not more."""

import re
from collections import Counter
from pathlib import Path

import pytest
from places import ROOT

CRATES = ROOT / "crates"

AVOIDED = {
    "is no X, for is not an X": r"(?<!there )\b(?:is|are|was|were) no(?:ne|body)?\b(?! (?:longer|more|less|worse|la))",
    "whoever, for the party that does": r"\bwhoever\b",
    "who, for the party that": r"(?:^|[.:;(] )who\b",
    "what of, for the part of": r"\bwhat of\b",
    "nobody and its kind, for a named party": r"\b(?:no|some|any|every)body\b",
    "for ever": r"\bfor ever\b",
    "under way, for active": r"\bunder way\b",
    "cure, for fix": r"\bcures?\b",
    "heed, vouch": r"\b(?:heed|vouch)(?:s|es|ed)?\b",
    "As [`f`], for Like [`f`]": r"(?:^|[.:;] )as \[`",
    "what, at the start of a sentence": r"(?:^|\. )what\b",
    "that of, at the start of a sentence": r"(?:^|\. )th(?:at|ose) of\b",
    "none where, for None if": r"\bnone where\b",
    "Of a, at the start of a comment": r"^of (?:an?|the|all|each|its)\b",
    "whose, without a noun before it": r"(?:^|[.:;(] )whose\b",
    "settle, for finish": r"\bsettle[sd]?\b",
    "says nothing of, for reveals nothing": r"\bsays? (?:nothing|something|too much) of\b",
}
"""What to write instead, and a pattern of what not to write; letters of either case."""

LEFT: dict[str, int] = {}
"""How many such places each group of files still has. Lower a number with each comment that is rewritten."""


def group(path: Path) -> str:
    """The crate of a source file, and its folder below ``src`` if it has one."""
    crate, folder, *rest = path.relative_to(CRATES).parts
    return "/".join([crate, folder, *rest[:-1]])


def comments(text: str) -> list[str]:
    """Blocks of whole-line comments, each joined into one line."""
    blocks = re.findall(r"(?:^[ \t]*//[^\n]*\n)+", text + "\n", re.MULTILINE)
    return [" ".join(re.findall(r"//[/!]? ?([^\n]*)", block)) for block in blocks]


def avoided(text: str) -> list[tuple[str, str]]:
    """(word, comment) of each place in the comments of a source file."""
    return [
        (word, comment)
        for comment in comments(text)
        for word, pattern in AVOIDED.items()
        for _ in re.findall(pattern, comment, re.IGNORECASE)
    ]


def sources() -> list[Path]:
    paths = [path for folder in ("src", "tests", "examples", "benches") for path in CRATES.glob(f"*/{folder}/**/*.rs")]
    return sorted(path for path in paths if path.relative_to(CRATES).parts[0] != "fedcipher-tfhe")


def found() -> Counter[str]:
    return Counter(group(path) for path in sources() for _ in avoided(path.read_text(encoding="utf-8")))


def test_no_group_of_files_has_more_words_to_avoid_than_it_had():
    grown = {name: (count, LEFT.get(name, 0)) for name, count in found().items() if count > LEFT.get(name, 0)}
    assert not grown, f"found and allowed: {grown}; `PYTHONPATH=tests python tests/docs/test_words.py` lists the places"


def test_each_number_belongs_to_a_group_that_exists():
    assert set(LEFT) <= {group(path) for path in sources()}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("/// A tag that is no field element.", 1),
        ("// Whoever decrypts checks it, and nobody else.", 2),
        ("//! Who opens aggregates.", 1),
        ("/// The client who sends it is no longer there.", 0),
        ('let text = "who is nobody"; // trailing', 0),
        ("/// As [`Self::open`]: under way for ever.", 3),
    ],
)
def test_words_are_found_in_comments_only(line, count):
    assert len(avoided(line)) == count


if __name__ == "__main__":
    for path in sources():
        for word, comment in avoided(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(CRATES)}: {word}: {comment}")
    for name, count in sorted(found().items()):
        print(f'    "{name}": {count},')
