"""What a client makes of its app's reply: the update's order, its weight, and what it keeps for the next one."""

import fedcipher
import numpy as np
import pytest
from attack_harness import ALL, CLIENTS, Federation, says_nothing
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.dp import Privacy
from fedcipher.errors import StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.chain import lanes_of
from fedcipher.federation.client import key_holder
from fedcipher.federation.messages import AGGREGATE_PREFIX, CONFIG, METRICS, UPDATE, frame_bytes
from fedcipher.frame import inspect
from flower_harness import NAMES, LocalGrid, initial, record
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg


def replying(reply):
    """An app that answers every training with ``reply(client, model)``."""
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(msg, ctxt):
        model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
        return Message(RecordDict(reply(ctxt.node_config["partition-id"], model)), reply_to=msg)

    return app


class Run:
    """One run of `CLIENTS` clients whose server opens the sums; `model` is the last one."""

    def __init__(self, folder, reply, first, *, rounds=1, codec=None, examples=0, answers=(), restarted=None, **params):
        codec = codec or fedcipher.Codec(bits=16, clip=2.0)
        self.scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=codec, **params)
        made = keys.save(self.scheme.keygen(CLIENTS), self.scheme, folder / "keys", examples_per_weight=examples)
        self.grid = LocalGrid(replying(reply), CLIENTS, made, restarted)
        self.strategy = SecureStrategy(
            FedAvg(**ALL, fraction_evaluate=0), made, opener="client-0.key", train_answers=answers
        )
        result = self.strategy.start(self.grid, first, num_rounds=rounds)
        self.model = {name: array.numpy() for name, array in result.arrays.items()}


def moved_by(values, counts=None):
    """Client k moves by ``values[k]``, and says that it has ``counts[k]`` examples."""

    def reply(client, model):
        arrays = record([x + np.float32(values[client]) for x in model.values()], list(model))
        metrics = {} if counts is None else {"num-examples": counts[client], "loss": float(values[client])}
        return {"arrays": arrays, "metrics": MetricRecord(metrics)}

    return reply


def one(dtype=np.float32, size=50):
    return record([np.zeros(size, dtype)], ["x"])


@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ([3, 1, 2, 6, 8], [3, 1, 2, 6, 8]),
        ([3.4, 0.6, 1.0, 0.2, 2], [3, 1, 1, 0, 2]),
        ([3, 0, -7, 100, 1], [3, 0, 0, 8, 1]),
        ([3, float("inf"), float("nan"), float("-inf"), 1], [3, 8, 0, 0, 1]),
    ],
)
def test_a_weight_is_the_whole_number_of_examples_from_none_to_the_largest(tmp_path, caplog, counts, weights):
    values = [1.0, -1.0, 0.5, -0.5, 0.25]
    run = Run(tmp_path, moved_by(values, counts), one(), examples=8, answers=[Answer("loss")])
    (made,) = run.strategy.rounds
    assert made.accepted == CLIENTS
    wanted = np.average(values, weights=weights)
    # Each client rounds its share at random, by a step at most.
    step = 4 / (2**16 - 2)
    np.testing.assert_allclose(run.model["x"], wanted, atol=CLIENTS * step * 8 / sum(weights))
    assert made.metrics["train"]["loss"] == pytest.approx(wanted, abs=1e-3)
    # Those who count otherwise than they say are told so, in their own log.
    refused = sum(not count >= 0 for count in counts)
    assert caplog.text.count("sends zeros that do not count: 'num-examples' is ") == refused
    assert caplog.text.count("so this client's update does not count") == weights.count(0) - refused
    assert caplog.text.count("count as 8, the largest weight") == sum(c > 8 for c in counts)


@pytest.mark.parametrize("said", [None, []])
def test_a_weight_that_is_no_number_counts_nothing_and_is_named_in_the_clients_own_log(tmp_path, caplog, said):
    honest = moved_by([1.0] * CLIENTS, [4] * CLIENTS)

    def reply(client, model):
        made = honest(client, model)
        if client == 4:
            made["metrics"] = MetricRecord({} if said is None else {"num-examples": said})
        return made

    run = Run(tmp_path, reply, one(), examples=8)
    assert "'num-examples' is 0" in caplog.text
    np.testing.assert_allclose(run.model["x"], 1.0, atol=1e-3)


def test_under_privacy_no_frame_of_training_has_room_for_examples(tmp_path, rng):
    """Nothing covers them, so a server that asks for weights gets no frame at all."""
    privacy = Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5)
    federation = Federation(tmp_path, "flashe", rng, codec=fedcipher.Codec(bits=16, privacy=privacy))
    weighs = federation.make_charter(equal_weights=False, largest_weight=60_000)
    for charter in (weighs, federation.charter):
        assert lanes_of(charter, federation.scheme, "train") is None
    assert says_nothing(federation.send(federation.content(federation.settings(charter=weighs))))
    reply = federation.send(federation.content(federation.settings()))
    assert inspect(frame_bytes(reply.content["arrays"][UPDATE])).elements == sum(x.size for x in initial())


