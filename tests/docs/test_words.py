"""Comments, docstrings, messages and pages keep to plain English: none has a word of a private grammar.

Of Python the product, the research package and the tools are read, with their docstrings and all strings that have a
space. Of Rust all comments are read. Of pages the text is read without code. Tests of Python are not read.
"""

import ast
import io
import re
import tokenize

import pytest
from places import ROOT
from plain_english import without_code

CRATES = ROOT / "crates"
PACKAGES = ("python/fedcipher", "research", "tools", "examples")
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


# --- what is read ----------------------------------------------------------------------------


def joined(lines):
    return " ".join(line.strip() for line in lines)


def rust_texts(text):
    """Blocks of whole-line comments, each joined into one line."""
    blocks = re.findall(r"(?:^[ \t]*//[^\n]*\n)+", text + "\n", re.MULTILINE)
    return [" ".join(re.findall(r"//[/!]? ?([^\n]*)", block)) for block in blocks]


def python_comments(text):
    """Comments, those of lines that follow each other joined."""
    blocks, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("#: ")
            if token.start[0] == last + 1 and blocks:
                blocks[-1] += f" {said}"
            else:
                blocks.append(said)
            last = token.start[0]
    return blocks


def mutants_code(tree):
    """Strings that are code: the arguments of a mutant but for its first words."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("python", "Mutant", "of")]
    return {id(part) for call in calls for argument in call.args[2:] for part in ast.walk(argument)}


def python_strings(text):
    """Strings with a space, and the constant parts of f-strings that are not the first."""
    tree = ast.parse(text)
    left_out = mutants_code(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            # In the middle of a sentence nothing begins.
            left_out |= {id(part) for part in node.values[1:]}
            yield from (f"... {p.value}" for p in node.values[1:] if isinstance(p, ast.Constant))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in left_out:
            continue
        # The text of a table in SQL is compared with that of journals on disk.
        if " " in node.value.strip() and not node.value.lstrip().startswith("CREATE TABLE"):
            yield from (joined(part.splitlines()) for part in re.split(r"\n\s*\n", node.value))


def markdown_texts(text):
    """Paragraphs, rows of tables and items of lists, without headings. Code in them is a thing with a name."""
    text = re.sub(r"`[^`\n]*`", "CODE", re.sub(r"^#[^\n]*", "", without_code(text), flags=re.M))
    return [joined(part.splitlines()) for part in re.split(r"\n\s*\n|\n(?=\s*[*|\-\d])", text)]


def sources():
    pages = [*ROOT.glob("[A-Z]*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
    for path in sorted(pages):
        # The conduct's text is the Contributor Covenant's.
        if path.name not in ("CHANGELOG.md", "CODE_OF_CONDUCT.md"):
            yield path, markdown_texts
    for folder in ("src", "tests", "examples", "benches"):
        for path in sorted(CRATES.glob(f"*/{folder}/**/*.rs")):
            if path.relative_to(CRATES).parts[0] != "fedcipher-tfhe":
                yield path, rust_texts
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, lambda text: [*python_comments(text), *python_strings(text)]


def avoided(texts):
    """(word, text) of each place."""
    return [
        (word, text)
        for text in texts
        for word, pattern in AVOIDED.items()
        for _ in re.findall(pattern, text, re.IGNORECASE)
    ]


def found():
    for path, read in sources():
        for word, text in avoided(read(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}: {word}: {text}"


# --- tests -----------------------------------------------------------------------------------


def test_no_text_has_a_word_to_avoid():
    assert list(found()) == []


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
def test_words_are_found_in_comments_of_rust(line, count):
    assert len(avoided(rust_texts(line))) == count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("# What is there.\n# It is no tag.\n", 2),
        ('def f():\n    """Who opens.\n\n    Whose key.\n    """\n', 2),
        ('raise E(f"{name} is no number; what of it")\n', 2),
        ('x = "whoever"\n', 0),
        ('python("a file", "a guard is absent", "if this is no thing", "if nobody")\n', 0),
    ],
)
def test_words_are_found_in_python(line, count):
    assert len(avoided([*python_comments(line), *python_strings(line)])) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("A paragraph.\n\nWhoever reads\nit is no reader.\n", 2),
        ("```sh\n# whoever\n```\nRun `nobody` first.\n", 0),
        ("* one\n* that is no key\n\n| a | b |\n|---|---|\n| it is no key | c |\n", 2),
    ],
)
def test_words_are_found_in_pages(text, count):
    assert len(avoided(markdown_texts(text))) == count


if __name__ == "__main__":
    print(*found(), sep="\n")
