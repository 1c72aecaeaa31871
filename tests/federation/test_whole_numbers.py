"""Arrays of whole numbers and truth values: exact, whatever the bits, the scheme and the weights."""

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.federation.whole_numbers import MAX_MAGNITUDE
from flower_harness import LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from scheme_lists import adds, of_committee, schemes_that

NAMES = ["kernel", "seen", "flags", "small"]
FIRST = [
    np.zeros((3, 4), np.float32),
    np.array([5, 2**53 + 1], np.int64),
    np.array([True, False, True]),
    np.array(250, np.uint8),
]


def run(tmp_path, moves, examples, *, name="bfv", bits=12, rounds=1, inner=FedAvg, target="delta", **given):
    """A run whose clients' apps do ``moves(k, arrays)``."""
    clients = len(examples)
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])

    @app.train()
    def train(msg, ctxt):
        k = ctxt.node_config["partition-id"]
        arrays = moves(k, [np.array(x) for x in msg.content["arrays"].to_numpy_ndarrays()])
        metrics = MetricRecord({"num-examples": examples[k]})
        return Message(RecordDict({"arrays": record(arrays, NAMES), "metrics": metrics}), reply_to=msg)

    more = of_committee(name, members=clients, corrupt_clients=0, corrupt_members=0)
    codec = fedcipher.Codec(bits=bits, target=target, **({"clip": 1.0} if target == "weights" else {}))
    scheme = fedcipher.scheme(name, clients=clients, codec=codec, **more)
    unit = {} if len(set(examples)) == 1 else {"examples_per_weight": 60_000}
    folder = keys.save(scheme.keygen(clients), scheme, tmp_path / "keys", **unit)
    everybody = {"min_train_nodes": clients, "min_available_nodes": clients, "fraction_evaluate": 0.0}
    strategy = SecureStrategy(inner(**everybody), folder, out=tmp_path / "run", **given)
    strategy.start(LocalGrid(app, clients, folder), record(FIRST, NAMES), num_rounds=rounds)
    return open_run(tmp_path / "run", folder / "client-1.key"), strategy


def counting(k, arrays):
    kernel, seen, flags, small = arrays
    return [
        kernel + 1e-4,
        seen + np.array([5000, 3 * (k + 1)]),
        np.array([k > 0, k == 0, k < 2]),
        np.array(small + np.uint8(3 * k)),
    ]


@pytest.mark.parametrize("name", schemes_that(adds))
@pytest.mark.parametrize("bits", [6, 12])
@pytest.mark.parametrize("examples", [[10] * 3, [60_000, 60, 60]])
def test_sums_of_counters_are_exact(tmp_path, name, bits, examples):
    """At 5,000 a round, 6,141 were left of 15,000."""
    model, _ = run(tmp_path, counting, examples, name=name, bits=bits, rounds=3)
    weights = np.array(examples) / sum(examples)
    assert model["seen"][0] == 5 + 3 * 5000
    want = 2**53 + 1
    for _ in range(3):
        want += round(3 * float(weights @ [1, 2, 3]))
    assert model["seen"][1] == want
    assert model["flags"].tolist() == [bool(weights[1:].sum() >= 0.5), bool(weights[0] >= 0.5), True]
    # Each client's own addition ends at 255, or begins anew: the model's type does.
    assert model["seen"].dtype == np.int64 and model["small"].dtype == np.uint8 and model["small"].shape == ()


@pytest.mark.parametrize("first", [10**6, 10**9, 2**40, -(2**62)])
def test_a_counter_does_not_take_on_the_magnitude_of_the_model(tmp_path, monkeypatch, first):
    """From 10^6 it had moved by 919 after ten rounds of 100, from 2^40 by 229."""
    monkeypatch.setitem(globals(), "FIRST", [FIRST[0], np.array([first, 0], np.int64), *FIRST[2:]])

    def moves(k, arrays):
        return [arrays[0], arrays[1] + np.array([100, -100]), *arrays[2:]]

    model, _ = run(tmp_path, moves, [10] * 3, name="flashe", rounds=10)
    assert model["seen"].tolist() == [first + 1000, -1000]


def test_whole_models_carry_counters_as_they_are(tmp_path):
    model, _ = run(tmp_path, counting, [10] * 3, target="weights", rounds=2, name="flashe")
    assert model["seen"].tolist() == [5 + 2 * 5000, 2**53 + 1 + 2 * 6]


def test_a_step_of_an_optimiser_moves_counters_as_in_the_clear(tmp_path):
    model, _ = run(tmp_path, counting, [10] * 3, inner=FedAdam, rounds=1, opener="client-0.key")
    # Its first step is its rate times 1 - beta_1 over the root of 1 - beta_2, all of them 0.1 here: no whole number.
    assert model["seen"][0] == 5


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.longdouble])
def test_what_is_no_counter_is_cut_and_said(tmp_path, caplog, odd, dtype):
    def moves(k, arrays):
        made = counting(k, arrays)
        if k == 1:
            with np.errstate(over="ignore"):
                made[1] = np.array([odd, 0.0], dtype)
        return made

    model, strategy = run(tmp_path, moves, [10] * 3)
    assert strategy.rounds[0].unfinished is None and strategy.rounds[0].accepted == 3
    assert "whole numbers were cut" in caplog.text or not np.isfinite(odd) or abs(odd) <= MAX_MAGNITUDE
    assert np.isfinite(model["kernel"]).all()
    if np.isnan(odd):
        # No number is no change; the other two have moved by 5000 each.
        assert model["seen"][0] == 5 + round(2 * 5000 / 3)


def test_a_model_of_counters_alone(tmp_path):
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])

    @app.train()
    def train(msg, ctxt):
        (seen,) = msg.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": record([seen + 7], ["seen"]), "metrics": metrics}), reply_to=msg)

    scheme = fedcipher.scheme("bfv", clients=3)
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run")
    strategy.start(LocalGrid(app, 3, folder), record([np.arange(4)], ["seen"]), num_rounds=2)
    assert open_run(tmp_path / "run", folder / "client-0.key")["seen"].tolist() == [14, 15, 16, 17]


def test_many_whole_numbers_are_quantised_as_floats_are(tmp_path):
    def moves(k, arrays):
        return [arrays[0] + 3]

    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
    app.train()(
        lambda msg, ctxt: Message(
            RecordDict(
                {
                    "arrays": record(moves(0, msg.content["arrays"].to_numpy_ndarrays()), ["ids"]),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            ),
            reply_to=msg,
        )
    )
    scheme = fedcipher.scheme("flashe", clients=3)
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run")
    strategy.start(LocalGrid(app, 3, folder), record([np.zeros(5000, np.int32)], ["ids"]), num_rounds=1)
    assert (open_run(tmp_path / "run", folder / "client-0.key")["ids"] == 3).all()
