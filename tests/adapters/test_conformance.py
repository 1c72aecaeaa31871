"""What every adapter must do, each property written once: rounds, lies, what leaves, drop-outs, resume.

`tests/adapters/conformance/` has one driver for each adapter. docs/contributor/add-an-adapter.md says how one joins.
"""

import os
import shutil
import threading
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from conformance import CLIENTS, EXAMPLES, Cohort, Wire, asks, copied, is_constant_refusal, settings_in
from conformance.drivers import NAMES, driver, missing
from fedcipher import keys
from fedcipher.federation.charter import Charter
from fedcipher.federation.curves import Curves
from fedcipher.federation.messages import (
    COMMITTEE,
    CONFIG,
    CONTEXT,
    RECORD,
    REFUSED,
    REPORT,
    UPDATE,
    Arrays,
    Config,
    Metrics,
    aggregate_key,
    frame_bytes,
    named,
    packed_frame,
    to_numpy,
)
from fedcipher.federation.records import PHASES
from fedcipher.frame import inspect
from places import ROOT

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
        given = {"min_contributions": 2, **PARAMS.get(scheme, {}), **cls.params.get(scheme, {}), **params}
        made.append(cls(Cohort(tmp_path, scheme, **given), client_app, wire))
        return made[-1]

    yield make
    for one in made:
        one.close()


every_adapter = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=missing(name))) for name in NAMES]
)


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


# --- lies of the server ------------------------------------------------------------------------


class Lies:
    """What a server has seen of an honest run until the lie: messages to the liar's victim, and frames of all."""

    VICTIM = 1

    def __init__(self):
        self.messages, self.frames = {}, {}

    def see(self, client, message, reply):
        settings = settings_in(message)
        if settings is not None and UPDATE in reply.content.get(RECORD, {}):
            purpose = message.type.partition(".")[0]
            self.frames[purpose, settings.index, client] = reply.content[RECORD][UPDATE]
            if client == self.VICTIM:
                self.messages[purpose, settings.index] = copied(message)


def with_settings(**changes):
    def lie(message, past):
        settings = message.content[CONFIG]
        settings.update({key: change(settings) if callable(change) else change for key, change in changes.items()})

    return lie


def without_settings(*names):
    def lie(message, past):
        for name in names:
            del message.content[CONFIG][name]

    return lie


def with_model(change):
    def lie(message, past):
        message.content[RECORD] = change(message.content[RECORD])

    return lie


def with_values(change):
    return with_model(lambda arrays: named(list(arrays), [change(to_numpy(x)) for x in arrays.values()]))


def with_sum(change):
    """Another frame in place of the newest sum, in a message that brings one sum."""

    def lie(message, past):
        ((key, frame),) = message.content[RECORD].items()
        message.content[RECORD] = Arrays({key: packed_frame(change(frame_bytes(frame), past))})

    return lie


def of_one_client(frame, past):
    """The update of one client as if it were a sum: where a sum is an addition, it is the sum of this client alone."""
    import wire_tools

    update = frame_bytes(past.frames["train", 2, 0])
    return wire_tools.with_tags(wire_tools.with_kind(update, wire_tools.AGGREGATE), frame)


def flipped(frame, past=None):
    middle = len(frame) // 2
    return frame[:middle] + bytes([frame[middle] ^ 8]) + frame[middle + 1 :]


def add(record, content):
    def lie(message, past):
        message.content[record] = content

    return lie


def remove(record):
    def lie(message, past):
        del message.content[record]

    return lie


def other_type(message, past):
    message.type = "train.other"


def replay(purpose, index):
    def lie(message, past):
        message.content = copied(past.messages[purpose, index]).content

    return lie


