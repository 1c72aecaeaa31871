"""Every run ends with a model for whoever may have it, and says so before the first round where it would not."""

import itertools
import logging
import subprocess
import sys
import time

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.adapters.flower.records import SealedArrays
from fedcipher.watch import JsonLines
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)
from scheme_lists import adds, hides, one_key, schemes_that

CLIENTS = 4
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
MEANS = [FedAvg, FedProx]
OF_THE_MEAN = [FedAdam, FedYogi, FedAdagrad, FedAvgM]
OF_EACH = [FedMedian, FedTrimmedAvg, Krum, MultiKrum, Bulyan, QFedAvg]
# Layers, a batch norm's state, a counter, a temperature without dimensions, a mask, a half-precision row.
MODEL = {
    "conv.weight": np.zeros((8, 3, 3), np.float32),
    "norm.running_mean": np.zeros(16, np.float32),
    "norm.running_var": np.ones(16, np.float32),
    "norm.num_batches_tracked": np.array(5, np.int64),
    "temperature": np.array(1.5, np.float32),
    "mask": np.zeros(5, np.bool_),
    "half": np.zeros(6, np.float16),
    "double": np.zeros((2, 2), np.float64),
}
STEP = 2.0**-7
"""Above what four clients that round at random, by weights of 1/8 to 1/2, are off in a first round's wide ranges."""


def fitting(target, model):
    """Ranges of whole models are twice what the last one had, which is not where a batch norm goes."""
    return {n: x for n, x in model.items() if target == "delta" or n != "norm.running_mean"}


def made(name):
    """A strategy of Flower's that is what its name says: its defaults may be those of FedAvg."""
    own = {
        QFedAvg: {"client_learning_rate": 0.1},
        FedAvgM: {"server_momentum": 0.9},
        Krum: {"num_malicious_nodes": 1},
        MultiKrum: {"num_malicious_nodes": 1},
        Bulyan: {"num_malicious_nodes": 1},
    }
    # The smaller tau, the more a step of the codec is magnified.
    adaptive = {"tau": 0.1} if name in (FedAdam, FedYogi, FedAdagrad) else {}
    return name(**ALL, **own.get(name, adaptive))


class Apps:
    """Keys, clients that train towards their own goals, and what they saw."""

    def __init__(self, folder, *, model=MODEL, codec=None, goals=None, mods=(client_mod,), name="bfv", **params):
        self.folder, self.model, self.seen = folder, model, []
        codec = codec or fedcipher.Codec(bits=16)
        params = {"max_weight": 8, **params}
        self.scheme = fedcipher.scheme(name, clients=CLIENTS + 1, codec=codec, **params)
        # One client more than ever trains: the auditor.
        self.keys = keys.save(self.scheme.keygen(CLIENTS + 1), self.scheme, folder / "keys", examples_per_weight=10)
        self.goals = goals or [self.goal(k) for k in range(CLIENTS)]
        self.examples = [10, 20, 30, 40]
        app = ClientApp(mods=list(mods))

        @app.train()
        def train(msg, ctxt):
            (client, arrays) = ctxt.node_config["partition-id"], msg.content["arrays"]
            self.seen.append((msg.content["config"]["server-round"], client, arrays))
            moved = {n: self.moved(n, a.numpy(), client) for n, a in arrays.items()}
            metrics = MetricRecord({"num-examples": self.examples[client], "loss": 1.0})
            return Message(RecordDict({"arrays": record(moved.values(), moved), "metrics": metrics}), reply_to=msg)

        @app.evaluate()
        def evaluate(msg, ctxt):
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "error": 0.5})}), reply_to=msg)

        self.grid = LocalGrid(app, CLIENTS, self.keys)
        self.auditor = self.keys / f"client-{CLIENTS}.key"

    def goal(self, client):
        rng = np.random.default_rng(client)
        goal = {n: rng.normal(0, 0.3, x.shape) for n, x in self.model.items()}
        if "norm.running_mean" in goal:
            goal["norm.running_mean"] = rng.normal(0, 3, 16)
        if "mask" in goal:
            goal["mask"] = np.arange(5) < 2 + (client > 1)
        return goal

    def moved(self, name, old, client):
        if old.dtype.kind == "i":
            return np.asarray(old + 7 + client)
        if old.dtype.kind == "b":
            return self.goals[client][name]
        return np.asarray(0.5 * old + 0.5 * self.goals[client][name], old.dtype)

    def in_the_clear(self, strategy, rounds):
        """What the strategy itself makes of what the clients send."""
        model = {n: x.copy() for n, x in self.model.items()}
        for number in range(1, rounds + 1):
            from flwr.app import ConfigRecord

            sent = list(strategy.configure_train(number, record(model.values(), model), ConfigRecord(), self.grid))
            replies = []
            for message in sent:
                client = message.metadata.dst_node_id - 1000
                moved = {n: self.moved(n, x, client) for n, x in model.items()}
                metrics = MetricRecord({"num-examples": self.examples[client]})
                content = RecordDict({"arrays": record(moved.values(), moved), "metrics": metrics})
                replies.append(Message(content, reply_to=message))
            arrays, _ = strategy.aggregate_train(number, replies)
            # Flower's mean of whole numbers is a float; an app's clients train on from the rounded one.
            model = {n: cast_as(arrays[n].numpy(), x) for n, x in model.items()}
        return model

    def start(self, inner=None, rounds=3, initial=None, evaluate_fn=None, **options):
        strategy = SecureStrategy(inner or FedAvg(**ALL), self.keys, **options)
        first = record(self.model.values(), self.model) if initial is None else initial
        return strategy, strategy.start(self.grid, first, num_rounds=rounds, evaluate_fn=evaluate_fn)


