"""Optimisers whose step clients make of the mean: Flower's numbers, the same bytes everywhere, and in the charter."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, numpy_client_app, open_run
from fedcipher.adapters.flower.strategy_check import optimiser_of
from fedcipher.federation import messages as protocol
from fedcipher.federation import optimiser_step
from fedcipher.federation.charter import Charter, digest_of
from fedcipher.federation.curves import Curves
from fedcipher.federation.optimiser_step import Optimiser, Steps, apply_delta, in_type_of, saturated
from fedcipher.federation.ranges import Ranges
from fedcipher.federation.refusal import TEXT
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.store import Store
from fedcipher.schemes import scheme_class
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, bytes_array, record, reference_of
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from scheme_lists import adds, hides, one_key, schemes_and_params, stands, ways_to_open

CLIENTS, ROUNDS = 5, 6
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
# Scheme, parameters, and which client's key the server opens sums with; an opener does not change who makes the step.
RUNS = [
    *(pytest.param(*p.values, None, id=p.id, marks=p.marks) for p in schemes_and_params(adds, ways_to_open)),
    *(
        pytest.param(*p.values, "client-0.key", id=f"{p.id}, opener", marks=p.marks)
        for p in schemes_and_params(hides, one_key, adds, stands)
    ),
]
# By how much a step makes an error of the mean larger, at most: eta / tau for the adaptive ones, for their first moment
# and again for the second; and without the momentum's end, 1 / (1 - 0.9).
STEPPED = {
    "adam": (FedAdam, {"tau": 0.1}, 2),
    "yogi": (FedYogi, {"eta": 0.1, "tau": 0.1}, 2),
    "adagrad": (FedAdagrad, {"tau": 0.1}, 2),
    "avgm": (FedAvgM, {"server_momentum": 0.9, "server_learning_rate": 0.8}, 10),
}
MOMENTS = ("m_t", "v_t", "momentum_vector")
MODEL = {"weight": np.zeros((8, 5), np.float32), "bias": np.ones(3), "scale": np.array(1.5, np.float32)}
CODEC = fedcipher.Codec(bits=20, clip=2.0)
WEIGHTS = fedcipher.Codec(bits=20, clip=2.0, target="weights")
STEP = 4 / 2**20


def made(kind, **more):
    cls, numbers, _ = STEPPED[kind]
    return cls(**{**ALL, **numbers, **more})


@pytest.fixture(autouse=True)
def in_order(monkeypatch):
    """Replies come in the order of Flower's sample, and whose update comes first says which model the round is of."""
    monkeypatch.setattr("random.sample", lambda nodes, count: sorted(nodes)[:count])


class Grid(LocalGrid):
    """A server that may not be honest: a message has the settings that ``lie(settings, client)`` makes of its own."""

    lie = None

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            if self.lie is not None and protocol.CONFIG in message.content:
                said = RoundSettings.parse(message.content[protocol.CONFIG])
                changed = self.lie(said, message.metadata.dst_node_id - 1000)
                message.content[protocol.CONFIG] = ConfigRecord(changed.to_record())
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
        number, client = msg.content["config"]["server-round"], ctxt.node_config["partition-id"]
        self.shown.setdefault((kind, number), {})[client] = as_bytes(arrays)
        return arrays

    def moved(self, arrays, client):
        return {n: np.asarray(0.5 * x + 0.5 * self.goals[client][n], x.dtype) for n, x in arrays.items()}

    def server(self, inner, **options):
        options = {"out": self.folder / "run", "train_answers": ["loss"], "evaluate_answers": ["error"], **options}
        self.strategy = SecureStrategy(inner, self.keys, committee_timeout=5, **options)
        return self.strategy

    def start(self, inner, rounds=ROUNDS, **options):
        return self.server(inner, **options).start(self.grid, self.first(), num_rounds=rounds)

    def first(self):
        return record(self.model.values(), self.model)

    def in_the_clear(self, strategy, rounds=ROUNDS, without=()):
        """Flower's own class on what the clients send, with the model in its types; no aggregate in some rounds."""
        model = dict(self.model)
        for number in range(1, rounds + 1):
            if number not in without:
                updates = [self.moved(model, client) for client in range(CLIENTS)]
                model = flowers(strategy, self.grid, number, model, updates)
        return model

    @property
    def run(self):
        return self.strategy.run.model.folder.folder

    @property
    def charter(self):
        return self.strategy.run.model.charter

    def opened(self, client=0):
        return open_run(self.run, self.keys / f"client-{client}.key")

    def metrics(self, number):
        """What the clients answered in a round, for whoever has a key."""
        curves = Curves(self.run, self.keys / "client-2.key")
        curves.read()
        return curves.metrics(number)

    def store(self, client):
        """What the client remembers."""
        _, key = keys.load_client(self.keys / f"client-{client}.key")
        return Store(state_dir(), f"{key.fingerprint}-{client}")

    def remembered(self, client):
        """Every file of it, but for the lock, and for the steps that a server has asked it to take back."""
        files = {path.name: path.read_bytes() for path in self.store(client)._folder.iterdir() if path.name != "lock"}
        facts = json.loads(files.pop("facts.json", b"{}"))
        return {**files, **{name: value for name, value in facts.items() if name != "withdrawn"}}

    def same_bytes(self, kind, number, clients=range(CLIENTS)):
        """The one model that all these clients were shown."""
        shown = self.shown[kind, number]
        assert sorted(shown) == sorted(clients)
        first = shown[min(clients)]
        assert all(model == first for model in shown.values())
        return first

    def send(self, settings, arrays=None, client=0):
        """A message of the server's own, to train."""
        content = RecordDict({"arrays": self.first() if arrays is None else arrays})
        content["config"] = ConfigRecord({"server-round": settings.index})
        content[protocol.CONFIG] = ConfigRecord(settings.to_record())
        message = Message(content, dst_node_id=1000 + client, message_type="train")
        return self.grid.app(message, self.grid.contexts[1000 + client])


