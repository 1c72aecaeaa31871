"""Apps as people write them, behind the mod and behind a guard: each is treated alike in both."""

import fedcipher
import numpy as np
import pytest

pytest.importorskip("flwr.supercore.runtime", reason="Flower 1.35 or later is not installed")

from fedcipher import Codec, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, numpy_client_app, query_mod
from fedcipher.adapters.flower.analytics import secure_sum
from fedcipher.errors import StrategyError
from fedcipher.federation import messages as protocol
from fedcipher.federation.refusal import TEXT
from fedcipher.frame import inspect
from flower_harness import NAMES, LocalGrid, initial, make_app, record, reference_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum
from guard_harness import GuardedApp

CLIENTS = 3
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
TRAINS = {**ALL, "fraction_evaluate": 0.0}
EXAMPLES = [10, 20, 30]
STEP = 1e-3


def goals():
    return [[np.full_like(a, k + 1) for a in initial()] for k in range(CLIENTS)]


@pytest.fixture(params=["mod", "guard"])
def site(request, tmp_path):
    return Sites(request.param, tmp_path)


class Sites:
    """``CLIENTS`` sites with a mod or a guard. The apps have no mod: the mod's sites put it around them."""

    def __init__(self, kind, folder, examples_per_weight=10):
        self.kind, self.folder = kind, folder
        scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=Codec(bits=16, clip=4.0), max_weight=8)
        self.keys = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", examples_per_weight=examples_per_weight)

    def grid(self, app, mod=client_mod):
        if self.kind == "guard":
            return LocalGrid(GuardedApp(app, self.keys, self.folder / "guards"), CLIENTS, self.keys, sites=True)
        return LocalGrid(lambda msg, ctxt: mod(msg, ctxt, app), CLIENTS, self.keys)

    def train(self, app, rounds=1, model=None, names=NAMES, inner=None, **options):
        """A run whose server opens each mean. Returns the strategy, its result and the grid."""
        grid = self.grid(app)
        options = {"train_answers": ["loss"], "evaluate_answers": ["distance"], **options}
        strategy = SecureStrategy(inner or FedAvg(**ALL), self.keys, opener=self.keys / "client-0.key", **options)
        given = initial() if model is None else model
        return strategy, strategy.start(grid, record(given, names), num_rounds=rounds), grid


def training(change, examples=EXAMPLES):
    """An app whose client 1 answers a training otherwise: ``change(reply)`` returns its reply."""
    honest = make_app(goals(), examples, mods=())

    def app(msg, ctxt):
        reply = honest(msg, ctxt)
        odd = ctxt.node_config["partition-id"] == 1 and msg.metadata.message_type == "train"
        return change(reply) if odd else reply

    return app


def mean_of(weights):
    """The model after a round whose clients have these weights, each half way to its goal."""
    return [np.average([0.5 * goal[k] for goal in goals()], axis=0, weights=weights) for k in range(len(NAMES))]


def assert_close(result, want):
    for got, x in zip(result.arrays.to_numpy_ndarrays(), want, strict=True):
        np.testing.assert_allclose(got, x, atol=STEP)


# --- a server without a strategy of ours ---------------------------------------------------------


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian, Krum])
def test_a_server_without_our_strategy_ends_in_its_first_round_with_cause_and_remedy(site, strategy):
    grid = site.grid(make_app(goals(), EXAMPLES, mods=()))
    with pytest.raises(ValueError, match="wrap its strategy in SecureStrategy") as raised:
        strategy(**ALL).start(grid, record(initial()), num_rounds=5)
    assert TEXT in str(raised.value)
    assert len(grid.sent) == CLIENTS and all(reference_of(reply) for _, reply in grid.received)


def test_a_server_that_sends_messages_itself_is_told_where_it_reads_the_arrays(site):
    grid = site.grid(make_app(goals(), EXAMPLES, mods=()))
    content = RecordDict({"weights": record(initial()), "config": ConfigRecord({"server-round": 1})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1000, message_type="train")])
    with pytest.raises(ValueError, match="wrap its strategy in SecureStrategy"):
        reply.content["weights"].to_numpy_ndarrays()
    with pytest.raises(ValueError, match="wrap its strategy in SecureStrategy"):
        reply.content["weights"][NAMES[1]].numpy()
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=1000, message_type="train")])
    assert reference_of(reply)


