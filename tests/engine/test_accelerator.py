"""`--accelerator sim`: what it needs, what it counts, and that it computes what the core computes."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from engine_harness import deployment, updates
from fedcipher import cli
from fedcipher.app.report import Report, RoundResult
from fedcipher.app.report_page import write_report
from fedcipher.codec import Codec
from fedcipher.engine import accelerator
from fedcipher.engine.accelerator import LIBRARY, Accelerator, usage
from fedcipher.engine.local import find_program
from fedcipher.errors import AcceleratorError, EngineError
from fedcipher.federation.records import RoundRecord
from places import ROOT

MODEL = ROOT / LIBRARY


def needs_model():
    """Skips where `make hardware-sim` or the engine of `make engine` is not there."""
    if not MODEL.exists():
        pytest.skip(f"{LIBRARY} is absent: make hardware-sim")
    needs_engine()


def needs_engine():
    said = subprocess.run([find_program("fedcipher-engine"), "serve", "--help"], capture_output=True, text=True)
    if "--accelerator-library" not in said.stdout:
        pytest.skip("fedcipher-engine was built without accelerators: make engine")


def bfv(preset="fedbit-paper", **params):
    return fedcipher.scheme("bfv", clients=3, codec=Codec(bits=12, clip=1.0), preset=preset, **params)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (["--scheme", "bfv"], "`make hardware-sim` builds it; --accelerator-library names another"),
        (["--scheme", "bfv", "--accelerator-library", "{}/text.so"], "make hardware-sim"),
        (["--scheme", "flashe"], "--scheme bfv"),
        (["--scheme", "bfv", "--set", "preset=fast"], "preset=fedbit-paper"),
        (["--scheme", "bfv", "--engine", "off"], "leave out --engine off"),
        (["--scheme", "bfv", "--resume"], "leave out --compare, --engine and --accelerator"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_fix(options, fix, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.so").write_text("no library")
    options = [option.format(tmp_path) for option in options]
    assert cli.main(["train", "--accelerator", "sim", *options, "--out", str(tmp_path / "out")]) == 2
    assert fix in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_another_is_refused():
    with pytest.raises(AcceleratorError, match=r"not a simulated accelerator.*make hardware-sim"):
        Accelerator.simulated(Path(fedcipher._native.__file__), bfv())


@pytest.mark.parametrize("help", ["echo --listen", "echo '--accelerator sim --accelerator-library FILE'"])
def test_an_engine_without_accelerators_is_refused(help, tmp_path, monkeypatch):
    engine = tmp_path / "fedcipher-engine"
    engine.write_text(f"#!/bin/sh\n{help}\n")
    engine.chmod(0o755)
    monkeypatch.setattr(accelerator, "_lanes", lambda _: 8)
    monkeypatch.setattr(accelerator, "find_program", lambda _: str(engine))
    if "library" in help:
        assert Accelerator.simulated(Path("x.so"), bfv()).lanes == 8
        return
    with pytest.raises(AcceleratorError, match="make engine"):
        Accelerator.simulated(Path("x.so"), bfv())


PAGE = """# HELP fedcipher_engine_accelerator_total Work of an accelerator by kind
# TYPE fedcipher_engine_accelerator_total counter
fedcipher_engine_accelerator_total{kind="prepare_cycles"} 7505
fedcipher_engine_accelerator_total{kind="fallbacks"} 0
fedcipher_engine_accelerator_link_seconds_total 0.00125
fedcipher_engine_accelerator_wait_seconds_total 12.5
fedcipher_engine_seconds_total{phase="encrypt"} 3
"""


def test_what_an_engine_counts_is_read_from_its_page():
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        counted = {"prepare_cycles": 7505.0, "fallbacks": 0.0, "link_seconds": 0.00125, "wait_seconds": 12.5}
        assert usage(address) == counted
        thread.join()
    with pytest.raises(AcceleratorError, match="cannot be read"):
        usage(address)


def a_report():
    made = Report.begin({"dataset": "digits"}, bfv(), "fedcipher train", 100.0, engine=True)
    made.lanes = 8
    for number, cycles in ((1, 2_000_000), (2, 500_000)):
        result = RoundResult.of(RoundRecord(number, metrics={"evaluate": {"accuracy": 0.5, "loss": 2.0}}))
        result.accelerator = {"prepare_cycles": cycles, "encrypt_cycles": 0, "decrypt_cycles": 0, "key_cycles": 0}
        result.accelerator |= {"link_seconds": 0.001, "host_seconds": 0.25, "wait_seconds": 3.0, "bytes_to": 2e6}
        made.rounds.append(result)
    return made


def test_a_report_has_cycles_link_and_host_apart(tmp_path):
    made = a_report()
    write_report(made, tmp_path)
    again = Report.load(tmp_path / "report.json")
    assert again == made
    figures = again._figures()
    assert figures["accelerator, cycles of preparation, per round"] == "1,250,000"
    # 1.25 M cycles at 125 MHz.
    assert figures["accelerator, at 125 MHz (assumed), per round"] == "10 ms"
    assert figures["accelerator's link (modelled), per round"] == "1 ms"
    assert figures["host beside the accelerator, per round"] == "250 ms"
    assert figures["simulating the accelerator, per round"] == "3 s"
    head, first, second = made.accelerated()
    assert dict(zip(head, first, strict=True))["cycles of preparation"] == "2,000,000"
    assert dict(zip(head, second, strict=True))["to the card"] == "2 MB"
    page = (tmp_path / "report.html").read_text()
    for text in ("Accelerators, all clients", "8 lanes", "2,000,000", "not of a device"):
        assert text in page
    made.lanes = 0
    write_report(made, tmp_path)
    assert "ccelerator" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("preset", ["fedbit-paper", "compact"])
def test_an_engine_on_the_simulated_device_computes_what_the_core_computes(preset, tmp_path):
    needs_model()
    made = bfv(preset)
    inputs = updates(3, size=9000)
    issued = made.keygen(3)
    here = made.aggregator(issued.server())
    with deployment(made, 3, tmp_path, on=Accelerator.simulated(MODEL, made)) as run:
        engines = [run.connect(k) for k in range(3)]
        there = engines[0].scheme.aggregator(run.keys().current())
        begun = usage(run.local.metrics)
        for k, update in enumerate(inputs):
            here.add(made.encryptor(issued.client(k)).encrypt(update, round=1))
            encryptor = engines[k].encryptor()
            if k:  # with masks made ahead, and without
                encryptor.precompute(update, round=1)
            there.add(encryptor.encrypt(update, round=1))
        opened = engines[1].decryptor().decrypt(there.finish())
        wanted = made.decryptor(issued.client(1)).decrypt(here.finish())
        done = {kind: value - begun.get(kind, 0.0) for kind, value in usage(run.local.metrics).items()}
    assert all(np.array_equal(a, b) for a, b in zip(opened, wanted, strict=True))
    assert done["fallbacks"] == 0 and done["ciphertexts"] > 0
    # A preparation takes N/P (log2 N + 1) cycles a ciphertext, an encryption one a coefficient.
    assert done["prepare_cycles"] >= 3 * 4096 // 8 * 13 and done["encrypt_cycles"] > 1000 and done["decrypt_cycles"] > 0
    for kind in ("link_seconds", "host_seconds", "wait_seconds"):
        assert done[kind] > 0
    # The link's seconds are the model's, of these bytes at 14.4 GB/s and a microsecond a command and direction.
    most = (done["bytes_to"] + done["bytes_from"]) / 14e9 + 4e-6 * done["ciphertexts"]
    assert done["bytes_to"] / 15e9 < done["link_seconds"] < most


def test_an_engine_whose_device_is_gone_does_not_start(tmp_path):
    needs_engine()
    gone = Accelerator(tmp_path / "gone.so", 8)
    with pytest.raises(EngineError, match="make hardware-sim"), deployment(bfv(), 3, tmp_path, on=gone):
        pass
