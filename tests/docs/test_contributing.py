"""What contributors and their machines rely on: help, pinned workflows, one address, pages that are true."""

import json
import re
import subprocess
from pathlib import Path

import page_code
import pytest
from places import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
PACKAGE = CARGO["workspace"]["package"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADR = sorted((ROOT / "docs" / "adr").glob("0*.md"))
HELP = re.compile(r"^([a-z0-9-]+):[^=\n][^\n]*## ([a-z]+): (\S[^\n]*)$", re.MULTILINE)
named = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def phony():
    (listed,) = re.findall(r"^\.PHONY: ((?:[^\n]*\\\n)*[^\n]*)", MAKEFILE, re.MULTILINE)
    return re.findall(r"[a-z0-9-]+", listed)


def make_targets(text):
    """Targets that a script or workflow calls, those of a matrix too."""
    words = re.findall(r"^\s*(?:- )?(?:run: )?make ([^\n#]+)", text, re.MULTILINE)
    found = {word for line in words for word in line.split() if re.fullmatch(r"[a-z0-9-]+", word)}
    (matrix,) = re.findall(r"target:\n((?: +- [a-z0-9-]+\n)+)", text) or [""]
    return found | set(re.findall(r"- (\S+)", matrix)) if "make ${{ matrix.target }}" in text else found


def test_every_target_has_help_and_all_help_is_of_a_target():
    helped = [name for name, _, _ in HELP.findall(MAKEFILE)]
    assert sorted(helped) == sorted(phony())


def test_make_alone_prints_every_target_once():
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r"^  make ([a-z0-9-]+)  +\S", said, re.MULTILINE)) == sorted(phony())


@named
def test_every_action_is_pinned_by_its_commit(path):
    uses = re.findall(r"uses: *([^\n]+)", path.read_text(encoding="utf-8"))
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []


def test_an_action_has_one_version_in_all_workflows():
    uses = {use for path in WORKFLOWS for use in re.findall(r"uses: *(\S+)", path.read_text(encoding="utf-8"))}
    assert len(uses) == len({use.partition("@")[0] for use in uses})


@named
def test_a_workflow_may_read_and_nothing_else_and_each_job_ends(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^ *permissions:\n((?: +\S[^\n]*\n)+)", text, re.MULTILINE) == ["  contents: read\n"]
    assert "\nconcurrency:\n" in text
    jobs = re.findall(r"^    runs-on:", text, re.MULTILINE)
    assert len(re.findall(r"^    timeout-minutes: \d+$", text, re.MULTILINE)) == len(jobs)
    # Whatever runs in a job could otherwise push with what the checkout leaves behind.
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".devcontainer" / "devcontainer.json"], ids=lambda path: path.name)
def test_workflows_call_only_targets_and_files_that_exist(path):
    text = path.read_text(encoding="utf-8")
    assert make_targets(text) - set(phony()) == set()
    scripts = re.findall(r"(?:tools/|\.ci/)[\w./]+", text)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_night_runs_the_campaigns():
    campaigns = make_targets((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))
    assert {"attack", "e2e", "fuzz", "mutants", "reproducible"} <= campaigns


