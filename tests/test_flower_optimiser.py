"""Optimisers whose step clients make, because the server sees no mean: Flower's numbers, the same bytes everywhere."""

import json
import logging
import os
import subprocess
import sys
from fractions import Fraction

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.flower import SecureStrategy, client_mod, numpy_client_app, open_run, optimiser, protocol
from fedcipher.flower.optimiser import Optimiser, Steps, apply_delta, in_type_of
from fedcipher.flower.refusal import TEXT, reference_of
from fedcipher.flower.settings import RoundSettings
from flower_harness import LocalGrid, record
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

CLIENTS, ROUNDS = 5, 6
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
SCHEMES = [("plain", {}), ("flashe", {}), ("bfv", {}), ("oneshot", {"corrupt": 0})]
# By how much a step makes an error of the mean larger, at most: eta / tau for the adaptive ones, for their first moment
# and again for the second; and without the momentum's end, 1 / (1 - 0.9).
STEPPED = {
    "adam": (FedAdam, {"tau": 0.1}, 2),
    "yogi": (FedYogi, {"eta": 0.1, "tau": 0.1}, 2),
    "adagrad": (FedAdagrad, {"tau": 0.1}, 2),
    "avgm": (FedAvgM, {"server_momentum": 0.9, "server_learning_rate": 0.8}, 10),
}
MODEL = {"weight": np.zeros((8, 5), np.float32), "bias": np.ones(3), "scale": np.array(1.5, np.float32)}
CODEC = fedcipher.Codec(bits=20, clip=2.0)
STEP = 4 / 2**20


def made(kind, **more):
    cls, numbers, _ = STEPPED[kind]
    return cls(**{**ALL, **numbers, **more})


@pytest.fixture(autouse=True)
def in_order(monkeypatch):
    """Replies come in the order of Flower's sample, and whose update comes first says which model the round is of."""
    monkeypatch.setattr("random.sample", lambda nodes, count: sorted(nodes)[:count])


class Grid(LocalGrid):
    """A server that may not be honest: ``lie(settings, client, round)`` changes the settings of a message."""

    lie = None

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            settings = message.content.config_records.get(protocol.CONFIG)
            if settings is not None and self.lie is not None:
                changed = ConfigRecord(dict(settings))
                number = changed["round"] - changed["run"]
                self.lie(changed, message.metadata.dst_node_id - 1000, number)
                message.content[protocol.CONFIG] = changed
        return super().send_and_receive(messages, timeout=timeout)


class Federation:
    """Clients that go half way to goals of their own, and every model that their app was shown."""

    def __init__(self, folder, name="plain", model=None, codec=CODEC, **params):
        self.folder, self.model, self.shown = folder, model or MODEL, {}
        params = {"min_contributions": 2, **params}
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec, **params)
        self.keys = keys.save(self.scheme.keygen(CLIENTS), self.scheme, folder / "keys")
        rng = np.random.default_rng(5)
        self.goals = [{n: rng.normal(0, 0.3, x.shape) for n, x in self.model.items()} for _ in range(CLIENTS)]
        app = ClientApp(mods=[client_mod])

        @app.train()
        def train(msg, ctxt):
            arrays, client = self.note("train", msg, ctxt), ctxt.node_config["partition-id"]
            moved = self.moved(arrays, client)
            metrics = MetricRecord({"num-examples": 10, "loss": float(client)})
            return Message(RecordDict({"arrays": record(moved.values(), moved), "metrics": metrics}), reply_to=msg)

        @app.evaluate()
        def evaluate(msg, ctxt):
            self.note("evaluate", msg, ctxt)
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "error": 0.5})}), reply_to=msg)

        self.grid = Grid(app, CLIENTS, self.keys)

    def note(self, kind, msg, ctxt):
        arrays = {n: a.numpy() for n, a in msg.content["arrays"].items()}
        self.shown.setdefault((kind, msg.content["config"]["server-round"]), {})[ctxt.node_config["partition-id"]] = {
            n: (x.dtype.str, x.shape, x.tobytes()) for n, x in arrays.items()
        }
        return arrays

    def moved(self, arrays, client):
        return {n: np.asarray(0.5 * x + 0.5 * self.goals[client][n], x.dtype) for n, x in arrays.items()}

    def start(self, inner, rounds=ROUNDS, **options):
        self.strategy = SecureStrategy(inner, self.keys, out=self.folder / "run", committee_timeout=5, **options)
        return self.strategy.start(self.grid, record(self.model.values(), self.model), num_rounds=rounds)

    def in_the_clear(self, strategy, rounds=ROUNDS):
        """Flower's own class on what the clients send, with the model in its types."""
        model = dict(self.model)
        for number in range(1, rounds + 1):
            updates = [self.moved(model, client) for client in range(CLIENTS)]
            model = flowers(strategy, self.grid, number, model, updates)
        return model

    def opened(self, client=0):
        return open_run(self.strategy._model.folder.folder, self.keys / f"client-{client}.key")

    def same_bytes(self, kind, number, clients=range(CLIENTS)):
        """The one model that all these clients were shown."""
        shown = self.shown[kind, number]
        assert sorted(shown) == sorted(clients)
        first = shown[min(clients)]
        assert all(model == first for model in shown.values())
        return first