def test_a_server_of_flowers_older_api_ends_in_its_first_round(site):
    server = pytest.importorskip("flwr.server")
    from flwr.common import ndarrays_to_parameters
    from flwr.server.compat import start_grid
    from flwr.server.strategy import FedAvg as Older

    grid = site.grid(make_app(goals(), EXAMPLES, mods=()))
    grid.run = type("Run", (), {"run_id": 1})
    older = Older(
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters(initial()),
    )
    with pytest.raises(ValueError, match="wrap its strategy in SecureStrategy"):
        start_grid(grid=grid, config=server.ServerConfig(num_rounds=3), strategy=older)
    assert {reply.content.config_records["fitres.status"]["code"] for _, reply in grid.received} == {0}


def test_an_evaluation_or_query_without_our_strategy_is_an_error_that_says_so(site, caplog):
    grid = site.grid(make_app(goals(), EXAMPLES, mods=()))
    caplog.set_level("INFO")
    FedAvg(**ALL, fraction_train=0.0).start(grid, record(initial()), num_rounds=1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=1000, message_type="query")])
    assert all(made.has_error() and reference_of(made) for _, made in grid.received)
    said = [line.message for line in caplog.records if line.name == "flwr" and "wrap its strategy" in line.message]
    assert len(said) == CLIENTS and "ask queries with secure_sum" in reply.error.reason


# --- runs that evaluate only ---------------------------------------------------------------------


@pytest.mark.parametrize("opened", [True, False])
def test_a_run_may_evaluate_only(site, opened):
    grid = site.grid(make_app(goals(), EXAMPLES, mods=()))
    where = {"opener": site.keys / "client-0.key"} if opened else {"out": site.folder / "run"}
    strategy = SecureStrategy(FedAvg(**ALL, fraction_train=0.0), site.keys, evaluate_answers=["distance"], **where)
    model = [np.ones_like(a) for a in initial()]
    result = strategy.start(grid, record(model), num_rounds=1)
    (made,) = strategy.rounds
    assert made.unfinished is None and [c.left_out for c in made.evaluations] == [None] * CLIENTS
    assert len(grid.sent) == CLIENTS
    assert_close(result, model)
    if opened:
        want = np.average([0, 1, 2], weights=EXAMPLES)
        assert result.evaluate_metrics_clientapp[1]["distance"] == pytest.approx(want, abs=STEP)


# --- apps that count nothing ---------------------------------------------------------------------


def with_arrays(arrays, names=NAMES):
    def change(reply):
        reply.content["arrays"] = record(arrays, names)
        return reply

    return change


def header(text):
    """An array whose bytes begin with a damaged head of NumPy's format."""
    head = text.encode()
    return Array(
        dtype="f4", shape=(7,), stype="numpy.ndarray", data=b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head
    )


def damaged(array):
    return lambda reply: reply.content["arrays"].update({NAMES[1]: array}) or reply


def exits(reply):
    raise SystemExit(3)


def weighing(value):
    return lambda reply: reply.content["metrics"].update({"num-examples": value}) or reply


def without(name):
    return lambda reply: reply.content.pop(name) and reply


COUNT_NOTHING = {
    "raises": lambda reply: 1 / 0,
    "returns nothing": lambda reply: None,
    "returns a number": lambda reply: 7,
    "exits": exits,
    "no arrays": without("arrays"),
    "no metrics": without("metrics"),
    "two records": lambda reply: reply.content.update({"spare": record(initial())}) or reply,
    "other names": with_arrays(initial(), ["a", "b"]),
    "fewer arrays": with_arrays(initial()[:1], NAMES[:1]),
    "more arrays": with_arrays([*initial(), np.ones(3)], [*NAMES, "more"]),
    "another shape": with_arrays([np.ones((20, 30)), np.ones((7, 1))]),
    "texts": with_arrays([np.ones((20, 30)), np.array(["a"] * 7)]),
    "complex numbers": with_arrays([np.ones((20, 30)), np.ones(7, np.complex64)]),
    "bytes that are no array": damaged(Array(dtype="f4", shape=(7,), stype="numpy.ndarray", data=b"pickle")),
    "a head without end": damaged(header("(")),
    "a head of too many dimensions": damaged(header(f"{{'descr':'<f4','fortran_order':False,'shape':{(0,) * 70}}}")),
    "no examples": weighing(0),
    "negative examples": weighing(-10),
    "examples that are no number": weighing(float("nan")),
    "no list of examples": weighing([]),
}