LIES = {
    ("train", 1): {
        "the digest of another charter": with_settings(charter=bytes(32)),
        "another charter under the same digest": with_settings(
            document=lambda settings: settings["document"].replace(b'"rounds":', b'"rounds":1')
        ),
        "no charter": without_settings("document"),
        "no settings": remove(CONFIG),
        "an unknown setting": with_settings(another=1),
        "a text for a number": with_settings(index="1"),
        "a number below its range": with_settings(round=-1),
        "steps that the chain does not have": with_settings(steps=1),
        "bits that the charter does not name": with_settings(bits=8),
        "another message type": other_type,
        "no model": remove(RECORD),
        "names in another order": with_model(lambda arrays: Arrays(reversed(arrays.items()))),
        "names of each other's arrays": with_model(lambda a: Arrays(zip(a, reversed(a.values()), strict=True))),
        "another name": with_model(lambda arrays: Arrays({f"{name}x": x for name, x in arrays.items()})),
        "fewer arrays": with_model(lambda arrays: Arrays(list(arrays.items())[:1])),
        "another model": with_values(lambda x: x + np.float32(0.25)),
        "another type of the model": with_values(lambda x: x.astype(np.float64)),
        "another shape of the model": with_values(lambda x: x.reshape(-1)),
        "settings of the app that no charter has": add("config", Config({"lr": 9.0})),
        "arrays of the app that no charter has": add("more", named(["a"], [np.zeros(3)])),
    },
    ("evaluate", 2): {
        "the sum of another round": with_sum(lambda frame, past: frame_bytes(past.sums[1])),
        "one client's update for the sum": with_sum(lambda frame, past: frame_bytes(past.frames["train", 2, 0])),
        "a sum of one client": with_sum(of_one_client),
        "a damaged sum": with_sum(flipped),
        "a frame that is none": with_sum(lambda frame, past: bytes(300)),
        "a sum without its round": without_settings("indices"),
        "a sum of a step that comes later": with_model(lambda a: Arrays({aggregate_key(3): next(iter(a.values()))})),
        "a sum of a group without the first": with_model(
            lambda a: Arrays({aggregate_key(2, 1): next(iter(a.values()))})
        ),
        "no sum": with_model(lambda arrays: Arrays()),
        "another last step": with_settings(last=bytes(32)),
    },
    ("train", 3): {
        "the message of an earlier round": replay("train", 1),
        "the message of an earlier evaluation": replay("evaluate", 2),
        "an earlier number": with_settings(round=lambda settings: settings["round"] - 3),
        "an earlier round": with_settings(index=1),
    },
}

if find_spec("anycrc") is None:
    # Not in the environments of NVFlare and declearn. It is for attackers' checksums.
    del LIES["evaluate", 2]["a sum of one client"]


@every_adapter
@pytest.mark.parametrize("scheme", ["flashe", "oneshot"])
def test_a_lie_of_the_server_gets_the_constant_refusal_and_the_run_goes_on(under_test, name, scheme):
    past, answers, called = Lies(), {}, []
    past.sums = {}

    def down(adapter, client, message):
        if client != past.VICTIM:
            return message
        for (purpose, index), lies in LIES.items():
            if asks(message, purpose, index):
                before = len(adapter.called)
                for what, lie in lies.items():
                    told = copied(message)
                    lie(told, past)
                    answers[what] = adapter.tell(client, told)
                called.extend(call[:2] for call in adapter.called[before:] if call[0] == client)
        if asks(message, "evaluate", 1):
            (past.sums[1],) = message.content[RECORD].values()
        return message

    def up(adapter, client, message, reply):
        past.see(client, message, reply)
        if client == past.VICTIM and asks(message, "train", 2):
            # After its answer.
            answers["the same message twice"] = adapter.tell(client, copied(message))
        return reply

    adapter, first = under_test(name, scheme, wire=Wire(down, up)), first_model()
    run = adapter.run_rounds(first, ROUNDS)
    told = {what for lies in LIES.values() for what in lies} | {"the same message twice"}
    assert set(answers) == told
    assert [what for what, reply in answers.items() if not is_constant_refusal(reply)] == []
    assert not called, "an app was called for a lie"
    assert len({len(reply.to_bytes()) for reply in answers.values() if reply.type == "train"}) == 1
    assert [record.accepted for record in run.rounds] == [CLIENTS] * ROUNDS
    assert_close(adapter.cohort.opened(), expected(first, ROUNDS), adapter.cohort.precision(ROUNDS))