def as_bytes(model):
    return {n: (x.dtype.str, x.shape, x.tobytes()) for n, x in model.items()}


def flowers(strategy, grid, number, model, updates):
    """One round of Flower's own class on ``updates`` in the clear; its model in the types of ``model``."""
    sent = list(strategy.configure_train(number, record(model.values(), model), ConfigRecord(), grid))
    replies = []
    for message, update in zip(sent, updates, strict=False):
        metrics = MetricRecord({"num-examples": 10})
        replies.append(
            Message(RecordDict({"arrays": record(update.values(), update), "metrics": metrics}), reply_to=message)
        )
    arrays, _ = strategy.aggregate_train(number, replies)
    made = {n: in_type_of(x, arrays[n].numpy()) for n, x in model.items()}
    if isinstance(strategy, FedAvgM):
        # It goes on with fractions of whole numbers, which no client has.
        strategy.current_arrays = record(made.values(), made)
    return made


# --- the step itself -------------------------------------------------------------------------------

MIXED = {
    "single": np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8),
    "double": np.linspace(-1, 1, 7),
    "half": np.linspace(-1, 1, 9).astype(np.float16),
    "scalar": np.array(0.7, np.float32),
    "scalar, double": np.array(-0.3),
    "counter": np.array(5, np.int64),
    "bytes": np.arange(100, 106, dtype=np.uint8),
    "mask": np.array([True, False, True, False]),
    "big-endian": np.linspace(0, 1, 4).astype(">f4"),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        *((kind, {}) for kind in STEPPED),
        ("adam", {"beta_1": 0.0, "tau": 1e-3}),
        ("yogi", {"tau": 1e-3}),
        ("adagrad", {"eta": 0.5, "tau": 1e-3}),
        ("avgm", {"server_momentum": 0.0, "server_learning_rate": 0.3}),
    ],
)
def test_a_step_is_that_of_flowers_class(tmp_path, kind, numbers, monkeypatch):
    """Bit for bit with NumPy 2, which promotes as the steps are written; within rounding with NumPy 1.

    But for the powers in FedAdam's rate: NumPy's are off by a bit on processors with AVX-512, so they are set right.
    """
    monkeypatch.setattr(np, "power", lambda base, exponent: np.float64(float(Fraction(base) ** int(exponent))))
    federation = Federation(tmp_path, model=MIXED)
    strategy = made(kind, **numbers)
    steps = Steps(Optimiser.of(made(kind, **numbers)), 7)
    rng = np.random.default_rng(3)
    model = dict(MIXED)
    for number in range(1, 13):
        # Of one coordinate nothing is ever sent, as in sparse updates.
        delta = {n: rng.normal(0, 0.2, x.shape).astype(np.float32) for n, x in model.items()}
        delta["counter"] = np.array(rng.integers(-3, 4), np.int64)
        delta["bytes"] = rng.integers(-3, 4, 6)
        delta["single"][0] = 0
        delta["half"] = delta["half"].astype(np.float16)
        mean = dict(zip(model, apply_delta(list(model.values()), list(delta.values())), strict=True))
        # Two, because Flower's mean of more of the same is not that to the last bit.
        want = flowers(strategy, federation.grid, number, model, [mean, mean])
        got = dict(zip(model, steps.step(list(model.values()), list(delta.values()), 7 + number), strict=True))
        for name, x in got.items():
            assert x.dtype == MIXED[name].dtype and x.shape == MIXED[name].shape
            if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
                np.testing.assert_array_equal(x, want[name], f"{name} in round {number}")
            else:
                np.testing.assert_allclose(x, want[name], 1e-5, 2e-3 if name == "half" else 1e-6, err_msg=name)
        model = want


