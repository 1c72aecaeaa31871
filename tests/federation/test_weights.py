"""Clients weigh as many examples as they have, as in FedAvg: through the real mod, with keys of weight 1."""

import itertools
import math

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import cli, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.keys.provider import FileKeys
from flower_harness import LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import schemes_that, works

VALUES, RANGE, BITS = 2000, 2.0, 16
STEP = 2 * RANGE / (2**BITS - 2)
"""Between two values that a client's update can have."""
LARGEST = 60_000
UNBIASED = 400
"""As many values as show whether rounding is unbiased."""
MORE = {
    "oneshot": {"preset": "fast", "members": 4, "corrupt_clients": 0, "corrupt_members": 0},
    # Room for sums of 16 bits.
    "pasta-bfv": {"prime_bits": 33},
}
"""Parameters that schemes need here beside the clients."""
FEW = {"oneshot": 400, "pasta-bfv": 100}
"""Small clients where a thousand take half a minute to an hour. So many were off, too, if rounded to the nearest."""
SCHEMES = schemes_that(long=works)


def moving(rounds):
    """Clients whose update is so much in each value: in each of ``rounds`` examples and updates, by client."""
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        examples, by = (held[client] for held in rounds[message.content["config"]["server-round"] - 1])
        (model,) = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": examples, "loss": float(by)})
        return Message(
            RecordDict({"arrays": record([model + np.float32(by)], ["x"]), "metrics": metrics}), reply_to=message
        )

    return app


def scheme_of(name, clients):
    return fedcipher.scheme(name, clients=clients, codec=fedcipher.Codec(bits=BITS, clip=RANGE), **MORE.get(name, {}))


def means(folder, rounds, largest, name="flashe", values=VALUES):
    """The mean of each of ``rounds``, which are of as many clients; and the means of the clients' losses."""
    clients = len(rounds[0][0])
    scheme = scheme_of(name, clients)
    made = keys.save(scheme.keygen(clients), scheme, folder / "keys", examples_per_weight=largest)
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        made,
        opener=None if (scheme.committee and scheme.committee.reveals_to_server) else "client-0.key",
        train_answers=["loss"],
    )
    models = [np.zeros(values, np.float32)]
    strategy.start(
        LocalGrid(moving(rounds), clients, made),
        record(models, ["x"]),
        num_rounds=len(rounds),
        evaluate_fn=lambda number, arrays: models.append(arrays["x"].numpy()) if number else None,
    )
    for done in strategy.rounds:
        assert done.accepted == clients and not done.unfinished
    moved = [after.astype(np.float64) - before for before, after in itertools.pairwise(models)]
    return moved, [done.metrics["train"]["loss"] for done in strategy.rounds]


def mean(folder, examples, by, largest):
    """The mean of one round, and the mean of the clients' losses."""
    (made,), (loss,) = means(folder, [(examples, by)], largest)
    return made, loss


def deviation(examples, largest):
    """Of a value's mean, at most: each client rounds its scaled update at random, by half a step in the mean square."""
    return math.sqrt(len(examples)) / 2 * STEP * largest / sum(examples)


def is_mean(made, examples, by, largest):
    """No value is off by more than a step of each client, and all together by no more than their standard error."""
    wanted = float(np.average(by, weights=examples))
    # The model is in single precision.
    assert np.abs(made - wanted).max() <= len(examples) * STEP * largest / sum(examples) + 1e-6
    assert abs(made.mean() - wanted) < 5 * deviation(examples, largest) / math.sqrt(made.size) + 1e-6
    assert made.std() <= (1 + 5 / math.sqrt(2 * made.size)) * deviation(examples, largest)


@pytest.mark.parametrize("name", SCHEMES)
def test_one_large_client_and_nine_small_ones_give_fedavgs_mean(tmp_path, name, values=UNBIASED):
    """And ten small ones alone, whose keys are for a large one. Without weights the first mean were -0.8."""
    uneven = ([LARGEST, *[60] * 9], [1.0, *[-1.0] * 9])
    small = ([60] * 10, [1.0, -0.5] * 5)
    assert np.average(uneven[1], weights=uneven[0]) == pytest.approx(0.98216, abs=1e-5)
    found = zip(*means(tmp_path, [uneven, small], LARGEST, name, values), strict=True)
    for (made, loss), (examples, by) in zip(found, (uneven, small), strict=True):
        is_mean(made, examples, by, LARGEST)
        assert loss == pytest.approx(np.average(by, weights=examples), abs=1e-6)