def cast_as(values, like):
    if like.dtype.kind == "b":
        return np.asarray(values >= 0.5)
    return np.asarray(np.rint(values) if like.dtype.kind == "i" else values).astype(like.dtype)


def same(got, want, tolerance=STEP):
    assert list(got) == list(want)
    for name, x in want.items():
        assert got[name].shape == x.shape, name
        if x.dtype.kind in "bi":
            np.testing.assert_array_equal(got[name], x, name)
        else:
            np.testing.assert_allclose(got[name], x, atol=tolerance, err_msg=name)


def named_arrays(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


@pytest.mark.parametrize("target", ["delta", "weights"])
@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_a_client_opens_what_the_run_ended_with(tmp_path, name, target, capsys):
    apps = Apps(tmp_path, model=fitting(target, MODEL), name=name, codec=fedcipher.Codec(bits=16, target=target))
    strategy, result = apps.start(out=tmp_path / "run", rounds=4)
    want = apps.in_the_clear(FedAvg(**ALL), 4)
    tolerance = STEP if target == "delta" else 4 * STEP
    for k in (0, 3, CLIENTS):
        opened = open_run(tmp_path / "run", apps.keys / f"client-{k}.key")
        same(opened, want, tolerance)
        assert [x.dtype for x in opened.values()] == [x.dtype for x in apps.model.values()]
    out = tmp_path / "model.npz"
    arguments = ["open", str(tmp_path / "run"), "--key", str(apps.keys / "client-1.key"), "--out", str(out)]
    assert cli.main(arguments) == 0 and f"{len(want)} arrays" in capsys.readouterr().out
    with np.load(out) as loaded:
        same(dict(loaded), want, tolerance)
    # What an app would save as its model refuses to be read, and says where the model is.
    assert isinstance(result.arrays, SealedArrays)
    for read in (
        result.arrays.to_numpy_ndarrays,
        result.arrays.to_torch_state_dict,
        result.arrays.items,
        lambda: result.arrays["half"],
        lambda: list(result.arrays),
    ):
        with pytest.raises(errors.SealedModelError, match=r"run.*fedcipher open.*opener"):
            read()
    assert str(result) and strategy.rounds[-1].accepted == CLIENTS


def test_weights_and_integers_are_those_of_fedavg(tmp_path):
    apps = Apps(tmp_path)
    _, result = apps.start(opener=apps.auditor, rounds=3)
    want = apps.in_the_clear(FedAvg(**ALL), 3)
    # From 5, 7 more a round, and the weighted mean of 0, 1, 2, 3: 2, exactly.
    assert result.arrays["norm.num_batches_tracked"].numpy() == 5 + 3 * 9
    same(named_arrays(result.arrays), want)


def test_whole_numbers_stay_whole_in_whatever_order_replies_come(tmp_path, monkeypatch):
    """Flower's mean of 32 with weights .3 .2 .4 .1 is 31.999999999999996: neither another model nor 31."""
    apps = Apps(tmp_path)
    orders = list(itertools.permutations(range(CLIENTS)))
    # Replies come in the order of Flower's sample: each of them once, whichever is the first.
    sampled = itertools.cycle(orders)
    monkeypatch.setattr("random.sample", lambda nodes, _: [sorted(nodes)[k] for k in next(sampled)])
    training = FedAvg(**{**ALL, "fraction_evaluate": 0.0, "min_evaluate_nodes": 0})
    strategy, result = apps.start(training, opener=apps.auditor, rounds=len(orders))
    assert result.arrays["norm.num_batches_tracked"].numpy() == 5 + 9 * len(orders)
    # No model of the inner strategy's own was sent in the clear.
    assert strategy.run.model.folder.set_model() is None


@pytest.mark.parametrize(
    ("inner", "target"),
    [*itertools.product(MEANS, ["delta", "weights"]), *((inner, "delta") for inner in OF_THE_MEAN)],
)
def test_with_an_opener_a_run_is_as_in_any_flower_app(tmp_path, inner, target):
    model = fitting(target, {n: x for n, x in MODEL.items() if x.dtype.kind == "f" and x.ndim})
    apps = Apps(tmp_path, model=model, codec=fedcipher.Codec(bits=20, target=target))
    scores = {}

    def evaluate(number, arrays):
        scores[number] = {n: a.numpy() for n, a in arrays.items()}
        return MetricRecord({"mean": float(scores[number]["double"].mean())})

    _, result = apps.start(made(inner), 4, evaluate_fn=evaluate, opener=apps.auditor)
    want = apps.in_the_clear(made(inner), 4)
    same(named_arrays(result.arrays), want, 4 * STEP)
    assert sorted(scores) == [0, 1, 2, 3, 4] and sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]
    same(scores[4], named_arrays(result.arrays), 0)
    # Clients trained from what the server evaluated, and all from the same.
    for number in range(1, 5):
        for number_seen, _, arrays in apps.seen:
            if number_seen == number:
                same({n: a.numpy() for n, a in arrays.items()}, scores[number - 1], 0)


