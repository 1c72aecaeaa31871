"""Clients of Flower's older API."""

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.flower import SecureStrategy, numpy_client_app, open_run
from flower_harness import NAMES, LocalGrid, initial, record
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg

CLIENTS = 3
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}


class Walker(NumPyClient):
    """Moves half way to its own number."""

    def __init__(self, client):
        self.client = client

    def fit(self, parameters, config):
        assert config["server-round"] >= 1
        moved = [np.asarray(0.5 * p + 0.5 * self.client, np.float32) for p in parameters]
        return moved, 10 * (self.client + 1), {"who": "me", "well": True}

    def evaluate(self, parameters, config):
        return float(parameters[0].mean()), 5, {"accuracy": 0.25}


def federation(folder, client_fn):
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, max_weight=8)
    made = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", examples_per_weight=10)
    strategy = SecureStrategy(FedAvg(**ALL), made, out=folder / "run")
    return strategy, LocalGrid(numpy_client_app(client_fn), CLIENTS, made), made


@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: c.to_client()], ids=["itself", "to_client"])
def test_an_older_apps_clients_train_encrypted(tmp_path, wrap):
    strategy, grid, made = federation(tmp_path, lambda context: wrap(Walker(context.node_config["partition-id"])))
    result = strategy.start(grid, record(initial()), num_rounds=3)
    want = 0.0
    for _ in range(3):
        want = 0.5 * want + 0.5 * np.average([0, 1, 2], weights=[1, 2, 3])
    model = open_run(tmp_path / "run", made / "client-1.key")
    assert list(model) == NAMES
    for values in model.values():
        np.testing.assert_allclose(values, want, atol=1e-3)
    assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(want, abs=1e-3)
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.25 and result.train_metrics_clientapp[1][
        "well"
    ] == pytest.approx(1)


def test_what_the_adapter_cannot_do_is_in_the_clients_log(tmp_path, caplog):
    class Short(Walker):
        def fit(self, parameters, config):
            moved, examples, metrics = super().fit(parameters, config)
            return moved[:1], examples, metrics

    for number, (client_fn, said) in enumerate(
        [
            (lambda _: Short(1), "fit() returned 1 arrays for a model of 2"),
            (lambda _: object(), "client_fn made a object"),
        ]
    ):
        strategy, grid, _ = federation(tmp_path / str(number), client_fn)
        with pytest.raises(errors.StrategyError, match="none of 1 rounds"):
            strategy.start(grid, record(initial()), num_rounds=1)
        assert said in caplog.text
