"""The Flower integration, told as rounds."""

import logging
import time

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.federation import messages as protocol
from fedcipher.federation.answers import Answer
from fedcipher.federation.chain import Chain
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.run_folder import replay
from fedcipher.frame import inspect
from fedcipher.schemes import base, scheme_class
from flower_harness import LocalGrid, initial, make_app, record, reference_of, wire_record
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedProx, FedTrimmedAvg
from scheme_lists import adds, dense, one_key, schemes_and_params, schemes_that

CLIENTS = 5
SCHEMES = schemes_and_params(adds, dense)

ANSWERS = 200 + 16 * 7
"""Bytes that a frame may be longer by its answers: weight, counters, and what an app names."""


def targets(rng):
    return [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]


def setup(
    tmp_path,
    rng,
    name,
    *,
    params=None,
    codec=None,
    examples=None,
    inner=None,
    tamper=None,
    unit=None,
    weight=1,
    least=2,
    opened=False,
    mods=(client_mod,),
    **options,
):
    codec = codec or fedcipher.Codec(bits=16, clip=2.0)
    given = params or {}
    # Two honest clients at least hide each other.
    params = {"max_weight": weight, "min_contributions": max(least, given.get("corrupt_clients", 0) + 2), **given}
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec, **params)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    goals, seen = targets(rng), []
    app = make_app(goals, examples or [10] * CLIENTS, seen, mods=mods)
    grid = LocalGrid(app, CLIENTS, folder, tamper)
    everybody = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    given = {"out": tmp_path / "run", "train_answers": ["loss"], "evaluate_answers": ["distance"], **options}
    if opened:
        given["opener"] = folder / "client-0.key"
    strategy = SecureStrategy(inner or FedAvg(**everybody), folder, examples_per_weight=unit, **given)
    decryptor = scheme.decryptor(keys.load_client(folder / "client-0.key")[1])
    return strategy, grid, goals, seen, decryptor


def simulate(goals, weights, rounds):
    """The same federation in the clear."""
    model = initial()
    for _ in range(rounds):
        moved = [[0.5 * (a + t) for a, t in zip(model, goal, strict=True)] for goal in goals]
        model = [np.average([m[k] for m in moved], axis=0, weights=weights) for k in range(len(model))]
    return model


@pytest.mark.parametrize("target", ["weights", "delta"])
@pytest.mark.parametrize(("name", "params"), SCHEMES)
def test_the_federation_computes_what_it_would_in_the_clear(tmp_path, rng, name, params, target):
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, name, params=params, codec=codec)
    result = strategy.start(grid, record(initial()), num_rounds=4)
    want = simulate(goals, [1] * CLIENTS, 4)
    for got, x in zip(strategy.open_model(decryptor), want, strict=True):
        np.testing.assert_allclose(got, x, atol=4 * 2.0 / 2**16)
    # Sums of answers are opened by whoever may open means, which this server is not; a committee's readers report them.
    told = scheme_class(name).info.committee
    assert bool(result.train_metrics_clientapp) is bool(result.evaluate_metrics_clientapp) is told
    chain = replay(strategy.run.model.folder, strategy.setup.scheme, decryptor)
    sums = chain.open_answers(decryptor, strategy.run.model.folder.evaluation(4), 4)
    distance = np.mean([np.abs(chain.model[0] - goal[0]).mean() for goal in goals])
    assert sums.ratio(Answer("distance")) == [pytest.approx(distance, abs=1e-5)]
    if told:
        assert result.evaluate_metrics_clientapp[4]["distance"] == pytest.approx(distance, abs=1e-5)
    assert all(c.left_out is None for r in strategy.rounds for c in r.clients)
    assert strategy.rounds[-1].clients[0].phases["upload_bytes"] > 0
    assert strategy.rounds[-1].elements == 607 + 2 * 2 * (target == "delta" and codec.clip == "auto")
    if name != "plain":
        values = np.concatenate([a.ravel() for a in want]).astype(np.float32).tobytes()
        for _, content in grid.sent[2 * CLIENTS :]:
            for arrays in content.array_records.values():
                for array in arrays.values():
                    assert values[:64] not in array.data