def as_bytes(model):
    return {n: (x.dtype.str, x.shape, x.tobytes()) for n, x in model.items()}


def arrays_of(shown):
    return {n: np.frombuffer(b, d).reshape(s) for n, (d, s, b) in shown.items()}


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


def under(settings, charter):
    """The settings of a message under another charter, which travels with it."""
    return replace(settings, charter=charter.digest, document=charter.encode())


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
def test_a_step_is_that_of_flowers_class(kind, numbers, monkeypatch):
    """Bit for bit with NumPy 2, which promotes as the steps are written; within rounding with NumPy 1.

    But for the powers in FedAdam's rate: NumPy's are off by a bit on processors with AVX-512, so they are set right.
    """
    monkeypatch.setattr(np, "power", lambda base, exponent: np.float64(float(Fraction(base) ** int(exponent))))
    strategy, grid = made(kind, **numbers), LocalGrid(None, CLIENTS, None)
    steps = Steps(optimiser_of(made(kind, **numbers)))
    rng = np.random.default_rng(3)
    model = dict(MIXED)
    # Some rounds have no aggregate.
    for number in (1, 2, 3, 4, 7, 8, 9, 12, 13, 14, 15, 16):
        # Of one coordinate nothing is ever sent, as in sparse updates.
        delta = {n: rng.normal(0, 0.2, x.shape).astype(np.float32) for n, x in model.items()}
        delta["counter"] = np.array(rng.integers(-3, 4), np.int64)
        delta["bytes"] = rng.integers(-3, 4, 6)
        delta["single"][0] = 0
        delta["half"] = delta["half"].astype(np.float16)
        mean = dict(zip(model, apply_delta(list(model.values()), list(delta.values())), strict=True))
        # Two, because Flower's mean of more of the same is not that to the last bit.
        want = flowers(strategy, grid, number, model, [mean, mean])
        got = dict(zip(model, steps.step(list(model.values()), list(delta.values()), number), strict=True))
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
            assert optimiser_step._power(base, exponent) == float(Fraction(base) ** exponent)
    # A server may name any round: none takes long.
    assert optimiser_step._power(0.999, 2**62) == 0 and 0 < optimiser_step._power(1 - 2**-53, 2**62) < 1