def test_powers_are_the_nearest_double_whatever_the_machine():
    for base in (0.0, 5e-324, 0.1, 0.9, 0.99, 0.999, 1 - 2**-53):
        for exponent in (2, 3, 17, 1000):
            assert optimiser._power(base, exponent) == float(Fraction(base) ** exponent)
    # A server may name any round: none takes long.
    assert optimiser._power(0.999, 2**62) == 0 and 0 < optimiser._power(1 - 2**-53, 2**62) < 1


STEPPING = """
import hashlib, sys
import numpy as np
from fedcipher.flower.optimiser import Optimiser, Steps
hashed, rng = hashlib.sha256(), np.random.default_rng(1)
# Random bits, so that the generator's own arithmetic is not what differs.
first = [(rng.integers(-2**20, 2**20, 10_007) / 2**19).astype(t) for t in ("f2", "f4", "f8")]
deltas = [[(rng.integers(-2**20, 2**20, 10_007) / 2.0**k).astype(x.dtype) for x in first] for k in (20, 21, 24, 30, 45)]
for kind in ("adam", "yogi", "adagrad", "avgm"):
    numbers = (0.7, 0.9) if kind == "avgm" else (0.1, 0.9, 0.99, 1e-3)
    steps, model = Steps(Optimiser(kind, numbers), 0), first
    for number in range(1, 26):
        model = steps.step(model, deltas[number % len(deltas)], number)
    for x in model + sum(steps.moments, []):
        hashed.update(x.tobytes())
print(hashed.hexdigest())
"""


def test_a_step_does_not_depend_on_what_the_processor_can_do():
    """NumPy has other code for each processor's vectors: without any of it the bytes are the same."""
    numpys = pytest.importorskip("numpy._core._multiarray_umath", reason="NumPy 1 has this elsewhere")
    there = [feature for feature in numpys.__cpu_dispatch__ if numpys.__cpu_features__.get(feature)]
    if not there:
        pytest.skip("this processor has nothing that NumPy has code of its own for")
    told = []
    for off in ("", " ".join(there)):
        env = {**os.environ, "NPY_DISABLE_CPU_FEATURES": off}
        done = subprocess.run(
            [sys.executable, "-c", STEPPING], env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1] != ""


