"""Servers that do not train, or do not encrypt, beside real SuperNodes with a mod and with guards: `make e2e-guard`."""

import hashlib
import shutil

import fedcipher
import numpy as np
import pytest
from deployment_harness import Federation
from fedcipher import keys
from flwr.cli.build import build_fab_from_disk
from guarded import Guarded
from places import TESTS

APP = TESTS / "e2e" / "guarded_app"
CLIENTS = 3
RULES = '{"fedcipher_guard": 1, "apps": ["PACKAGE"], "run_settings": ["*"], "people_agree": false}'


@pytest.fixture(params=["mod", "guard"])
def sites(request, tmp_path, monkeypatch):
    """An app, a federation whose sites protect its clients, and the run's settings that name the keys."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    scheme = fedcipher.scheme("bfv", clients=CLIENTS + 1, codec=fedcipher.Codec(bits=16), min_contributions=3)
    made = keys.save(scheme.keygen(CLIENTS + 1), scheme, tmp_path / "keys")
    if request.param == "guard":
        package = hashlib.sha256(build_fab_from_disk(APP)).hexdigest()
        app, federation = APP, Guarded(tmp_path, CLIENTS, made, RULES.replace("PACKAGE", package))
    else:
        app, federation = tmp_path / "guarded-mod", Federation(tmp_path, CLIENTS)
        shutil.copytree(APP, app)
        client = app / "guarded_app" / "client_app.py"
        line = "from fedcipher.adapters.flower import client_mod\n\napp = ClientApp(mods=[client_mod])"
        client.write_text(client.read_text().replace("app = ClientApp()", line))
    yield app, federation, f"fedcipher-keys='{made}' fedcipher-opener='{made}/client-3.key'"
    federation.stop()


def test_a_server_without_our_strategy_fails_in_its_first_round_with_cause_and_remedy(sites):
    app, federation, config = sites
    said = federation.run(app, f"protect=false {config}", timeout=200)
    assert "wrap its strategy in SecureStrategy" in said, said + federation.logs()
    assert "[ROUND 1/3]" in said and "[ROUND 2/3]" not in said and "aggregate_evaluate" not in said
    # Flower's status for an app that has raised an exception.
    assert "Exit Code: 201" in said, said
    assert not list(federation.outputs.glob("*.npz"))


def test_a_run_may_evaluate_only(sites):
    """The model is zeros, and so is its mean. Zeros of an app that failed would be named as such."""
    app, federation, config = sites
    said = federation.run(app, f"fraction-train=0.0 num-server-rounds=1 {config}", timeout=200)
    assert "Aggregated MetricRecord: {'mean': 0.0}" in said, said + federation.logs()
    assert said.count("REPLY {'arrays'") == CLIENTS and "REPLY error" not in said, said
    assert "failed" not in said and "Exit Code" not in said, said
    with np.load(federation.outputs / "final_model.npz") as found:
        assert [not values.any() for values in found.values()] == [True, True]
