"""`fedcipher train` as a user runs it: Flower's simulation with real processes."""

import json

import numpy as np
import pytest
from fedcipher import cli
from fedcipher.app.simulate import weight_unit


@pytest.mark.parametrize("scheme", ["flashe", "bfv", "pasta-bfv", "paillier"])
def test_training_digits_end_to_end(tmp_path, capsys, scheme):
    out = tmp_path / "out"
    command = ["train", "--scheme", scheme, "--clients", "3", "--rounds", "3", "--out", str(out)]
    assert cli.main(command) == 0
    report = json.loads((out / "report.json").read_text())
    assert len(report["rounds"]) == 3
    assert report["totals"]["accuracy"] > 0.5
    assert report["totals"]["encrypt"] > 0 and report["totals"]["upload_bytes"] > 1000
    assert not any(r["left_out"] for r in report["rounds"])
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page and "http" not in page.replace("http-equiv", "")
    shown = capsys.readouterr().out
    for word in ("accuracy", "f1", "encode", "encrypt", "aggregate", "decrypt", "upload", "download"):
        assert word in shown


def test_weight_units():
    assert weight_unit([100, 101, 100], 16) == (0.0, 1)
    unit, levels = weight_unit([100, 400, 1600], 16)
    assert levels == 16 and round(1600 / unit) == 16 and round(100 / unit) == 1
    assert np.isfinite(unit)


def test_bad_arguments_are_explained(tmp_path, capsys):
    assert cli.main(["train", "--dataset", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert "IDX" in capsys.readouterr().err
    assert cli.main(["train", "--per-round", "99"]) == 2
    assert "99 clients per round" in capsys.readouterr().err