STEPPING = """
import hashlib, sys
import numpy as np
from fedcipher.federation.optimiser_step import Optimiser, Steps
hashed, rng = hashlib.sha256(), np.random.default_rng(1)
# Random bits, so that the generator's own arithmetic is not what differs.
first = [(rng.integers(-2**20, 2**20, 10_007) / 2**19).astype(t) for t in ("f2", "f4", "f8")]
deltas = [[(rng.integers(-2**20, 2**20, 10_007) / 2.0**k).astype(x.dtype) for x in first] for k in (20, 21, 24, 30, 45)]
for kind in ("adam", "yogi", "adagrad", "avgm"):
    numbers = (0.7, 0.9) if kind == "avgm" else (0.1, 0.9, 0.99, 1e-3)
    steps, model = Steps(Optimiser(kind, numbers)), first
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
    steps = Steps(Optimiser("avgm", (1e6, 0.0)))
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


@pytest.mark.parametrize("kind", [*STEPPED, None])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_a_step_that_leaves_the_numbers_of_a_type_ends_where_they_end(kind, dtype):
    """A refusal would tell of the mean, also one by an app that has made an overflow an exception."""
    numbers = {"avgm": (1000.0, 0.5), None: ()}.get(kind, (10.0, 0.0, 0.0, 1e-3))
    steps, most = Steps(Optimiser(kind, numbers) if kind else None), np.finfo(dtype).max
    model = [np.array([most, -most, 0, 1, 0], dtype), np.array(most, dtype)]
    with np.errstate(all="raise"):
        for number in (1, 2, 3):
            # Some of the second moments are infinite on the way, and what is divided by them zero.
            delta = [np.array([most, -most, 0, -1, most], dtype), np.array(most, dtype)]
            model = steps.step(model, delta, number)
            assert all(np.isfinite(x).all() and x.dtype == np.dtype(dtype) for x in model)
            assert all(np.isfinite(m).all() for moment in steps.moments for m in moment)
    # Towards the end that it has left, and none of another sign.
    assert model[0][0] == most == -model[0][1] == model[1] and model[0][2] == 0 and model[0][3] < 1
    assert model[1].shape == ()


def test_what_is_no_number_is_zero_and_what_is_infinite_the_largest():
    nan, inf = float("nan"), float("inf")
    odd = np.array([nan, inf, -inf, 1e300, -1e300])
    assert saturated(np.zeros(5, np.float16), odd).tolist() == [0, 65504, -65504, 65504, -65504]
    assert saturated(np.zeros(5, np.int8), odd).tolist() == [0, 127, -128, 127, -128]
    assert saturated(np.zeros(5, np.bool_), odd).tolist() == [False, True, False, True, False]


# --- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STEPPED)
@pytest.mark.parametrize(("name", "params", "opener"), RUNS)
def test_a_run_ends_as_with_flowers_class_in_the_clear(tmp_path, name, params, opener, kind):
    federation, inner = Federation(tmp_path, name, **params), made(kind)
    result = federation.start(inner, opener=opener)
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
    # The strategy keeps nothing of a model, also where it is shown each one.
    assert all(getattr(inner, state, None) is None for state in MOMENTS)
    assert all(r.accepted == CLIENTS and r.unfinished is None for r in federation.strategy.rounds)
    # Metrics are whose the means are.
    shown = {"train": {"loss": pytest.approx(2.0)}, "evaluate": {"error": pytest.approx(0.5)}}
    assert federation.metrics(ROUNDS) == shown
    sees = opener is not None or params.get("reveal") == "server"
    # Or readers of a committee report them.
    told = sees or scheme_class(name).info.committee
    assert federation.strategy.rounds[-1].metrics == (shown if told else {})
    assert dict(result.train_metrics_clientapp.get(ROUNDS, {})) == (shown["train"] if told else {})
    if sees:
        assert as_bytes({n: a.numpy() for n, a in result.arrays.items()}) == as_bytes(opened)


def test_a_rate_follows_the_runs_rounds_also_those_without_an_aggregate(tmp_path):
    """As Flower's does: moments stay, and Adam's rate goes on."""
    federation = Federation(tmp_path, "flashe")

    def lost(message, reply, client):
        second = message.metadata.message_type == "train" and message.content["config"]["server-round"] == 2
        return Message(Error(code=2, reason="away"), reply_to=message) if second and client else reply

    federation.grid.tamper = lost
    federation.start(made("adam"), may_lose=1)
    assert [r.round for r in federation.strategy.rounds if r.unfinished] == [2]
    want = federation.in_the_clear(made("adam"), without={2})
    otherwise = federation.in_the_clear(made("adam"), ROUNDS - 1)
    opened = federation.opened()
    for name, x in want.items():
        np.testing.assert_allclose(opened[name], x, rtol=0, atol=ROUNDS * STEP)
        assert not np.allclose(opened[name], otherwise[name], atol=100 * STEP)
    assert federation.same_bytes("evaluate", ROUNDS) == as_bytes(opened)


def test_clients_that_join_late_or_lose_their_state_come_to_the_same_bytes(tmp_path, monkeypatch):
    federation = Federation(tmp_path, "bfv")

    def sampled(nodes, count):
        first = len(federation.strategy.rounds) % len(nodes)
        return [*sorted(nodes)[first:], *sorted(nodes)[:first]][:count]

    monkeypatch.setattr("random.sample", sampled)

    def lose(made):
        # The framework forgets everybody, which changes nothing.
        for client in range(CLIENTS):
            federation.grid.forget(client)
        # By now the server thinks that these have everything: one trains next, one does not.
        if made.round in {4, 8}:
            federation.grid.lose(made.round // 4)

    federation.start(made("adam", fraction_train=0.6, min_train_nodes=2), rounds=12, on_round=lose)
    trained = {n: {(n + k) % CLIENTS for k in range(3)} for n in range(1, 13)}
    # It refuses once, in whichever message it is asked first, and is sent everything.
    trained[5] -= {1}
    evaluated = {n: set(range(CLIENTS)) - ({2} if n == 9 else set()) for n in range(1, 13)}
    for number in range(1, 13):
        federation.same_bytes("train", number, trained[number])
        federation.same_bytes("evaluate", number, evaluated[number])
    assert all(r.unfinished is None for r in federation.strategy.rounds)
    assert federation.same_bytes("evaluate", 12) == as_bytes(federation.opened(2))


def test_a_resumed_run_steps_on_with_the_moments_that_clients_have(tmp_path):
    whole = Federation(tmp_path / "whole", "flashe")
    whole.start(made("yogi"), rounds=4)
    halves = Federation(tmp_path / "halves", "flashe")
    halves.start(made("yogi"), rounds=2, resume=True)
    halves.start(made("yogi"), rounds=4, resume=True)
    assert [r.round for r in halves.strategy.rounds] == [1, 2, 3, 4]
    assert halves.same_bytes("evaluate", 4) == as_bytes(whole.opened()) == as_bytes(halves.opened())
    with pytest.raises(errors.StrategyError, match="charter have changed: optimiser"):
        halves.start(made("yogi", eta=0.2), rounds=5, resume=True)


def test_a_second_run_begins_without_the_moments_of_the_first(tmp_path):
    federation = Federation(tmp_path)
    federation.start(made("adam"), rounds=2)
    first = federation.opened()
    for kind in ("adam", "avgm"):
        federation.start(made(kind), rounds=2)
        assert federation.same_bytes("evaluate", 2) == as_bytes(federation.opened())
        want = federation.in_the_clear(made(kind), 2)
        np.testing.assert_allclose(federation.opened()["weight"], want["weight"], atol=20 * STEP)
        assert (as_bytes(first) == as_bytes(federation.opened())) == (kind == "adam")


def test_a_message_that_is_refused_leaves_model_and_moments_as_they_were(tmp_path):
    """In the midst of a run, which ends as without."""
    federation = Federation(tmp_path)
    replies = []

    def between(done):
        if done.round != 2:
            return
        strategy, charter = federation.strategy, federation.charter
        before = federation.remembered(0)
        assert {"standing.bin", "earlier.bin"} <= set(before) and len(federation.store(0).newest_state().moments) == 2
        at = RoundSettings(charter.digest, strategy.run.number + 1, 3, 2, last=strategy.run.model.last)
        junk = record([], [])
        junk[protocol.aggregate_key(3)] = bytes_array(b"no frame")
        another = replace(charter, optimiser=("yogi", charter.optimiser[1]))
        unruly = replace(charter, run=charter.run + 1, optimiser=("adam", (1e6, 0.9, 0.99, 1e-3)))
        for settings, arrays in (
            (replace(at, steps=3, last=bytes(32), indices=[3]), junk),
            (replace(at, steps=1), record([], [])),
            (replace(at, last=bytes(32)), record([], [])),
            (under(at, another), record([], [])),
            (under(replace(at, steps=0, last=b""), another), None),
            (under(replace(at, steps=0, last=b""), unruly), None),
        ):
            replies.append(federation.send(settings, arrays))
            assert federation.remembered(0) == before

    federation.start(made("adam"), rounds=4, on_round=between)
    assert len(replies) == 6 and all(reference_of(reply) for reply in replies)
    assert [r.accepted for r in federation.strategy.rounds] == [CLIENTS] * 4
    for number in (3, 4):
        federation.same_bytes("train", number)
    assert federation.same_bytes("evaluate", 4) == as_bytes(federation.opened(3))


@pytest.mark.parametrize("codec", [{"top": 0.3}, {"clip": "auto"}], ids=["sparse", "clip=auto"])
def test_ranges_and_coordinates_follow_the_mean_and_not_the_step(tmp_path, codec):
    codec = fedcipher.Codec(**{"bits": 20, "clip": 2.0, **codec})
    model = {**MODEL, "weight": np.zeros((40, 30), np.float32)}
    federation = Federation(tmp_path, "flashe", model, codec=codec)
    federation.start(made("adam"))
    last = arrays_of(federation.same_bytes("train", ROUNDS))
    moved = [federation.moved(last, client) for client in range(CLIENTS)]
    mean = {n: np.mean([m[n] - x for m in moved], axis=0) for n, x in last.items()}
    opened = federation.opened()
    assert federation.same_bytes("evaluate", ROUNDS) == as_bytes(opened)
    store = federation.store(0)
    kept = dict(zip(model, store.newest_state().delta, strict=True))
    for name, x in kept.items():
        if codec.top is None:
            np.testing.assert_allclose(x, mean[name], atol=STEP)
        assert not np.allclose(x, opened[name] - last[name], atol=100 * STEP)
    if codec.top is not None:
        # A coordinate whose turn it was not moves on by its momentum.
        unsent = kept["weight"] == 0
        assert 0 < unsent.mean() < 1 and (opened["weight"] != last["weight"])[unsent].any()
        return
    # The next ranges are of what the clients' updates have used of the last ones.
    updates = [[m[n] - x for n, x in last.items()] for m in moved]
    stepped = [[opened[n] - x for n, x in last.items()]]

    def following(used):
        ranges = Ranges([1.0] * len(model), weighted=True)
        ranges.restore(store.previous_state().ranges)
        ranges.observe(np.sum([ranges.histogram_counts(update, 1.0) for update in used], axis=0).tolist())
        return ranges.scales

    ranges = Ranges([1.0] * len(model), weighted=True)
    ranges.restore(store.newest_state().ranges)
    assert ranges.scales == following(updates) != following(stepped)


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


@pytest.mark.parametrize("codec", [CODEC, WEIGHTS], ids=["delta", "weights"])
@pytest.mark.parametrize("kind", STEPPED)
def test_a_server_that_sets_the_models_makes_the_step_itself(tmp_path, kind, codec):
    """Its charter has no optimiser, and what it makes is Flower's."""
    federation, inner = Federation(tmp_path, "flashe", codec=codec), made(kind)
    result = federation.start(inner, sets_models=True, opener="client-0.key")
    assert federation.charter.sets_models and federation.charter.optimiser is None
    want = federation.in_the_clear(made(kind))
    opened = {n: a.numpy() for n, a in result.arrays.items()}
    for name, x in want.items():
        np.testing.assert_allclose(opened[name], x, rtol=0, atol=ROUNDS * STEPPED[kind][2] * STEP / 2)
    assert any(getattr(inner, state, None) is not None for state in MOMENTS)
    for number in range(1, ROUNDS):
        assert federation.same_bytes("evaluate", number) == federation.same_bytes("train", number + 1)
    assert federation.same_bytes("evaluate", ROUNDS) == as_bytes(opened) == as_bytes(federation.opened(3))