@pytest.mark.parametrize(("name", "params"), SCHEMES)
def test_a_server_with_an_opener_has_the_means_of_the_answers(tmp_path, rng, name, params):
    def slow(message, context, call_next):
        # Seconds are counted in thousandths.
        time.sleep(0.002)
        return call_next(message, context)

    examples, mods = [10, 20, 30, 40, 80], (client_mod, slow)
    strategy, grid, goals, *_ = setup(
        tmp_path, rng, name, params=params, examples=examples, unit=10, weight=8, opened=True, mods=mods
    )
    result = strategy.start(grid, record(initial()), num_rounds=2)
    # The inner strategy's metrics are its own, without ours.
    loss = np.average(np.arange(CLIENTS), weights=examples)
    assert dict(result.train_metrics_clientapp[2]) == {"loss": pytest.approx(loss, abs=1e-6)}
    model = result.arrays.to_numpy_ndarrays()
    distance = np.average([np.abs(model[0] - goal[0]).mean() for goal in goals], weights=examples)
    assert dict(result.evaluate_metrics_clientapp[2]) == {"distance": pytest.approx(distance, abs=1e-5)}
    assert strategy.rounds[1].metrics["train"] == dict(result.train_metrics_clientapp[2])
    assert strategy.rounds[1].counted["train_seconds"] > 0


def test_weights_follow_the_examples(tmp_path, rng):
    examples = [10, 20, 30, 40, 80]
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "bfv", examples=examples, unit=10, weight=8)
    strategy.start(grid, record(initial()), num_rounds=3)
    for got, x in zip(strategy.open_model(decryptor), simulate(goals, examples, 3), strict=True):
        np.testing.assert_allclose(got, x, atol=4 * 2.0 / 2**16)


def test_more_examples_than_the_largest_weight_count_as_that(tmp_path, rng, caplog):
    examples = [10, 10, 10, 10, 900]
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "flashe", examples=examples, unit=10, weight=8)
    strategy.start(grid, record(initial()), num_rounds=1)
    for got, x in zip(strategy.open_model(decryptor), simulate(goals, [10, 10, 10, 10, 80], 1), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)
    assert caplog.text.count("900 examples count as 80, the largest weight of the charter") == 2