def test_whole_numbers_end_where_their_type_ends():
    """What a processor makes of a float outside the type differs from machine to machine."""
    steps = Steps(Optimiser("avgm", (1e6, 0.0)), 0)
    model = [np.array([3, 250], np.uint8), np.array([5, -5], np.int64), np.array([5], np.uint64)]
    made = steps.step(model, [np.array([-1, 1]), np.array([2**60, -(2**60)]), np.array([2**60])], 1)
    assert made[0].tolist() == [0, 255] and made[1].tolist() == [2**63 - 1024, -(2**63)]
    assert made[2].tolist() == [2**64 - 2048]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_a_mean_moves_whole_numbers_exactly_and_not_past_an_end(kind):
    """A step of a coarse range is larger than a count: below zero there is none."""
    dtype, random = np.dtype(kind), np.random.default_rng(0)
    ends = np.iinfo(dtype)
    near = [ends.min, ends.min + 3, ends.max, ends.max - 3, 0, 30 % ends.max, ends.max // 2 + 1]
    old = np.array([*near, *random.integers(ends.min, ends.max, 500, dtype, endpoint=True)], dtype)
    for size in (1, 5, 300, 2.0**31, 2.0**62, 2.0**63, 2.0**64, 1e300):
        change = np.rint(random.uniform(-size, size, old.size))
        (made,) = apply_delta([old], [change + random.uniform(-0.4, 0.4, old.size)])
        wanted = [min(max(int(x) + round(c), ends.min), ends.max) for x, c in zip(old, change, strict=True)]
        # Beyond 64 bits a change is the largest float below.
        off = [abs(int(x) - y) for x, y in zip(made, wanted, strict=True)]
        assert max(off) <= (2048 if size > 2**64 else 0)
        assert made.dtype == dtype
    (small,) = apply_delta([np.array(3, dtype)], [np.array(-10.0, np.float32)])
    assert small.shape == () and small == max(-7, ends.min)
    assert in_type_of(old, np.full(old.size, -5)).tolist() == [max(-5, ends.min)] * old.size


def test_a_step_that_leaves_the_numbers_of_a_type_is_an_error_and_changes_nothing():
    steps = Steps(Optimiser("avgm", (1000.0, 0.5)), 0)
    model = [np.ones(2, np.float16)]
    assert np.isfinite(steps.step(model, [np.ones(2, np.float16)], 1)).all()
    before = [m.tobytes() for m in steps.moments[0]]
    with np.errstate(all="raise"), pytest.raises(errors.NotFiniteError, match=r"float16 in array 0.*smaller rate"):
        steps.step(model, [np.full(2, 500, np.float16)], 2)
    assert [m.tobytes() for m in steps.moments[0]] == before


# --- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STEPPED)
@pytest.mark.parametrize(("name", "params"), SCHEMES)
def test_a_run_ends_as_with_flowers_class_in_the_clear(tmp_path, name, params, kind):
    federation = Federation(tmp_path, name, **params)
    inner = made(kind)
    result = federation.start(inner)
    want = federation.in_the_clear(made(kind))
    # A round's mean is off by half a step at most, and each round's error stays in what follows.
    tolerance = ROUNDS * STEPPED[kind][2] * STEP / 2
    opened = federation.opened()
    for array, x in want.items():
        np.testing.assert_allclose(opened[array], x, rtol=0, atol=tolerance, err_msg=array)
    # To the bit it is what every client has, in training and in evaluation, and what any key and the strategy open.
    for number in range(1, ROUNDS):
        assert federation.same_bytes("evaluate", number) == federation.same_bytes("train", number + 1)
    assert federation.same_bytes("evaluate", ROUNDS) == as_bytes(opened) == as_bytes(federation.opened(CLIENTS - 1))
    decryptor = federation.scheme.decryptor(keys.load_client(federation.keys / "client-1.key")[1])
    again = dict(zip(opened, federation.strategy.open_model(decryptor), strict=True))
    assert as_bytes(again) == as_bytes(opened)
    # The strategy's own metrics, and nothing of a model in it.
    assert dict(result.train_metrics_clientapp[ROUNDS]) == {"loss": pytest.approx(2.0)}
    assert all(getattr(inner, state, None) is None for state in ("m_t", "v_t", "momentum_vector"))
    assert all(r.accepted == CLIENTS and r.unfinished is None for r in federation.strategy.rounds)


def test_clients_that_join_late_or_lose_their_state_come_to_the_same_bytes(tmp_path):
    federation = Federation(tmp_path, "bfv")
    inner = made("adam", fraction_train=0.4, fraction_evaluate=1.0, min_train_nodes=2)
    lost = []

    def lose(made):
        # By now the server thinks that these have everything.
        if made.round in {4, 8}:
            lost.append(made.round // 4)
            federation.grid.forget(lost[-1])

    federation.start(inner, rounds=12, on_round=lose)
    assert lost == [1, 2]
    for number in range(1, 13):
        away = {lost[0]} if number == 5 else {lost[1]} if number == 9 else set()
        shown = federation.shown["evaluate", number]
        # Who has lost its state refuses once, in whichever message it is asked first.
        assert set(range(CLIENTS)) - away <= set(shown)
        assert len({json.dumps(as_text(m)) for m in shown.values()}) == 1
    assert federation.same_bytes("evaluate", 12) == as_bytes(federation.opened(2))
    # Nobody trained in every round, so some have caught up.
    assert all(len(federation.shown["train", number]) <= 2 for number in range(1, 13))


def as_text(model):
    return {n: [d, list(s), b.hex()] for n, (d, s, b) in model.items()}


def test_a_second_run_begins_without_the_moments_of_the_first(tmp_path):
    federation = Federation(tmp_path)
    federation.start(made("adam"), rounds=2)
    first = federation.opened()
    for kind in ("adam", "avgm"):
        federation.strategy._inner.strategy = made(kind)
        federation.strategy.start(federation.grid, record(MODEL.values(), MODEL), num_rounds=2)
        assert federation.same_bytes("evaluate", 2) == as_bytes(federation.opened())
        want = federation.in_the_clear(made(kind), 2)
        np.testing.assert_allclose(federation.opened()["weight"], want["weight"], atol=20 * STEP)
        assert (as_bytes(first) == as_bytes(federation.opened())) == (kind == "adam")


def test_a_message_of_another_run_takes_nothing_of_this_one(tmp_path):
    """A failed message leaves moments and reference as they were."""
    federation = Federation(tmp_path)
    federation.start(made("adam"), rounds=2)
    state = federation.grid.contexts[1000].state
    before = {key: {n: a.data for n, a in r.items()} for key, r in state.array_records.items()}
    assert {"fedcipher.moment.1", "fedcipher.moment.2", "fedcipher.delta"} <= set(before)
    settings = federation.strategy._shared_settings(federation.strategy.names)
    other = RoundSettings(**{**vars(settings), "run": settings.run + 1, "round": settings.round + 3})
    arrays = record(MODEL.values(), MODEL)
    arrays[protocol.aggregate_key(1)] = protocol.bytes_array(b"no frame")
    assert reference_of(send(federation, other.to_record(), arrays))
    after = {key: {n: a.data for n, a in r.items()} for key, r in state.array_records.items()}
    assert after == before


def send(federation, settings, arrays=None, client=0):
    content = RecordDict({"arrays": record(MODEL.values(), MODEL) if arrays is None else arrays})
    content["config"] = ConfigRecord({"server-round": 1})
    content[protocol.CONFIG] = settings
    message = Message(content, dst_node_id=1000 + client, message_type="train")
    return federation.grid.app(message, federation.grid.contexts[1000 + client])


@pytest.mark.parametrize("codec", [{"top": 0.3}, {"clip": "auto"}], ids=["sparse", "clip=auto"])
def test_ranges_and_coordinates_follow_the_mean_and_not_the_step(tmp_path, codec):
    codec = fedcipher.Codec(**{"bits": 20, "clip": 2.0, **codec})
    model = {**MODEL, "weight": np.zeros((40, 30), np.float32)}
    federation = Federation(tmp_path, "flashe", model, codec=codec)
    federation.start(made("adam"))
    last = {n: np.frombuffer(b, d).reshape(s) for n, (d, s, b) in federation.same_bytes("train", ROUNDS).items()}
    moved = [federation.moved(last, client) for client in range(CLIENTS)]
    mean = {n: np.mean([m[n] - x for m in moved], axis=0) for n, x in last.items()}
    opened = federation.opened()
    assert federation.same_bytes("evaluate", ROUNDS) == as_bytes(opened)
    kept = {n: a.numpy() for n, a in federation.grid.contexts[1000].state.array_records["fedcipher.delta"].items()}
    for name, x in kept.items():
        if codec.top is None:
            np.testing.assert_allclose(x, mean[name], atol=STEP)
        assert not np.allclose(x, opened[name] - last[name], atol=100 * STEP)
    if codec.top is not None:
        # A coordinate whose turn it was not moves on by its momentum.
        unsent = kept["weight"] == 0
        assert 0 < unsent.mean() < 1 and (opened["weight"] != last["weight"])[unsent].any()


def test_clients_of_flowers_older_api_get_the_stepped_model(tmp_path):
    federation = Federation(tmp_path, "flashe")

    class Walker(NumPyClient):
        def __init__(self, client):
            self.client = client

        def fit(self, parameters, config):
            moved = federation.moved(dict(zip(MODEL, parameters, strict=True)), self.client)
            return list(moved.values()), 10, {}

        def evaluate(self, parameters, config):
            return float(parameters[0].mean()), 1, {}

    def client(context: Context):
        return Walker(context.node_config["partition-id"])

    federation.grid.app = numpy_client_app(client)
    federation.start(made("yogi"), rounds=3)
    want = federation.in_the_clear(made("yogi"), 3)
    for name, x in federation.opened().items():
        np.testing.assert_allclose(x, want[name], atol=3 * STEP)


# --- what a server may not do ----------------------------------------------------------------------


def other_rate(settings):
    settings["optimiser_numbers"] = [0.2, *settings["optimiser_numbers"][1:]]


def no_optimiser(settings):
    del settings["optimiser"], settings["optimiser_numbers"]


def other_kind(settings):
    settings["optimiser"] = "yogi"


def other_run(settings):
    """Adam's rate counts rounds from the run's first."""
    settings["run"] -= 1


@pytest.mark.parametrize("change", [other_rate, other_kind, no_optimiser, other_run])
def test_a_client_that_is_given_other_settings_adds_nothing(tmp_path, change):
    federation = Federation(tmp_path, "flashe")
    federation.grid.lie = lambda settings, client, _: change(settings) if client == 2 else None
    federation.start(made("adam"), rounds=3)
    for made_ in federation.strategy.rounds:
        assert [c.node for c in made_.clients if c.left_out] == [1002] and made_.unfinished is None
    said = federation.strategy.rounds[0].clients[2].left_out
    assert "goes with another model or layout than most" in said
    # The others make the run without it, and it opens nothing of what they make.
    assert federation.same_bytes("evaluate", 3, [0, 1, 3, 4]) == as_bytes(federation.opened(3))


def test_sums_of_other_settings_are_apart_and_the_largest_counts(tmp_path):
    federation = Federation(tmp_path, "flashe")
    federation.grid.lie = lambda settings, client, _: other_rate(settings) if client in (0, 1) else None
    federation.start(made("adam"), rounds=1)
    assert sorted(c.client for c in federation.strategy.rounds[0].clients if c.left_out is None) == [2, 3, 4]


def test_no_sum_of_any_settings_has_enough(tmp_path):
    federation = Federation(tmp_path, "flashe")
    federation.grid.lie = lambda settings, client, _: settings.update(
        optimiser_numbers=[0.1 + client, *settings["optimiser_numbers"][1:]]
    )
    with pytest.raises(errors.StrategyError, match=r"[01] usable updates, 2 are needed"):
        federation.start(made("adam"), rounds=1)
    assert federation.strategy._model.folder.count == 0


@pytest.mark.parametrize("change", [other_rate, other_kind, no_optimiser])
def test_clients_hold_on_to_what_the_run_began_with(tmp_path, change, caplog):
    federation = Federation(tmp_path, "flashe")
    federation.grid.lie = lambda settings, _, number: change(settings) if number > 2 else None
    federation.start(made("adam"), rounds=4)
    assert [r.accepted for r in federation.strategy.rounds] == [CLIENTS, CLIENTS, 0, 0]
    assert caplog.text.count("not those that this client began the run with") == 4 * CLIENTS
    assert ("train", 3) not in federation.shown and ("evaluate", 3) not in federation.shown
    # The run is as it was after its second round.
    assert as_bytes(federation.opened()) == federation.same_bytes("evaluate", 2)


def test_a_strategy_whose_numbers_change_in_mid_run_is_refused(tmp_path):
    federation = Federation(tmp_path)
    inner = made("adam")

    def decay(_):
        inner.eta *= 0.5

    with pytest.raises(errors.StrategyError, match=r"began with FedAdam\(eta=0.1.*opener"):
        federation.start(inner, on_round=decay)
    assert ("train", 2) not in federation.shown


def test_a_run_whose_settings_were_changed_does_not_open(tmp_path):
    federation = Federation(tmp_path, "bfv")
    federation.start(made("adam"), rounds=2)
    path = federation.strategy._model.folder.folder / "run.json"
    index = json.loads(path.read_text())
    for change in (other_rate, other_kind, no_optimiser, other_run):
        changed = json.loads(json.dumps(index))
        change(changed["settings"])
        path.write_text(json.dumps(changed))
        with pytest.raises(errors.ModelMismatchError):
            federation.opened()
    for broken in ([], {}, {**index["settings"], "optimiser": "sgd"}, {**index["settings"], "names": {}}, 7, None):
        path.write_text(json.dumps({**index, "settings": broken}))
        with pytest.raises(errors.RunError, match="damaged"):
            federation.opened()
    path.write_text(json.dumps(index))
    first = federation.strategy._model.folder.folder / "model-0000.npz"
    np.savez(first, *(x + 1 for x in MODEL.values()))
    with pytest.raises(errors.ModelMismatchError):
        federation.opened()
    np.savez(first, *MODEL.values())
    assert as_bytes(federation.opened()) == federation.same_bytes("evaluate", 2)


def test_a_runs_folder_says_nothing_of_the_run_before(tmp_path):
    federation = Federation(tmp_path, codec=fedcipher.Codec(bits=20))

    class Shifts(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            shifted = {n: np.asarray(a.numpy() + 1) for n, a in arrays.items()}
            return record(shifted.values(), shifted), metrics

    strategy = SecureStrategy(Shifts(**ALL), federation.keys, opener="client-0.key", out=tmp_path / "run")
    for folder in ("run", "run-2"):
        result = strategy.start(federation.grid, record(MODEL.values(), MODEL), num_rounds=2)
        # The server's steps begin segments, with ranges for who comes then; a run begins without.
        assert strategy._model.folder.segment > 0 and strategy._model.ranges
        index = json.loads((tmp_path / folder / "run.json").read_text())
        assert index["settings"]["segment"] == 0 and "ranges" not in index["settings"]
        opened = open_run(tmp_path / folder, federation.keys / "client-1.key")
        assert as_bytes(opened) == as_bytes({n: a.numpy() for n, a in result.arrays.items()})


NAN, INF = float("nan"), float("inf")
GOOD = [0.1, 0.9, 0.99, 1e-3]
HOSTILE = {
    "unknown kind": ("sgd", GOOD),
    "a class's name": ("FedAdam", GOOD),
    "no text": (b"adam", GOOD),
    "no kind": (None, GOOD),
    "a list of kinds": (["adam"], GOOD),
    "no numbers": ("adam", None),
    "one number": ("adam", 0.1),
    "text": ("adam", "0.1"),
    "whole numbers": ("adam", [1, 0, 0, 1]),
    "truth values": ("avgm", [True, False]),
    "too few": ("adam", GOOD[:3]),
    "too many": ("avgm", GOOD),
    "none": ("adam", []),
    "a rate of nan": ("adam", [NAN, 0.9, 0.99, 1e-3]),
    "a share of nan": ("adam", [0.1, NAN, 0.99, 1e-3]),
    "tau of nan": ("adam", [0.1, 0.9, 0.99, NAN]),
    "an endless rate": ("adam", [INF, 0.9, 0.99, 1e-3]),
    "an endless tau": ("adam", [0.1, 0.9, 0.99, INF]),
    "a negative rate": ("adam", [-0.1, 0.9, 0.99, 1e-3]),
    "a negative share": ("yogi", [0.1, 0.9, -0.1, 1e-3]),
    "a negative tau": ("adagrad", [0.1, 0.0, 0.0, -1e-3]),
    "a huge rate": ("avgm", [1e300, 0.9]),
    "a huge tau": ("adam", [0.1, 0.9, 0.99, 1e7]),
    "a rate of nothing": ("avgm", [0.0, 0.9]),
    "tau of nothing": ("adam", [0.1, 0.9, 0.99, 0.0]),
    "a share of one": ("avgm", [0.5, 1.0]),
    "a share above one": ("adam", [0.1, 0.9, 1.5, 1e-3]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_settings_are_refused_in_the_one_text(tmp_path, what):
    federation = Federation(tmp_path)
    # Not in the past of the keys' ledgers, which are as old as this test.
    strategy = SecureStrategy(made("adam"), federation.keys, out=tmp_path / "run")
    strategy._begin(record(MODEL.values(), MODEL))
    honest = strategy._shared_settings(strategy.names).to_record()
    changed = {k: v for k, v in honest.items() if not k.startswith("optimiser")}
    changed.update(
        {k: v for k, v in zip(("optimiser", "optimiser_numbers"), HOSTILE[what], strict=True) if v is not None}
    )
    with pytest.raises(errors.RoundError):
        RoundSettings.parse(ConfigRecord(changed))
    reply = send(federation, ConfigRecord(changed))
    assert reply.has_error() and reply.error.reason == TEXT + reference_of(reply)
    assert federation.shown == {}
    # Not because of anything else in the message.
    assert not send(federation, honest).has_error()


# --- what is refused before the first round --------------------------------------------------------


@pytest.mark.parametrize("kind", STEPPED)
def test_whole_models_are_refused_by_name_with_the_cure(tmp_path, kind):
    federation = Federation(tmp_path, codec=fedcipher.Codec(bits=20, clip=2.0, target="weights"))
    with pytest.raises(errors.StrategyError, match=rf'{STEPPED[kind][0].__name__}.*Codec\(target="delta"\)'):
        federation.start(made(kind))
    assert federation.grid.sent == [] and not (tmp_path / "run").exists()
    # With an opener the server makes the step.
    strategy = SecureStrategy(made(kind), federation.keys, opener="client-0.key")
    strategy.start(federation.grid, record(MODEL.values(), MODEL), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS


def test_a_client_of_whole_models_takes_no_optimiser(tmp_path, caplog):
    federation = Federation(tmp_path, codec=fedcipher.Codec(bits=20, clip=2.0, target="weights"))

    def lie(settings, client, _):
        if client == 2:
            settings.update(Optimiser("adam", tuple(GOOD)).to_values())

    federation.grid.lie = lie
    federation.start(FedAvg(**ALL), rounds=1)
    assert [c.node for c in federation.strategy.rounds[0].clients if c.left_out] == [1002]
    assert "whose step needs deltas" in caplog.text


class OwnStep(FedAdam):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class OwnMoments(FedAdam):
    """Flower's aggregate_train, with another part of the step."""

    def _compute_deltat_and_mt(self, aggregated_arrayrecord):
        delta, moment, arrays = super()._compute_deltat_and_mt(aggregated_arrayrecord)
        return delta, {n: 2 * m for n, m in moment.items()}, arrays


class Trimmed(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, sorted(replies, key=id)[1:])
        return arrays, metrics


class Between(FedYogi, Trimmed):
    """Flower's own step, of what is no mean."""


REFUSED = [
    (OwnStep(**ALL), r"OwnStep has an aggregate_train\(\) of its own"),
    (OwnMoments(**ALL), r"OwnMoments makes another step of the mean than FedAdam\(.*opener"),
    (Between(**ALL), r"Between makes another step of the mean than FedYogi\("),
    (FedAdam(**ALL, tau=0.0), r"FedAdam cannot run on the clients: tau is 0.0; clients take 1e-30 to 1e\+06"),
    (FedAdam(**ALL, beta_1=1.0), r"beta_1 is 1.0; clients take at least 0 and below 1"),
    (FedAvgM(**ALL, server_learning_rate=-1.0), r"server_learning_rate is -1.0"),
    (FedAvgM(**ALL, server_momentum=NAN), r"server_momentum is nan"),
    (FedYogi(**ALL, eta=lambda: 0.1), r"FedYogi cannot run on the clients"),
    (FedYogi(**ALL, eta=10**400), r"FedYogi cannot run on the clients"),
]


@pytest.mark.parametrize(
    ("inner", "said"), REFUSED, ids=[f"{type(s).__name__} {k}" for k, (s, _) in enumerate(REFUSED)]
)
def test_other_steps_are_refused_by_name(tmp_path, inner, said):
    federation = Federation(tmp_path)
    with pytest.raises(errors.StrategyError, match=said):
        federation.start(inner)
    assert federation.grid.sent == [] and not (tmp_path / "run").exists()


def test_a_strategy_that_goes_on_from_another_run_is_refused(tmp_path):
    federation = Federation(tmp_path)
    for kind in STEPPED:
        used = made(kind)
        federation.in_the_clear(used, 2)
        with pytest.raises(errors.StrategyError, match=f"{type(used).__name__} has moments of an earlier run"):
            federation.start(used)


def test_numbers_that_a_type_does_not_have_are_refused(tmp_path):
    half = {"half": np.zeros(4, np.float16)}
    federation = Federation(tmp_path, model=half)
    with pytest.raises(errors.StrategyError, match=r"tau=1e-09 of FedAdam is 0 in float16"):
        federation.start(made("adam", tau=1e-9))
    with pytest.raises(errors.StrategyError, match=r"server_learning_rate=100000 of FedAvgM is inf in float16"):
        federation.start(made("avgm", server_learning_rate=1e5))
    assert federation.grid.sent == []
    federation.start(made("adam"), rounds=1)


def test_a_strategy_may_change_what_is_no_part_of_its_step(tmp_path, caplog):
    """Sampling and metrics are the strategy's own; FedAvgM that is switched off is FedAvg."""
    caplog.set_level(logging.INFO)

    class Own(FedAdam):
        def configure_train(self, server_round, arrays, config, grid):
            return list(super().configure_train(server_round, arrays, config, grid))[:3]

    federation = Federation(tmp_path)
    metrics = {"train_metrics_aggr_fn": lambda replies, key: MetricRecord({"replies": len(replies)})}
    result = federation.start(Own(**ALL, **metrics), rounds=2)
    assert dict(result.train_metrics_clientapp[2]) == {"replies": 3}
    told = [r.getMessage() for r in caplog.records if "the clients make the step" in r.getMessage()]
    assert len(told) == 1 and told[0].startswith("Fedcipher: the clients make the step of FedAdam(eta=0.1, beta_1=0.9")
    caplog.clear()
    federation = Federation(tmp_path / "second")
    federation.start(FedAvgM(**ALL), rounds=2)
    assert "the clients make the step" not in caplog.text
    want = federation.in_the_clear(FedAvg(**ALL), 2)
    np.testing.assert_allclose(federation.opened()["weight"], want["weight"], atol=2 * STEP)