def test_an_update_is_in_the_models_order_whatever_the_apps(tmp_path):
    """Two arrays of one shape: in the app's order they would be each other's means."""

    def reply(client, model):
        arrays = {"a": np.full(4, 1.0, np.float32), "b": np.full(4, -1.0, np.float32)}
        return {"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()})}

    run = Run(tmp_path, reply, record([np.zeros(4, np.float32)] * 2, ["b", "a"]))
    np.testing.assert_allclose([run.model["b"], run.model["a"]], [[-1] * 4, [1] * 4], atol=1e-3)


@pytest.mark.parametrize("names", [[*NAMES, "more"], NAMES[:1]])
def test_a_reply_of_other_arrays_than_the_models_is_named_and_counts_nothing(tmp_path, caplog, names):
    honest = moved_by([1.0] * CLIENTS)
    arrays = [*initial(), np.zeros(3, np.float32)][: len(names)]

    def reply(client, model):
        return {"arrays": record(arrays, names)} if client == 4 else honest(client, model)

    run = Run(tmp_path, reply, record(initial()))
    assert f"the reply has the arrays {names}" in caplog.text
    assert f"the apps of 1 of {CLIENTS} clients failed (train)" in caplog.text
    np.testing.assert_allclose(run.model[NAMES[0]], 1.0, atol=1e-3)


def test_what_was_not_sent_is_sent_later_also_by_a_client_that_was_restarted(tmp_path, monkeypatch):
    """Error feedback is on the client's disk: a process that starts anew goes on with it."""
    goals = np.random.default_rng(0).normal(0, 0.3, (CLIENTS, 50)).astype(np.float32)

    def reply(client, model):
        return {"arrays": record([model["x"] + goals[client]], ["x"])}

    def model(folder, *, restarted):
        def restart(message, reply, client):
            if restarted:
                monkeypatch.setattr(key_holder, "_holders", {})
            return reply

        run = Run(folder, reply, one(), rounds=3, restarted=restart, per_client_top=0.1)
        return run.model["x"]

    kept, again = model(tmp_path / "kept", restarted=False), model(tmp_path / "again", restarted=True)
    np.testing.assert_array_equal(kept, again)

    def forget(self, state):
        pass

    monkeypatch.setattr("fedcipher.federation.client.model.ClientModel.keep_unsent", forget)
    assert not np.array_equal(kept, model(tmp_path / "lost", restarted=False))


def test_whole_numbers_are_subtracted_as_such(tmp_path):
    """A float64 has 53 bits: of a counter beyond them it would lose the last ones."""
    start = ArrayRecord({"count": Array(np.array([2**60], np.int64))})

    def reply(client, model):
        return {"arrays": ArrayRecord({"count": Array(np.array([2**60 + 3], np.int64))})}

    run = Run(tmp_path, reply, start, codec=fedcipher.Codec(bits=16, clip=8.0))
    counted = run.model["count"]
    assert counted.dtype == np.int64 and counted.tolist() == [2**60 + 3]


def test_an_aggregate_that_is_missing_is_named(tmp_path, rng, caplog):
    federation = Federation(tmp_path, "flashe", rng, codec=fedcipher.Codec(bits=16, clip=2.0), rounds=3)
    frames = {}
    for _, content in federation.grid.sent:
        frames |= {k: v for k, v in content.get("arrays", {}).items() if k.startswith(AGGREGATE_PREFIX)}
    assert len(frames) == 3
    federation.grid.lose(0)
    key_holder._holders.clear()
    first, _, third = sorted(frames)
    arrays = ArrayRecord({**dict(record(initial()).items()), first: frames[first], third: frames[third]})
    settings = federation.settings(4, indices=[1, 3])
    assert federation.send(federation.content(settings, arrays)).has_error()
    assert "step 2 is missing" in caplog.text


def test_no_field_of_a_message_names_a_range(tmp_path, rng):
    """A range of the server's choice would make what is cut a measure of the update."""
    federation = Federation(tmp_path, "flashe", rng, codec=fedcipher.Codec(bits=16))
    assert federation.send(federation.content(federation.settings(ranges=[1e-12, 1e-12]))).has_error()
    reply = federation.send(federation.content(federation.settings(2)))
    assert not reply.has_error() and "clipped" not in reply.content[METRICS]


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
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"metrics": metrics, "arrays": record(initial()[:1], NAMES[:1])}), reply_to=msg)

    strategy = SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run")
    with pytest.raises(StrategyError):
        strategy.start(federation.grid, record(initial()[:1], NAMES[:1]), num_rounds=1)
    assert "not encrypted; add fedcipher.adapters.flower.client_mod" in caplog.text


def test_what_a_client_says_of_its_times_spoils_no_sum_of_them(tmp_path, rng):
    federation = Federation(tmp_path, "flashe", rng)

    def tamper(sent, reply, client):
        if client == 4 and sent.metadata.message_type == "train":
            reply.content[METRICS]["encrypt_seconds"] = 1e300
        return reply

    federation.grid.tamper = tamper
    strategy = SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run")
    strategy.start(federation.grid, record(initial()), num_rounds=1)
    assert 0 <= strategy.rounds[0].mean("encrypt_seconds") < 1000


def test_a_client_is_sent_what_it_has_not_had(tmp_path, rng):
    """Each aggregate once to each client, which keeps them; in a long run the first ones would be most of the bytes."""
    codec = fedcipher.Codec(bits=16, clip=2.0)
    federation = Federation(tmp_path, "flashe", rng, codec=codec, rounds=4)
    sent = [(client, key) for client, content in federation.grid.sent for key in content.get("arrays", {})]
    aggregates = [pair for pair in sent if pair[1].startswith(AGGREGATE_PREFIX)]
    assert len(aggregates) == len(set(aggregates)) == 4 * CLIENTS
    documents = [client for client, content in federation.grid.sent if "document" in content.get(CONFIG, {})]
    assert sorted(documents) == sorted(set(documents)), "the charter, too"
