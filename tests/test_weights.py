"""Clients weigh as many examples as they have, as in FedAvg: through the real mod, with keys of weight 1."""

import math

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, keys
from fedcipher.flower import SecureStrategy, client_mod
from fedcipher.keys.provider import FileKeys
from flower_harness import LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

VALUES, RANGE, BITS = 2000, 2.0, 16
STEP = 2 * RANGE / (2**BITS - 2)


def moving(examples, by):
    """Clients with so many examples, whose update is so much in each value."""
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        (model,) = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": examples[client], "loss": float(by[client])})
        return Message(
            RecordDict({"arrays": record([model + np.float32(by[client])], ["x"]), "metrics": metrics}),
            reply_to=message,
        )

    return app


def mean(folder, examples, by, largest):
    """The mean of one round, and the mean of the clients' losses."""
    clients = len(examples)
    scheme = fedcipher.scheme("flashe", clients=clients, codec=fedcipher.Codec(bits=BITS, clip=RANGE))
    made = keys.save(scheme.keygen(clients), scheme, folder / "keys", examples_per_weight=largest)
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        made,
        opener="client-0.key",
        train_answers=["loss"],
    )
    grid = LocalGrid(moving(examples, by), clients, made)
    result = strategy.start(grid, record([np.zeros(VALUES, np.float32)], ["x"]), num_rounds=1)
    (done,) = strategy.rounds
    assert done.accepted == clients and not done.unfinished
    return result.arrays["x"].numpy(), done.metrics["train"]["loss"]


def deviation(examples, largest):
    """Of a value's mean, at most: each client rounds its scaled update at random, by half a step in the mean square."""
    return math.sqrt(len(examples)) / 2 * STEP * largest / sum(examples)


def test_one_large_client_and_nine_small_ones_give_fedavgs_mean(tmp_path):
    examples, by = [60_000, *[60] * 9], [1.0, *[-1.0] * 9]
    made, loss = mean(tmp_path, examples, by, 60_000)
    wanted = float(np.average(by, weights=examples))
    assert wanted == pytest.approx(0.98216, abs=1e-5) and loss == pytest.approx(wanted, abs=1e-6)
    # No value is off by more than a step of each client, and all together by no more than their standard error allows.
    assert np.abs(made - wanted).max() <= len(examples) * STEP * 60_000 / sum(examples)
    assert abs(made.mean() - wanted) < 5 * deviation(examples, 60_000) / math.sqrt(VALUES) + 1e-6
    assert made.std() <= 1.2 * deviation(examples, 60_000)


def test_a_hundred_clients_are_one_mean_to_a_server_that_opens_it(tmp_path):
    """Flower adds a hundred equal models one by one, and rounds a hundred times."""
    made, loss = mean(tmp_path, [1] * 120, [1.0] * 120, 0)
    assert np.abs(made - 1).max() < STEP and loss == pytest.approx(1)


@pytest.mark.long
def test_a_thousand_small_clients_whose_keys_are_for_a_large_one_give_fedavgs_mean(tmp_path):
    """A client's update is 16 steps: what is lost to rounding is sqrt(1000) / 2 steps, 0.001 of a range of 2."""
    examples, by = [60] * 1000, [1.0, -0.5] * 500
    made, loss = mean(tmp_path, examples, by, 60_000)
    assert deviation(examples, 60_000) == pytest.approx(0.00097, abs=1e-5) and loss == pytest.approx(0.25)
    assert np.abs(made - 0.25).max() < 6 * deviation(examples, 60_000)
    assert abs(made.mean() - 0.25) < 5 * deviation(examples, 60_000) / math.sqrt(VALUES)


def test_keys_for_weights_have_no_room_for_any(tmp_path):
    sizes = {}
    for name, how in (("equal", ["--equal"]), ("weighted", ["--examples", "60000"])):
        assert cli.main(["keygen", "--clients", "10", *how, "--out", str(tmp_path / name)]) == 0
        found = FileKeys(tmp_path / name)
        assert found.scheme.max_weight == 1
        sizes[name] = (found.scheme.describe(), found.examples_per_weight)
    assert sizes["equal"][0] == sizes["weighted"][0] and sizes["weighted"][1] == 60_000
