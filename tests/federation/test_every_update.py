"""What a run loses of updates of every size and shape, in every scheme: 1 - <m', m> / <m, m> of a model's change."""

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from flower_harness import LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, dense, hides, of_committee, one_key, quick, schemes_and_params, schemes_that

COUNT = 1200


def normal(rng, size):
    return rng.normal(size / 2, size, COUNT)


def sparse(rng, size):
    return normal(rng, size) * (rng.random(COUNT) < 0.02)


def outlier(rng, size):
    values = normal(rng, size)
    values[7] = 1e6 * size
    return values


KINDS = {
    **{f"1e-{k}": (lambda rng, size=10.0**-k: normal(rng, size)) for k in range(2, 9)},
    "mixed": lambda rng: normal(rng, 1e-3) * 10.0 ** -rng.integers(0, 5, COUNT),
    "sparse": lambda rng: sparse(rng, 1e-4),
    "outlier": lambda rng: outlier(rng, 1e-5),
    "zeros": lambda rng: np.zeros(COUNT),
    "denormal": lambda rng: normal(rng, 1e-41),
    "large": lambda rng: normal(rng, 1e6),
}
UNMEASURED = ("zeros", "denormal")
"""There is nothing to lose of zeros; of numbers below float32's normal ones all is lost, and it is said."""


def lost(folder, name, params, *, codec=None, clients=4, rounds=4, rate=lambda number: 1.0):
    """By kind, the part of the mean update that a run loses. ``rate`` scales the updates of each round."""
    rng, app = np.random.default_rng(11), ClientApp(mods=[client_mod])
    # From zero, so that float32 takes nothing from what is added.
    first = {kind: np.zeros(COUNT, np.float32) for kind in KINDS}
    true = {kind: np.zeros(COUNT) for kind in KINDS}

    @app.train()
    def train(msg, ctxt):
        number, moved = msg.content["config"]["server-round"], []
        for (kind, made), old in zip(KINDS.items(), msg.content["arrays"].to_numpy_ndarrays(), strict=True):
            update = (made(rng) * rate(number)).astype(np.float32)
            true[kind] += update.astype(np.float64) / clients
            moved.append((old + update).astype(np.float32))
        content = {"arrays": record(moved, list(KINDS)), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=msg)

    scheme = fedcipher.scheme(name, clients=clients, **params, **({"codec": codec} if codec else {}))
    made = keys.save(scheme.keygen(clients), scheme, folder / "keys")
    inner = FedAvg(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    opener = None if (scheme.committee and scheme.committee.reveals_to_server) else made / "client-0.key"
    strategy = SecureStrategy(inner, made, out=folder / "run", opener=opener)
    result = strategy.start(LocalGrid(app, clients, made), record(list(first.values()), list(first)), num_rounds=rounds)
    assert [r.unfinished for r in strategy.rounds] == [None] * rounds
    got = {kind: array.numpy().astype(np.float64) for kind, array in result.arrays.items()}
    assert all(np.isfinite(array).all() for array in got.values()) and not got["zeros"].any()
    measured = [kind for kind in KINDS if kind not in UNMEASURED]
    return {kind: float(1 - got[kind] @ true[kind] / (true[kind] @ true[kind])) for kind in measured}


@pytest.mark.parametrize(("name", "params"), schemes_and_params(dense, quick))
def test_nothing_is_lost_of_updates_of_any_size(tmp_path, caplog, name, params):
    found = lost(tmp_path, name, params)
    assert "(0% of denormal)" in caplog.text
    assert found and all(abs(part) < 0.01 for part in found.values()), found


@pytest.mark.parametrize("bits", [3, 4, 24])
@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_few_bits_add_noise_and_lose_nothing(tmp_path, name, bits):
    found = lost(tmp_path, name, {}, codec=Codec(bits=bits), clients=8)
    # Five deviations of the noise: of 1200 values, and of the few that count.
    for kind, part in found.items():
        few = kind in ("outlier", "sparse")
        assert abs(part) < {3: 0.3 if few else 0.1, 4: 0.12 if few else 0.06, 24: 0.01}[bits], found


@pytest.mark.parametrize("name", schemes_that(hides, adds))
@pytest.mark.parametrize("jump", [10.0, 0.1])
def test_a_rate_that_jumps_tenfold_loses_nothing_once_ranges_have_followed(tmp_path, name, jump):
    params = of_committee(name, members=4, corrupt_clients=0, corrupt_members=0)
    found = lost(tmp_path, name, params, rounds=7, rate=lambda number: 1.0 if number < 3 else jump)
    assert all(abs(part) < 0.01 for part in found.values()), found


@pytest.mark.parametrize("name", schemes_that(hides, adds))
@pytest.mark.parametrize("clients", [5, 18])
def test_a_client_that_sends_a_thousand_times_its_update_costs_the_others_nothing(tmp_path, caplog, name, clients):
    """Its own update is shortened, and its log says so; of what the others have in common nothing is lost."""
    rng, app, rounds = np.random.default_rng(5), ClientApp(mods=[client_mod]), 4
    common = rng.normal(0, 1e-4, COUNT)

    @app.train()
    def train(msg, ctxt):
        own = rng.normal(0, 1e-4, COUNT)
        own -= common * (own @ common) / (common @ common)
        update = own * 1000 if ctxt.node_config["partition-id"] == 0 else common + own
        (old,) = msg.content["arrays"].to_numpy_ndarrays()
        content = {"arrays": record([(old + update).astype(np.float32)], ["x"])}
        return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 10})}), reply_to=msg)

    params = of_committee(name, members=4, corrupt_clients=0, corrupt_members=0)
    scheme = fedcipher.scheme(name, clients=clients, codec=Codec(bits=8), **params)
    made = keys.save(scheme.keygen(clients), scheme, tmp_path / "keys")
    inner = FedAvg(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, made, out=tmp_path / "run")
    strategy.start(LocalGrid(app, clients, made), record([np.zeros(COUNT, np.float32)], ["x"]), num_rounds=rounds)
    got = open_run(tmp_path / "run", made / "client-1.key")["x"].astype(np.float64)
    wanted = rounds * (clients - 1) / clients * (common @ common)
    assert got @ common / wanted == pytest.approx(1, abs=0.05)
    assert "were cut to their clip range" in caplog.text
