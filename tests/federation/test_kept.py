"""How much of the clients' updates coding keeps: counted encrypted, and said by clients, server and `open`."""

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.codec import Codec, Levels
from fedcipher.federation.kept_share import kept_shares
from flower_harness import NAMES, LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from scheme_lists import adds, hides, of_committee, one_key, schemes_that

FIRST = [np.zeros((30, 20), np.float32), np.zeros(40, np.float32)]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), octaves=st.floats(-20, 4), bits=st.integers(3, 16), clip=st.floats(0.01, 4))
def test_what_is_said_to_be_kept_is_what_the_core_codes(seed, octaves, bits, clip):
    rng = np.random.default_rng(seed)
    update = [rng.standard_normal(500).astype(np.float32) * np.float32(2.0**octaves), np.zeros(5, np.float32)]
    scheme = fedcipher.scheme("plain", clients=1, min_contributions=1, codec=Codec(bits=bits, clip=clip))
    made = scheme.keygen(1)
    frame = scheme.encryptor(made.client(0)).encrypt(update, round=1)
    aggregator = scheme.aggregator(made.server())
    aggregator.add(frame)
    coded = scheme.decryptor(made.client(0)).decrypt(aggregator.finish())[0].astype(np.float64)
    x = update[0].astype(np.float64)
    together, first, second = kept_shares(update, scheme.codec.layout(update), scheme.levels, unbiased=False)
    assert together == first == pytest.approx(float(coded @ x / (x @ x)), abs=2e-3)
    assert second == 1.0
    at_random = kept_shares(update, scheme.codec.layout(update), scheme.levels, unbiased=True)[1]
    assert at_random == pytest.approx(float(np.clip(x, -clip, clip) @ x / (x @ x)), abs=1e-6)


@pytest.mark.parametrize("values", [[3e38] * 4, [1e-45] * 4, [0.0] * 4, []])
def test_extreme_updates_have_a_part_that_is_a_number(values):
    update = [np.array(values, np.float32)]
    for unbiased in (False, True):
        parts = kept_shares(update, Codec(bits=8, clip=1.0).layout(update), Levels(), unbiased=unbiased)
        assert all(0 <= part <= 2 for part in parts)


def run(tmp_path, size, *, codec, name="flashe", rounds=2, examples=10, **given):
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
    rng = np.random.default_rng(3)

    @app.train()
    def train(msg, ctxt):
        moves = [rng.normal(0, 1, x.shape).astype(np.float32) * np.float32(size) for x in FIRST]
        arrays = [a + m for a, m in zip(msg.content["arrays"].to_numpy_ndarrays(), moves, strict=True)]
        metrics = MetricRecord({"num-examples": examples})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=msg)

    more = of_committee(name, members=4, corrupt_clients=0, corrupt_members=0)
    scheme = fedcipher.scheme(name, clients=4, codec=codec, **more)
    folder = keys.save(scheme.keygen(4), scheme, tmp_path / "keys")
    inner = FedAvg(min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run", **given)
    strategy.start(LocalGrid(app, 4, folder), record(FIRST), num_rounds=rounds)
    return strategy, folder


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-8])
def test_with_ranges_that_follow_nothing_is_lost_and_nothing_is_said(tmp_path, caplog, name, size):
    strategy, _ = run(tmp_path, size, codec=Codec(bits=12), name=name, opener="client-0.key")
    assert all(r.counted["kept"] == pytest.approx(1, abs=5e-3) for r in strategy.rounds)
    assert "coding kept" not in caplog.text


def test_a_range_that_is_too_wide_is_said_by_clients_server_and_open(tmp_path, caplog):
    codec = Codec(bits=8, clip=(0.1, 1.0))
    strategy, folder = run(tmp_path, 1e-3, codec=codec, opener="client-0.key")
    said = [r.message for r in caplog.records if "coding kept" in r.message]
    # Four clients, and the server, in each round.
    assert len(said) == 5 * 2 and all(NAMES[1] in line for line in said), said
    # All values of the other array are below a step.
    assert any("lost" in line and "clip='auto'" in line and "0% of" in line for line in said)
    assert 0.7 < strategy.rounds[0].counted["kept"] < 0.98
    caplog.clear()
    arguments = ["--key", str(folder / "client-1.key"), "--out", str(tmp_path / "model.npz")]
    assert cli.main(["open", str(tmp_path / "run"), *arguments]) == 0
    assert "coding kept" in caplog.text


def test_a_run_that_would_lose_most_ends_in_its_first_round(tmp_path):
    codec = Codec(bits=8, clip=1.0)
    with pytest.raises(errors.StrategyError, match="and the ranges are fixed"):
        run(tmp_path / "a", 1e-4, codec=codec, opener="client-0.key")
    strategy, _ = run(tmp_path / "b", 1e-4, codec=codec, opener="client-0.key", least_kept=0)
    assert [r.counted["kept"] for r in strategy.rounds] == [0.0, 0.0]


def test_without_an_opener_each_client_says_it(tmp_path, caplog):
    strategy, _ = run(tmp_path, 1e-4, codec=Codec(bits=8, clip=1.0), rounds=1)
    assert sum("coding kept" in r.message for r in caplog.records) == 4
    assert "kept" not in strategy.rounds[0].counted


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_few_bits_round_without_bias_where_ranges_follow(tmp_path, name):
    """To the nearest, 4 bits keep a tenth less of normal values, and nothing of one that is small beside its array."""
    size, rounds = 1e-3, 8
    spread = np.where(np.arange(600) % 2, 1.0, 0.02).reshape(30, 20).astype(np.float32)
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
    rng = np.random.default_rng(5)
    moved = [np.zeros(x.shape) for x in FIRST]

    @app.train()
    def train(msg, ctxt):
        steps = [spread * np.float32(size), rng.normal(0, size, 40).astype(np.float32)]
        arrays = [a + s for a, s in zip(msg.content["arrays"].to_numpy_ndarrays(), steps, strict=True)]
        for total, s in zip(moved, steps, strict=True):
            total += s.astype(np.float64) / 16
        return Message(RecordDict({"arrays": record(arrays), "m": MetricRecord({"num-examples": 1})}), reply_to=msg)

    scheme = fedcipher.scheme(name, clients=16, codec=Codec(bits=4))
    folder = keys.save(scheme.keygen(16), scheme, tmp_path / "keys")
    inner = FedAvg(min_train_nodes=16, min_available_nodes=16, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run", opener="client-0.key")
    result = strategy.start(LocalGrid(app, 16, folder), record(FIRST), num_rounds=rounds)
    got = result.arrays.to_numpy_ndarrays()[0].astype(np.float64)
    small = spread < 0.5
    # 300 values, each off by a step over the root of 16 clients and 8 rounds at most.
    assert got[small].mean() == pytest.approx(moved[0][small].mean(), abs=rounds * size / np.sqrt(300 * 16 * rounds))
    assert got[~small].mean() == pytest.approx(moved[0][~small].mean(), rel=0.02)
    assert all(r.counted["kept"] == pytest.approx(1, abs=5e-3) for r in strategy.rounds)