def test_a_metric_of_the_server_that_no_float_holds_ends_no_run(tmp_path):
    apps = Apps(tmp_path, model=fitting("delta", {n: x for n, x in MODEL.items() if x.dtype.kind == "f" and x.ndim}))
    log = JsonLines(tmp_path / "log.jsonl")
    strategy, _ = apps.start(
        evaluate_fn=lambda *_: MetricRecord({"large": 10**400, "small": -(10**400), "right": 2**53}),
        opener=apps.auditor,
        on_round=log,
    )
    assert [r.metrics["server"] for r in strategy.rounds] == [
        {"large": float("inf"), "small": -float("inf"), "right": 2**53}
    ] * 3
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("inner", OF_THE_MEAN)
def test_a_step_of_whole_models_is_refused_before_the_first_round(tmp_path, inner, opened):
    """Clients make the step, from changes, also where the server may open sums."""
    apps = Apps(tmp_path, codec=fedcipher.Codec(bits=16, target="weights"))
    where = {"opener": apps.auditor} if opened else {"out": tmp_path / "run"}
    with pytest.raises(errors.StrategyError, match=rf"^the clients make the step of {inner.__name__} from"):
        apps.start(made(inner), **where)
    assert apps.grid.sent == []


@pytest.mark.parametrize("inner", OF_EACH)
def test_without_an_opener_what_looks_at_single_updates_is_refused(tmp_path, inner):
    apps = Apps(tmp_path)
    with pytest.raises(errors.StrategyError, match=rf"^{inner.__name__} "):
        apps.start(made(inner), out=tmp_path / "run")
    assert apps.grid.sent == [] and not (tmp_path / "run").exists()


@pytest.mark.parametrize("inner", OF_EACH)
def test_with_an_opener_what_looks_at_single_updates_is_refused(tmp_path, inner):
    apps = Apps(tmp_path)
    with pytest.raises(errors.StrategyError, match=rf"^{inner.__name__} "):
        apps.start(made(inner), opener=apps.auditor)
    assert apps.grid.sent == []


@pytest.mark.parametrize("how", ["out", "opener", "sets_models"])
@pytest.mark.parametrize(
    "inner", [Bulyan(**ALL), FedTrimmedAvg(beta=0.01, **ALL), MultiKrum(num_nodes_to_select=100, **ALL)]
)
def test_what_could_look_at_single_updates_is_refused_before_the_first_message(tmp_path, inner, how):
    """With these numbers they are the mean of few clients; of more, or with others, they would not be."""
    apps = Apps(tmp_path)
    where = {"out": tmp_path / "run"} if how == "out" else {"opener": apps.auditor, "sets_models": how != "opener"}
    with pytest.raises(errors.StrategyError, match=rf"^{type(inner).__name__} looks at single updates"):
        apps.start(inner, **where)
    assert apps.grid.sent == []


@pytest.mark.parametrize("opened", [False, True])
def test_trees_of_xgboost_are_refused_by_name(tmp_path, opened):
    apps = Apps(tmp_path)
    where = {"opener": apps.auditor} if opened else {"out": tmp_path / "run"}
    with pytest.raises(errors.StrategyError, match=r"^FedXgbBagging .*average arrays"):
        apps.start(FedXgbBagging(**ALL), **where)
    assert apps.grid.sent == []


EVALUATES = {**ALL, "fraction_train": 0.0}


