"""README, pages, examples and patches tell one story: one default scheme, one form of keys, one way to a model.

What is read is found by its kind and not by its place, so that a new page is read too.
"""

import argparse
import ast
import inspect
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

import page_code
import pytest
import tomli
from fedcipher import cli
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.cli.commands import COMMANDS
from fedcipher.schemes import DEFAULT_SCHEME, scheme_names
from places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
APPS = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
PATCHES = sorted((ROOT / "tests" / "apps").glob("*/fedcipher.patch"))
NAME = "my-app"
"""Of keys, in every page that has no app of its own."""
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
KEY_FILE = re.compile(r"(?<![\w.*-])([\w<>-]+)\.key\b(?!\.)")
# Of `keygen`; of Flower's nodes and of certificates; and of a party, whose other files have its name too.
KEY_NAMES = re.compile(r"server|client-(\d+|<partition-id>)|node-\d+|link|publisher|ada|bob|cid|NAME")
ANY_SCHEME = re.compile(r"(?:--scheme |fedcipher\.scheme\(\")([a-z-]+)")


class Block(NamedTuple):
    """Code of a page, with the paragraph and the heading that it stands under."""

    page: Path
    kind: str
    code: str
    said: str


def shown(path):
    return str(path.relative_to(ROOT))


def blocks(page):
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        before = BLOCK.sub("", text[: found.start()]).rstrip()
        heading = ["", *re.findall(r"^#+ .*$", before, re.MULTILINE)][-1]
        yield Block(page, found[1], found[2], f"{page.stem} {heading} {before.rpartition(chr(10) * 2)[2]}".lower())


def command_lines(code):
    """Commands of ours in a shell's lines, without comments and without where the output goes."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words[:1] == ["fedcipher"] and "..." not in words:
            yield words[1:]


BLOCKS = [block for page in PAGES for block in blocks(page)]
# The guide's own scheme is known only where its variables are set: tests/docs/test_add_a_scheme.py runs its commands.
LINES = [
    (block, words)
    for block in BLOCKS
    if block.kind == "sh" and block.page != page_code.SCHEME
    for words in command_lines(block.code)
]


def keygens(page):
    """The options of each `keygen` in a page's blocks."""
    return [cli.parser().parse_args(words) for block, words in LINES if block.page == page and words[0] == "keygen"]


def test_there_is_something_to_compare():
    assert len(LINES) > 20 and len(APPS) >= 7 and len(PATCHES) >= 11
    assert sum(bool(keygens(page)) for page in PAGES) > 8


@pytest.mark.parametrize(("block", "words"), LINES, ids=[f"{shown(b.page)} {' '.join(w)}" for b, w in LINES])
def test_a_command_of_a_page_is_one_that_the_program_takes(block, words):
    options = cli.parser().parse_args(words)
    if words[0] == "keygen":
        assert options.name and options.out is None, "keys have a name, by which apps find them"


def parsers(parser, line=()):
    yield line, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers(inner, (*line, name))


PARSERS = dict(parsers(cli.parser()))
NAMES = {command.name for command in COMMANDS}
# Their parsers do not have all options: those of the engine and the authority are other programs' own.
OPEN = {"cluster", "bench", *(command.name for command in COMMANDS if command.passes_on)}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_command_within_a_sentence_has_the_options_that_it_names(page):
    for code in INLINE.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        program, *words = code.split()[:3] or [""]
        # What is signed begins with these words too, and names no option.
        if program != "fedcipher" or not words or words[0].startswith("-") or not (words[0] in NAMES or "--" in code):
            continue
        name = tuple(words) if tuple(words) in PARSERS else (words[0],)
        assert name in PARSERS, code
        taken = {option for action in PARSERS[name]._actions for option in action.option_strings}
        named = set(re.findall(r"(?<!\S)--[a-z][\w-]*", code.partition(" -- ")[0]))
        assert named <= taken or name[-1] in OPEN, code


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{shown(block.page)}")
def test_code_has_the_default_scheme_where_its_text_does_not_name_another(block):
    for name in ANY_SCHEME.findall(block.code):
        assert name == DEFAULT_SCHEME or name not in scheme_names() or name in block.said, block.code


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_calls_no_other_scheme_the_default(page):
    text = page.read_text(encoding="utf-8")
    called = re.findall(r"`([\w-]+)` \(the default\)|default(?: scheme)?(?: is)? `([\w-]+)`", text)
    assert {name for pair in called for name in pair if name in scheme_names()} <= {DEFAULT_SCHEME}


@pytest.mark.parametrize("page", [page for page in PAGES if keygens(page)], ids=shown)
def test_a_page_that_makes_keys_leads_to_the_scheme_without_a_shared_key(page):
    assert "`oneshot`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*PAGES, *PATCHES], ids=shown)
def test_key_files_have_the_names_that_the_commands_give(path):
    odd = [name for name in KEY_FILE.findall(path.read_text(encoding="utf-8")) if not KEY_NAMES.fullmatch(name)]
    # Of the protocol: fields of messages.
    assert [name for name in odd if not name[0].isupper()] == []


