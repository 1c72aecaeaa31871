"""Clients of Flower's older API."""

import re

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, numpy_client_app, open_run
from fedcipher.federation.curves import Curves
from fedcipher.federation.messages import UPDATE, frame_bytes
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


def federation(folder, client_fn, **options):
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, max_weight=8)
    made = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", examples_per_weight=10)
    strategy = SecureStrategy(
        FedAvg(**ALL),
        made,
        out=folder / "run",
        train_answers=["well"],
        evaluate_answers=["loss", "accuracy"],
        **options,
    )
    return strategy, LocalGrid(numpy_client_app(client_fn), CLIENTS, made), made


@pytest.mark.parametrize("opener", [None, "client-0.key"])
@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: c.to_client()], ids=["itself", "to_client"])
def test_an_older_apps_clients_train_encrypted(tmp_path, wrap, opener):
    def client(context):
        return wrap(Walker(context.node_config["partition-id"]))

    strategy, grid, made = federation(tmp_path, client, opener=opener)
    result = strategy.start(grid, record(initial()), num_rounds=3)
    want = 0.0
    for _ in range(3):
        want = 0.5 * want + 0.5 * np.average([0, 1, 2], weights=[1, 2, 3])
    model = open_run(tmp_path / "run", made / "client-1.key")
    assert list(model) == NAMES
    for values in model.values():
        np.testing.assert_allclose(values, want, atol=1e-3)
    # What fit() and evaluate() return is summed with the updates, and is whose the means are.
    curves = Curves(tmp_path / "run", made / "client-1.key")
    curves.read()
    evaluated = {"loss": pytest.approx(want, abs=1e-3), "accuracy": pytest.approx(0.25)}
    assert curves.metrics(3) == {"train": {"well": pytest.approx(1)}, "evaluate": evaluated}
    assert dict(result.evaluate_metrics_clientapp.get(3, {})) == (evaluated if opener else {})
    assert dict(result.train_metrics_clientapp.get(1, {})) == ({"well": pytest.approx(1)} if opener else {})


def test_what_the_adapter_cannot_do_is_in_the_clients_log_and_counts_nothing(tmp_path, caplog):
    """No refusal: the server sees a frame like any other, and learns of the failure where it may open the sum."""

    class Short(Walker):
        def fit(self, parameters, config):
            moved, examples, metrics = super().fit(parameters, config)
            return moved[:1], examples, metrics

    for number, (broken, said) in enumerate(
        [
            (lambda: Short(1), "fit() returned 1 arrays for a model of 2"),
            (lambda: object(), "client_fn made a object"),
        ]
    ):

        def client(context, broken=broken):
            return broken() if context.node_config["partition-id"] == 1 else Walker(context.node_config["partition-id"])

        caplog.clear()
        strategy, grid, _ = federation(tmp_path / str(number), client, opener="client-0.key")
        result = strategy.start(grid, record(initial()), num_rounds=1)
        assert re.search(rf"this client sends zeros that do not count: \w+: {re.escape(said)}", caplog.text)
        assert "the apps of 1 of 3 clients failed (train)" in caplog.text
        (made,) = strategy.rounds
        assert made.accepted == CLIENTS and not any(c.left_out for c in made.clients)
        frames = {len(frame_bytes(reply.content["arrays"][UPDATE])) for _, reply in grid.received[:CLIENTS]}
        assert len(frames) == 1
        # The mean is that of the others, by their examples.
        for values in result.arrays.to_numpy_ndarrays():
            np.testing.assert_allclose(values, 0.5 * np.average([0, 2], weights=[1, 3]), atol=1e-3)


def test_a_run_whose_apps_all_fail_keeps_its_model(tmp_path, caplog):
    strategy, grid, made = federation(tmp_path, lambda _: object())
    strategy.start(grid, record(initial()), num_rounds=1)
    assert caplog.text.count("client_fn made a object") == 2 * CLIENTS
    for values, first in zip(open_run(tmp_path / "run", made / "client-1.key").values(), initial(), strict=True):
        np.testing.assert_array_equal(values, first)
