"""Flower's example apps in one process, in the clear and with the lines that encrypt them: the same model.

`make e2e-apps` runs the same apps by `flwr run` against a SuperLink.
"""

import example_apps
import fedcipher
import numpy as np
import pytest
from example_apps import APPS, CLIENTS, MODELS, SAVED, STATISTICS, STEP, arrays_of, assert_equal_models, keys_for, run
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from flower_harness import LocalGrid, make_app
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic


def both(name, tmp_path, monkeypatch, **config):
    """Files that the app has saved in the clear and encrypted."""
    example_apps.skip_without_modules(name)
    run(APPS / name / "plain", tmp_path / "clear", monkeypatch, **config)
    folder = keys_for(name, tmp_path)
    app = example_apps.encrypted(name, tmp_path)
    run(app, tmp_path / "secure", monkeypatch, **config, **example_apps.settings(name, folder, tmp_path))
    return tmp_path / "clear" / SAVED[name], tmp_path / "secure" / SAVED[name], folder


@pytest.mark.parametrize("name", MODELS)
def test_an_app_ends_with_the_model_that_it_has_in_the_clear(name, tmp_path, monkeypatch):
    config = {"num-server-rounds": 3}
    if name == "quickstart-jax":
        # Two of three: the same two, because the app seeds its sampling. A SuperLink lists nodes in no fixed order.
        config["fraction-train"] = 0.1
    clear, secure, folder = both(name, tmp_path, monkeypatch, **config)
    if name == "quickstart-numpy":
        assert not secure.exists()
        arguments = ["--key", str(folder / "client-1.key"), "--out", str(secure)]
        assert cli.main(["open", str(tmp_path / "model.run"), *arguments]) == 0
    first = STEP if name == "quickstart-numpy" else None
    most = assert_equal_models(arrays_of(secure), arrays_of(clear), 3, first)
    print(f"{name}: the models differ by at most {most:.1e}")


@pytest.mark.long
def test_quickstart_sklearn_for_200_rounds(tmp_path, monkeypatch):
    """Its "crash at round 26" came after the last of 25: it reads two arrays, and Result.arrays was one ciphertext."""
    clear, secure, _ = both("quickstart-sklearn", tmp_path, monkeypatch, **{"num-server-rounds": 200})
    assert_equal_models(arrays_of(secure), arrays_of(clear), rounds=200)


@pytest.mark.parametrize("name", STATISTICS)
def test_an_app_that_asks_queries_gives_the_same_statistics(name, tmp_path, monkeypatch):
    clear, secure, _ = both(name, tmp_path, monkeypatch)
    example_apps.assert_equal_statistics(example_apps.statistics_of(secure), example_apps.statistics_of(clear))


@pytest.mark.parametrize("strategy", [FedXgbBagging, FedXgbCyclic])
def test_a_strategy_of_trees_is_refused_by_name_before_the_first_round(tmp_path, strategy):
    """Flower's XGBoost example sends boosters as bytes, which no mean can join; it got KeyError: '0'."""
    scheme = fedcipher.scheme("flashe", clients=CLIENTS)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    grid = LocalGrid(make_app([[]] * CLIENTS, [1] * CLIENTS), CLIENTS, folder)
    wrapped = SecureStrategy(strategy(), folder, opener=folder / "client-0.key")
    with pytest.raises(errors.StrategyError, match=strategy.__name__):
        wrapped.start(grid, ArrayRecord([np.frombuffer(b"", np.uint8)]), num_rounds=2)
    assert not grid.sent


@pytest.mark.parametrize("name", SAVED)
def test_a_patch_changes_few_lines(name):
    """The porting guide says so."""
    assert 0 < len(example_apps.added_lines(name)) <= 10, example_apps.added_lines(name)