# --- what a server may not do ----------------------------------------------------------------------

GOOD = (0.1, 0.9, 0.99, 0.1)
# What FedAdam(tau=0.1) says, and what a server may make of it.
LIES = {
    "another rate": {"optimiser": ("adam", (0.2, *GOOD[1:]))},
    "another tau": {"optimiser": ("adam", (*GOOD[:3], 0.05))},
    "another kind": {"optimiser": ("yogi", GOOD)},
    "no optimiser": {"optimiser": None},
}


@pytest.mark.parametrize("changes", [*LIES.values(), {"run": -1}, {"run": 1}], ids=[*LIES, "run before", "run after"])
def test_a_client_that_is_given_another_charter_adds_nothing(tmp_path, changes):
    federation = Federation(tmp_path, "flashe")

    def lie(settings, client):
        charter = federation.charter
        said = {**changes, "run": charter.run + changes.get("run", 0)}
        return under(settings, replace(charter, **said)) if client == 2 else settings

    federation.grid.lie = lie
    federation.start(made("adam"), rounds=3)
    assert federation.charter.optimiser == ("adam", GOOD)
    for done in federation.strategy.rounds:
        assert [c.node for c in done.clients if c.left_out] == [1002] and done.unfinished is None
    said = federation.strategy.rounds[0].clients[2].left_out
    assert "has another model or layout than most" in said
    # The others make the run without it, and it opens nothing of what they make.
    assert federation.same_bytes("evaluate", 3, [0, 1, 3, 4]) == as_bytes(federation.opened(3))
    assert 2 in federation.shown["train", 1] and 2 not in federation.shown["evaluate", 1]
    assert 2 not in federation.shown["train", 2]