@pytest.mark.parametrize(
    "examples",
    [[LARGEST // k for k in range(1, 11)], [LARGEST, 1, 1], [1, 2, 3, 59_999]],
    ids=["Zipf", "one large", "one nearly alone"],
)
def test_shares_are_those_of_the_examples_however_uneven(tmp_path, examples):
    """In whole units of a largest weight, ten clients by Zipf's law were off by a seventh of their mean."""
    by = [(-1.0) ** (k + 1) for k in range(len(examples))]
    made, loss = mean(tmp_path, examples, by, LARGEST)
    assert loss == pytest.approx(np.average(by, weights=examples), abs=1e-6)
    is_mean(made, examples, by, LARGEST)


def opened_sum(scheme, shown, values=UNBIASED):
    """What a reader gets of one round, in which each client shows so much in each value."""
    issued = scheme.keygen(len(shown))
    aggregator = scheme.aggregator(issued.server_key, round=1)
    for client, value in enumerate(shown):
        update = [np.full(values, value, np.float32)]
        aggregator.add(wire_tools.encryptor(scheme, issued, client).encrypt(update, round=1, unbiased=True))
    if scheme.name == "oneshot":
        for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
            aggregator.committee.answer(scheme.committee.member(issued.client(member)).answer(request))
    (mean_of,) = scheme.decryptor(issued.client(0)).decrypt(aggregator.finish())
    return mean_of.astype(np.float64)


@pytest.mark.parametrize("name", SCHEMES)
def test_many_small_clients_with_keys_for_a_large_one_give_their_mean_in_every_scheme(name):
    """A thousand where that takes seconds: encoded and encrypted as by the mod, 16 steps each, with no messages."""
    clients = FEW.get(name, 1000)
    examples, by = [60] * clients, [1.0, -0.5] * (clients // 2)
    shown = [count / LARGEST * value for count, value in zip(examples, by, strict=True)]
    is_mean(opened_sum(scheme_of(name, clients), shown) * (LARGEST / 60), examples, by, LARGEST)


def test_a_hundred_clients_are_one_mean_to_a_server_that_opens_it(tmp_path):
    """Flower adds a hundred equal models one by one, and rounds a hundred times."""
    made, loss = mean(tmp_path, [1] * 120, [1.0] * 120, 0)
    assert np.abs(made - 1).max() < STEP and loss == pytest.approx(1)


@pytest.mark.long
def test_a_thousand_small_clients_whose_keys_are_for_a_large_one_give_fedavgs_mean(tmp_path):
    """A client's update is 16 steps: what is lost to rounding is sqrt(1000) / 2 steps, 0.001 of a range of 2."""
    examples, by = [60] * 1000, [1.0, -0.5] * 500
    made, loss = mean(tmp_path, examples, by, LARGEST)
    assert deviation(examples, LARGEST) == pytest.approx(0.00097, abs=1e-5) and loss == pytest.approx(0.25)
    is_mean(made, examples, by, LARGEST)
    # It is no worse for being of many: six deviations, where single values could be off by a thousand steps.
    assert np.abs(made - 0.25).max() < 6 * deviation(examples, LARGEST)


def test_keys_for_weights_have_no_room_for_any(tmp_path):
    sizes = {}
    for name, how in (("equal", ["--equal"]), ("weighted", ["--examples", "60000"])):
        assert cli.main(["keygen", "--clients", "10", *how, "--out", str(tmp_path / name)]) == 0
        found = FileKeys(tmp_path / name)
        assert found.scheme.max_weight == 1
        sizes[name] = (found.scheme.describe(), found.examples_per_weight)
    assert sizes["equal"][0] == sizes["weighted"][0] and sizes["weighted"][1] == 60_000