@pytest.mark.parametrize("what", COUNT_NOTHING)
def test_an_app_without_an_update_counts_nothing_and_its_reply_looks_like_any_other(site, what):
    if site.kind == "mod" and what == "exits":
        pytest.skip("it ends the process, and the mod with it")
    strategy, result, grid = site.train(training(COUNT_NOTHING[what]), inner=FedAvg(**TRAINS))
    assert strategy.rounds[0].accepted == CLIENTS
    assert_close(result, mean_of([10, 0, 30]))
    trained = [reply for _, reply in grid.received if reply.metadata.message_type == "train"]
    seen = {(len(frame), *map(str, inspect(frame)[:2]), names) for frame, names in map(shown, trained)}
    assert len(trained) == CLIENTS and len(seen) == 1


def shown(reply):
    (arrays,) = reply.content.array_records.values()
    return protocol.frame_bytes(arrays[protocol.UPDATE]), repr({k: sorted(v) for k, v in reply.content.items()})


# --- apps whose updates count --------------------------------------------------------------------


def reordered(reply):
    names = list(reply.content["arrays"])[::-1]
    reply.content["arrays"] = ArrayRecord({name: reply.content["arrays"][name] for name in names})
    return reply


def renamed(reply):
    reply.content["my-model"] = reply.content.pop("arrays")
    reply.content["my-metrics"] = reply.content.pop("metrics")
    return reply


def retyped(dtype):
    return lambda reply: with_arrays([a.astype(dtype) for a in reply.content["arrays"].to_numpy_ndarrays()])(reply)


def transposed(reply):
    return with_arrays([np.asfortranarray(a) for a in reply.content["arrays"].to_numpy_ndarrays()])(reply)


def talkative(reply):
    reply.content["more"] = ConfigRecord({"patient": "4711", "raw": b"4711"})
    reply.content["metrics"]["surplus"] = [4711.0] * 100
    return reply


COUNT = {
    "arrays in another order": reordered,
    "records of other names": renamed,
    "float64": retyped(np.float64),
    "float16": retyped(np.float16),
    "numbers of the other byte order": retyped(">f4"),
    "arrays by column": transposed,
    "further records": talkative,
}


@pytest.mark.parametrize("what", COUNT)
def test_an_update_in_a_form_of_the_apps_own_counts_as_in_the_clear(site, what):
    strategy, result, grid = site.train(training(COUNT[what]), inner=FedAvg(**TRAINS))
    assert strategy.rounds[0].accepted == CLIENTS
    assert_close(result, mean_of(EXAMPLES))
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(np.average([0, 1, 2], weights=EXAMPLES), abs=STEP)
    names = {key for _, reply in grid.received for held in reply.content.values() for key in held}
    assert not names & {"surplus", "patient", "raw", "loss", "num-examples"}


def test_whole_numbers_are_exact_beside_a_large_model(site):
    app = ClientApp()

    @app.train()
    def train(msg, ctxt):
        weights, counter = msg.content["arrays"].to_numpy_ndarrays()
        arrays = record([weights + np.float32(0.5), np.asarray(counter + 100)], ["w", "counter"])
        metrics = MetricRecord({"num-examples": EXAMPLES[ctxt.node_config["partition-id"]], "loss": 1.0})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    model = [np.zeros(5, np.float32), np.array(10**9, np.int64)]
    _, result, _ = site.train(app, 3, model, ["w", "counter"], FedAvg(**TRAINS))
    weights, counter = result.arrays.to_numpy_ndarrays()
    assert counter == 10**9 + 300 and counter.dtype == np.int64
    np.testing.assert_allclose(weights, 1.5, atol=3 * STEP)


def test_an_app_keeps_a_state_of_its_own_for_each_client(site):
    seen = []
    honest = make_app(goals(), EXAMPLES, mods=())

    def app(msg, ctxt):
        held = ctxt.state.setdefault("mine", ConfigRecord({"count": 0}))
        held["count"] += 1
        seen.append((ctxt.node_config["partition-id"], held["count"]))
        return honest(msg, ctxt)

    strategy, *_ = site.train(app, rounds=2)
    assert [made.accepted for made in strategy.rounds] == [CLIENTS] * 2
    assert {k: [n for c, n in seen if c == k] for k in range(CLIENTS)} == {k: [1, 2, 3, 4] for k in range(CLIENTS)}