def test_sums_of_other_charters_are_apart_and_the_largest_counts(tmp_path):
    federation = Federation(tmp_path, "flashe")

    def lie(settings, client):
        return under(settings, replace(federation.charter, **LIES["another rate"])) if client in (0, 1) else settings

    federation.grid.lie = lie
    federation.start(made("adam"), rounds=1)
    assert sorted(c.client for c in federation.strategy.rounds[0].clients if c.left_out is None) == [2, 3, 4]


def test_no_sum_of_any_charter_has_enough(tmp_path):
    federation = Federation(tmp_path, "flashe")

    def lie(settings, client):
        own = replace(federation.charter, optimiser=("adam", (0.1 + client, *GOOD[1:])))
        return under(settings, own)

    federation.grid.lie = lie
    with pytest.raises(errors.StrategyError, match=r"[01] usable updates and needs 2"):
        federation.start(made("adam"), rounds=1)
    assert federation.strategy.run.model.folder.count == 0
    # Each has computed, under numbers of its own.
    assert len(federation.shown["train", 1]) == CLIENTS


@pytest.mark.parametrize("later", [0, 1], ids=["same run", "later run"])
@pytest.mark.parametrize("lie", LIES)
def test_clients_hold_on_to_what_the_run_began_with(tmp_path, lie, later, caplog):
    """A run of its own would begin with its own first model; none goes on with this run's sums."""
    federation = Federation(tmp_path, "flashe")

    def changed(settings, _):
        other = replace(federation.charter, run=federation.charter.run + later, **LIES[lie])
        return under(settings, other) if settings.index > 2 else settings

    federation.grid.lie = changed
    with pytest.raises(errors.LostRoundsError) as raised:
        federation.start(made("adam"), rounds=4)
    assert sorted(raised.value.lost) == [3, 4]
    assert [r.accepted for r in federation.strategy.rounds] == [CLIENTS, CLIENTS, 0, 0]
    assert caplog.text.count("ends all earlier ones") == (0 if later else 4 * CLIENTS)
    assert ("train", 3) not in federation.shown and ("evaluate", 3) not in federation.shown
    assert ("train", 4) not in federation.shown and ("evaluate", 4) not in federation.shown
    # The run is as it was after its second round.
    assert as_bytes(federation.opened()) == federation.same_bytes("evaluate", 2)


