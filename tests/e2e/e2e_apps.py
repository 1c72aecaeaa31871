"""Flower's example apps, as they are and with the lines that encrypt them: `make e2e-apps`.

Each app of tests/apps is run by `flwr run` twice against a SuperLink with three SuperNodes, in the clear and with
its fedcipher.patch. The final models must be equal within the codec's step. Minutes, so not part of the suite.
"""

import json
import re
import shutil
import subprocess

import pytest
from deployment_harness import BIN, Federation
from example_apps import (
    APPS,
    CLIENTS,
    SAVED,
    STEP,
    arrays_of,
    assert_equal_models,
    assert_equal_statistics,
    encrypted,
    keys_for,
    settings,
    statistics_of,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"), CLIENTS)
    yield made
    made.stop()


def said_by(federation, app, config):
    return federation.run(app, " ".join(f"{k}={v}" if isinstance(v, int) else f"{k}='{v}'" for k, v in config.items()))


def both(federation, name, folder, **config):
    """Run the app in the clear and encrypted: what both have saved, and what the encrypted one printed."""
    saved = federation.outputs / SAVED[name]
    files = []
    for encrypt in (False, True):
        if encrypt:
            keys = keys_for(name, folder)
            said = said_by(federation, encrypted(name, folder), {**config, **settings(name, keys, folder)})
        else:
            said = said_by(federation, APPS / name / "plain", config)
            assert saved.exists(), said + federation.logs()
        files.append(folder / f"{'secure' if encrypt else 'clear'}-{saved.name}")
        if saved.exists():
            shutil.move(saved, files[-1])
    return (*files, said)


@pytest.mark.parametrize("name", ["quickstart-numpy", "quickstart-sklearn", "quickstart-jax", "custom-mods"])
def test_the_model_is_that_of_the_same_app_in_the_clear(federation, tmp_path, name):
    # Flower starts a process for each message of each client; tests/app/test_apps.py runs quickstart-sklearn for 200.
    rounds = 3
    clear, secure, said = both(federation, name, tmp_path, **{"num-server-rounds": rounds})
    if name == "quickstart-numpy":
        # Its server may not see the model: it has left a run file, which opens where a key is.
        assert not secure.exists(), said
        key = tmp_path / f"keys-{name}" / "client-1.key"
        command = [BIN / "fedcipher", "open", tmp_path / "model.run", "--key", key, "--out", secure]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + said + federation.logs()
    assert secure.exists(), said + federation.logs()
    first = STEP if name == "quickstart-numpy" else None
    assert_equal_models(arrays_of(secure), arrays_of(clear), rounds, first)


def test_custom_mods_and_central_evaluation_go_on_working(federation, tmp_path):
    """The server evaluates a model each round, and the app's own mod sees its metrics, on both runs."""
    shutil.rmtree(federation.outputs / ".runs_history", ignore_errors=True)
    *_, said = both(federation, "custom-mods", tmp_path, **{"num-server-rounds": 1})
    assert len(re.findall(r"MetricRecord: \{'accuracy'", said)) == 1, said
    lines = [json.loads(line) for path in federation.outputs.rglob("*.jsonl") for line in path.open()]
    assert len([line for line in lines if "train_loss" in line]) == 2 * CLIENTS


def test_federated_analytics_gives_the_same_statistics(federation, tmp_path):
    clear, secure, said = both(federation, "federated-analytics", tmp_path)
    assert secure.exists(), said + federation.logs()
    assert_equal_statistics(statistics_of(secure), statistics_of(clear))


def test_xgboost_is_refused_by_name_before_the_first_round(federation, tmp_path):
    """Trees are no numbers to average: the refusal names the strategy and says what to do instead."""
    pytest.importorskip("xgboost", reason="xgboost is not installed (pip install xgboost-cpu)")
    _, secure, said = both(federation, "xgboost-quickstart", tmp_path)
    assert not secure.exists()
    assert "StrategyError" in said and "FedXgbBagging" in said and "KeyError" not in said, said
    assert "[ROUND 1" not in said, said
