"""What a client makes of its app's reply: the update's order, its weight, and what it keeps for the next one."""

from functools import partial

import fedcipher
import numpy as np
import pytest
from attack_harness import ALL, CLIENTS, Federation, says_nothing
from fedcipher import keys
from fedcipher.dp import Privacy
from fedcipher.errors import StrategyError
from fedcipher.flower import SecureStrategy, client_mod, party
from fedcipher.federation.clip_feedback import ClipFeedback
from fedcipher.flower.protocol import AGGREGATE_PREFIX, METRICS, UPDATE, frame_bytes
from flower_harness import NAMES, initial, record
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg


def frame_of(reply):
    assert not reply.has_error(), reply.error
    return frame_bytes(reply.content["arrays"][UPDATE])


def weight_of(reply):
    _, _, _, _, contributions, *_ = fedcipher._native.inspect(frame_of(reply))
    return contributions[0][1]


def answering(federation, reply):
    """An app that answers every training with ``reply(message)``."""
    federation.app = ClientApp(mods=[client_mod])

    @federation.app.train()
    def train(msg, ctxt):
        return Message(RecordDict(reply(msg)), reply_to=msg)

    return federation


def opened(federation, updates, number=1):
    """What a client opens of the sum of these frames."""
    scheme = federation.scheme
    aggregator = scheme.aggregator(keys.load_server(federation.folder)[1], round=federation.run + number)
    for update in updates:
        aggregator.add(update)
    _, key = keys.load_client(federation.folder / "client-0.key")
    return scheme.decryptor(key).decrypt(aggregator.finish())


def trained(federation, number=1, arrays=None, **changes):
    """Every client's frame of a round."""
    content = partial(federation.content, federation.settings(number, **changes), arrays)
    return [frame_of(federation.send(content(), client=client)) for client in range(CLIENTS)]


def examples(count):
    return {"arrays": record(initial()), "metrics": MetricRecord({"num-examples": count})}


@pytest.mark.parametrize(("count", "weight"), [(26, 3), (24, 2), (25.1, 3), (1, 1), (0, 1)])
def test_a_weight_is_the_nearest_number_of_units_and_at_least_one(tmp_path, rng, count, weight):
    federation = answering(Federation(tmp_path, "flashe", rng, max_weight=4), lambda msg: examples(count))
    assert weight_of(federation.send(federation.content(federation.settings(unit=10.0)))) == weight


def test_a_weight_that_is_no_number_is_named_in_the_clients_own_log(tmp_path, rng, caplog):
    federation = answering(Federation(tmp_path, "flashe", rng), lambda msg: examples(float("inf")))
    assert says_nothing(federation.send(federation.content(federation.settings(unit=10.0))))
    assert "'num-examples' is inf" in caplog.text and "must be finite" in caplog.text


def test_privacy_covers_no_weights_by_examples(tmp_path, rng, caplog):
    """A server that asks for them gets nothing, whatever the metric says."""
    codec = fedcipher.Codec(
        bits=16, target="delta", privacy=Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5)
    )
    federation = answering(Federation(tmp_path, "flashe", rng, codec=codec), lambda msg: examples(10))
    assert says_nothing(federation.send(federation.content(federation.settings(unit=10.0))))
    assert "privacy does not cover" in caplog.text


