"""docs/contributor/add-a-scheme.md runs: its code is a tenth scheme, which every list then has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import page_code
import pytest
from places import ROOT

BIN = Path(sys.executable).parent
MAX_FILES = 12
LISTS = {
    "interface": "test_schemes.py::test_decrypted_mean_is_the_quantised_mean[toy]",
    "arguments": "test_arguments.py::test_a_scheme_travels_as_its_spec[toy]",
    "weights": "test_weights.py::test_one_large_client_and_nine_small_ones_give_fedavgs_mean[toy]",
    "privacy": "test_dp.py::test_the_opened_sum_carries_the_noise_of_all_clients[toy]",
    "lanes": "test_lanes.py::test_frames_of_lanes_alone_are_exact_in_other_schemes[toy]",
    "small updates": "test_every_update.py::test_nothing_is_lost_of_updates_of_any_size[toy]",
    "Flower": "test_flower.py::test_the_federation_computes_what_it_would_in_the_clear[toy-weights]",
    "optimisers": "test_flower_optimiser.py::test_a_run_ends_as_with_flowers_class_in_the_clear[toy, opener-adam]",
    "sockets": "test_socket_adapter.py::test_mnist_rounds_over_sockets[toy]",
    "attacks with a key file": "test_attacks_identity.py::test_attack_18_a_frame_that_is_refused_binds_and_frees_nobody"
    "[toy]",
    "attacks with sets": "test_attacks_sets.py::test_attack_33_sums_over_changing_sets_give_no_client[toy]",
    "attacks of liars": "test_attacks_liars.py::test_attack_19_one_wrong_tag_ends_no_run[opener-toy]",
    "attacks with charters": "test_attacks_charter.py",
    "attacks of a randomised server": "test_attacks_flower.py::test_attack_any_randomised_server_gets_one_frame_a_round"
    "_or_a_refusal[toy-weights-0]",
    "two worlds": "test_attacks_two_worlds.py",
}
"""A test of each kind that takes its schemes from the list; of a whole file where any will do."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The page's files, in a folder of their own."""
    return page_code.written(page_code.SCHEME, tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def environment(package, tmp_path_factory):
    """That of a shell in which the page's variables are set."""
    state = tmp_path_factory.mktemp("state")
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    known = {"PYTHONPATH": path, "FEDCIPHER_SCHEMES": "toy_scheme", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return {**os.environ, **known, "FEDCIPHER_STATE_DIR": str(state)}


def ran(command, environment, **where):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **where)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_pages_commands_run_and_its_round_gives_the_mean(package, environment):
    page, path = page_code.commands(page_code.SCHEME), environment["PYTHONPATH"]
    # The checkout's modules stay importable where they are not installed.
    said = ran(["bash", "-ec", page.replace("PYTHONPATH=.", f"PYTHONPATH='{path}'")], environment, cwd=package)
    assert "[0.25 0.25 0.25 0.25]" in said and "\ntoy\n" in said
    assert {"keys", "measured", "run"} <= {path.name for path in package.iterdir()}


def test_every_list_of_tests_has_the_new_scheme(environment):
    files = sorted({next((ROOT / "tests").glob(f"*/{test.partition('::')[0]}")) for test in LISTS.values()})
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only"]
    found = [line for line in ran([*command, *files], environment, cwd=ROOT / "tests").splitlines() if "toy" in line]
    found = [line.partition("tests/")[2].partition("/")[2] for line in found]
    missing = [kind for kind, test in LISTS.items() if not any(line.startswith(test) for line in found)]
    assert missing == []


def test_fuzz_targets_golden_files_and_pages_have_it_too(environment):
    code = """
import sys
sys.path[:0] = ["tools", "research/benches"]
import fuzz, scale, training
from fedcipher.bench.advise import Federation, advise
from fedcipher.bench.link import Link
from fedcipher.schemes import every_scheme
assert {"add_toy", "open_toy"} <= set(fuzz.targets())
assert "toy" in scale._NAMES and "toy" in training._SCHEMES
assert "toy" in [found.scheme for found in advise(Federation(100, 3, Link(1e6, 0.01), 2, 2, "quantum"), seconds=1)]
assert [v.name for v in every_scheme()].count("toy") == 1
"""
    ran([sys.executable, "-c", code], environment, cwd=ROOT)


def test_the_tests_that_the_page_names_pass_for_it(environment):
    for line in page_code.commands(page_code.SCHEME, checkout=True).splitlines():
        program, *words = line.split()
        command = (
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts="]
            if program == "pytest"
            else [program]
        )
        said = ran([*command, *words], environment, cwd=ROOT)
        if program == "pytest":
            assert re.search(r"\b[1-9]\d* passed", said) and "failed" not in said, said[-500:]


def test_a_package_is_one_file_and_a_scheme_of_the_core_touches_at_most_twelve():
    assert len(page_code.files(page_code.SCHEME)) == 2
    _, _, of_the_core = page_code.SCHEME.read_text(encoding="utf-8").partition("\n## A scheme of the core\n")
    rows = re.findall(r"^\| `([\w./-]+)` \|", of_the_core, re.MULTILINE)
    assert 8 < len(rows) <= MAX_FILES
    assert [row for row in rows if not (ROOT / row).is_file()] == []


def test_code_names_a_scheme_of_the_core_in_no_other_file():
    """`plain` stands for all: whatever else named it would have to be found by whoever adds a scheme."""
    page = page_code.SCHEME.read_text(encoding="utf-8")
    rust = r"\bcrate::plain\b|\bplain::|\bPlain::|^(pub )?mod plain\b|^pub mod plain\b"
    kinds = {"crates": ("*.rs", rust), "python": ("*.py", r"schemes\.plain\b|\bPlain\(NativeScheme")}
    for folder, (ending, naming) in kinds.items():
        found = [
            str(path.relative_to(ROOT))
            for path in sorted((ROOT / folder).rglob(ending))
            if "tests" not in path.parts
            # A module's own tests may take the simplest scheme.
            and re.search(naming, re.split(r"#\[cfg\(.*test", path.read_text(encoding="utf-8"))[0], re.MULTILINE)
        ]
        assert found
        assert [path for path in found if f"`{path}`" not in page] == []


def test_fuzzing_finds_an_adder_that_does_not_look_at_lengths(package, environment, tmp_path):
    code = (package / "toy_scheme.py").read_text(encoding="utf-8")
    broken = code.replace("if len(payload) != NONCE + WORD * elements:", "if False:")
    assert broken != code
    (tmp_path / "toy_scheme.py").write_text(broken, encoding="utf-8")
    first = {**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    command = [sys.executable, ROOT / "tools" / "fuzz_frames.py", "add", "toy", "60", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=first)
    assert done.returncode == 1 and "ValueError" in done.stderr