# --- SecureStrategy -----------------------------------------------------------------------------


def python_of(path):
    """Code in Python of a page, a source or a patch, in pieces."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".patch":
        files = re.split(r"^--- a/", text, flags=re.MULTILINE)[1:]
        return [added(file) for file in files if file.partition("\n")[0].endswith(".py")]
    return [text] if path.suffix == ".py" else [block.code for block in blocks(path) if block.kind == "python"]


def added(patch):
    return "\n".join(line[1:] for line in patch.splitlines() if re.match(r"\+(?!\+\+ )", line))


def calls(code):
    """The calls of SecureStrategy in code that need not be whole."""
    for found in re.finditer(r"\bSecureStrategy\(", code):
        # The shortest text with balanced parentheses.
        for end in (k + 1 for k in range(found.end(), len(code)) if code[k] == ")"):
            try:
                call = ast.parse(textwrap.dedent(code[found.start() : end]), mode="eval").body
            except SyntaxError:
                continue
            assert isinstance(call, ast.Call)
            yield call
            break


SOURCES = [*PAGES, *PATCHES, *(path for app in APPS for path in sorted(app.rglob("*.py")))]
CALLS = [(path, call) for path in SOURCES for code in python_of(path) for call in calls(code)]
TAKEN = inspect.signature(SecureStrategy).parameters


@pytest.mark.parametrize(("path", "call"), CALLS, ids=[f"{shown(p)} {k}" for k, (p, _) in enumerate(CALLS)])
def test_a_strategy_names_its_keys_and_who_has_the_model(path, call):
    named = {word.arg: word.value for word in call.keywords if word.arg}
    assert set(named) <= set(TAKEN)
    assert len(call.args) == 1 and "keys" in named, "keys= by its name"
    assert len({"opener", "out"} & set(named)) == 1, "the one, or the other"
    keys, opener = named["keys"], named.get("opener")
    if isinstance(keys, ast.Constant):
        assert keys.value == NAME
    if isinstance(opener, ast.Constant):
        assert re.fullmatch(r"client-\d+\.key", opener.value), "its name in the folder of keys"


def test_there_are_calls_of_each_kind():
    named = [{word.arg for word in call.keywords} for _, call in CALLS]
    assert len(CALLS) > 12 and any("out" in words for words in named) and any("opener" in words for words in named)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_strategy_within_a_sentence_has_the_arguments_that_it_names(page):
    for code in re.findall(r"`SecureStrategy\(([^`]*)\)`", page.read_text(encoding="utf-8")):
        named = set(re.findall(r"(?<![\w.(\"])(\w+)=", f" {re.sub(chr(92) + '(.*?' + chr(92) + ')', '', code)}"))
        assert named <= set(TAKEN), code


# --- names of keys, and whose key an opener is ---------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.parent.name != "examples"], ids=shown)
def test_a_page_calls_keys_by_one_name(page):
    text = page.read_text(encoding="utf-8")
    named = {options.name for options in keygens(page)}
    named |= set(re.findall(r"~/\.fedcipher/keys/([\w-]+)/", text))
    named |= set(re.findall(r'^fedcipher-keys = "([\w-]+)"$', text, re.MULTILINE))
    assert named <= {NAME}


def config_of(app):
    return tomli.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]


@pytest.mark.parametrize("app", APPS, ids=shown)
def test_an_example_finds_the_keys_that_its_readme_makes(app):
    page, config = app / "README.md", config_of(app)
    (options,) = keygens(page)
    assert config["fedcipher-keys"] == options.name == f"fedcipher-{app.name}"
    assert set(re.findall(r"~/\.fedcipher/keys/([\w-]+)/", page.read_text(encoding="utf-8"))) <= {options.name}
    if "fedcipher-opener" in config:
        assert options.per_round == options.clients - 1, "the server's key is that of nobody who trains"
        assert config["fedcipher-opener"] == f"client-{options.per_round}.key"


@pytest.mark.parametrize("patch", PATCHES, ids=shown)
def test_a_patched_app_names_its_keys_after_itself(patch):
    settings = dict(re.findall(r'^(fedcipher-\w+) = "(.*)"$', added(patch.read_text(encoding="utf-8")), re.MULTILINE))
    assert settings["fedcipher-keys"] == patch.parent.name
    assert re.fullmatch(r"(~/\.fedcipher/keys/[\w-]+/)?client-3\.key", settings.get("fedcipher-opener", "client-3.key"))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_an_opener_in_a_page_is_the_key_of_nobody_who_trains(page):
    text = page.read_text(encoding="utf-8")
    made = re.findall(r"keygen(?: [^`\n]*?)?--clients (\d+)\s+--per-round (\d+)", text)
    spare = {int(clients) - 1 for clients, most in made if int(most) == int(clients) - 1}
    assert {int(k) for k in re.findall(r'opener="client-(\d+)\.key"', text)} <= spare