@every_adapter
def test_bytes_that_are_no_message_get_the_constant_refusal_and_the_run_goes_on(under_test, name):
    garbage, answers = [b"", b"4711", bytes(64), b"\xff" * 64], []

    def down(adapter, client, message):
        if client == Lies.VICTIM and asks(message, "train", 2):
            cut = message.to_bytes()[:-1]
            answers.extend(adapter.tell_bytes(client, raw) for raw in [*garbage, cut, message.to_bytes() + b"x"])
        return message

    adapter, first = under_test(name, wire=Wire(down)), first_model()
    run = adapter.run_rounds(first, 2)
    if None in answers:
        pytest.skip(f"{name} carries records and no bytes")
    assert len(answers) == len(garbage) + 2 and all(is_constant_refusal(reply) for reply in answers)
    assert [record.accepted for record in run.rounds] == [CLIENTS] * 2


def another_charter(message, past):
    """A charter that is whole, as another run's."""
    settings = message.content[CONFIG]
    other = replace(Charter.named(settings["document"], settings["charter"]), rounds=1000)
    settings.update(document=other.encode(), charter=other.digest)


# A client cannot know these for lies, and its frame says what it was told. One that has taken another charter is in no
# later sum of the run, because that charter's run may be the later one.
UNSEEN = {
    "another charter": ({1: another_charter}, 2, {1, 2}),
    "other numbers": (
        {
            1: with_settings(index=lambda settings: settings["index"] + 1),
            3: with_settings(round=lambda settings: settings["round"] + 1),
        },
        4,
        {1, 3},
    ),
}


@every_adapter
@pytest.mark.parametrize("what", UNSEEN)
def test_a_client_that_was_told_something_else_than_the_others_is_in_no_sum(under_test, name, what):
    lies, rounds, apart = UNSEEN[what]

    def down(adapter, client, message):
        for index, lie in lies.items():
            if client == Lies.VICTIM and asks(message, "train", index):
                message = copied(message)
                lie(message, None)
        return message

    adapter, first = under_test(name, wire=Wire(down)), first_model()
    run = adapter.run_rounds(first, rounds)
    model = first
    for record in run.rounds:
        left_out = [client.left_out for client in record.clients if client.left_out]
        assert len(left_out) == (record.round in apart), f"round {record.round}: {left_out}"
        model = expected(model, 1, clients=(0, 2) if left_out else range(CLIENTS))
    assert_close(adapter.cohort.opened(), model, adapter.cohort.precision(rounds))


# --- lies of a client --------------------------------------------------------------------------


def with_frame(change):
    """Another frame in the reply of the client that is the last to answer."""

    def lie(reply, past):
        frame = frame_bytes(reply.content[RECORD][UPDATE])
        reply.content[RECORD] = Arrays({UPDATE: packed_frame(change(frame, past))})

    return lie


def plaintext(reply, past):
    """What an app's own answer is, as a client without protection sends it."""
    arrays, metrics = app(0, "train", first_model())
    reply.content = {RECORD: named(list(arrays), list(arrays.values())), "metrics": Metrics(metrics)}


def text(reply, past):
    reply.content = {REFUSED: Config({"text": "an error of the client's own"})}