@pytest.mark.parametrize("how", ["out", "opener", "sets_models"])
def test_a_run_may_evaluate_and_train_nobody(tmp_path, how):
    apps = Apps(tmp_path)
    where = {"out": tmp_path / "run"} if how == "out" else {"opener": apps.auditor, "sets_models": how != "opener"}
    strategy, result = apps.start(FedAvg(**EVALUATES), rounds=1, evaluate_answers=["error"], **where)
    (made,) = strategy.rounds
    assert made.unfinished is None and [c.left_out for c in made.evaluations] == [None] * CLIENTS
    assert apps.seen == [] and len(apps.grid.sent) == CLIENTS
    if how == "out":
        with pytest.raises(errors.RunError, match="its model is still the first one"):
            open_run(tmp_path / "run", apps.keys / "client-1.key")
    else:
        assert result.evaluate_metrics_clientapp[1]["error"] == pytest.approx(0.5, abs=1e-3)
    same(named_arrays(result.arrays), MODEL, 0)


@pytest.mark.parametrize("rounds", [2, 3, 7])
def test_a_run_that_trains_nobody_has_one_round(tmp_path, rounds):
    """A client evaluates a model once; it would refuse the second."""
    apps = Apps(tmp_path)
    with pytest.raises(errors.StrategyError, match=r"does not train in.*num_rounds=1"):
        apps.start(FedAvg(**EVALUATES), opener=apps.auditor, rounds=rounds, evaluate_answers=["error"])
    assert apps.grid.sent == []


@pytest.mark.parametrize("tampered", [lambda *_: None, lambda m, reply, k: reply if k < 2 else None])
def test_a_run_that_evaluates_nothing_is_no_success(tmp_path, tampered):
    apps = Apps(tmp_path)
    apps.grid.tamper = tampered
    with pytest.raises(errors.StrategyError, match="its evaluation has no sum of answers"):
        apps.start(FedAvg(**EVALUATES), opener=apps.auditor, rounds=1, evaluate_answers=["error"])