@pytest.mark.parametrize("target", ["weights", "delta"])
def test_of_whom_there_are_no_examples_counts_nothing(tmp_path, rng, caplog, target):
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    examples = [10, 20, 0, 30, 40]
    strategy, grid, goals, _, decryptor = setup(
        tmp_path, rng, "bfv", codec=codec, examples=examples, unit=10, weight=4, opened=True
    )
    result = strategy.start(grid, record(initial()), num_rounds=2)
    assert all(made.accepted == CLIENTS for made in strategy.rounds)
    for got, x in zip(strategy.open_model(decryptor), simulate(goals, examples, 2), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(np.average(range(5), weights=examples), abs=1e-6)
    assert "'num-examples' is 0, so this client's update does not count" in caplog.text


def test_where_nobody_has_examples_the_model_stays(tmp_path, rng):
    strategy, grid, _, _, decryptor = setup(tmp_path, rng, "flashe", examples=[0] * CLIENTS, unit=10, weight=4)
    strategy.start(grid, record(initial()), num_rounds=2)
    assert all(made.unfinished is None for made in strategy.rounds)
    assert all((x == 0).all() for x in strategy.open_model(decryptor))


def test_where_all_weigh_the_same_examples_weigh_the_answers_only(tmp_path, rng):
    examples = [1, 2, 3, 4, 50]
    strategy, grid, goals, *_ = setup(tmp_path, rng, "flashe", examples=examples, opened=True)
    result = strategy.start(grid, record(initial()), num_rounds=2)
    for got, x in zip(result.arrays.to_numpy_ndarrays(), simulate(goals, [1] * CLIENTS, 2), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)
    loss = np.average(np.arange(CLIENTS), weights=examples)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("odd", [-10, -0.5, float("nan")])
def test_a_number_of_examples_that_is_none_is_refused_on_that_client(tmp_path, rng, caplog, odd):
    examples = [10, 20, odd, 30, 40]
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "bfv", examples=examples, unit=10, weight=4, opened=True)
    result = strategy.start(grid, record(initial()), num_rounds=2)
    counted = [10, 20, 0, 30, 40]
    for got, x in zip(strategy.open_model(decryptor), simulate(goals, counted, 2), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(np.average(range(5), weights=counted), abs=1e-6)
    assert f"sends zeros that do not count: 'num-examples' is {odd}; the app must return" in caplog.text


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("examples", [[1, 2, 3, 4, 50], [60_000, 60, 60, 60, 60], [10, 10, 10, 10, 11], [7] * 5])
def test_clients_of_unequal_examples_that_weigh_the_same_are_told(tmp_path, rng, caplog, opened, examples):
    """Under keys of ``keygen --equal``, with and without an opener: the clients open the sum of examples."""
    strategy, grid, *_ = setup(tmp_path, rng, "bfv", examples=examples, opened=opened)
    strategy.start(grid, record(initial()), num_rounds=3)
    said = [r.getMessage() for r in caplog.records if "on average, and all have the same weight" in r.getMessage()]
    mean = np.mean(examples)
    uneven = [n for n in examples if not mean / 1.05 <= n <= 1.05 * mean]
    # From the second round on, when the first one's sum is open.
    assert len(said) == 2 * len(uneven) and (len(uneven) == 0) == (len(set(examples)) == 1)
    for count in uneven:
        wanted = f"this client has {count} examples, the clients of the last round had {mean:.4g} on average"
        assert any(wanted in line and "keygen --examples" in line for line in said)


def two_are_enough(variant):
    """A sum of two clients opens."""
    return variant.params.get("corrupt_clients", 0) == 0


@pytest.mark.parametrize(("name", "params"), schemes_and_params(adds, dense, two_are_enough))
def test_garbage_and_drop_outs_leave_the_others_right(tmp_path, rng, name, params, caplog):
    stored = {}

    def tamper(message, reply, client):
        if message.metadata.message_type != "train" or {"fedcipher.committee", "fedcipher.report"} & {*message.content}:
            return reply
        key = next(iter(reply.content.array_records))
        frame = protocol.frame_bytes(reply.content.array_records[key][protocol.UPDATE])
        first = stored.setdefault(client, frame)
        if frame is first:
            return reply
        if client == 1:  # flips a bit
            frame = frame[:300] + bytes([frame[300] ^ 8]) + frame[301:]
        elif client == 2:  # replays its first round
            frame = first
        elif client == 3:  # never answers
            return None
        reply.content.array_records[key] = wire_record({protocol.UPDATE: frame})
        return reply

    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, name, params=params, tamper=tamper)
    strategy.start(grid, record(initial()), num_rounds=2)
    middle = simulate(goals, [1] * CLIENTS, 1)
    moved = [[0.5 * (a + t) for a, t in zip(middle, goals[j], strict=True)] for j in (0, 4)]
    for k, got in enumerate(strategy.open_model(decryptor)):
        np.testing.assert_allclose(got, np.mean([m[k] for m in moved], axis=0), atol=1e-3)
    assert "FrameError" in caplog.text and "WrongRoundError" in caplog.text
    assert [len([c for c in r.clients if c.left_out]) for r in strategy.rounds] == [0, 3]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("trains", "but is known as client 2"),
        # Its evaluation is a frame too, and shows whose it is.
        ("evaluates", "but is known as client 2"),
        ("is silent", "belongs to node 1004"),
    ],
)
def test_a_frame_of_another_client_is_refused(tmp_path, rng, caplog, monkeypatch, first, said):
    frames, told, told_beside = {}, [], []
    real = base.KernelEncryptor.encrypt
    monkeypatch.setattr(
        base.KernelEncryptor, "encrypt", lambda self, *a, **k: (told.append(k["model"]), real(self, *a, **k))[1]
    )

    def tamper(message, reply, client):
        if message.metadata.message_type == "evaluate" and client == 2 and first == "is silent":
            return None
        if message.metadata.message_type == "train":
            told_beside[:] = [reply.content["fedcipher.context"]]
            (key,) = reply.content.array_records
            frames[client] = reply.content.array_records[key]
            if client == 2 and message.content["config"]["server-round"] == 1 and first != "trains":
                return None
            if len(frames) == CLIENTS and client == 2 and message.content["config"]["server-round"] == 2:
                other = make_frame()
                reply.content.array_records[key] = wire_record({protocol.UPDATE: other})
        return reply

    def make_frame():
        # A thief has client 4's key, and a ledger of its own.
        with monkeypatch.context() as thiefs:
            thiefs.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "thief"))
            scheme, key = keys.load_client(tmp_path / "keys" / "client-4.key")
            return scheme.encryptor(key).encrypt(initial(), round=strategy.run.number, model=told[-1])

    strategy, grid, *_ = setup(tmp_path, rng, "plain", tamper=tamper)
    # A ledger made now refuses rounds that were begun before it.
    strategy.run.base = (int(time.time()) + 5) << 20
    strategy.start(grid, record(initial()), num_rounds=2)
    assert said in caplog.text
    assert [c.node for c in strategy.rounds[1].clients if c.left_out] == [1002]


FIRST = {
    "other types": ([x.astype(np.float64) for x in initial()], None, "has another model or layout than most"),
    "other shapes": ([np.zeros((30, 20), np.float32), np.zeros(7, np.float32)], None, "has another model"),
    "another model": (initial(), b"\7" * 32, "has another model or layout than most"),
    "more values": ([np.zeros((30, 31), np.float32), np.zeros(7, np.float32)], None, "the model has 607"),
}


