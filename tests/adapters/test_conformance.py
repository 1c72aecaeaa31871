"""What every adapter must do, each property written once: rounds, lies, what leaves, drop-outs, resume.

`tests/adapters/conformance/` has one driver for each adapter. docs/contributor/add-an-adapter.md says how one joins.
"""

import numpy as np
import pytest
from conformance import CLIENTS, EXAMPLES, Cohort
from conformance.drivers import NAMES, driver
from fedcipher.federation.curves import Curves

ROUNDS = 3
PARAMS = {"oneshot": {"members": 3, "corrupt_clients": 0}}
GOALS = (-0.5, 0.125, 0.75)
"""Each client's app moves every value half the way to its goal."""


def first_model():
    return {"weights": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "bias": np.zeros(3, np.float32)}


def moved(values, goal):
    return ((values + np.asarray(goal, values.dtype)) / 2).astype(values.dtype)


def app(client, purpose, arrays, examples=None):
    """Half the way to the goal, and a loss that is the client's number."""
    trained = {name: moved(values, GOALS[client]) for name, values in arrays.items()}
    return trained, {EXAMPLES: 10 if examples is None else examples[client], "loss": float(client)}


def expected(model, rounds, weights=(1,) * CLIENTS, clients=range(CLIENTS)):
    """The same run in the clear, in float64."""
    goal = np.average([GOALS[k] for k in clients], weights=[weights[k] for k in clients])
    model = {name: values.astype(np.float64) for name, values in model.items()}
    for _ in range(rounds):
        model = {name: (values + goal) / 2 for name, values in model.items()}
    return model


def assert_close(found, wanted, bound):
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert np.abs(found[name] - values).max(initial=0.0) <= bound, name


@pytest.fixture
def under_test(tmp_path, monkeypatch):
    """Makes an adapter under test, with keys of its own."""
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDCIPHER_ALLOW_EPHEMERAL_STATE", "1")
    made = []

    def make(name, scheme="flashe", client_app=app, wire=None, **params):
        cls = driver(name)
        if cls.missing():
            pytest.skip(cls.missing())
        given = {"min_contributions": 2, **PARAMS.get(scheme, {}), **cls.params.get(scheme, {}), **params}
        made.append(cls(Cohort(tmp_path, scheme, **given), client_app, wire))
        return made[-1]

    yield make
    for one in made:
        one.close()


every_adapter = pytest.mark.parametrize("name", NAMES)


# --- rounds ------------------------------------------------------------------------------------


@every_adapter
@pytest.mark.parametrize("scheme", ["plain", "bfv", "flashe", "oneshot"])
def test_all_parties_end_with_the_mean_of_the_clients(under_test, name, scheme):
    adapter, first = under_test(name, scheme), first_model()
    run = adapter.run_rounds(first, ROUNDS)
    assert [record.accepted for record in run.rounds] == [CLIENTS] * ROUNDS
    model = adapter.cohort.opened()
    assert_close(model, expected(first, ROUNDS), adapter.cohort.precision(ROUNDS))
    # In the last evaluation each client has the run's model, to the last bit.
    calls = [(client, arrays) for client, purpose, arrays in adapter.called if purpose == "evaluate"][-CLIENTS:]
    assert sorted(client for client, _ in calls) == list(range(CLIENTS))
    for _, arrays in calls:
        assert all(np.array_equal(arrays[name], values) for name, values in model.items())
    if run.setup.opener is not None:
        assert all(np.array_equal(a, b) for a, b in zip(run.model.arrays, model.values(), strict=True))


@every_adapter
def test_clients_weigh_what_their_examples_are(under_test, name):
    examples, first = (1, 2, 5), first_model()
    adapter = under_test(name, "bfv", lambda *given: app(*given, examples=examples), largest=8)
    adapter.run_rounds(first, ROUNDS)
    bound = adapter.cohort.precision(ROUNDS, examples)
    assert_close(adapter.cohort.opened(), expected(first, ROUNDS, examples), bound)


@every_adapter
def test_answers_arrive_as_sums(under_test, name):
    adapter = under_test(name)
    adapter.run_rounds(first_model(), 2)
    curves = Curves(adapter.cohort.out, adapter.cohort.key(0))
    curves.read()
    for index in (1, 2):
        assert curves.metrics(index)["evaluate"] == {"loss": pytest.approx(np.mean(range(CLIENTS)), abs=1e-6)}
    for _, _, reply in adapter.wire.left:
        assert b"loss" not in reply.to_bytes()


ODD = {
    "count": np.array([3, 70_001], np.int64),
    "small": np.array([7, 200], np.uint8),
    "flags": np.array([True, False]),
    "scalar": np.array(0.5, np.float32),
    "whole scalar": np.array(12, np.int32),
    "half": np.linspace(-1, 1, 5, dtype=np.float16),
    "wide": np.linspace(-1, 1, 4).reshape(2, 2),
    "empty": np.zeros((0, 3), np.float32),
    "weights": np.linspace(-1, 1, 6, dtype=np.float32),
}


@every_adapter
def test_arrays_of_every_type_and_shape_come_to_the_mean(under_test, name):
    """Whole numbers are exact: here each mean of three clients is a whole number."""
    step = {"count": (-3, 0, 90_000), "small": (1, 2, 3), "whole scalar": (4, 4, 1)}

    def odd_app(client, purpose, arrays):
        made = {k: x + x.dtype.type(step[k][client]) if k in step else x for k, x in arrays.items()}
        made.update({k: moved(x, GOALS[client]) for k, x in arrays.items() if x.dtype.kind == "f"})
        return made, {EXAMPLES: 1, "loss": 0.0}

    adapter = under_test(name, client_app=odd_app)
    adapter.run_rounds(ODD, 2)
    found = adapter.cohort.opened()
    for key, values in ODD.items():
        assert (found[key].dtype, found[key].shape) == (values.dtype, values.shape), key
    floats = {key: values for key, values in ODD.items() if values.dtype.kind == "f"}
    # Each round's model is rounded to float16, whose values up to 1 are 2^-11 apart.
    bound = adapter.cohort.precision(2) + 2 * 2.0**-11
    assert_close({key: found[key] for key in floats}, expected(floats, 2), bound)
    for key in set(ODD) - set(floats):
        wanted = ODD[key] + 2 * np.mean(step[key], dtype=int).astype(ODD[key].dtype) if key in step else ODD[key]
        assert np.array_equal(found[key], wanted), key