class Emptying(FedAvg):
    """Empties each record that it has read, as Flower's own do that have `keep_input=False`."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        names = list(replies[0].content["arrays"])
        read = [reply.content["arrays"].to_numpy_ndarrays(keep_input=False) for reply in replies]
        weights = [float(reply.content["metrics"][self.weighted_by_key]) for reply in replies]
        means = [np.asarray(np.average(arrays, axis=0, weights=weights)) for arrays in zip(*read, strict=True)]
        return record(means, names), MetricRecord()


@pytest.mark.parametrize("sets_models", [False, True])
def test_a_strategy_may_empty_the_records_that_it_has_read(tmp_path, sets_models):
    apps = Apps(tmp_path)
    strategy, result = apps.start(Emptying(**ALL), opener=apps.auditor, sets_models=sets_models, rounds=2)
    assert [made.accepted for made in strategy.rounds] == [CLIENTS] * 2
    same(named_arrays(result.arrays), apps.in_the_clear(FedAvg(**ALL), 2))


def test_what_would_lose_the_model_is_refused_before_the_first_round(tmp_path):
    apps = Apps(tmp_path)
    with pytest.raises(errors.StrategyError, match=r"out=.*opener="):
        apps.start()
    with pytest.raises(errors.StrategyError, match=r"evaluate_fn.*opener="):
        apps.start(out=tmp_path / "run", evaluate_fn=lambda *_: None)
    with pytest.raises(errors.StrategyError, match="empty"):
        apps.start(out=tmp_path / "run", initial=ArrayRecord())
    with pytest.raises(errors.StrategyError, match=r"is not a model to start from.*fedcipher open"):
        apps.start(out=tmp_path / "run", initial=SealedArrays(tmp_path / "old"))
    with pytest.raises(errors.LayoutError, match=r"'z'.*complex128"):
        apps.start(out=tmp_path / "run", initial=record([np.zeros(2, np.complex64).astype(np.complex128)], ["z"]))
    with pytest.raises(errors.CodecError, match=r"'w'.*NaN"):
        apps.start(out=tmp_path / "run", initial=record([np.full(2, np.nan, np.float32)], ["w"]))

    class Starts(FedAvg):
        def start(self, *args, **kwargs):
            raise AssertionError

    class Saves(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            np.savez(tmp_path / "saved.npz", *arrays.to_numpy_ndarrays())
            return arrays, metrics

    with pytest.raises(errors.StrategyError, match=r"Starts has a start\(\) of its own"):
        apps.start(Starts(**ALL), opener=apps.auditor)
    with pytest.raises(errors.StrategyError, match=r"Saves has an aggregate_train\(\) of its own.*opener"):
        apps.start(Saves(**ALL), out=tmp_path / "run")
    with pytest.raises(errors.StrategyError, match=r"flwr.serverapp.strategy"):
        from flwr.server.strategy import FedAvg as Older

        SecureStrategy(Older(), apps.keys)
    assert apps.grid.sent == []
    # The one that saves has a model to save where the server may see it.
    _, result = apps.start(Saves(**ALL), rounds=2, opener=apps.auditor)
    with np.load(tmp_path / "saved.npz") as saved:
        for got, want in zip(saved.values(), result.arrays.to_numpy_ndarrays(), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3)


def test_a_strategy_that_only_reads_metrics_says_so_and_runs(tmp_path):
    class Counts(FedAvg):
        fedcipher_blind = True

        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)

    apps = Apps(tmp_path)
    strategy, _ = apps.start(Counts(**ALL), out=tmp_path / "run", rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS


class Sends(FedAvg):
    """Changes the content of its messages on the way."""

    def __init__(self, change):
        super().__init__(**ALL)
        self.change = change

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content = RecordDict(dict(message.content.items()))
            self.change(message.content)
        return messages


@pytest.mark.parametrize("opened", [False, True])
def test_further_arrays_of_the_server_reach_the_app_beside_the_model(tmp_path, opened):
    """As SCAFFOLD's control variates: the server's own, which it sends in the clear."""
    seen = []

    def looking(msg, ctxt, call_next):
        if msg.metadata.message_type == "train":
            seen.append((list(msg.content["arrays"]), msg.content["control"]["c"].numpy()))
        return call_next(msg, ctxt)

    apps = Apps(tmp_path, mods=(client_mod, looking))
    control = record([np.arange(3.0)], ["c"])
    inner = Sends(lambda content: content.update(control=control))
    strategy, _ = apps.start(inner, rounds=2, **({"opener": apps.auditor} if opened else {"out": tmp_path / "run"}))
    assert [r.accepted for r in strategy.rounds] == [CLIENTS, CLIENTS]
    assert [names for names, _ in seen] == [list(MODEL)] * 2 * CLIENTS
    assert all((c == np.arange(3)).all() for _, c in seen)


def fewer(content):
    first = next(iter(content["arrays"]))
    content["arrays"] = ArrayRecord({n: a for n, a in content["arrays"].items() if n != first})


def other(content):
    content["arrays"] = ArrayRecord({n: Array(np.asarray(a.numpy() + 1)) for n, a in content["arrays"].items()})


@pytest.mark.parametrize("change", [fewer, other, lambda content: content.update(again=content["arrays"])])
@pytest.mark.parametrize("opened", [False, True])
def test_a_strategy_that_sends_clients_another_model_is_refused_by_name(tmp_path, change, opened):
    apps = Apps(tmp_path, model={n: x for n, x in MODEL.items() if x.dtype.kind == "f"})
    with pytest.raises(errors.StrategyError, match=r"Sends sends node \d+ other arrays than it was given"):
        apps.start(Sends(change), **({"opener": apps.auditor} if opened else {"out": tmp_path / "run"}))
    assert apps.grid.sent == []


def test_noise_of_a_strategy_around_ours_never_gets_lost(tmp_path):
    class Noise(FedAvg):
        """As Flower's server-side differential privacy: a strategy around another."""

        def __init__(self, inside):
            super().__init__(**ALL)
            self.inside = inside
            self.configure_train, self.configure_evaluate = inside.configure_train, inside.configure_evaluate
            self.aggregate_evaluate = inside.aggregate_evaluate

        def aggregate_train(self, server_round, replies):
            arrays, metrics = self.inside.aggregate_train(server_round, replies)
            noised = {n: np.asarray(a.numpy() + np.ones_like(a.numpy())) for n, a in arrays.items()}
            return record(noised.values(), noised), metrics

    class Other(Noise):
        def aggregate_train(self, server_round, replies):
            return record(MODEL.values(), MODEL), self.inside.aggregate_train(server_round, replies)[1]

    # Flower's own error, for a strategy that reads what it cannot.
    for around, error, said in (
        (Noise, TypeError, "encrypted frame.*opener="),
        (Other, errors.StrategyError, r"not those that the last round returned.*client_mod"),
    ):
        apps = Apps(tmp_path / around.__name__)
        with pytest.raises(error, match=said):
            blind = SecureStrategy(FedAvg(**ALL), apps.keys, out=tmp_path / f"run-{around.__name__}")
            around(blind).start(apps.grid, record(MODEL.values(), MODEL), num_rounds=2)
    floats = {n: x for n, x in MODEL.items() if x.dtype.kind == "f"}
    apps = Apps(tmp_path / "second", model=floats)
    unsaid = SecureStrategy(FedAvg(**ALL), apps.keys, opener=apps.auditor)
    with pytest.raises(
        errors.StrategyError, match=r"a model that does not follow from the clients' mean.*sets_models=True"
    ):
        Noise(unsaid).start(apps.grid, record(floats.values(), floats), num_rounds=2)
    apps.seen.clear()
    sees = SecureStrategy(FedAvg(**ALL), apps.keys, opener=apps.auditor, sets_models=True)
    Noise(sees).start(apps.grid, record(floats.values(), floats), num_rounds=2)
    means = {
        n: np.average([apps.moved(n, x, k) for k in range(4)], axis=0, weights=[1, 2, 3, 4]) for n, x in floats.items()
    }
    for number, _, arrays in apps.seen:
        if number == 2:
            same(named_arrays(arrays), {n: x + 1 for n, x in means.items()}, 2 * STEP)


