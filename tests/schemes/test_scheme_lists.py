"""No list of schemes is written by hand: a new scheme would be missing from it, and nothing would say so."""

import ast
import re
from functools import cache

import pytest
import scheme_lists
from fedcipher.codec import Codec
from fedcipher.errors import DependencyError
from fedcipher.schemes import every_scheme, scheme_names
from fedcipher_research.baselines import BASELINES
from places import ROOT

ROOMS = ("tests", "tools", "fuzz", "research/tools")
NAMES = {*scheme_names(), *(cls.name for cls in BASELINES)}
VARIANTS = NAMES | {variant.name for variant in every_scheme()}
FIGURES = "each name has figures or parameters of its own; a scheme without any takes what all others take"
NAMED = "about these schemes and no others"
MINUTES = "minutes each: one scheme of each kind, of a key, of masks and of a committee"
KINDS = "eight adapters each: one scheme of each kind"
ALLOWED = {
    "tests/adapters/test_conformance.py: test_all_parties_end_with_the_mean_of_the_clients": KINDS,
    "tests/adapters/test_conformance.py: test_a_lie_of_the_server_gets_the_constant_refusal_and_the_run_goes_on": KINDS,
    "tests/adapters/test_conformance.py: test_whatever_an_app_does_a_frame_of_one_size_leaves_and_nothing_else": KINDS,
    "tests/adapters/test_conformance.py: test_a_client_that_drops_out_of_a_round_is_left_out_and_comes_back": KINDS,
    "tests/e2e/e2e_declearn.py: KEYGEN": MINUTES,
    "tests/e2e/e2e_guard.py: test_an_unchanged_client_app_trains_on_guarded_nodes_after_people_agree": MINUTES,
    "tests/e2e/e2e_guard.py: test_a_guards_memory_stays_below_eight_models": MINUTES,
    "tests/e2e/e2e_nvflare.py: test_hello_numpy_ends_with_its_plaintext_model": MINUTES,
    "tests/e2e/e2e_oneshot.py: test_the_model_is_that_of_plain_with_the_same_survivors": NAMED,
    "tests/research/test_baselines.py: test_what_is_missing_is_named": FIGURES,
    "tests/research/test_bench_page.py: test_the_page_is_readable_on_a_desk_and_on_a_phone": "three rows are enough",
    "tests/research/test_studies.py: test_a_sidecar_encrypts_and_opens_what_is_added_here": NAMED,
    "tests/research/test_studies.py: test_the_worked_example_comes_out_and_the_other_order_is_not_comparable": NAMED,
    "tests/federation/test_analytics.py: CODECS": FIGURES,
    "tests/attacks/test_attacks_files.py: test_attack_28_a_servers_memory_of_sets_is_a_file": FIGURES,
    "tests/attacks/test_attacks_flower.py: "
    "test_attack_06_a_share_that_no_round_reaches_is_refused_before_the_first_message": FIGURES,
    "tests/bench/test_bench.py: test_no_calibration_measures_a_part_of_a_ciphertext": FIGURES,
    "tests/cli/test_command_lines.py: ODD": "words of random command lines",
    "tests/schemes/test_digests.py: KNOWN": FIGURES,
    "tests/schemes/test_dp.py: test_the_opened_sum_carries_the_noise_of_all_clients": FIGURES,
    "tests/adapters/test_flower.py: test_sparse_updates_through_flower": "the codec chooses; one short run, one long",
    "tests/schemes/test_golden.py: BASELINES": "folders of files that are there",
    "tests/schemes/test_lanes.py: test_a_number_of_64_bits_is_few_bytes": FIGURES,
    "tests/federation/test_numbers.py: "
    "test_after_all_clocks_were_ahead_the_error_says_how_to_go_on_and_that_helps": FIGURES,
    "tests/schemes/test_parameters.py: CASES": "the page states their security, each with its secret's distribution",
    "tests/docs/test_protocol_page.py: "
    "test_a_frame_ends_with_what_the_page_says_and_nothing_more": "numbers of the page",
    "tests/tools/test_prove.py: test_sums_come_back_and_one_thing_changed_is_seen": "the schemes of BFV's arithmetic",
    "tests/schemes/test_registered_schemes.py: BASELINES": "names that the product must not know",
    "tests/schemes/test_schemes.py: test_a_whole_frame_has_few_bits_a_value": FIGURES,
    "tests/app/test_train.py: BESIDE": NAMED,
    "tests/app/test_train.py: test_a_plain_run_beside_the_encrypted_one": NAMED,
    "tests/federation/test_weights.py: MORE": FIGURES,
    "tests/federation/test_weights.py: FEW": FIGURES,
    "tools/check_gpu.py: timed": FIGURES,
    "tools/golden.py: BASELINES": "folders of files that are there",
    "tools/prove.py: RINGS": "the schemes of BFV's arithmetic",
    "tools/screenshots.py: TRAINING": "words of one command",
    "research/tools/lost_workloads.py: SLOW": FIGURES,
    "research/tools/published_page.py: hybrid_runs": "columns of a paper",
    "research/tools/readme_tables.py: round_cost": "the default scheme beside none",
}
"""Lists that name schemes, by file and function or constant, each with its reason."""


