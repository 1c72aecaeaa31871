"""Presets and their reports: every published figure has its cases, and a report needs nothing else."""

import csv
import re

import pytest
from fedcipher import errors
from fedcipher.bench import Profile
from fedcipher.bench.case import Case, CaseResult, Run
from fedcipher.bench.link import Link
from fedcipher.bench.sampler import Sample
from fedcipher.bench.statistics import FIGURES
from fedcipher.bench.study import Study, run_study
from fedcipher_research.bench import report
from fedcipher_research.bench.preset import Preset
from fedcipher_research.bench.presets import preset, preset_names

SMALL = [
    Case("flashe", "flashe", 500, 3, sums=2),
    Case("bfv", "bfv", 500, 3),
    Case("paillier", "paillier", 50, 2),
    Case("ckks", "ckks", 50, 2),
]


@pytest.fixture(scope="module")
def study():
    return run_study("round", SMALL, runs=2, link=Link(), command="fedcipher-research bench round")


def test_every_case_is_measured_with_the_versions_of_its_libraries(study):
    assert [(result.failure, len(result.runs)) for result in study.results] == [("", 2)] * len(SMALL)
    assert {"fedcipher", "numpy", "phe", "tenseal"} <= set(study.machine)


def test_the_report_is_complete_and_needs_nothing_else(study, tmp_path):
    report.write(study, Preset("round", "a test", "", [], SMALL), tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    pictures = {"phases", "bytes", "memory-client", "memory-server", "cpu-client", "cpu-server"}
    assert names == {"results.json", "results.csv", "README.md", "report.html", *(f"{p}.png" for p in pictures)}
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert len(rows) == len(SMALL) * len(FIGURES)
    for row in rows:
        assert float(row["min"]) <= float(row["avg"]) <= float(row["max"])
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == len(pictures)
    outside = re.findall(r"""(?:src|href)\s*=\s*["'](?!#)[^"']+|@import|url\((?!#)""", page)
    assert not outside, outside
    text = (tmp_path / "README.md").read_text()
    for case in SMALL:
        assert f"| {case.label} |" in text and case.label in page


@pytest.mark.parametrize("name", preset_names())
def test_every_comparison_of_a_preset_has_its_cases(name):
    chosen = preset(name)
    profile = Profile([Sample(0, 0, 1, 0, 0, 0, 0), Sample(1, 1, 1, 9, 9, 0, 0)], {}, 1.0)
    phases = {"encrypt": 1.0, "operate": 1.0, "decrypt": 1.0}
    profile.phases.update(phases)
    results = [CaseResult(case, [Run(profile, profile, 1.0, 10, 10, 10)]) for case in chosen.cases]
    full = Study(name, "", Link(), "", 1, {}, "", results)
    assert len({case.label for case in chosen.cases}) == len(chosen.cases)
    assert all(outcome.here is not None and outcome.verdict for outcome in chosen.outcomes(full))
    empty = Study(name, "", Link(), "", 1, {}, "", [])
    assert all(outcome.here is None and not outcome.verdict for outcome in chosen.outcomes(empty))
    with pytest.raises(errors.ParameterError):
        preset("fastest")


def test_a_report_says_first_what_is_reversed_and_why_something_is_not_comparable():
    # Paillier is slow to encrypt and quick to add: the study has BFV ahead in both.
    fast, slow = (
        Profile([], {"encrypt": 1e-6, "operate": 1e-6}, 1.0),
        Profile([], {"encrypt": 9.0, "operate": 9.0}, 1.0),
    )
    cases = {case.label: case for case in preset("phe-vs-fhe").cases}
    measured = {"Paillier 2048": Run(slow, fast, 1.0, 1, 1, 1), "BFV (SEAL)": Run(fast, slow, 1.0, 1, 1, 1)}
    results = [CaseResult(cases[label], [run]) for label, run in measured.items()]
    text = report.markdown(Study("phe-vs-fhe", "", Link(), "", 1, {}, "", results), preset("phe-vs-fhe"), [])
    said = text.index("**Reversed here: BFV (SEAL) over Paillier 2048: operation faster: 3.4 x printed")
    assert said < text.index("| figure | printed in |") and text.count("Reversed here") == 1
    tfhe = CaseResult(Case("TFHE", "tfhe", 1, 32, sums=16), [Run(fast, slow, 1.0, 1, 1, 1)])
    text = report.markdown(Study("fhe", "", Link(), "", 1, {}, "", [tfhe]), preset("fhe"), [])
    assert "| 13.96 s | 9 s | 0.6447x | not comparable (1) [8] |" in text
    assert "* (1) the slides use Concrete" in text and "* [8] the resource study: Operation time per addition" in text


def test_fedbits_baselines_are_scaled_to_its_models_and_its_savings_are_means_over_them():
    chosen = preset("fedbit-table1")
    # Seconds and bytes of an update: of FedBit's BFV, and of the three that stand for its baselines.
    known = {"BFV fedbit-paper": (1.0, 100), "CKKS": (8.0, 400), "BFV (SEAL)": (4.0, 200), "Paillier": (80.0, 50)}
    results = [
        CaseResult(
            case,
            [
                Run(Profile([], {"encrypt": took * case.clients}, 1.0), Profile([], {}, 1.0), 1.0, size, size, 1)
                for name, (took, size) in known.items()
                if case.label.startswith(name)
            ],
        )
        for case in chosen.cases
    ]
    found = {
        (outcome.what, outcome.published.place): outcome
        for outcome in chosen.outcomes(Study("fedbit-table1", "", Link(), "", 1, {}, "", results))
    }

    def here(what, place="Table I"):
        return found[what, place].here

    models = 11_173_962 / 61_706
    scaled = "Paillier packed, LeNet-5, scaled to ResNet-18"
    assert here(f"{scaled}: bytes up and down, beside BatchCrypt (IID)") == pytest.approx(100e-6 * models)
    assert here(f"{scaled}: encryption, beside BatchCrypt", "Fig. 6") == pytest.approx(80 * models)
    for place in ("Fig. 6", "section VI-C"):
        assert here("BFV fedbit-paper, LeNet-5: encryption faster than Paillier packed, LeNet-5", place) == 80
    # 75, 50 and -100 percent less: more bytes than what stands for BatchCrypt.
    small = found[
        "BFV fedbit-paper, LeNet-5: bytes less than what stands for the baselines, mean of three",
        "section VI-B",
    ]
    assert small.here == pytest.approx(25 / 3) and not small.reversed
    large = here(
        "BFV fedbit-paper, ResNet-18: bytes less than what stands for the baselines, mean of three",
        "section VI-B",
    )
    assert large == pytest.approx((75 + 50 + 100 * (1 - 2 / models)) / 3)
    # Each layer of LeNet-5 begun anew is what fits its 2.7 MB.
    assert any("11 ciphertexts and 2.88 MB" in text and "2.10 MB (2.00 MiB)" in text for text in chosen.differs)