def test_server_side_privacy_of_flower_around_ours_fails_loudly(tmp_path):
    apps = Apps(tmp_path)
    inside = SecureStrategy(FedAvg(**ALL), apps.keys, opener=apps.auditor)
    around = DifferentialPrivacyServerSideFixedClipping(inside, 0.5, 1.0, CLIENTS)
    with pytest.raises(Exception):  # noqa: B017
        around.start(apps.grid, record(MODEL.values(), MODEL), num_rounds=2)
    with pytest.raises(errors.StrategyError, match="DifferentialPrivacyServerSideFixedClipping"):
        apps.start(DifferentialPrivacyServerSideFixedClipping(FedAvg(**ALL), 0.5, 1.0, CLIENTS), opener=apps.auditor)


def test_each_start_is_a_run_of_its_own(tmp_path):
    apps = Apps(tmp_path)
    strategy, first = apps.start(opener=apps.auditor, out=tmp_path / "run", rounds=2)
    again = strategy.start(apps.grid, record(MODEL.values(), MODEL), num_rounds=2)
    same(named_arrays(again.arrays), named_arrays(first.arrays), STEP)
    # And one goes on from where another ended.
    further = strategy.start(apps.grid, again.arrays, num_rounds=1)
    want = apps.in_the_clear(FedAvg(**ALL), 3)
    same(named_arrays(further.arrays), want)
    assert [(tmp_path / name).is_dir() for name in ("run", "run-2", "run-3")] == [True] * 3
    for name in ("run", "run-2"):
        same(open_run(tmp_path / name, apps.keys / "client-2.key"), named_arrays(again.arrays), STEP)


def test_a_run_of_an_opener_that_changes_the_model_opens_too(tmp_path):
    floats = {n: x for n, x in MODEL.items() if x.dtype.kind == "f"}
    apps = Apps(tmp_path, model=floats)
    _, result = apps.start(FedAdam(**ALL), opener=apps.auditor, out=tmp_path / "run")
    same(open_run(tmp_path / "run", apps.keys / "client-0.key"), named_arrays(result.arrays), 0)


def test_sampling_more_than_the_keys_have_room_for_is_refused_at_the_start(tmp_path):
    apps = Apps(tmp_path)
    narrow = fedcipher.scheme("bfv", clients=3, codec=apps.scheme.codec)
    folder = keys.save(narrow.keygen(CLIENTS), narrow, tmp_path / "narrow")
    strategy = SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "run")
    with pytest.raises(errors.StrategyError, match=r"sampled 4 clients.*room for 3.*--per-round 4"):
        strategy.start(apps.grid, record(MODEL.values(), MODEL), num_rounds=1)
    assert apps.grid.sent == []


class LooksOften(FedAvg):
    """Looks at the nodes once a cluster, and waits for none."""

    def configure_train(self, server_round, arrays, config, grid):
        seen = [len(list(grid.get_node_ids())) for _ in range(40)]
        assert len(set(seen)) == 1
        return super().configure_train(server_round, arrays, config, grid)