def test_mods_of_the_app_go_on_working(site):
    app = make_app(goals(), [10] * CLIENTS, mods=[fixedclipping_mod], step=1.0)
    grid = site.grid(app)
    strategy = SecureStrategy(FedAvg(**TRAINS), site.keys, opener=site.keys / "client-0.key")
    result = strategy.start(grid, record(initial()), 1, train_config=ConfigRecord({"clipping_norm": 0.5}))
    flat = np.concatenate([values.ravel() for values in result.arrays.to_numpy_ndarrays()])
    assert np.linalg.norm(flat) == pytest.approx(0.5, rel=1e-2)


def test_a_client_of_flowers_older_api_works_without_a_mod_of_its_own(site):
    numpy_client = pytest.importorskip("flwr.client").NumPyClient

    class Walker(numpy_client):
        def __init__(self, client):
            self.client = client

        def fit(self, parameters, config):
            moved = [np.asarray(0.5 * (self.client + 1) + 0.5 * p, np.float32) for p in parameters]
            return moved, EXAMPLES[self.client], {"loss": float(self.client)}

        def evaluate(self, parameters, config):
            return 0.25, EXAMPLES[self.client], {"distance": 1.0}

    app = numpy_client_app(lambda context: Walker(context.node_config["partition-id"]), mods=[])
    _, result, _ = site.train(app)
    assert_close(result, mean_of(EXAMPLES))
    assert result.evaluate_metrics_clientapp[1]["distance"] == pytest.approx(1.0, abs=STEP)


def test_a_servers_own_queries_between_rounds_are_refused_and_end_nothing(site):
    """The server's app asks on its own; the mod's allowed types are the site's, and a guard has none."""
    app = make_app(goals(), EXAMPLES, mods=())

    @app.query("stats")
    def stats(msg, ctxt):
        raise AssertionError("the app was asked")

    grid = site.grid(app)
    strategy = SecureStrategy(FedAvg(**ALL), site.keys, opener=site.keys / "client-0.key")
    strategy.start(grid, record(initial()), num_rounds=1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=1001, message_type="query.stats")])
    assert reply.has_error() and reference_of(reply)
    result = strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS
    assert_close(result, mean_of(EXAMPLES))


def test_statistics_are_encrypted_sums(site):
    app = ClientApp()

    @app.query()
    def query(msg, ctxt):
        held = MetricRecord({"count": EXAMPLES[ctxt.node_config["partition-id"]], "surplus": 4711.0})
        return Message(RecordDict({"mine": held}), reply_to=msg)

    grid = site.grid(app, query_mod)
    question = RecordDict({"config": ConfigRecord({"column": "age"})})
    total = secure_sum(grid, question, site.keys, answers=["count"])
    assert total.open(site.keys / "client-0.key")["count"] == sum(EXAMPLES)
    names = {key for _, reply in grid.received for held in reply.content.values() for key in held}
    assert names == {protocol.UPDATE, "digest"}


# --- runs of which nothing comes -----------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["train", "evaluate only"])
def test_a_run_whose_apps_all_fail_is_no_success_where_the_server_sees_it(site, caplog, share):
    def app(msg, ctxt):
        raise ValueError("patient 4711")

    inner = FedAvg(**ALL, fraction_train=share)
    with pytest.raises(StrategyError, match="apps of all clients failed in all 1 rounds"):
        site.train(app, inner=inner)
    # No means of nobody, which would be zeros.
    assert "distance" not in "".join(line.message for line in caplog.records if line.name == "flwr")


def test_a_round_in_which_all_apps_fail_is_named_at_the_runs_end(site):
    honest, trained = make_app(goals(), EXAMPLES, mods=()), []

    def app(msg, ctxt):
        trained.append(msg.metadata.message_type)
        if trained.count("train") <= CLIENTS:
            raise ValueError("the first round")
        return honest(msg, ctxt)

    strategy, result, _ = site.train(app, rounds=2, inner=FedAvg(**TRAINS))
    assert [made.all_apps_failed for made in strategy.rounds] == [True, False]
    assert "1 of 2 sums are of no client, because all apps failed (first in round 1)" in result.outcome.text()
    assert_close(result, mean_of(EXAMPLES))


def test_an_app_with_a_mod_of_its_own_is_named_in_the_guards_log(tmp_path, caplog):
    site = Sites("guard", tmp_path)
    for share in (1.0, 0.0):
        caplog.clear()
        with pytest.raises(StrategyError, match="apps of all clients failed"):
            site.train(make_app(goals(), EXAMPLES), inner=FedAvg(**ALL, fraction_train=share))
        assert "the app has a client_mod, which has no key here: remove it" in caplog.text
