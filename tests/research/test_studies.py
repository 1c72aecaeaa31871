"""Studies of published experiments, on sizes that take no time, and their committed reports."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fedcipher.bench.link import Link
from fedcipher.errors import BenchError, ParameterError, ReportError
from fedcipher.models import Learner, default_model
from fedcipher_research import cli, published
from fedcipher_research.published.record import Record
from fedcipher_research.published.tables import beside
from fedcipher_research.published.verdict import judged, stated
from fedcipher_research.studies import (
    StudySettings,
    accuracy,
    findings,
    masks,
    netns,
    packing,
    sidecar,
    sparse,
    study,
    study_names,
    wan,
)
from fedcipher_research.studies.fedbit_round import CYCLES, accelerator_seconds
from fedcipher_research.studies.fednic_beside import Round, Spent, compared
from fedcipher_research.studies.netns import Exchange
from fedcipher_research.studies.timing import best, clocked
from places import ROOT

TINY = {"ResNet": 700, "GRU": 900, "CNN": 1100}


def quiet(text):
    pass


def verdicts(found):
    return {outcome.what: outcome.verdict for outcome in found.outcomes}


# --- findings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study_names())
def test_a_study_can_be_run(name):
    assert callable(study(name))


def test_there_is_no_other_study():
    with pytest.raises(ParameterError, match="fedbit-packing"):
        study("fedbit")


def test_a_statement_in_words_has_a_verdict_and_is_kept(tmp_path):
    printed = published.figure("hybrid-he", "Fig. 6b", "PASTA+BFV versus BFV download")
    given = [
        stated("a", printed, "both 8 B", True),
        stated("b", printed, "8 and 9 B", False),
        stated("c", printed, "8 and 9 B", False, because="another modulus"),
    ]
    assert [o.verdict for o in given] == ["reproduced", "missed", "not comparable"]
    assert (given[0].printed, given[0].measured, given[0].factor) == ("identical", "both 8 B", "")
    made = Record.of("a command", given)
    made.save(tmp_path)
    assert Record.load(tmp_path / "outcomes.json") == made


def test_a_range_has_its_ends_and_no_others(tmp_path):
    low, high = (published.figure("flashe", "Fig. 10", "less computation than Paillier", at) for at in (0, 1))
    assert (low.number, high.number) == (16, 63)
    for wrong in (None, 2, -1):
        with pytest.raises(ParameterError):
            published.figure("flashe", "Fig. 10", "less computation than Paillier", wrong)
    Record.of("a command", [judged("x", low, 20.0, better="larger")]).save(tmp_path)
    path = tmp_path / "outcomes.json"
    assert Record.load(path).outcomes[0].verdict == "beaten"
    path.write_text(path.read_text().replace('"value": 16', '"value": 17'))
    with pytest.raises(ReportError, match="does not print 17"):
        Record.load(path)


def test_a_report_says_first_what_is_reversed_and_last_how_it_was_measured(tmp_path):
    factor = published.claim("resource-study", "BFV operation faster than Paillier, scenario 1")
    found = findings.Findings("A sum", [judged("operation faster", factor, 0.5, better="larger")], ["all"])
    findings.write("a-study", found, "run it", {"cores": "2"}, tmp_path)
    text = (tmp_path / "README.md").read_text()
    said = text.index("**Reversed here: operation faster: 3.4 x printed, 0.5 x here.**")
    assert said < text.index("| operation faster |") < text.index("* command: `run it`\n* cores: 2")
    assert json.loads((tmp_path / "figures.json").read_text())["machine"] == {"cores": "2"}


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in ROOT.glob("research/results/*/outcomes.json")))
def test_a_committed_study_shows_the_outcomes_that_it_has(folder):
    path = ROOT / "research" / "results" / folder
    rows = beside(Record.load(path / "outcomes.json").outcomes).rows
    text = (path / "README.md").read_text()
    for row in rows[1:]:
        assert f"| {' | '.join(row)} |" in text, row
    assert json.loads((path / "figures.json").read_text())["command"] in text


def test_the_command_writes_a_study_s_report(tmp_path, capsys):
    assert cli.main(["bench", "fedbit-packing", "--runs", "1", "--out", str(tmp_path)]) == 0
    assert "reproduced" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"README.md", "figures.json", "outcomes.json"}


def test_processor_time_is_of_this_process_and_its_children_and_not_of_waiting():
    program = "import time; input(); t = time.process_time()\nwhile time.process_time() - t < 0.3: pass\nprint(1)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:

        def work():
            child.stdin.write(b"go\n")
            child.stdin.flush()
            return child.stdout.readline()

        spent, said = clocked(work)
        child.communicate()
    assert said == b"1\n"
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not say what a process has used")
    assert spent > 0.25
    assert clocked(time.sleep, 0.3)[0] < 0.15
    assert best(lambda: sum(range(100_000)), 3)[0] > 0


@pytest.mark.long
def test_accuracy_by_sparsity_is_that_of_trainings(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "_SPARSITY", (99,))
    monkeypatch.setattr(accuracy, "_ROUNDS", 2)
    data = str(Path(data_dir("mnist")).parent)
    assert cli.main(["bench", "flashe-accuracy", "--data-dir", data, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    all_of_it, own = found["0, all"], found["99 %, each its own"]
    assert len(all_of_it["accuracy"]) == 2
    assert all_of_it["accuracy"][-1] > own["accuracy"][-1] > 0
    # A coordinate of its own choice costs its position and a tag of its own.
    assert all_of_it["up"] > own["up"] > found["99 %, common set"]["up"]
    assert "Beside the published figures" not in (tmp_path / "README.md").read_text()


def test_a_training_that_ends_with_an_error_ends_the_study(tmp_path):
    with pytest.raises(BenchError, match="ended with"):
        accuracy.run(StudySettings(data_dir=str(tmp_path), say=quiet))


# --- FedBit ------------------------------------------------------------------------------------


def test_two_weights_of_a_coefficient_in_either_order():
    assert packing._packed([(0, 9), (180, 135), (180, 135)], False) == (9216, 279 * 1024 + 360, [360, 279])
    assert packing._packed([(0, 9), (180, 135), (180, 135)], True) == (9, 368919, [360, 279])


def test_the_worked_example_comes_out_and_the_other_order_is_not_comparable():
    found = verdicts(packing.run(StudySettings(1, say=quiet)))
    assert found["the second weight shifted: packed coefficient"] == "reproduced"
    assert found["the first weight shifted: aggregated coefficient"] == "reproduced"
    assert found["the first weight shifted: packed coefficient"] == "not comparable"
    assert {found[f"{s}: averages, w{k}"] for s in ("bfv", "bfv-lib", "paillier") for k in (1, 2)} == {"reproduced"}


def test_cycles_of_the_accelerator_are_seconds(tmp_path):
    path = tmp_path / "cycles.json"
    path.write_text(json.dumps({"coefficients": 50, "prepare": 125e6, "encrypt": 125e6, "decrypt": 62.5e6}))
    assert accelerator_seconds(path, 100) == (2.0, 0.5)
    assert accelerator_seconds(path, 200) == (4.0, 1.0)
    # The committed ones.
    encrypt, decrypt = accelerator_seconds(ROOT / CYCLES, 61_706)
    assert 0 < encrypt < 1 and 0 < decrypt < 1
    path.write_text("{}")
    for wrong in (path, tmp_path / "none"):
        with pytest.raises(ParameterError, match="make hardware"):
            accelerator_seconds(wrong, 100)


# --- FLASHE ------------------------------------------------------------------------------------


def test_masks_of_a_set_of_clients():
    assert [masks.runs_of(present) for present in ([0, 1, 2], [0, 2, 4], [1, 2, 5, 7, 8])] == [1, 3, 3]
    assert masks.double_masks([3, 4]) == 4 and masks.double_masks([0, 2, 3]) == 6


@pytest.mark.parametrize("clients", [2, 5, 7])
def test_theorem_2_is_the_mean_over_all_sets(clients):
    for left in range(1, clients + 1):
        assert masks._mean(clients, left) == masks.expected_double(clients, Fraction(clients - left, clients))
    assert (
        masks.expected_double(clients, Fraction(0)) == 4 and masks.expected_single(clients, Fraction(0)) == clients + 1
    )


def test_masks_and_sparse_updates_of_tiny_models(monkeypatch):
    for module in (masks, sparse):
        monkeypatch.setattr(module, "application_sizes", lambda: TINY)
    monkeypatch.setattr(masks, "_RATES", masks._RATES[:2])
    monkeypatch.setattr(masks, "_WHOLE", 4)
    found = masks.run(StudySettings(1, say=quiet))
    assert verdicts(found)["double masking, masks expected"] == "reproduced"
    assert all(outcome.verdict for outcome in found.outcomes)
    monkeypatch.setattr(sparse, "_SAMPLE", 2)
    found = sparse.run(StudySettings(1, say=quiet))
    assert all(outcome.verdict for outcome in found.outcomes)
    # Fewer values are fewer bytes, and every own coordinate has a tag.
    up = {name: cost["up"] for name, cost in found.figures.items()}
    assert up["CNN, 99 %, plain, common set"] < up["CNN, 20 %, plain, common set"]
    assert up["CNN, 90 %, FLASHE, each its own"] > up["CNN, 90 %, FLASHE, common set"]


def test_the_studies_leave_the_ledgers_of_this_machine_alone(monkeypatch):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", "before")
    packing.run(StudySettings(1, say=quiet))
    assert os.environ["FEDCIPHER_STATE_DIR"] == "before"


def test_money_is_machines_by_the_hour_and_what_leaves_a_region(monkeypatch):
    price = {"client": {"price": 2.0}, "server": {"price": 3.0}, "traffic": {"price": 0.5}}
    monkeypatch.setattr(wan, "prices", lambda: price)
    one = wan.Iteration(train=1.0, crypto=0.5, idle=0.5, up=10**9, down=10**9)
    assert wan.cost(one, 1800, 10, 8) == pytest.approx(1 * (10 * 2 + 3) + 1800 * 8 * 2 * 0.5)


def test_every_price_has_a_source_and_a_day():
    found = wan.prices()
    assert len(found["seen"].split("-")) == 3
    for entry in ("client", "server", "traffic"):
        assert found[entry]["price"] > 0 and found[entry]["source"].startswith("https://")


def test_without_the_tools_a_network_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchError, match="iproute2"), netns.wan([Link()]):
        pass


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_a_link_in_a_namespace_is_as_fast_as_it_is_made():
    try:
        with netns.wan([Link(), Link(8e6)]) as net:
            both = net.exchange(Exchange(400_000, 400_000))
            only = net.exchange(Exchange(400_000, 1, (1,)))
    except BenchError as error:
        pytest.skip(str(error))
    # 3.2 Mbit, less what the filter lets through at once.
    assert both["up"]["1"] > 0.3 and both["down"]["1"] > 0.3 and list(only["up"]) == ["1"]
    assert both["up"]["0"] < both["up"]["1"]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("", "must name a Python that has Concrete: run `make concrete`"),
        ("/nowhere/python", "does not run"),
        (sys.executable, "ended with 1: .*concrete.*; run `make concrete`"),
    ],
)
def test_concrete_that_is_not_there_is_a_clear_error(monkeypatch, python, said):
    monkeypatch.setenv("FEDCIPHER_CONCRETE", python)
    with pytest.raises(BenchError, match=said):
        study("tfhe-concrete")(StudySettings(runs=1, say=quiet))


def test_concrete_opens_its_own_sums(monkeypatch):
    python = ROOT / "target" / "concrete" / "bin" / "python"
    if not python.exists():
        pytest.skip("Concrete is not installed; make concrete")
    monkeypatch.setenv("FEDCIPHER_CONCRETE", str(python))
    found = study("tfhe-concrete")(StudySettings(runs=1, say=quiet))
    assert [o.verdict == "not comparable" for o in found.outcomes] == [False, True, True, True]
    assert all(found.figures[name] > 0 for name in ("encryption", "operation", "decryption", "up", "down"))


# --- FedNIC ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flashe", "ckks"])
def test_a_sidecar_encrypts_and_opens_what_is_added_here(name):
    if name == "ckks":
        pytest.importorskip("tenseal")
    update = [np.linspace(-0.9, 0.9, 12, dtype=np.float32).reshape(3, 4), np.float32(0.25).reshape(())]
    with sidecar.sidecar(name, 2) as (clients, key):
        aggregator = sidecar.made(name, 2).aggregator(key)
        for client, factor in zip(clients, (1.0, 0.5), strict=True):
            aggregator.add(client.encrypt([factor * x for x in update], round=1))
        aggregate = aggregator.finish()
        for client in clients:
            mean = client.open(aggregate)
            assert [x.shape for x in mean] == [(3, 4), ()]
            for got, sent in zip(mean, update, strict=True):
                np.testing.assert_allclose(got, 0.75 * sent, atol=1e-3)


def test_a_sidecar_that_does_not_start_is_a_clear_error():
    with pytest.raises(BenchError, match="no process for nonsense has started"), sidecar.sidecar("nonsense", 2):
        pass


def test_fednics_figures_are_of_what_the_host_and_the_engine_each_took():
    host = Round(10.0, Spent(2.0), Spent(1.0), 0.5, 0.6, 600, 600, network=4.0)
    engine = replace(host, sealing=Spent(0.3, 2.7), opening=Spent(0.1, 1.9), add=0.55).hopped(host)
    assert (engine.host, engine.apart, engine.hop) == (pytest.approx(0.4), pytest.approx(4.6), pytest.approx(2))
    # Less than on the host is not hidden.
    assert replace(host, sealing=Spent(0.3, 1.2)).hopped(host).hop == pytest.approx(-0.5)
    plain = Round(12.0, Spent(), Spent(), 0.1, 0.1, 100, 100, network=1.0)
    rounds = {"plain": plain, "ckks on the host": host, "ckks in the engine": engine}
    found = {o.what: o for o in compared(rounds, 120.0, 1_206_590)}
    assert found["Paillier slower than TenSEAL's CKKS"].here == 40
    assert found["ckks: host CPU saved by the engine, training counted"].here == pytest.approx(100 * 2.6 / 13)
    assert found["ckks: communication in the engine above the host's"].here == pytest.approx(50)
    # What trainings differ by is no part of it.
    assert found["ckks: workflow in the engine above FedML-HE"].here == pytest.approx(100 * 2.05 / 17.5)
    assert found["ckks: workflow in the engine above Raw"].here == pytest.approx(100 * 8.45 / 13.1)
    assert found["training under each mode"].said == "10 s to 12 s, 12 s of it plain"
    assert found["ckks: adding what came of the engine"].verdict == "reproduced"
    # What the paper does not name is nothing to be better at.
    assert {o.verdict for o in found.values() if "weights" in o.what} == {"not comparable"}
    with pytest.raises(BenchError, match="1,000 weights"):
        compared(rounds, 120.0, 1000)
    rounds["ckks in the engine"] = replace(engine, add=0.61)
    (slower,) = (o for o in compared(rounds, 120.0, 1_206_590) if "adding what came" in o.what)
    assert slower.verdict == "missed"


def test_the_cnn_of_femnist_is_of_the_published_size():
    printed = published.cell("fednic", "Table 3", {"type": "FedNIC"}, "parameters")
    learner = Learner(default_model("femnist"), 62, np.zeros((28, 28, 1), np.float32))
    assert sum(p.size for p in learner.initial()) == printed.number