def test_an_update_is_in_the_models_order_whatever_the_apps(tmp_path, rng):
    """Two arrays of one shape: in the app's order they would be each other's means."""
    names = ["b", "a"]

    def reply(msg):
        arrays = {"a": np.full(4, 1.0, np.float32), "b": np.full(4, -1.0, np.float32)}
        return {"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()})}

    federation = answering(Federation(tmp_path, "flashe", rng), reply)
    model = ArrayRecord({name: Array(np.zeros(4, np.float32)) for name in names})
    b, a = opened(federation, trained(federation, arrays=model, names=names))
    np.testing.assert_allclose([b, a], [[-1] * 4, [1] * 4], atol=1e-3)


@pytest.mark.parametrize("names", [[*NAMES, "more"], NAMES[:1]])
def test_a_reply_of_other_arrays_than_the_models_is_named(tmp_path, rng, caplog, names):
    arrays = [*initial(), np.zeros(3, np.float32)][: len(names)]
    federation = answering(Federation(tmp_path, "flashe", rng), lambda msg: {"arrays": record(arrays, names)})
    assert says_nothing(federation.send(federation.content(federation.settings())))
    assert f"the reply has arrays {names}" in caplog.text


def test_what_was_not_sent_is_sent_later_also_by_a_client_that_was_restarted(tmp_path, monkeypatch):
    """Error feedback is kept where Flower keeps an app's state: a process that starts anew goes on with it."""

    def means(folder, restarted):
        folder.mkdir()
        codec = fedcipher.Codec(bits=16, clip=2.0, target="delta")
        federation = Federation(folder, "flashe", np.random.default_rng(0), codec=codec, per_client_top=0.1)
        for number in (1, 2):
            if restarted:
                monkeypatch.setattr(party, "_parties", {})
            yield opened(federation, trained(federation, number), number)

    kept, again = list(means(tmp_path / "kept", False)), list(means(tmp_path / "again", True))
    for a, b in zip(kept, again, strict=True):
        np.testing.assert_array_equal(np.concatenate([x.ravel() for x in a]), np.concatenate([x.ravel() for x in b]))
    assert not np.array_equal(kept[0][0], kept[1][0])


def test_whole_numbers_are_subtracted_as_such(tmp_path, rng):
    """A float64 has 53 bits: of a counter beyond them it would lose the last ones."""
    model = ArrayRecord({"count": Array(np.array([2**60], np.int64))})
    reply = ArrayRecord({"count": Array(np.array([2**60 + 3], np.int64))})
    codec = fedcipher.Codec(bits=16, clip=8.0, target="delta")
    federation = answering(Federation(tmp_path, "flashe", rng, codec=codec), lambda msg: {"arrays": reply})
    (counted,) = opened(federation, trained(federation, arrays=model, names=["count"]))
    assert counted.dtype == np.int64 and counted.tolist() == [3]


def test_an_aggregate_that_is_missing_is_named(tmp_path, rng, caplog):
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta")
    federation = Federation(tmp_path, "flashe", rng, codec=codec, rounds=3)
    frames = {}
    for _, content in federation.grid.sent:
        frames |= {k: v for k, v in content.get("arrays", {}).items() if k.startswith(AGGREGATE_PREFIX)}
    assert len(frames) == 3
    federation.grid.forget(0)
    first, _, third = sorted(frames)
    arrays = ArrayRecord({**dict(record(initial()).items()), first: frames[first], third: frames[third]})
    assert says_nothing(federation.send(federation.content(federation.settings(4), arrays)))
    assert "aggregate 2 is missing" in caplog.text


def test_a_range_that_was_too_little_never_comes_back():
    """Four times as much after a round that cut; then it follows what is used, down to twice what was too little."""
    feedback = ClipFeedback(fedcipher.Codec(bits=16, target="delta", clip="auto"), [100.0, 100.0])
    feedback.observe(np.array([[1.0, 0.0], [0.5, 0.0]]))
    cut, calm = feedback.ranges
    assert cut == 400.0 and calm == 12.5
    for _ in range(20):
        feedback.observe(np.zeros((2, 2)))
    assert feedback.ranges[0] == 200.0 and feedback.ranges[1] < calm


def test_a_server_names_no_range_so_small_that_what_is_cut_measures_the_update(tmp_path, rng):
    codec = fedcipher.Codec(bits=16, target="delta", clip="auto")
    federation = Federation(tmp_path, "flashe", rng, codec=codec)
    reply = federation.send(federation.content(federation.settings(ranges=[1e-12, 1e-12])))
    assert not reply.has_error() and reply.content[METRICS]["clipped"] == 0


def test_a_clients_reason_is_as_long_as_a_line(tmp_path, rng):
    """It comes from outside, and goes into the run's record and onto its page."""
    federation = Federation(tmp_path, "flashe", rng)

    def tamper(sent, reply, client):
        long = client == 4 and sent.metadata.message_type == "train"
        return Message(Error(code=2, reason="x" * 100_000), reply_to=sent) if long else reply

    federation.grid.tamper = tamper
    strategy = SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run")
    strategy.start(federation.grid, record(initial()), num_rounds=1)
    kept = repr(strategy.rounds[0])
    assert 200 < kept.count("x") < 500


def test_an_app_without_the_mod_is_told_what_is_missing_also_with_one_array(tmp_path, rng, caplog):
    federation = Federation(tmp_path, "flashe", rng, mods=())
    federation.grid.app = app = ClientApp()

    @app.train()
    def train(msg, ctxt):
        return Message(RecordDict(examples(1) | {"arrays": record(initial()[:1], NAMES[:1])}), reply_to=msg)

    strategy = SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run")
    with pytest.raises(StrategyError):
        strategy.start(federation.grid, record(initial()[:1], NAMES[:1]), num_rounds=1)
    assert "not encrypted; add fedcipher.flower.client_mod" in caplog.text


def test_what_a_client_says_of_its_times_spoils_no_sum_of_them(tmp_path, rng):
    federation = Federation(tmp_path, "flashe", rng)

    def tamper(sent, reply, client):
        if client == 4 and sent.metadata.message_type == "train":
            reply.content[METRICS]["train_seconds"] = 1e300
        return reply

    federation.grid.tamper = tamper
    strategy = SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run")
    strategy.start(federation.grid, record(initial()), num_rounds=1)
    assert 0 <= strategy.rounds[0].mean("train_seconds") < 1000


def test_a_client_is_sent_what_it_has_not_had(tmp_path, rng):
    """Each aggregate once to each client, which keeps them; in a long run the first ones would be most of the bytes."""
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta")
    federation = Federation(tmp_path, "flashe", rng, codec=codec, rounds=4)
    sent = [(client, key) for client, content in federation.grid.sent for key in content.get("arrays", {})]
    aggregates = [pair for pair in sent if pair[1].startswith(AGGREGATE_PREFIX)]
    assert len(aggregates) == len(set(aggregates)) == 4 * CLIENTS