@pytest.mark.parametrize("name", schemes_that(one_key, adds))
@pytest.mark.parametrize("first", FIRST)
def test_who_answers_first_decides_nothing_for_the_others(tmp_path, rng, monkeypatch, name, first):
    arrays, model, said = FIRST[first]
    told = []
    real = base.KernelEncryptor.encrypt
    monkeypatch.setattr(
        base.KernelEncryptor, "encrypt", lambda self, *a, **k: (told.append(k["model"]), real(self, *a, **k))[1]
    )

    def tamper(message, reply, client):
        if message.metadata.message_type == "train" and client == 0:
            with monkeypatch.context() as patch:
                patch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / f"again-{len(told)}"))
                scheme, key = keys.load_client(tmp_path / "keys" / "client-0.key")
                number = RoundSettings.parse(grid.sent[-1][1]["fedcipher.round"]).round
                forged = scheme.encryptor(key).encrypt(arrays, round=number, model=model or told[-1])
            (place,) = reply.content.array_records
            reply.content[place] = wire_record({protocol.UPDATE: forged})
        return reply

    strategy, grid, goals, *_ = setup(tmp_path, rng, name, tamper=tamper)
    # Replies come in the order of Flower's sample.
    monkeypatch.setattr("random.sample", lambda nodes, count: sorted(nodes)[:count])
    # A ledger made now refuses rounds that were begun before it.
    strategy.run.base = (int(time.time()) + 5) << 20
    strategy.start(grid, record(initial()), num_rounds=2)
    for made in strategy.rounds:
        assert [c.client for c in made.clients if c.left_out is None] == [1, 2, 3, 4]
        assert said in made.clients[0].left_out
    model = simulate(goals[1:], [1] * (CLIENTS - 1), 2)
    for got, want in zip(open_run(tmp_path / "run", tmp_path / "keys" / "client-1.key").values(), model, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.parametrize("target", ["weights", "delta"])
def test_a_node_that_was_set_up_anew_takes_its_client_id_with_it(tmp_path, rng, caplog, target):
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    strategy, grid, *_ = setup(tmp_path, rng, "flashe", codec=codec)

    def tamper(message, reply, client):
        number = message.content["config"]["server-round"]
        if message.metadata.message_type == "evaluate" and number == 1 and client == 3:
            # Its machine is lost: another, with the same key, state folder and partition, has another node id.
            old = grid.contexts.pop(1003)
            grid.contexts[2003] = Context(1, 2003, old.node_config, RecordDict(), old.run_config)
        return reply

    grid.tamper = tamper
    strategy.start(grid, record(initial()), num_rounds=3)
    assert [[c.left_out for c in made.clients] for made in strategy.rounds] == [[None] * CLIENTS] * 3
    assert [(c.node, c.client) for made in strategy.rounds for c in made.clients if c.client == 3] == [
        (1003, 3),
        (2003, 3),
        (2003, 3),
    ]
    assert "client 3 is now node 2003; its earlier node 1003 is gone" in caplog.text


BAD_METRICS = {
    "none": (lambda metrics: metrics.clear(), 0, 0.0),
    "not a number": (lambda metrics: metrics.update({"loss": float("nan")}), 10, 0.0),
    "infinite": (lambda metrics: metrics.update({"loss": float("inf")}), 10, 1e6),
    "beyond its range": (lambda metrics: metrics.update({"loss": -1e30}), 10, -1e6),
    "a whole number beyond floats": (lambda metrics: metrics.update({"loss": 10**400}), 10, 1e6),
    "a list": (lambda metrics: metrics.update({"loss": [1.0, 2.0]}), 10, 1.0),
    "an empty list": (lambda metrics: metrics.update({"loss": []}), 10, 0.0),
    "another name": (lambda metrics: metrics.update({"more": 1.0}), 10, 1.0),
    "no weight": (lambda metrics: metrics.pop("num-examples"), 0, 1.0),
    "weight 0": (lambda metrics: metrics.update({"num-examples": 0}), 0, 1.0),
    "weight below 0": (lambda metrics: metrics.update({"num-examples": -30}), 0, 1.0),
    "a weight beyond all others": (lambda metrics: metrics.update({"num-examples": 1.7e308}), 40, 1.0),
    "weight not a number": (lambda metrics: metrics.update({"num-examples": float("nan")}), 0, 1.0),
    "a list of weights": (lambda metrics: metrics.update({"num-examples": [1]}), 1, 1.0),
}


@pytest.mark.parametrize("odd", BAD_METRICS)
def test_odd_metrics_of_an_app_change_no_frames_length_and_end_nobodys_run(tmp_path, rng, odd):
    """Whatever an app says, the server sees a frame as of everybody, and others' answers count."""
    change, weight, loss = BAD_METRICS[odd]
    strategy, grid, goals, *_ = setup(tmp_path, rng, "flashe", unit=10, weight=4, opened=True)
    honest = make_app(goals, [10] * CLIENTS, mods=())

    def odd_app(msg, ctxt):
        reply = honest(msg, ctxt)
        if ctxt.node_config["partition-id"] == 1:
            held = dict(reply.content["metrics"])
            change(held)
            reply.content["metrics"] = MetricRecord(held)
        return reply

    grid.app = lambda msg, ctxt: client_mod(msg, ctxt, odd_app)
    result = strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS
    assert [c.left_out for c in strategy.rounds[0].evaluations] == [None] * CLIENTS
    for kind in ("train", "evaluate"):
        replies = [r for _, r in grid.received if r.metadata.message_type == kind]
        heads = {frame_head(r) for r in replies}
        assert len(replies) == CLIENTS and len(heads) == 1
    weights = [weight if k == 1 else 10 for k in range(CLIENTS)]
    want = np.average([loss if k == 1 else k for k in range(CLIENTS)], weights=weights)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(want, rel=1e-6, abs=1e-6)
    for got, x in zip(result.arrays.to_numpy_ndarrays(), simulate(goals, weights, 1), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)


def frame_head(reply):
    """What a reply shows of an update: everything but who sent it, and the ciphertext."""
    (arrays,) = reply.content.array_records.values()
    (array,) = arrays.values()
    frame = protocol.frame_bytes(array)
    kind, scheme, key, number, contributions, elements, *_ = inspect(frame)
    names = {name: sorted(record) for name, record in reply.content.items()}
    return repr((kind, scheme, key, number, [w for _, w in contributions], elements, len(frame), names))


ODD_REPLIES = {
    "raises": lambda reply: 1 / 0,
    "returns nothing": lambda reply: None,
    "another type": lambda reply: 7,
    "no arrays": lambda reply: reply.content.pop("arrays"),
    "two records": lambda reply: reply.content.update({"spare": record(initial())}),
    "another name": lambda reply: reply.content.update({"arrays": record(initial(), ["a", "b"])}),
    "one array": lambda reply: reply.content.update({"arrays": record(initial()[:1], ["layer/weight"])}),
    "another shape": lambda reply: reply.content.update({"arrays": record([np.ones((20, 30)), np.ones((7, 1))])}),
    "objects": lambda reply: reply.content.update({"arrays": record([np.ones((20, 30)), np.array(["a"] * 7)])}),
}


@pytest.mark.parametrize("target", ["weights", "delta"])
@pytest.mark.parametrize("what", ODD_REPLIES)
def test_an_app_that_fails_counts_nothing_and_looks_like_any_other(tmp_path, rng, caplog, what, target):
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    strategy, grid, goals, *_ = setup(tmp_path, rng, "flashe", codec=codec, opened=True)
    honest = make_app(goals, [10] * CLIENTS, mods=())

    def odd_app(msg, ctxt):
        reply = honest(msg, ctxt)
        if ctxt.node_config["partition-id"] == 1 and msg.metadata.message_type == "train":
            made = ODD_REPLIES[what](reply)
            return made if what in ("returns nothing", "another type") else reply
        return reply

    grid.app = lambda msg, ctxt: client_mod(msg, ctxt, odd_app)
    result = strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS
    assert len({frame_head(r) for _, r in grid.received if r.metadata.message_type == "train"}) == 1
    others = [k for k in range(CLIENTS) if k != 1]
    want = simulate([goals[k] for k in others], [1] * 4, 1)
    for got, x in zip(result.arrays.to_numpy_ndarrays(), want, strict=True):
        np.testing.assert_allclose(got, x, atol=1e-3)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(np.mean(others), abs=1e-6)
    assert "this client sends zeros that do not count" in caplog.text
    assert "round 1: the apps of 1 of 5 clients failed (train)" in caplog.text


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("target", ["weights", "delta"])
def test_odd_values_and_types_of_an_app_look_like_any_other(tmp_path, rng, weighted, target):
    """NaN is zero, infinity the end of the range, and a type is the model's: heads of frames tell none of it."""
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    model = [np.zeros((4, 3), np.float32), np.array(5, np.int64), np.zeros(6, np.float16), np.zeros(5, np.bool_)]
    names = ["w", "counter", "half", "mask"]
    options = {"unit": 10, "weight": 4} if weighted else {}
    strategy, grid, *_ = setup(tmp_path, rng, "flashe", codec=codec, opened=True, **options)
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(msg, ctxt):
        client = ctxt.node_config["partition-id"]
        made = {
            0: [np.full((4, 3), np.nan), np.array(5.0), np.full(6, np.inf), np.ones(5)],
            1: [np.full((4, 3), -np.inf, np.float32), np.array(7, np.int16), np.full(6, 1e300), np.zeros(5, np.uint8)],
            2: [np.full((4, 3), 1e38, np.float32), np.array(np.nan), np.full(6, np.nan), np.full(5, np.inf)],
        }.get(
            client, [np.ones((4, 3), np.float32), np.array(6, np.int64), np.ones(6, np.float16), np.ones(5, np.bool_)]
        )
        metrics = MetricRecord({"num-examples": [10, 40, 50, 0, 20][client], "loss": 1.0})
        return Message(RecordDict({"arrays": record(made, names), "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg, ctxt):
        return Message(RecordDict(), reply_to=msg)

    grid.app = app
    result = strategy.start(grid, record(model, names), num_rounds=3)
    assert all(made.accepted == CLIENTS for made in strategy.rounds)
    for number in (1, 2, 3):
        of_round = [r for k, (_, r) in enumerate(grid.received) if k // (2 * CLIENTS) == number - 1]
        assert len({frame_head(r) for r in of_round if r.metadata.message_type == "train"}) == 1
    got = result.arrays.to_numpy_ndarrays()
    assert [x.dtype for x in got] == [x.dtype for x in model]
    assert all(np.isfinite(x).all() for x in got)
    assert strategy.rounds[0].counted["saturated"] > 0


def test_what_the_charter_does_not_name_stays_on_the_client(tmp_path, rng, caplog):
    strategy, grid, *_ = setup(tmp_path, rng, "flashe", train_answers=[])
    strategy.start(grid, record(initial()), num_rounds=1)
    assert caplog.text.count("round 1: the metrics ['loss'] stay on this client") == CLIENTS
    for _, reply in grid.received:
        for name, metrics in reply.content.metric_records.items():
            assert name == protocol.METRICS and not {"loss", "distance", "num-examples"} & set(metrics)


@pytest.mark.parametrize("configured", [False, True])
def test_a_metric_leaves_in_the_clear_where_charter_and_client_name_it(tmp_path, rng, configured):
    strategy, grid, *_ = setup(tmp_path, rng, "flashe", clear=["loss"])
    if configured:
        grid.contexts[1003].node_config["fedcipher-clear"] = "loss, other"
    strategy.start(grid, record(initial()), num_rounds=1)
    shown = {c.client: c.clear for c in strategy.rounds[0].clients if c.clear}
    assert shown == ({3: {"loss": 3.0}} if configured else {})


def test_a_client_cannot_fill_the_servers_record_with_metrics_of_its_own(tmp_path, rng):
    def tamper(message, reply, client):
        if client == 2 and message.metadata.message_type == "train":
            reply.content[protocol.CLEAR] = MetricRecord({f"m{k}": 1.0 for k in range(1000)})
        return reply

    strategy, grid, *_ = setup(tmp_path, rng, "flashe", tamper=tamper)
    strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS and not any(c.clear for c in strategy.rounds[0].clients)


@pytest.mark.parametrize("odd", ["a second record", "no record", "another name", "no context"])
def test_odd_records_of_one_client_end_nobodys_run(tmp_path, rng, odd):
    def tamper(message, reply, client):
        if client == 1 and message.metadata.message_type == "train":
            (key,) = reply.content.array_records
            if odd == "no context":
                del reply.content[protocol.CONTEXT]
            elif odd == "a second record":
                reply.content["more"] = ArrayRecord()
            elif odd == "another name":
                reply.content["more"] = reply.content.pop(key)
            else:
                del reply.content[key]
        return reply

    strategy, grid, *_ = setup(tmp_path, rng, "flashe", tamper=tamper)
    strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS - (odd in ("no record", "no context"))


def test_a_client_without_the_mod_is_refused_loudly(tmp_path, rng, caplog):
    strategy, grid, goals, *_ = setup(tmp_path, rng, "bfv")
    grid.app = make_app(goals, [10] * CLIENTS, mods=())
    with pytest.raises(errors.StrategyError, match=r"none of 1 rounds has an aggregate.*client_mod"):
        strategy.start(grid, record(initial()), num_rounds=1)
    # Of their training and of their evaluation.
    assert caplog.text.count("PlaintextError") == 2 * CLIENTS
    assert "round 1 has no aggregate, the global model is unchanged: it has 0 usable updates" in caplog.text
    assert strategy.rounds[0].unfinished is not None


def test_the_mod_refuses_a_server_without_the_wrapper(tmp_path, rng, caplog):
    _, grid, *_ = setup(tmp_path, rng, "bfv")
    inner = FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, min_evaluate_nodes=CLIENTS)
    with pytest.raises(ValueError, match="wrap its strategy in SecureStrategy"):
        inner.start(grid, record(initial()), num_rounds=2)
    assert len(grid.received) == CLIENTS and all(reference_of(r) for _, r in grid.received)
    assert caplog.text.count("PlaintextError") == CLIENTS and "wrap the server's strategy" in caplog.text


def test_every_array_that_leaves_is_a_frame_of_the_scheme(tmp_path, rng):
    strategy, grid, *_ = setup(tmp_path, rng, "flashe")
    strategy.start(grid, record(initial()), num_rounds=2)
    trained = [r for _, r in grid.received if r.content.array_records]
    assert len(trained) == 2 * 2 * CLIENTS, "updates and evaluations of two rounds"
    for reply in trained:
        (arrays,) = reply.content.array_records.values()
        assert list(arrays) == [protocol.UPDATE]
        assert inspect(protocol.frame_bytes(arrays[protocol.UPDATE])).scheme == "flashe"


def test_extra_arrays_in_a_reply_are_not_sent_and_count_nothing(tmp_path, rng, caplog):
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "flashe")
    honest = make_app(goals, [10] * CLIENTS, mods=())

    def leaky(msg, ctxt):
        reply = honest(msg, ctxt)
        reply.content.array_records["spare"] = ArrayRecord({"copy": Array(np.ones(3))})
        return reply

    grid.app = lambda msg, ctxt: fedcipher.adapters.flower.client_mod(msg, ctxt, leaky)
    strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS
    for _, reply in grid.received:
        (arrays,) = reply.content.array_records.values()
        assert list(arrays) == [protocol.UPDATE]
    assert caplog.text.count("has 2 ArrayRecords; put all arrays into one") == CLIENTS
    for got, start in zip(strategy.open_model(decryptor), initial(), strict=True):
        np.testing.assert_array_equal(got, start)


@pytest.mark.parametrize("inner", [FedMedian, FedTrimmedAvg])
def test_strategies_that_are_no_weighted_mean_are_refused(tmp_path, rng, inner):
    options = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    strategy, grid, *_ = setup(tmp_path, rng, "flashe", inner=inner(**options))
    with pytest.raises(errors.StrategyError, match=inner.__name__):
        strategy.start(grid, record(initial()), num_rounds=1)


def test_fedprox_works_unchanged(tmp_path, rng):
    options = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "bfv", inner=FedProx(proximal_mu=0.1, **options))
    strategy.start(grid, record(initial()), num_rounds=2)
    np.testing.assert_allclose(strategy.open_model(decryptor)[0], simulate(goals, [1] * 5, 2)[0], atol=1e-3)
    assert grid.sent[0][1]["config"]["proximal-mu"] == 0.1


def test_delta_mode_catches_up_and_recovers_lost_state(tmp_path, rng, caplog):
    caplog.set_level(logging.WARNING)
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta")
    inner = FedAvg(fraction_train=0.4, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=CLIENTS)
    strategy, grid, goals, seen, decryptor = setup(tmp_path, rng, "bfv", codec=codec, inner=inner)
    lost = []

    original = strategy.configure_train

    def lose_one(server_round, arrays, config, used):
        messages = list(original(server_round, arrays, config, used))
        if server_round == 6:
            lost.append(messages[0].metadata.dst_node_id - 1000)
            # What Flower keeps of a client, which is none of it.
            grid.forget(lost[0])
        return messages

    strategy.configure_train = lose_one
    strategy.start(grid, record(initial()), num_rounds=12)
    # Whoever is sampled sees the very same global model, however long it was away.
    for number in range(1, 13):
        models = [arrays for r, _, arrays in seen if r == number]
        for other in models[1:]:
            for a, b in zip(models[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(strategy.open_model(decryptor)[0].shape, (20, 30))
    final = next(arrays for r, _, arrays in seen if r == 12)
    run = strategy.run.model.folder
    chain = Chain(run.charter, strategy.setup.scheme, run.context, first=run.first())
    for step in range(1, run.count):
        chain.step(decryptor, run.step(step), run.round_of(step))
    np.testing.assert_array_equal(chain.model[0], final[0])
    assert not [c for r in strategy.rounds for c in r.clients if c.left_out]


@pytest.mark.parametrize("name", ["flashe", pytest.param("bfv", marks=pytest.mark.long)])
def test_sparse_updates_through_flower(tmp_path, rng, name):
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta", top=0.2)
    strategy, grid, goals, seen, decryptor = setup(tmp_path, rng, name, codec=codec)
    goals[:] = [goals[0]] * CLIENTS
    # Small steps: what a coordinate has to wait for its turn comes at once, and must not carry it past its goal.
    grid.app = make_app(goals, [10] * CLIENTS, seen, step=0.05)
    strategy.start(grid, record(initial()), num_rounds=60)
    assert all(c.left_out is None for r in strategy.rounds for c in r.clients)
    for number in (2, 30, 60):
        models = [arrays for r, _, arrays in seen if r == number]
        assert len(models) == CLIENTS
        assert all(np.array_equal(a, b) for other in models for a, b in zip(other, models[0], strict=True))
    final = strategy.open_model(decryptor)[0]
    assert np.abs(final - goals[0][0]).mean() < 0.25 * np.abs(goals[0][0]).mean()
    assert strategy.rounds[-1].elements == 127
    assert name == "bfv" or strategy.rounds[-1].clients[0].phases["upload_bytes"] < 600 + ANSWERS


def test_sparse_updates_of_each_clients_choice_through_flower(tmp_path, rng):
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta")
    params = {"per_client_top": 0.2, "masking": "adaptive"}
    strategy, grid, goals, _, decryptor = setup(tmp_path, rng, "flashe", params=params, codec=codec)
    goals[:] = [goals[0]] * CLIENTS
    strategy.start(grid, record(initial()), num_rounds=40)
    assert np.abs(strategy.open_model(decryptor)[0] - goals[0][0]).max() < 0.05
    assert strategy.rounds[-1].clients[0].phases["upload_bytes"] < 1700 + ANSWERS


@pytest.mark.parametrize("params", [{"top": 0.1}, {"per_client_top": 0.1}], ids=["common", "own"])
@pytest.mark.parametrize("context", ["kept", "new"])
def test_what_a_run_has_not_sent_is_not_the_next_runs(tmp_path, rng, params, context):
    """Nobody of the second moves: what comes to it is the first one's."""
    top, own = params.get("top"), {k: v for k, v in params.items() if k != "top"}
    codec = fedcipher.Codec(bits=16, clip=2.0, target="delta", top=top)
    strategy, grid, goals, seen, decryptor = setup(tmp_path, rng, "flashe", codec=codec, params=own)
    strategy.start(grid, record(initial()), num_rounds=2)
    for shapes in ([x.shape for x in initial()], [(7,), (2, 3)]):
        second = [np.full(shape, 0.25, np.float32) for shape in shapes]
        grid.app = make_app([second] * CLIENTS, [10] * CLIENTS, seen)
        if context == "new":
            grid = LocalGrid(grid.app, CLIENTS, tmp_path / "keys")
        strategy.start(grid, record(second), num_rounds=3)
        assert all(made.accepted == CLIENTS for made in strategy.rounds)
        for got, want in zip(strategy.open_model(decryptor), second, strict=True):
            # Nothing but what rounding leaves of nothing.
            np.testing.assert_allclose(got, want, atol=4 * 2.0 / 2**16)


@pytest.mark.parametrize("target", ["delta", "weights"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4, 1)])
def test_an_array_of_another_shape_is_the_clients_own_mistake(tmp_path, rng, caplog, target, shape):
    codec = fedcipher.Codec(bits=16, clip=2.0, target=target)
    strategy, grid, goals, seen, _ = setup(tmp_path, rng, "flashe", codec=codec)
    start = [np.zeros((4,), np.float32), np.zeros((2, 3), np.float32)]
    goals[:] = [[np.ones((4,), np.float32), np.ones((2, 3), np.float32)] for _ in range(CLIENTS)]
    honest = make_app(goals, [10] * CLIENTS, seen)
    odd = ClientApp(mods=[client_mod])

    @odd.train()
    def train(msg, ctxt):
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"arrays": record([np.ones(shape), goals[0][1]]), "metrics": metrics}), reply_to=msg)

    grid.app = lambda message, context: (odd if context.node_config["partition-id"] == 1 else honest)(message, context)
    strategy.start(grid, record(start), num_rounds=1)
    # Seen after training: a frame of zeros, which counts nothing.
    assert not [c for c in strategy.rounds[0].clients if c.left_out]
    assert (
        f"zeros that do not count: the reply's array 'layer/weight' has the shape {shape}, but the model's has (4,)"
        in caplog.text
    )


def test_missing_keys_are_named_to_the_client_only(tmp_path, rng, caplog):
    strategy, grid, *_ = setup(tmp_path, rng, "bfv")
    for context in grid.contexts.values():
        context.run_config["fedcipher-keys"] = str(tmp_path / "elsewhere")
    with pytest.raises(errors.StrategyError, match="none of 1 rounds"):
        strategy.start(grid, record(initial()), num_rounds=1)
    assert len(grid.received) == 2 * CLIENTS and all(reference_of(r) for _, r in grid.received)
    # Whoever reads the server's log finds the cause in the client's by the reference.
    assert str(tmp_path / "elsewhere") in caplog.text
    for client in strategy.rounds[0].clients:
        assert client.left_out.startswith("it refused; the cause is in its log")
        reference = client.left_out.split()[-1]
        assert caplog.text.count(f"refused, reference {reference}: KeyFormatError") == 1
        assert "keygen" not in client.left_out
