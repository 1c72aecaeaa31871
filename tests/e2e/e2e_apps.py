"""Flower's example apps in the clear, with the lines that encrypt them, and behind guards: `make e2e-apps`.

Each app of tests/apps is run by `flwr run` against a SuperLink and three SuperNodes: as it is, with fedcipher.patch,
and with the server's part of that patch alone, where guards encrypt for unchanged clients. The final models must be
equal within the codec's step. It takes minutes, so it is not part of the suite.
"""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from deployment_harness import BIN, Federation
from example_apps import (
    APPS,
    CLIENTS,
    MODELS,
    SAVED,
    STATISTICS,
    STEP,
    arrays_of,
    assert_equal_models,
    assert_equal_statistics,
    encrypted,
    keys_for,
    settings,
    skip_without_modules,
    statistics_of,
)
from fedcipher.guard.jail import walls
from guarded import Guarded, rules_for

ROUNDS = 3
"""Flower starts a process for each message of each client; tests/app/test_apps.py runs quickstart-sklearn for 200."""
WAYS = ["mod", "guard"]


@pytest.fixture(scope="module")
def federations(tmp_path_factory):
    """SuperNodes that run apps themselves, or SuperNodes with guards, by way. They start when they are needed."""
    made = {}

    def federation(way):
        kind = Guarded if way == "guard" else Federation
        if kind not in made:
            if kind is Guarded and (failed := [wall.name for wall in walls() if not wall.holds]):
                pytest.skip(f"no guard starts here, because walls do not hold: {failed}")
            made[kind] = kind(tmp_path_factory.mktemp(kind.__name__.lower()), CLIENTS)
        return made[kind]

    yield federation
    for started in made.values():
        started.stop()


@pytest.fixture(scope="module")
def in_the_clear(federations, tmp_path_factory):
    """What an app saves in the clear, which is run once for all ways."""
    made = {}

    def saved_by(name):
        if name not in made:
            skip_without_modules(name)
            folder, federation = tmp_path_factory.mktemp("clear"), federations("clear")
            said, seconds = run(federation, APPS / name / "plain", config_of(name))
            assert (federation.outputs / SAVED[name]).exists(), said + federation.logs()
            made[name] = Path(shutil.move(federation.outputs / SAVED[name], folder)), seconds
        return made[name]

    return saved_by


def config_of(name):
    return {"num-server-rounds": ROUNDS} if name in MODELS else {}


def run(federation, app, config):
    """`flwr run`: its output and its seconds."""
    began = time.monotonic()
    said = federation.run(app, " ".join(f"{k}={v}" if isinstance(v, int) else f"{k}='{v}'" for k, v in config.items()))
    return said, time.monotonic() - began


def protected(federation, name, way, folder):
    """Run the app encrypted in a way: the file that it has saved or would have saved, its output and its seconds."""
    skip_without_modules(name)
    keys, app = keys_for(name, folder), encrypted(name, folder, mod=way == "mod")
    if way == "guard":
        for client in app.rglob("client_app.py"):
            assert client.read_bytes() == (APPS / name / "plain" / client.relative_to(app)).read_bytes()
        federation.restart_guards(keys, rules_for(app))
    said, seconds = run(federation, app, {**config_of(name), **settings(name, keys, folder)})
    saved, kept = federation.outputs / SAVED[name], folder / SAVED[name]
    if saved.exists():
        shutil.move(saved, kept)
    return kept, said, seconds


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_that_of_the_same_app_in_the_clear(federations, in_the_clear, tmp_path, name, way):
    (clear, plain_seconds), federation = in_the_clear(name), federations(way)
    secure, said, seconds = protected(federation, name, way, tmp_path)
    if name == "quickstart-numpy":
        # Its server may not see the model: it has left a run file, which opens where a key is.
        assert not secure.exists(), said
        key = tmp_path / f"keys-{name}" / "client-1.key"
        command = [BIN / "fedcipher", "open", tmp_path / "model.run", "--key", key, "--out", secure]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + said + federation.logs()
    assert secure.exists(), said + federation.logs()
    assert said.count(f": sum of {CLIENTS} encrypted updates") == ROUNDS, said + federation.logs()
    first = STEP if name == "quickstart-numpy" else None
    most = assert_equal_models(arrays_of(secure), arrays_of(clear), ROUNDS, first)
    print(f"{name}, {way}: differs by {most:.1e}, {seconds:.0f} s, in the clear {plain_seconds:.0f} s")


def test_custom_mods_and_central_evaluation_go_on_working(federations, tmp_path):
    """The server evaluates a model each round, and the app's own mod sees the metrics of each client."""
    federation = federations("mod")
    shutil.rmtree(federation.outputs / ".runs_history", ignore_errors=True)
    _, said, _ = protected(federation, "custom-mods", "mod", tmp_path)
    assert len(re.findall(r"MetricRecord: \{'accuracy'", said)) == ROUNDS, said
    lines = [json.loads(line) for path in federation.outputs.rglob("*.jsonl") for line in path.open()]
    assert len([line for line in lines if "train_loss" in line]) == ROUNDS * CLIENTS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STATISTICS)
def test_an_app_that_asks_queries_gives_the_same_statistics(federations, in_the_clear, tmp_path, name, way):
    (clear, plain_seconds), federation = in_the_clear(name), federations(way)
    secure, said, seconds = protected(federation, name, way, tmp_path)
    assert secure.exists(), said + federation.logs()
    assert_equal_statistics(statistics_of(secure), statistics_of(clear))
    print(f"{name}, {way}: {seconds:.0f} s, in the clear {plain_seconds:.0f} s")


@pytest.mark.parametrize("way", WAYS)
def test_xgboost_is_refused_by_name_before_the_first_round(federations, tmp_path, way):
    """Trees are no numbers to average: the refusal names the strategy and says what to do instead."""
    secure, said, _ = protected(federations(way), "xgboost-quickstart", way, tmp_path)
    assert not secure.exists()
    assert "StrategyError" in said and "FedXgbBagging" in said and "KeyError" not in said, said
    assert "[ROUND 1" not in said, said