def test_a_strategy_whose_numbers_change_in_mid_run_is_refused(tmp_path):
    for opener in (None, "client-0.key"):
        federation = Federation(tmp_path / str(opener))
        inner = made("adam")

        def decay(_, inner=inner):
            inner.eta *= 0.5

        with pytest.raises(errors.StrategyError, match=r"began with FedAdam\(eta=0.1.*sets_models=True, opener"):
            federation.start(inner, on_round=decay, opener=opener)
        assert ("train", 2) not in federation.shown
    # A server that sets the models makes its own steps.
    federation = Federation(tmp_path / "sets")
    inner, halved = made("adam"), made("adam")

    def decay(_):
        inner.eta *= 0.5

    federation.start(inner, rounds=2, on_round=decay, opener="client-0.key", sets_models=True)
    model = flowers(halved, federation.grid, 1, MODEL, [federation.moved(MODEL, k) for k in range(CLIENTS)])
    halved.eta *= 0.5
    model = flowers(halved, federation.grid, 2, model, [federation.moved(model, k) for k in range(CLIENTS)])
    for name, x in federation.opened().items():
        np.testing.assert_allclose(x, model[name], rtol=0, atol=4 * STEP)


def test_a_run_whose_charter_was_changed_does_not_open(tmp_path):
    federation = Federation(tmp_path, "bfv")
    federation.start(made("adam"), rounds=2)
    path, charter = federation.run / "run.json", federation.charter
    index = json.loads(path.read_text())
    for changes in (*LIES.values(), {"run": charter.run - 1}, {"run": charter.run + 1}):
        path.write_text(json.dumps({**index, "charter": replace(charter, **changes).encode().decode()}))
        with pytest.raises(errors.ModelMismatchError):
            federation.opened()
    document = json.loads(index["charter"])
    damaged = [{**document, "optimiser": ["sgd", list(GOOD)]}, {**document, "arrays": {}}, {}, [], 7, None]
    for broken in damaged:
        text = json.dumps(broken, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps({**index, "charter": text}))
        with pytest.raises(errors.RunError, match="damaged"):
            federation.opened()
    path.write_text(json.dumps(index))
    first = federation.run / "first.npz"
    np.savez(first, *(x + 1 for x in MODEL.values()))
    with pytest.raises(errors.CharterError, match="first model is not the one that the charter names"):
        federation.opened()
    np.savez(first, *MODEL.values())
    assert as_bytes(federation.opened()) == federation.same_bytes("evaluate", 2)