def test_changes_and_submissions_pass_the_same():
    """Both are .ci/run."""
    assert "- run: .ci/run\n" in (ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8")
    assert "\nrun demo check docs test\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_the_compiler_is_one_and_the_product_promises_no_newer():
    channel = tomllib.loads((ROOT / "rust-toolchain.toml").read_text(encoding="utf-8"))["toolchain"]["channel"]
    oldest = PACKAGE["rust-version"]
    assert [int(part) for part in channel.split(".")][:2] >= [int(part) for part in oldest.split(".")]
    assert f"rust:{channel}-" in (ROOT / ".devcontainer" / "Containerfile").read_text(encoding="utf-8")
    assert f"Rust {oldest}+" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_addresses_begin_where_the_project_is_hosted():
    place = PACKAGE["repository"]
    assert PROJECT["urls"]["Source Code"] == place
    others = [PACKAGE["homepage"], PACKAGE["documentation"], *PROJECT["urls"].values()]
    pages = [ROOT / "SECURITY.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CODE_OF_CONDUCT.md"]
    for path in [*pages, *(ROOT / ".github").rglob("*.*")]:
        if path.is_file():
            others += re.findall(r"https://[^\s)\"]*fedcipher/[^\s)\"]*", path.read_text(encoding="utf-8"))
    assert len(others) > 10
    assert [other for other in others if not f"{other}/".startswith(f"{place}/")] == []


def test_a_weakness_is_reported_at_one_address():
    address = f"{PACKAGE['repository']}/security/advisories/new"
    assert f"]({address})" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"url: {address}\n" in (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text(encoding="utf-8")
    assert PROJECT["urls"]["Security"] == f"{PACKAGE['repository']}/security/policy"


def test_authors_and_addresses_are_in_every_package():
    assert [author["name"] for author in PROJECT["authors"]] == PACKAGE["authors"]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--no-deps"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)["packages"]
    fields = ("authors", "repository", "homepage", "documentation", "license")
    assert {p["name"]: [p[f] for f in fields] for p in packages} == {
        p["name"]: [PACKAGE[f] for f in fields] for p in packages
    }


def test_every_lock_file_is_denied_what_deny_toml_denies():
    (denied,) = re.findall(r"^DENIED := (.*)$", MAKEFILE, re.MULTILINE)
    listed = subprocess.run(["git", "ls-files", "*Cargo.lock"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout of git")
    locks = {Path(lock).parent for lock in listed.stdout.split()}
    assert {Path(manifest).parent for manifest in denied.replace("$(TFHE)", "crates/fedcipher-tfhe").split()} == locks


def test_licences_without_patent_rights_are_named_in_the_readme():
    licences = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))["licenses"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    clear = {e["crate"] for e in licences["exceptions"] if "BSD-3-Clause-Clear" in e["allow"]}
    assert clear >= {"tfhe", "tfhe-ntt"}
    # Crates of tfhe-rs come with it.
    assert [crate for crate in clear if crate not in text and not crate.startswith("tfhe-")] == []
    assert "tfhe-ntt" in text


def test_owners_are_of_files_that_exist():
    lines = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert [path for path in paths if path != "*" and not (ROOT / path.strip("/")).exists()] == []


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("A short subject\n\n" + "The body has longer lines. " * 4, 0),
        ("a" * 72, 0),
        ("a" * 73, 1),
        ("a" * 73 + "\n\nWhy.\n", 1),
    ],
)
def test_commits_with_a_long_subject_are_refused(message, refused):
    """By the expression that pre-commit searches the whole message for."""
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"entry: (\\A.*)", text)
    assert bool(re.search(entry, message, re.MULTILINE)) == bool(refused)


def test_words_of_the_glossary_are_in_order_and_each_is_where_the_glossary_says():
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z][\w -]*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    words = [word for word, _, _ in rows if word != "word"]
    assert len(words) > 40
    assert words == sorted(words)
    places = {place for _, _, cell in rows for place in re.findall(r"`([^`]+)`", cell)}
    core = ROOT / "crates/fedcipher-core/src"
    assert [place for place in places if not (ROOT / place).is_file() and not (core / place).is_file()] == []


def test_files_that_the_guides_name_exist():
    roots = [ROOT, ROOT / "crates/fedcipher-core/src", ROOT / "crates/fedcipher-core/src/oneshot"]
    roots += [ROOT / "python/fedcipher/federation", ROOT / "crates/fedcipher-core"]
    for page in [ROOT / "CONTRIBUTING.md", *(ROOT / "docs/contributor").glob("*.md"), *ADR]:
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"`([\w./-]+(?:\.(?:rs|py|md|toml|json|lock|proto|xz)|/))`", text)
        # What a command or the reader of a guide makes.
        made = {"fuzz/corpus/", "dist/sbom/", "index.md", *page_code.files(page)}
        missing = [p for p in paths if p not in made and not any((root / p).exists() for root in roots)]
        assert not missing or {p for p in missing if not list(ROOT.glob(f"crates/*/src/*/{p}"))} == set(), page


@pytest.mark.parametrize("path", ADR, ids=lambda path: path.stem)
def test_a_record_has_every_section_and_a_row(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem[:4]}: ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert re.search(r"^Status: ", text, re.MULTILINE)
    # One page.
    assert len(text.splitlines()) <= 60
    index = (path.parent / "index.md").read_text(encoding="utf-8")
    assert f"]({path.name})" in index
    if path.stem[:4] != "0000":
        assert f"| {text.splitlines()[0].partition(': ')[2]} |" in index


def test_contributing_is_a_page():
    """A screen and a half: whoever wants more finds the links."""
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 90
    targets = set(re.findall(r"\bmake ([a-z][a-z0-9-]+)", "\n".join(lines)))
    assert targets - set(phony()) == set()
