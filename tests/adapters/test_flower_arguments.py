"""What callers give to the Flower layer, to loggers and to engines: taken, or refused with a FedcipherError."""

import inspect

import fedcipher
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, make_client_mod, numpy_client_app, open_run
from fedcipher.adapters.flower.analytics import secure_sum
from fedcipher.dp import grid as privacy_grid
from fedcipher.engine import Authority, connect
from fedcipher.federation.answers import Answer
from fedcipher.scale import RayWorkers
from fedcipher.watch import JsonLines, TensorBoard
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_arguments import CODEC, ODD

CLIENTS = 3


class Cohort:
    """Three clients with keys, in one process."""

    def __init__(self, folder):
        self.folder = folder
        self.scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=CODEC)
        self.keys = keys.save(self.scheme.keygen(CLIENTS), self.scheme, folder / "keys")
        self.app = make_app([initial()] * CLIENTS, [10] * CLIENTS, mods=(client_mod,))

    @property
    def grid(self):
        return LocalGrid(self.app, CLIENTS, self.keys)

    def strategy(self):
        return SecureStrategy(FedAvg(), self.keys, out=self.folder / "run")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture
def cohort(made, monkeypatch):
    monkeypatch.chdir(made.folder)
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(made.folder / "state"))
    monkeypatch.setenv("FEDCIPHER_HOME", str(made.folder / "home"))
    return made


# Each with arguments that it takes; what is not named keeps its default.
TAKING = {
    "SecureStrategy": lambda c: (SecureStrategy, {"strategy": FedAvg(), "keys": c.keys}),
    "SecureStrategy.start": lambda c: (
        c.strategy().start,
        {"grid": c.grid, "initial_arrays": record(initial()), "num_rounds": 1, "timeout": 5.0},
    ),
    "secure_sum": lambda c: (
        secure_sum,
        {"grid": c.grid, "query": RecordDict({"q": ConfigRecord({"a": 1})}), "keys": c.keys, "answers": ["loss"]},
    ),
    "Answer": lambda c: (Answer, {"name": "loss"}),
    "make_client_mod": lambda c: (make_client_mod, {}),
    "numpy_client_app": lambda c: (numpy_client_app, {"client_fn": lambda context: None}),
    "open_run": lambda c: (open_run, {"folder": "no-run", "key": c.keys / "client-0.key"}),
    "connect": lambda c: (connect, {"target": "unix:/nowhere", "patience": 1.0}),
    "Authority": lambda c: (Authority, {"target": "127.0.0.1:1", "credentials": c.folder, "patience": 1.0}),
    "RayWorkers": lambda c: (RayWorkers, {}),
    "JsonLines": lambda c: (JsonLines, {"path": "log.jsonl"}),
    "TensorBoard": lambda c: (TensorBoard, {"folder": "board"}),
    "grid": lambda c: (
        privacy_grid,
        {
            "privacy": fedcipher.dp.Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5),
            "bits": 16,
            "elements": 100,
            "shares": 2,
        },
    ),
}


def parameters_of(function):
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "workers"
    ]


def called(cohort, name, odd):
    function, given = TAKING[name](cohort)
    try:
        function(**{**given, **odd})
    except errors.FedcipherError as error:
        assert str(error)


@pytest.mark.parametrize("name", TAKING)
def test_each_odd_argument_alone_is_taken_or_refused(cohort, name):
    for parameter in parameters_of(TAKING[name](cohort)[0]):
        for value in ODD:
            called(cohort, name, {parameter: value})


@pytest.mark.parametrize("name", TAKING)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_function_of_the_flower_layer_ends_in_a_bare_error(cohort, name, data):
    parameters = parameters_of(TAKING[name](cohort)[0])
    odd = data.draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=2, unique=True))
    called(cohort, name, {parameter: data.draw(st.sampled_from(ODD), label=parameter) for parameter in odd})