FALSE_REPLIES = {
    "a damaged frame": with_frame(flipped),
    "a frame that was cut": with_frame(lambda frame, past: frame[:-40]),
    "a longer frame": with_frame(lambda frame, past: frame + bytes(40)),
    "bytes that are no frame": with_frame(lambda frame, past: b"4711" * 100),
    "a frame of another client": with_frame(lambda frame, past: past.first),
    "a frame of another round": with_frame(lambda frame, past: past.own_before),
    "a frame of other shapes": with_frame(lambda frame, past: past.thief(frame)),
    "arrays in the clear": plaintext,
    "no record of arrays": lambda reply, past: reply.content.pop(RECORD),
    "nothing": lambda reply, past: reply.content.clear(),
    "another digest of the app": lambda reply, past: reply.content[CONTEXT].update(digest=bytes(32)),
    "no digest of the app": lambda reply, past: reply.content.pop(CONTEXT),
    "an error": text,
}


class Thief:
    """Makes frames with the key of a client, in a state of its own from before the client's answer."""

    def __init__(self, state, key):
        self._state, self._key = state, key

    def __call__(self, frame):
        scheme, key = keys.load_client(self._key)
        header = inspect(frame)
        before = os.environ["FEDCIPHER_STATE_DIR"]
        os.environ["FEDCIPHER_STATE_DIR"] = str(self._state)
        try:
            shapes = [np.zeros((3, 4), np.float32), np.zeros(3, np.float32)]
            return scheme.encryptor(key).encrypt(shapes, round=header.round, model=bytes(32))
        finally:
            os.environ["FEDCIPHER_STATE_DIR"] = before


@every_adapter
def test_a_clients_false_reply_is_left_out_and_no_sum_is_wrong(under_test, name, tmp_path):
    """Each round has one lie, of the client that answers last: all others have worked by then."""
    if driver(name).server_of:
        pytest.skip(f"{name} has the server of {driver(name).server_of}, which this test tries")
    lies, answered, told, lock = list(FALSE_REPLIES.values()), {}, {}, threading.Lock()
    frames = {}

    def up(adapter, client, message, reply):
        settings = settings_in(message)
        if settings is None or not asks(message, "train", settings.index):
            return reply
        with lock:
            index, before = settings.index, answered.setdefault(settings.index, [])
            before.append(client)
            frames[index, client] = frame_bytes(reply.content[RECORD][UPDATE])
            if len(before) == CLIENTS and index > 1:
                told[index] = client
                past = SimpleNamespace(first=frames[index, before[0]], own_before=frames[index - 1, client])
                past.thief = Thief(tmp_path / f"thief-{index}", adapter.cohort.key(client))
                lies[index - 2](reply, past)
            return reply

    def down(adapter, client, message):
        settings = settings_in(message)
        with lock:
            kept = settings and tmp_path / f"thief-{settings.index}"
            if kept and asks(message, "train", settings.index) and not kept.exists():
                shutil.copytree(tmp_path / "state", kept)
        return message

    adapter, first, rounds = under_test(name, wire=Wire(down, up)), first_model(), len(lies) + 1
    run = adapter.run_rounds(first, rounds)
    model = first
    for record in run.rounds:
        honest = set(range(CLIENTS)) - {told.get(record.round)}
        left_out = [client.left_out for client in record.clients if client.left_out]
        what = list(FALSE_REPLIES)[record.round - 2] if record.round > 1 else "none"
        assert len(left_out) == (record.round > 1), f"{what}: {left_out}"
        assert record.unfinished is None and record.accepted == len(honest), what
        model = expected(model, 1, clients=honest)
    assert sorted(told) == list(range(2, rounds + 1))
    assert_close(adapter.cohort.opened(), model, adapter.cohort.precision(rounds))


# --- what leaves a client ----------------------------------------------------------------------

SECRET, PATIENT = 4711.625, "patient 4711"


def raises(arrays):
    raise RuntimeError(f"{PATIENT} has diagnosis X")


