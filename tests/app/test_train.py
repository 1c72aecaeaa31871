"""`fedcipher train` as a user runs it: Flower's simulation with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import fedcipher
import pytest
from deployment_harness import processes
from fedcipher import cli
from fedcipher.app.report import Report, RoundResult
from fedcipher.app.report_page import write_report
from fedcipher.app.simulate import largest_weight
from fedcipher.errors import ReportError
from fedcipher.federation.records import ClientRecord, RoundRecord
from scheme_lists import hides, in_core, one_key, schemes_that
from test_accelerator import MODEL, needs_model


def fetched(page):
    """Addresses that a browser would load, or go to."""
    return re.findall(r"""(?:src|href)\s*=\s*["'](?!\#)[^"']*|url\((?!\#)[^)]*""", page)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs ``fedcipher train`` once for each set of options: (folder, report, what it printed)."""
    made = {}
    # Ray's processes are nice (15) and would wait for those of all other tests.
    own = {"COLUMNS": "200", "RAY_worker_niceness": "0"}

    def run(*options):
        if options not in made:
            base = tmp_path_factory.mktemp("train")
            out = base / "[out]"
            command = [sys.executable, "-m", "fedcipher.cli", "train", "--clients", "3", "--rounds", "3", *options]
            environment = {**os.environ, "FEDCIPHER_STATE_DIR": str(base / "state"), **own}
            done = subprocess.run(
                [*command, "--out", str(out)], env=environment, cwd=base, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]
            made[options] = out, json.loads((out / "report.json").read_text()), done.stdout
        return made[options]

    return run


BESIDE = ("--scheme", "bfv", "--compare", "plain")


@pytest.mark.parametrize(
    "options",
    [
        BESIDE,
        ("--scheme", "flashe"),
        pytest.param(("--scheme", "pasta-bfv"), marks=pytest.mark.long),
    ],
)
def test_training_digits_end_to_end(trained, options):
    scheme, (out, report, shown) = options[1], trained(*options)
    assert len(report["rounds"]) == 3
    assert report["totals"]["accuracy"] > 0.5
    assert report["totals"]["encrypt"] > 0 and report["totals"]["upload_bytes"] > 1000
    assert report["totals"]["train"] > 0 and report["totals"]["training loss"] > 0
    assert not any(r["left_out"] for r in report["rounds"])
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3 and fetched(page) == []
    assert f"{scheme} (" in page and "withstands: " in page and "at least 2 contributors" in page
    for word in ("accuracy", "f1", "encode", "encrypt", "aggregate", "decrypt", "upload", "download"):
        assert word in shown


@pytest.mark.long
def test_training_with_noise_says_what_it_promises_and_what_it_costs(trained):
    _, report, shown = trained("--scheme", "bfv", "--dp-epsilon", "8", "--dp-clip", "0.5")
    assert len(report["rounds"]) == 3 and not any(r["left_out"] for r in report["rounds"])
    assert report["codec"]["privacy"]["rounds"] == 3 and report["codec"]["privacy"]["clip"] == 0.5
    assert report["scheme_params"]["min_contributions"] == 3
    said = " ".join(shown.split())
    for text in ("epsilon 8 at delta 1e-05 after 3 updates", "at least 2 clients beside the reader", "all of its data"):
        assert text in said and text in report["privacy"]
    # No noise covers answers of a training: what only they say is not known.
    assert not any("train" in r["seconds"] or "training loss" in r["metrics"] for r in report["rounds"])
    assert report["rounds"][0]["clipped"] is None and report["rounds"][0]["seconds"]["encrypt"] > 0
    # Three clients have no crowd to hide in.
    assert "WARNING" in said and "drowns" in report["noise"]
    assert report["totals"]["accuracy"] < 0.6


def test_a_plain_run_beside_the_encrypted_one(trained):
    out, report, shown = trained(*BESIDE)
    ours, plain = report, report["beside"]
    assert (ours["scheme"], plain["scheme"], plain["beside"]) == ("bfv", "plain", None)
    assert plain["settings"] == ours["settings"] and plain["codec"] == ours["codec"]
    # The same seed, and sums that are exact: encryption changes no bit of the model.
    for a, b in zip(ours["rounds"], plain["rounds"], strict=True):
        assert a["model"] == b["model"] != "" and a["upload_bytes"] > b["upload_bytes"] > 0
        assert a["metrics"] == b["metrics"]
    page = (out / "report.html").read_text()
    for text in ("Rounds: bfv", "Rounds: plain", "Both runs end with the same model"):
        assert text in page
    for text in ("bfv on digits: rounds", "plain on digits: rounds", "Both runs end", str(out)):
        assert text in shown


@pytest.mark.long
@pytest.mark.parametrize("name", schemes_that(hides, one_key, in_core))
def test_training_with_engines_gives_the_same_model_bit_for_bit(trained, name):
    without = trained(*BESIDE) if name == "bfv" else trained("--scheme", name)
    models = []
    for _, report, _ in (without, trained("--scheme", name, "--engine", "auto")):
        assert [r["clients"] for r in report["rounds"]] == [3, 3, 3]
        models.append([r["model"] for r in report["rounds"]])
    assert models[0] == models[1]
    assert len(set(models[0])) == 3


@pytest.mark.long
def test_training_on_the_simulated_accelerator_gives_the_same_model_bit_for_bit(trained):
    needs_model()
    paper = ("--scheme", "bfv", "--set", "preset=fedbit-paper")
    _, plain, _ = trained(*paper)
    out, report, shown = trained(*paper, "--accelerator", "sim", "--accelerator-library", str(MODEL))
    assert [r["model"] for r in report["rounds"]] == [r["model"] for r in plain["rounds"]]
    assert all(r["model"] for r in plain["rounds"])
    assert report["engine"] and report["lanes"] == 8 and plain["lanes"] == 0
    for result in report["rounds"]:
        done = result["accelerator"]
        assert done["fallbacks"] == 0
        for kind in ("prepare_cycles", "encrypt_cycles", "decrypt_cycles", "link_seconds", "host_seconds"):
            assert done[kind] > 0, (result["round"], kind)
    # Keys are loaded once.
    assert report["rounds"][0]["accelerator"]["key_cycles"] > 0 == report["rounds"][2]["accelerator"]["key_cycles"]
    for text in ("Accelerators, all clients", "accelerator&#x27;s link (modelled), per round"):
        assert text in (out / "report.html").read_text()
    assert "simulated accelerators of 8 lanes" in " ".join(shown.split())


def test_a_run_is_not_compared_with_itself(capsys):
    assert cli.main(["train", "--scheme", "plain", "--compare", "plain"]) == 2
    assert "choose another scheme" in capsys.readouterr().err


def test_a_report_says_who_was_left_out_and_which_round_has_no_aggregate(tmp_path):
    made = Report.begin({"dataset": "digits"}, fedcipher.scheme("flashe", clients=4), "fedcipher train", 100.0)
    clients = [ClientRecord(1, 0, {"encrypt_seconds": 0.25}), ClientRecord(2, 1, {}, "it <refused>")]
    known = {"elements": 1000, "counted": {"clipped": 25.0, "saturated": 0.0}}
    made.rounds = [
        RoundResult.of(RoundRecord(1, clients=clients, unfinished="it has 1 usable updates and needs 3")),
        RoundResult.of(
            RoundRecord(
                2, clients=clients[:1], metrics={"evaluate": {"accuracy": 0.5, "loss": 2.0}}, wall_seconds=0.5, **known
            ),
            not_opened="its <aggregate> does not open",
        ),
    ]
    write_report(made, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "round 1, client 1: it &lt;refused&gt;" in page
    assert "round 1 has no aggregate: it has 1 usable updates and needs 3" in page
    assert "round 2, metrics: its &lt;aggregate&gt; does not open" in page
    head, first, second = made.per_round()
    assert dict(zip(head, first, strict=True))["clipped"] == "-"
    assert dict(zip(head, first, strict=True))["left out"] == "1" and first[1] == "-"
    assert dict(zip(head, second, strict=True))["clipped"] == "2.50%" and second[1:3] == ["50.00%", "2.0000"]
    assert Report.load(tmp_path / "report.json") == made
    figures = made._figures()
    assert (figures["train, per client and round"], figures["encrypt, per client and round"]) == ("-", "250 ms")
    assert figures["values clipped"] == "2.50%"
    assert made._figures()["all rounds"] == second[-1] == "500 ms"
    for content in ("[]", "{}", "no JSON"):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ReportError, match="run the training again"):
            Report.load(tmp_path / "report.json")


def test_the_largest_weight_is_the_largest_client_and_equal_clients_need_none():
    assert largest_weight([100, 101, 100]) == 0
    assert largest_weight([100, 400, 1600]) == 1600


def test_bad_arguments_are_explained(tmp_path, capsys):
    assert cli.main(["train", "--dataset", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert "IDX" in capsys.readouterr().err
    assert cli.main(["train", "--per-round", "99"]) == 2
    assert "99 clients per round" in capsys.readouterr().err


def until(found, seconds=120):
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


STUBBORN = """
import signal, subprocess, sys, time
from fedcipher._signals import Terminated
from fedcipher.app import forked_run

forked_run._REPORT_SECONDS = 1

def work():
    # Deaf, as a library in C is, with a process that is in a group of its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600.{mark}"], process_group=0)
    print("here", flush=True)
    {last}

try:
    sys.exit(forked_run.run_forked(work, lambda error: print(error, file=sys.stderr) or 2))
except Terminated as terminated:
    sys.exit(terminated.report())
"""


@pytest.mark.skipif(sys.version_info < (3, 11) or not os.path.isdir("/proc"), reason="the program needs process_group")
@pytest.mark.parametrize(
    ("how", "last", "status"),
    [
        (signal.SIGINT, "time.sleep(600)", 130),
        (signal.SIGTERM, "time.sleep(600)", 143),
        (signal.SIGHUP, "time.sleep(600)", 129),
        (None, "import os; os.kill(os.getpid(), signal.SIGSEGV)", 2),
        (None, "return 0", 0),
        (signal.SIGKILL, "time.sleep(600)", -9),
    ],
)
def test_a_simulation_ends_when_it_is_told_to_and_leaves_no_process(tmp_path, how, last, status):
    mark = str(tmp_path.stat().st_ino)
    program = STUBBORN.format(mark=mark, last=last)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout.readline() == "here\n"
        if how is not None:
            until(lambda: processes(f"sleep 600.{mark}"))
            process.send_signal(how)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == status, said
    if last.startswith("import os"):
        assert "ended by SIGSEGV" in said
    if how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert said.strip() == f"fedcipher: {'interrupted' if how == signal.SIGINT else f'ended by {how.name}'}"
    until(lambda: not processes(f"600.{mark}"), 30)


@pytest.mark.skipif(sys.version_info < (3, 11) or not os.path.isdir("/proc"), reason="the program needs process_group")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_behind_the_fork_leaves_no_process(tmp_path, how):
    mark = str(tmp_path.stat().st_ino)
    told = f"import os\nos.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), {int(how)}))\n"
    program = told + STUBBORN.format(mark=mark, last="time.sleep(600)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + how, done.stderr
    assert done.stderr.strip() == f"fedcipher: {'interrupted' if how == signal.SIGINT else 'ended by SIGTERM'}"
    until(lambda: not processes(f"600.{mark}"), 30)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_training_that_is_told_to_end_leaves_neither_keys_nor_processes(tmp_path, how):
    scratch, out = tmp_path / "tmp", tmp_path / "out"
    scratch.mkdir()
    command = [sys.executable, "-m", "fedcipher.cli", "train", "--clients", "3", "--rounds", "50", "--out", str(out)]
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "RAY_TMPDIR": "/tmp",
        "FEDCIPHER_STATE_DIR": str(tmp_path / "s"),
    }
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        until(lambda: list(scratch.glob("*/keys/client-0.key")) and list(out.glob("run*/*")), 300)
        time.sleep(3)
        process.send_signal(how)
        began = time.monotonic()
        process.communicate(timeout=120)
    assert process.returncode == 128 + how
    assert time.monotonic() - began < 60
    assert list(scratch.rglob("*.key")) == []
    assert processes(str(tmp_path)) == {}