def name_of(node):
    """The scheme that an element of a list stands for, alone, first of a tuple, or in a `pytest.param`."""
    if isinstance(node, ast.Constant):
        return node.value if node.value in VARIANTS else None
    if isinstance(node, ast.Tuple | ast.List) and node.elts:
        return name_of(node.elts[0])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param" and node.args:
        return name_of(node.args[0])
    return None


def elements(node):
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [name_of(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        return [name_of(key) or name_of(value) for key, value in zip(node.keys, node.values, strict=True)]
    return []


def title(statement):
    """A function's name, or that of what is assigned."""
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0])
    if isinstance(statement, ast.AnnAssign):
        return ast.unparse(statement.target)
    return getattr(statement, "name", "")


def lists_of(source):
    """Titles of a module's statements that have a list of two or more schemes."""
    return [
        title(statement)
        for statement in ast.parse(source).body
        for node in ast.walk(statement)
        if len({name for name in elements(node) if name}) > 1
    ]


@cache
def found():
    """Where there are lists, in the form of `ALLOWED`."""
    sources = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if "target" not in path.parts]
    return [
        f"{path.relative_to(ROOT).as_posix()}: {at}"
        for path in sources
        for at in lists_of(path.read_text(encoding="utf-8"))
    ]


def test_no_list_of_schemes_is_written_by_hand():
    assert [where for where in found() if where not in ALLOWED] == []


def test_no_reason_is_left_of_a_list_that_is_gone():
    assert sorted(set(ALLOWED) - set(found())) == []


@pytest.mark.parametrize(
    "source",
    [
        'ALL = ["flashe", "bfv"]',
        '@pytest.mark.parametrize("name", ("flashe", pytest.param("bfv", marks=long)))\ndef test_x(name): ...',
        'ALL = [("flashe", {}), ("bfv", {"preset": "fast"})]',
        'def f():\n    for name in {"flashe": 1, "bfv-fast": 2}:\n        pass',
    ],
)
def test_a_list_is_seen_in_each_of_its_forms(source):
    assert len(lists_of(source)) == 1
    assert lists_of(source.replace("flashe", "another")) == []


def test_no_fuzz_target_has_a_list_either():
    for path in sorted((ROOT / "fuzz").rglob("*.rs")):
        if "target" not in path.parts[-3:-1]:
            arrays = re.findall(r"\[((?:\"[\w-]+\",? ?)+)\]", path.read_text(encoding="utf-8"))
            listed = [found for array in arrays if len(found := set(re.findall(r'"([\w-]+)"', array)) & VARIANTS) > 1]
            assert listed == [], path.name


@pytest.mark.parametrize("variant", scheme_lists.variants_that())
def test_a_scheme_is_what_its_class_says(variant):
    try:
        scheme = variant.make(clients=3, codec=Codec(bits=12, clip=1.0))
    except DependencyError as error:
        pytest.skip(str(error))
    assert scheme.name == variant.scheme.name
    assert (scheme.committee is not None) == variant.info.committee
    assert (scheme.workers is not None) == variant.info.workers
    assert scheme.sends_parts == variant.sparse


def test_each_scheme_has_a_variant_of_its_name_and_no_two_variants_have_one_name():
    names = [variant.name for variant in every_scheme()]
    assert len(names) == len(set(names)) and set(scheme_names()) <= set(names)
    assert [variant.name for variant in every_scheme() if variant.first] == scheme_names()