ODD_RESULTS = {
    "an error": raises,
    "a metric that no charter names": lambda a: (a, {EXAMPLES: 10, "loss": 1.0, PATIENT: SECRET}),
    "a text as a metric": lambda a: (a, {EXAMPLES: 10, "loss": 1.0, "note": PATIENT}),
    "no metrics": lambda a: (a, {}),
    "a text as the number of examples": lambda a: (a, {EXAMPLES: PATIENT, "loss": 1.0}),
    "no number as a loss": lambda a: (a, {EXAMPLES: 10, "loss": float("nan")}),
    "one array more": lambda a: ({**a, PATIENT: np.full(8, SECRET, np.float32)}, {EXAMPLES: 10, "loss": 1.0}),
    "one array less": lambda a: (dict(list(a.items())[:1]), {EXAMPLES: 10, "loss": 1.0}),
    "no arrays": lambda a: ({}, {EXAMPLES: 10, "loss": 1.0}),
    "another shape": lambda a: ({k: np.full((1, *x.shape), SECRET, x.dtype) for k, x in a.items()}, {EXAMPLES: 10}),
    "another type": lambda a: ({k: np.full(x.shape, SECRET, np.float64) for k, x in a.items()}, {EXAMPLES: 10}),
    "values that are no numbers": lambda a: ({k: x * np.float32("nan") for k, x in a.items()}, {EXAMPLES: 10}),
    "metrics without names": lambda a: (a, [10]),
    "texts for arrays": lambda a: (dict.fromkeys(a, np.array([PATIENT])), {EXAMPLES: 10, "loss": 1.0}),
    "nothing": lambda a: None,
}
NUMBERS = (
    np.float64(SECRET).tobytes(),
    3 * np.float32(SECRET).tobytes(),
    float(SECRET).hex().encode(),
    PATIENT.encode(),
)
LEAVES = {
    RECORD: {UPDATE},
    "fedcipher.metrics": PHASES,
    CONTEXT: {"digest", "unopened", "head"},
    COMMITTEE: None,
    REPORT: None,
}


def leaks(reply):
    """What of the reply may not leave: records, names in them, and the secrets of `ODD_RESULTS`."""
    surplus = [
        (name, sorted(record))
        for name, record in reply.content.items()
        if name not in LEAVES or (LEAVES[name] is not None and not set(record) <= LEAVES[name])
    ]
    raw = reply.to_bytes()
    # A reader of a committee reports the means of the answers by their names.
    names = () if REPORT in reply.content else (b"loss", b"diagnosis")
    return surplus + [secret for secret in (*NUMBERS, *names) if secret in raw]


@every_adapter
@pytest.mark.parametrize("scheme", ["flashe", "oneshot"])
def test_whatever_an_app_does_a_frame_of_one_size_leaves_and_nothing_else(under_test, name, scheme):
    # Each result under one scheme; a committee's own messages are beside some of them.
    index_of, results = {}, list(ODD_RESULTS.values())[: None if scheme == "flashe" else 3]

    def odd_app(client, purpose, arrays):
        if client != 1:
            return app(client, purpose, arrays)
        index_of[purpose] = index_of.get(purpose, 0) + 1
        return results[index_of[purpose] - 1](arrays)

    adapter, rounds = under_test(name, scheme, odd_app), len(results)
    run = adapter.run_rounds(first_model(), rounds)
    assert index_of == {"train": rounds, "evaluate": rounds}
    assert [found for _, _, reply in adapter.wire.left for found in leaks(reply)] == []
    sizes = {}
    for _, message, reply in adapter.wire.left:
        settings = settings_in(message)
        if settings is not None:
            frame = frame_bytes(reply.content[RECORD][UPDATE])
            sizes.setdefault((message.type, settings.index), set()).add(len(frame))
    assert len(sizes) == 2 * rounds and all(len(found) == 1 for found in sizes.values())
    assert [record.accepted for record in run.rounds] == [CLIENTS] * rounds


@every_adapter
def test_an_app_that_raises_counts_nothing_in_its_round(under_test, name):
    def failing_app(client, purpose, arrays):
        begins = client not in begun
        begun.add(client)
        return raises(arrays) if begins and client == 1 else app(client, purpose, arrays)

    begun, first = set(), first_model()
    adapter = under_test(name, client_app=failing_app)
    run = adapter.run_rounds(first, 2)
    assert [record.accepted for record in run.rounds] == [CLIENTS] * 2
    model = expected(expected(first, 1, clients=(0, 2)), 1)
    assert_close(adapter.cohort.opened(), model, adapter.cohort.precision(2))