def test_a_runs_folder_says_nothing_of_the_run_before(tmp_path):
    federation = Federation(tmp_path)

    class Shifts(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            shifted = {n: np.asarray(a.numpy() + 1) for n, a in arrays.items()}
            return record(shifted.values(), shifted), metrics

    strategy = federation.server(Shifts(**ALL), opener="client-0.key", sets_models=True)
    begun = {}

    def look(grid_send, messages):
        if strategy.run.model.folder.count == 0:
            begun[federation.run.name] = {path.name for path in federation.run.iterdir()}
        return grid_send(messages)

    real = federation.grid.push_messages
    federation.grid.push_messages = lambda messages: look(real, list(messages))
    for folder in ("run", "run-2"):
        result = strategy.start(federation.grid, federation.first(), num_rounds=2)
        opened = open_run(tmp_path / folder, federation.keys / "client-1.key")
        assert as_bytes(opened) == as_bytes({n: a.numpy() for n, a in result.arrays.items()})
        assert not any(name.startswith(("set-", "aggregate-", "evaluation-")) for name in begun[folder])
        with np.load(tmp_path / folder / "first.npz") as packed:
            assert [x.tobytes() for x in packed.values()] == [x.tobytes() for x in MODEL.values()]


NAN, INF = float("nan"), float("inf")
HOSTILE = {
    "unknown kind": ["sgd", GOOD],
    "a class's name": ["FedAdam", GOOD],
    "no text": [7, GOOD],
    "no kind": [None, GOOD],
    "a list of kinds": [["adam"], GOOD],
    "a kind alone": "adam",
    "one part": ["adam"],
    "three parts": ["adam", GOOD, GOOD],
    "an object": {"adam": GOOD},
    "no numbers": ["adam", None],
    "one number": ["adam", 0.1],
    "text": ["adam", "0.1"],
    "whole numbers": ["adam", [1, 0, 0, 1]],
    "truth values": ["avgm", [True, False]],
    "too few": ["adam", GOOD[:3]],
    "too many": ["avgm", GOOD],
    "far too many": ["adam", [0.1] * 100_000],
    "none": ["adam", []],
    "a rate of nan": ["adam", [NAN, *GOOD[1:]]],
    "a share of nan": ["adam", [0.1, NAN, 0.99, 0.1]],
    "tau of nan": ["adam", [*GOOD[:3], NAN]],
    "an endless rate": ["adam", [INF, *GOOD[1:]]],
    "an endless tau": ["adam", [*GOOD[:3], INF]],
    "a negative rate": ["adam", [-0.1, *GOOD[1:]]],
    "a negative share": ["yogi", [0.1, 0.9, -0.1, 0.1]],
    "a negative tau": ["adagrad", [0.1, 0.0, 0.0, -1e-3]],
    "a huge rate": ["avgm", [1e300, 0.9]],
    "a huge tau": ["adam", [*GOOD[:3], 1e7]],
    "a rate of nothing": ["avgm", [0.0, 0.9]],
    "tau of nothing": ["adam", [*GOOD[:3], 0.0]],
    "a share of one": ["avgm", [0.5, 1.0]],
    "a share above one": ["adam", [0.1, 0.9, 1.5, 0.1]],
}


def documents(charter, hostile):
    """The charter's document with another optimiser, as JSON has it, NaN included."""
    return json.dumps({**charter, "optimiser": hostile}, sort_keys=True, separators=(",", ":")).encode()


def test_hostile_optimisers_are_refused_in_the_one_text(tmp_path):
    """Before the charter is accepted, which would end the client's run; the policy allows any."""
    (tmp_path / "home").mkdir()
    lax = {"fedcipher_policy": 1, "least_rate": 0, "most_rate": 1e307, "most_tau": 1e307, "most_momentum": 1e307}
    (tmp_path / "home" / "policy.json").write_text(json.dumps(lax))
    federation = Federation(tmp_path)
    # Not in the past of the keys' ledgers, which are as old as this test.
    strategy = federation.server(made("adam"))
    strategy._begin(federation.first())
    honest = RoundSettings(federation.charter.digest, strategy.run.base + 1, 1, 0, federation.charter.encode())
    said = json.loads(honest.document)
    assert documents(said, said["optimiser"]) == honest.document
    for what, hostile in HOSTILE.items():
        document = documents(said, hostile)
        with pytest.raises(errors.CharterError):
            Charter.decode(document)
        reply = federation.send(replace(honest, charter=digest_of(document), document=document))
        assert reply.has_error() and reply.error.reason == TEXT + reference_of(reply), what
        assert federation.store(0).accepted() is None and not federation.remembered(0), what
    assert federation.shown == {}
    # Not because of anything else in the message.
    assert not federation.send(honest).has_error()


@pytest.mark.parametrize("opened", [False, True])
def test_where_clients_make_no_step_a_charter_has_no_optimiser(tmp_path, opened, caplog):
    """A document that says what nobody does: of whole models, and where the server sets the models."""
    codec, options = (CODEC, {"sets_models": True, "opener": "client-0.key"}) if opened else (WEIGHTS, {})
    federation = Federation(tmp_path, codec=codec)

    def lie(settings, client):
        return under(settings, replace(federation.charter, optimiser=("adam", GOOD))) if client == 2 else settings

    federation.grid.lie = lie
    federation.start(FedAvg(**ALL), rounds=1, **options)
    assert [c.node for c in federation.strategy.rounds[0].clients if c.left_out] == [1002]
    assert "clients apply an optimiser only to changes of the model" in caplog.text
    assert 2 not in federation.shown["train", 1]


def test_a_site_may_allow_numbers_that_are_out_of_the_strict_bounds(tmp_path, caplog):
    federation = Federation(tmp_path)
    slow = {"eta": 1e-4, "tau": 0.2, "beta_1": 0.995}
    with pytest.raises(errors.StrategyError, match="none of 1 rounds"):
        federation.start(made("adam", **slow), rounds=1)
    assert "this site's policy does not allow the charter" in caplog.text and "exceeds its limits" in caplog.text
    assert federation.shown == {}
    (tmp_path / "home").mkdir()
    lax = {"fedcipher_policy": 1, "least_rate": 1e-5, "most_tau": 1.0, "most_momentum": 0.999}
    (tmp_path / "home" / "policy.json").write_text(json.dumps(lax))
    federation.start(made("adam", **slow), rounds=2)
    want = federation.in_the_clear(made("adam", **slow), 2)
    for name, x in federation.opened().items():
        np.testing.assert_allclose(x, want[name], rtol=0, atol=STEP)


# --- what is refused before the first round --------------------------------------------------------


@pytest.mark.parametrize("opener", [None, "client-0.key"])
@pytest.mark.parametrize("kind", STEPPED)
def test_whole_models_are_refused_by_name_with_the_fix(tmp_path, kind, opener):
    federation = Federation(tmp_path, codec=WEIGHTS)
    with pytest.raises(errors.StrategyError, match=rf'{STEPPED[kind][0].__name__}.*Codec\(target="delta"\)'):
        federation.start(made(kind), opener=opener)
    assert federation.grid.sent == [] and not (tmp_path / "run").exists()


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


SETS = r"SecureStrategy\(sets_models=True, opener"
REFUSED = [
    (
        OwnStep,
        {},
        r"OwnStep has an aggregate_train\(\) of its own.*opener",
        rf"OwnStep does not compute the mean.*{SETS}",
    ),
    (OwnMoments, {}, rf"OwnMoments makes a different step from the mean than FedAdam\(.*{SETS}", None),
    (Between, {}, r"Between makes a different step from the mean than FedYogi\(", None),
    (FedAdam, {"tau": 0.0}, r"FedAdam cannot run on the clients: tau is 0.0; clients take 1e-30 to 1e\+06", None),
    (FedAdam, {"beta_1": 1.0}, r"beta_1 is 1.0; clients take at least 0 and below 1", None),
    (FedAvgM, {"server_learning_rate": -1.0}, r"server_learning_rate is -1.0", None),
    (FedAvgM, {"server_momentum": NAN}, r"server_momentum is nan", None),
    (FedYogi, {"eta": lambda: 0.1}, r"FedYogi cannot run on the clients", None),
    (FedYogi, {"eta": 10**400}, r"FedYogi cannot run on the clients", None),
]


@pytest.mark.parametrize("opener", [None, "client-0.key"])
@pytest.mark.parametrize(
    ("cls", "numbers", "said", "with_opener"),
    REFUSED,
    ids=[f"{cls.__name__} {k}" for k, (cls, *_) in enumerate(REFUSED)],
)
def test_other_steps_are_refused_by_name(tmp_path, cls, numbers, said, with_opener, opener):
    federation = Federation(tmp_path)
    with pytest.raises(errors.StrategyError, match=with_opener if opener and with_opener else said):
        federation.start(cls(**ALL, **numbers), opener=opener)
    assert federation.grid.sent == [] and not (tmp_path / "run").exists()


def test_an_own_step_runs_where_the_server_sets_the_models(tmp_path):
    """The fix that a refusal names."""
    for cls in (OwnStep, OwnMoments):
        federation = Federation(tmp_path / cls.__name__)
        federation.start(cls(**ALL, tau=0.1), rounds=3, sets_models=True, opener="client-0.key")
        want = federation.in_the_clear(cls(**ALL, tau=0.1), 3)
        for name, x in federation.opened().items():
            np.testing.assert_allclose(x, want[name], rtol=0, atol=12 * STEP)


def test_a_strategy_that_goes_on_from_another_run_is_refused(tmp_path):
    federation = Federation(tmp_path)
    for kind in STEPPED:
        used = made(kind)
        federation.in_the_clear(used, 2)
        for opener in (None, "client-0.key"):
            with pytest.raises(errors.StrategyError, match=f"{type(used).__name__} has moments of an earlier run"):
                federation.start(used, opener=opener)


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

    metrics = {"train_metrics_aggr_fn": lambda replies, key: MetricRecord({"replies": len(replies)})}
    for opener in (None, "client-0.key"):
        federation = Federation(tmp_path / str(opener))
        caplog.clear()
        result = federation.start(Own(**ALL, **metrics), rounds=2, opener=opener)
        # Of what it may see: without an opener it is given no metrics.
        assert dict(result.train_metrics_clientapp.get(2, {})) == ({"replies": 3} if opener else {})
        said = [r.getMessage() for r in caplog.records if "the clients apply the step" in r.getMessage()]
        assert len(said) == 1 and said[0].startswith(
            "Fedcipher: the clients apply the step of FedAdam(eta=0.1, beta_1=0.9"
        )
        assert [r.accepted for r in federation.strategy.rounds] == [3, 3]
    caplog.clear()
    federation = Federation(tmp_path / "second")
    federation.start(FedAvgM(**ALL), rounds=2)
    assert "the clients apply the step" not in caplog.text and federation.charter.optimiser is None
    want = federation.in_the_clear(FedAvg(**ALL), 2)
    np.testing.assert_allclose(federation.opened()["weight"], want["weight"], atol=2 * STEP)