class WaitsForItsOwnNumber(FedAvg):
    """Waits, as Flower's strategies do, for a number of nodes that it keeps under a name of its own."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        while len(list(grid.get_node_ids())) < 5:
            time.sleep(0.05)
        return super().configure_evaluate(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    "inner",
    [
        FedAvg(min_train_nodes=5),
        FedAvg(min_evaluate_nodes=5),
        WaitsForItsOwnNumber(),
        LooksOften(min_evaluate_nodes=None, fraction_evaluate=0.0),
        FedAdam(min_train_nodes=5, fraction_train=0.1),
    ],
)
def test_no_strategy_waits_for_nodes_before_the_run_begins(tmp_path, inner):
    """The strategy is tried on made-up nodes: fewer than it waits for, and the server hung without a word."""
    scheme = fedcipher.scheme("plain", clients=5)
    folder = keys.save(scheme.keygen(5), scheme, tmp_path / "keys")
    grid = LocalGrid(make_app([initial()] * 5, [10] * 5), 5, folder)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run")
    strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == 5


def test_clipping_is_named_and_passes(tmp_path, caplog):
    far = [
        {**Apps.goal(type("M", (), {"model": MODEL})(), k), "norm.running_mean": np.full(16, 400.0)} for k in range(4)
    ]
    apps = Apps(tmp_path, goals=far, codec=fedcipher.Codec(bits=16, start=1.0))
    strategy, _ = apps.start(out=tmp_path / "run", opener=apps.auditor, rounds=8)
    assert any("coding kept" in line and "% of norm.running_mean" in line for line in caplog.messages)
    assert "% of the values were cut to their clip range, so the model is not the exact mean" in caplog.text
    assert strategy.rounds[0].clipped_share > 0.01 and strategy.rounds[-1].clipped_share == 0
    # 32 of the 200 in the first round, twice as much as was reached in each after it.
    reached = open_run(tmp_path / "run", apps.keys / "client-0.key")["norm.running_mean"]
    assert np.all(reached > 300)


def test_a_tensor_that_is_rounded_to_nothing_is_named(tmp_path, caplog):
    model = {"kernel": np.full((4, 3), 2.0), "norm.var": np.full(6, 0.01)}
    codec = fedcipher.Codec(bits=8, clip=5.0, target="weights")
    strategy, _ = Apps(tmp_path, model=model, codec=codec, goals=[model] * 4).start(opener="client-4.key", rounds=1)
    assert "all 6 values of 'norm.var' are below half a step of their range" in caplog.text
    assert "6 values of a client, whole tensors, are below half a step" in caplog.text
    assert "all 12 values" not in caplog.text
    assert strategy.rounds[0].mean("vanished") == 6
    caplog.clear()
    finer = fedcipher.Codec(bits=8, clip=(5.0, 0.1), target="weights")
    (tmp_path / "finer").mkdir()
    Apps(tmp_path / "finer", model=model, codec=finer, goals=[model] * 4).start(out=tmp_path / "finer/run", rounds=1)
    assert "half a step" not in caplog.text


def test_tensors_of_several_bits_are_averaged_each_to_its_own_step(tmp_path):
    model = {"conv": np.zeros((3, 4)), "fc": np.zeros(7)}
    goals = [{name: np.random.default_rng(k).normal(0, 0.3, x.shape) for name, x in model.items()} for k in range(4)]
    apps = Apps(tmp_path, model=model, codec=fedcipher.Codec(bits=(8, 16)), goals=goals)
    strategy, _ = apps.start(out=tmp_path / "run", rounds=3)
    assert all(round_.clipped_share == 0 for round_ in strategy.rounds)
    reached, exact = open_run(tmp_path / "run", apps.auditor), apps.in_the_clear(FedAvg(**ALL), 3)
    off = {name: float(np.sqrt(np.mean((reached[name] - exact[name]) ** 2))) for name in model}
    # Clients round at random, by a step of 254 levels at most; 16 bits have more levels, and none is cut in either.
    assert 3 * off["fc"] < off["conv"] < 3 / 254


def test_a_batch_norm_is_not_cut_in_the_first_round(tmp_path, caplog):
    apps = Apps(tmp_path)
    strategy, _ = apps.start(out=tmp_path / "run", rounds=1)
    assert strategy.rounds[0].clipped_share == 0 and "cut to" not in caplog.text
    same(open_run(tmp_path / "run", apps.auditor), apps.in_the_clear(FedAvg(**ALL), 1))


@pytest.mark.long
def test_two_hundred_rounds(tmp_path):
    model = {"coef": np.zeros((3, 4)), "intercept": np.zeros(3)}
    apps = Apps(tmp_path, model=model, name="flashe")
    strategy, _ = apps.start(out=tmp_path / "run", rounds=200)
    assert all(r.accepted == CLIENTS for r in strategy.rounds)
    # Each client rounds its share at random: six standard errors of one round's mean, not of two hundred.
    same(open_run(tmp_path / "run", apps.auditor), apps.in_the_clear(FedAvg(**ALL), 200), 1e-4)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_last_sum_that_no_client_has_tried_is_said(tmp_path, caplog, evaluates):
    inner = FedAvg(**ALL) if evaluates else FedAvg(**{**ALL, "fraction_evaluate": 0.0, "min_evaluate_nodes": 0})
    Apps(tmp_path).start(inner, out=tmp_path / "run", rounds=2)
    assert ("no client has opened the last round's sum" in caplog.text) is not evaluates


def test_what_protects_the_run_is_in_flowers_log(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    apps = Apps(tmp_path)
    apps.start(out=tmp_path / "run", rounds=2)
    (charter, *shown) = [
        r.getMessage() for r in caplog.records if r.name == "flwr" and r.getMessage().startswith("Fedcipher")
    ]
    assert "has the digest" in charter
    assert "encrypted with Bfv" in shown[0] and "at least 3 clients" in shown[0] and "sees no model" in shown[0]
    assert [("round 1:" in shown[1], "sum of 4" in shown[1]), "round 2:" in shown[2]] == [(True, True), True]
    assert "fedcipher open" in shown[3]


def test_a_server_that_holds_a_key_says_what_it_could_open(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    apps = Apps(tmp_path)
    # By its name, beside the server's.
    _, result = apps.start(opener=f"client-{CLIENTS}.key", rounds=1)
    assert "a party that controls the server can open single updates" in caplog.text
    same(named_arrays(result.arrays), apps.in_the_clear(FedAvg(**ALL), 1))


def test_flowers_mod_that_counts_bytes_gets_along(tmp_path):
    apps = Apps(tmp_path, mods=(message_size_mod, client_mod, message_size_mod))
    strategy, _ = apps.start(out=tmp_path / "run", rounds=2)
    assert all(r.accepted == CLIENTS for r in strategy.rounds)


# --- the folder of a run ---------------------------------------------------------------------------


def broken(folder, what):
    files = sorted(folder.glob("aggregate-*"))
    match what:
        case "no folder":
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        case "an aggregate is missing":
            files[1].unlink()
        case "two aggregates change places":
            one, two = (f.read_bytes() for f in files[:2])
            files[0].write_bytes(two)
            files[1].write_bytes(one)
        case "an aggregate is cut":
            files[2].write_bytes(files[2].read_bytes()[:200])
        case "an index that is no JSON":
            (folder / "run.json").write_text("{")
        case "an index of something else":
            (folder / "run.json").write_text("[1]")
        case "no first model":
            next(folder.glob("first.npz")).unlink()
        case "a first model of something else":
            next(folder.glob("first.npz")).write_bytes(b"PK")
        case "an empty first model":
            next(folder.glob("first.npz")).write_bytes(b"")
        case "a first model cut in the middle":
            model = next(folder.glob("first.npz"))
            model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
        case "a bit of the first model":
            model = next(folder.glob("first.npz"))
            whole = bytearray(model.read_bytes())
            # Of the first array's numbers, which are stored as they are.
            whole[whole.index(b"NUMPY") + 130] ^= 1
            model.write_bytes(whole)


@pytest.mark.parametrize(
    "what",
    [
        *("no folder", "an aggregate is missing", "an aggregate is cut", "an index that is no JSON"),
        *("an index of something else", "no first model", "a first model of something else"),
        *("an empty first model", "a first model cut in the middle", "a bit of the first model"),
        "two aggregates change places",
    ],
)
def test_a_damaged_run_is_refused_by_name(tmp_path, what, capsys):
    apps = Apps(tmp_path)
    apps.start(out=tmp_path / "run", rounds=3)
    broken(tmp_path / "run", what)
    arguments = ["open", str(tmp_path / "run"), "--key", str(apps.auditor), "--out", str(tmp_path / "m.npz")]
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert "Error: " in said and "Traceback" not in said and not (tmp_path / "m.npz").exists()


def test_a_run_of_which_no_round_has_an_aggregate_opens_to_no_model(tmp_path, capsys):
    apps = Apps(tmp_path)
    for context in apps.grid.contexts.values():
        context.run_config["fedcipher-keys"] = str(tmp_path / "elsewhere")
    with pytest.raises(errors.StrategyError, match="none of 1 rounds"):
        apps.start(out=tmp_path / "run", rounds=1)
    arguments = ["open", str(tmp_path / "run"), "--key", str(apps.auditor), "--out", str(tmp_path / "m.npz")]
    assert cli.main(arguments) == 2 and not (tmp_path / "m.npz").exists()
    assert "has an aggregate, so its model is still the first one" in capsys.readouterr().err


def test_another_cohorts_key_opens_no_run(tmp_path):
    apps = Apps(tmp_path)
    apps.start(out=tmp_path / "run", rounds=1)
    other = keys.save(apps.scheme.keygen(CLIENTS), apps.scheme, tmp_path / "others")
    with pytest.raises(errors.FedcipherError):
        open_run(tmp_path / "run", other / "client-0.key")
    narrow = fedcipher.scheme("bfv", clients=3, codec=apps.scheme.codec)
    folder = keys.save(narrow.keygen(3), narrow, tmp_path / "narrow")
    with pytest.raises(errors.RunError, match="other keys"):
        open_run(tmp_path / "run", folder / "client-0.key")
    with pytest.raises(errors.StrategyError, match="opener"):
        SecureStrategy(FedAvg(), apps.keys, opener=folder / "client-0.key")


def test_open_writes_where_it_was_told_or_says_why_not(tmp_path):
    apps = Apps(tmp_path)
    apps.start(out=tmp_path / "run", rounds=1)
    command = [sys.executable, "-m", "fedcipher.cli", "open", str(tmp_path / "run"), "--key", str(apps.auditor)]
    done = subprocess.run([*command, "--out", "/proc/x/model.npz"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "RunError: /proc/x/model.npz cannot be written" in done.stderr
    # Names as apps have them, one of which is a parameter of numpy.savez.
    from fedcipher.federation.server.run_folder import save_model

    odd = {"file": np.ones(2), "a/b": np.array(3), "with space": np.zeros((0, 2), np.float32)}
    save_model(tmp_path / "no-suffix", odd)
    with np.load(tmp_path / "no-suffix") as loaded:
        assert {n: x.tolist() for n, x in loaded.items()} == {"file": [1.0, 1.0], "a/b": 3, "with space": []}