@every_adapter
def test_no_plaintext_leaves_in_an_honest_run(under_test, name):
    def noted(client, purpose, arrays):
        trained, metrics = app(client, purpose, arrays)
        private.extend(trained.values())
        private.extend(trained[k] - x for k, x in arrays.items())
        return trained, metrics

    private, first = [], first_model()
    first["weights"] = first["weights"] + np.float32(0.001)
    adapter = under_test(name, client_app=noted)
    adapter.run_rounds(first, 2)
    windows = {x.astype(kind).ravel()[:3].tobytes() for x in private if x.any() for kind in (np.float32, np.float64)}
    assert len(windows) > CLIENTS
    for _, _, reply in adapter.wire.left:
        raw = reply.to_bytes()
        assert not leaks(reply) and not any(window in raw for window in windows)


# --- drop-outs and resume ----------------------------------------------------------------------


def able(name, what):
    """Skip where the driver says that its framework cannot do ``what``."""
    if what in driver(name).cannot:
        pytest.skip(f"{name} has no {what}: {' says '.join(driver(name).cannot[what])}")


@every_adapter
@pytest.mark.parametrize("scheme", ["flashe", "oneshot"])
def test_a_client_that_drops_out_of_a_round_is_left_out_and_comes_back(under_test, name, scheme):
    able(name, "drop-outs")

    def up(adapter, client, message, reply):
        return None if client == 1 and asks(message, "train", 2) else reply

    adapter, first = under_test(name, scheme, wire=Wire(up=up)), first_model()
    run = adapter.run_rounds(first, ROUNDS, quorum=0.6, grace=4.0)
    assert [record.accepted for record in run.rounds] == [3, 2, 3]
    assert [bool(client.left_out) for record in run.rounds for client in record.clients].count(True) == 1
    model = expected(expected(expected(first, 1), 1, clients=(0, 2)), 1)
    assert_close(adapter.cohort.opened(), model, adapter.cohort.precision(ROUNDS))


@every_adapter
def test_a_client_that_begins_again_goes_on_in_the_run(under_test, name):
    able(name, "restarts of clients")
    begun = []

    def down(adapter, client, message):
        if client == 1 and (asks(message, "train", 2) or asks(message, "evaluate", 2)):
            adapter.restart(client)
            begun.append(client)
        return message

    adapter, first = under_test(name, wire=Wire(down)), first_model()
    run = adapter.run_rounds(first, ROUNDS)
    assert len(begun) == 2 and [record.accepted for record in run.rounds] == [CLIENTS] * ROUNDS
    assert_close(adapter.cohort.opened(), expected(first, ROUNDS), adapter.cohort.precision(ROUNDS))


class Killed(KeyboardInterrupt):
    """Ends a server's process."""


@every_adapter
def test_a_run_goes_on_after_its_server_was_killed(under_test, name):
    able(name, "resume")
    adapter, first = under_test(name), first_model()

    def kill(record):
        if record.round == 2:
            raise Killed

    with pytest.raises(Killed):
        adapter.run_rounds(first, 4, on_round=kill)
    ended = adapter.cohort.opened()
    run = adapter.run_rounds(first, 4, resume=True)
    assert (run.done, len(run.rounds)) == (2, 4)
    assert_close(ended, expected(first, 2), adapter.cohort.precision(2))
    assert_close(adapter.cohort.opened(), expected(first, 4), adapter.cohort.precision(4))


@every_adapter
def test_the_pages_say_what_an_adapter_cannot_do(name):
    for page, words in driver(name).cannot.values():
        assert words in (ROOT / page).read_text(encoding="utf-8"), f"{page} does not say {words!r}"
