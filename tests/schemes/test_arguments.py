"""What callers give: NumPy's numbers, any buffer, arrays of any layout are taken; the rest is a FedcipherError."""

import copy
import inspect
import itertools
import pickle

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import Codec, errors, keys, schemes
from fedcipher.dp import Privacy
from fedcipher.schemes import from_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheme_lists import adds, hides, of_committee, one_key, schemes_that

VALUES = np.array([0.25, -0.5, 0.125, 0.0, 0.75], np.float32)
CODEC = Codec(bits=16, clip=1.0)
COMMITTEE = {"members": 3, "corrupt_clients": 0, "corrupt_members": 0}
SCHEMES = [param.id for param in schemes_that(adds)]


def scheme_of(name):
    return fedcipher.scheme(name, clients=3, codec=CODEC, **of_committee(name, **COMMITTEE))


class Cohort:
    """Three clients of one scheme, and one round of theirs."""

    def __init__(self, name):
        self.scheme = scheme_of(name)
        self.keys = self.scheme.keygen(3)
        self.rounds = itertools.count(1)
        self.encryptors = [wire_tools.encryptor(self.scheme, self.keys, k) for k in range(3)]
        self.decryptor = self.scheme.decryptor(self.keys.client(0))
        self.round, self.frames = self.updates([VALUES])
        self.aggregator, self.aggregate = self.finished(self.round, self.frames)

    def updates(self, update, **more):
        number = next(self.rounds)
        if self.scheme.info.committee:
            newest = wire_tools.prekeys(self.scheme, self.keys)
            for encryptor in self.encryptors:
                encryptor.take_prekeys(newest)
        return number, [e.encrypt(update, round=number, **more) for e in self.encryptors]

    def finished(self, number, frames):
        aggregator = self.scheme.aggregator(self.keys.server(), round=number)
        for frame in frames:
            aggregator.add(frame)
        if self.scheme.info.committee:
            for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
                aggregator.committee.answer(self.scheme.committee.member(self.keys.client(member)).answer(request))
        return aggregator, aggregator.finish()

    def mean(self, update, **more):
        return self.decryptor.decrypt(self.finished(*self.updates(update, **more))[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Cohorts by scheme, and where their clients remember what they have done."""
    return {}, tmp_path_factory.mktemp("state")


@pytest.fixture
def cohorts(made, monkeypatch):
    known, state = made
    monkeypatch.chdir(state)
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(state))

    def cohort(name):
        if name not in known:
            known[name] = Cohort(name)
        return known[name]

    return cohort


# --- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.int64(4), np.uint8(4), np.array(4)])
@pytest.mark.parametrize("name", schemes_that(one_key, adds))
def test_a_cohort_is_counted_by_any_whole_number(name, number):
    scheme = scheme_of(name)
    made = scheme.keygen(number, epoch=np.uint16(7))
    assert sorted(made.clients) == [0, 1, 2, 3] and made.client(np.int32(3)).epoch == 7
    assert sorted(scheme.keygen(np.array([5, 9])).clients) == [5, 9]


@pytest.mark.parametrize("cohort", [2.0, "3", None, -1, True, [1, "x"], np.array([1.5]), {1: 2}, 0, [], 2**70])
def test_what_counts_no_cohort_is_refused(cohort):
    with pytest.raises(errors.ParameterError, match="cohort"):
        scheme_of("flashe").keygen(cohort)


@pytest.mark.parametrize("epoch", [1.0, "1", None, -1, True, 2**64])
def test_what_is_no_epoch_is_refused(epoch):
    with pytest.raises(errors.ParameterError, match="epoch"):
        scheme_of("flashe").keygen(3, epoch=epoch)


@pytest.mark.parametrize("unit", [np.float32(1.5), np.int64(2), np.float64(2.5), 3])
def test_a_unit_of_weight_is_any_number(tmp_path, unit):
    scheme = scheme_of("flashe")
    made = scheme.keygen(3)
    keys.save(made, scheme, tmp_path / "keys", examples_per_weight=unit)
    assert keys.store.load_weighting(tmp_path / "keys") == unit
    keys.store.save_server(made.server(), scheme, tmp_path / "server.key", examples_per_weight=unit)
    assert keys.store.load_weighting(tmp_path / "server.key") == unit


@pytest.mark.parametrize("unit", [np.float32("nan"), -1, np.inf, "1", None, [1.0], True])
def test_a_unit_of_weight_that_no_key_file_could_be_read_with_is_not_written(tmp_path, unit):
    scheme = scheme_of("flashe")
    with pytest.raises(errors.ParameterError, match="examples_per_weight"):
        keys.save(scheme.keygen(3), scheme, tmp_path / "keys", examples_per_weight=unit)
    assert not list(tmp_path.iterdir())


def test_keys_are_saved_with_the_scheme_that_made_them(tmp_path):
    made = scheme_of("bfv").keygen(3)
    with pytest.raises(errors.ParameterError, match="of scheme bfv, and made_by is flashe"):
        keys.save(made, scheme_of("flashe"), tmp_path / "keys")


def test_numpys_numbers_make_the_same_scheme_as_pythons():
    codec = Codec(bits=np.int64(12), clip=np.float64(0.5), margin=np.float64(3.0))
    made = fedcipher.scheme("flashe", clients=np.int64(5), max_weight=np.uint8(3), min_contributions=2, codec=codec)
    ours = fedcipher.scheme(
        "flashe", clients=5, max_weight=3, min_contributions=2, codec=Codec(bits=12, clip=0.5, margin=3.0)
    )
    assert made.spec() == ours.spec()
    assert Codec(bits=np.array([8, 4]), clip=np.array([0.5, 1.0])) == Codec(bits=(8, 4), clip=(0.5, 1.0))
    assert Privacy(clip=np.float32(1), noise_multiplier=1, rounds=np.int16(5), delta=1e-5).rounds == 5


@pytest.mark.parametrize("rounds", [0, np.int64(0)])
def test_no_update_tells_nothing(rounds):
    pytest.importorskip("dp_accounting")
    privacy = Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5)
    assert privacy.epsilon(rounds) == 0
    assert privacy.epsilon(np.int64(3)) == privacy.epsilon(3) > privacy.epsilon(1) > 0


@pytest.mark.parametrize("rounds", [-1, 6, 1.5, "1", True, float("nan"), 10**30])
def test_updates_that_no_client_gives_have_no_epsilon(rounds):
    privacy = Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5)
    with pytest.raises(errors.ParameterError, match=r"rounds=.* whole number from 0 to 5"):
        privacy.epsilon(rounds)


# --- bytes -----------------------------------------------------------------------------------

BUFFERS = [bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8), lambda b: memoryview(b + b)[: len(b)]]


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_frame_is_any_buffer_of_bytes(cohorts, name, buffer):
    cohort = cohorts(name)
    number, frames = cohort.updates([VALUES], model=buffer(b"m"), memory=buffer(b""), round_plan=buffer(b""))
    _, aggregate = cohort.finished(number, [buffer(frame) for frame in frames])
    (mean,) = cohort.decryptor.decrypt(buffer(aggregate), model=buffer(b"m"), round=np.int64(number))
    np.testing.assert_allclose(mean, VALUES, atol=1e-4)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_members_request_and_answer_are_any_buffers_of_bytes(cohorts, buffer):
    cohort = cohorts("oneshot")
    number, frames = cohort.updates([VALUES])
    aggregator = cohort.scheme.aggregator(cohort.keys.server(), round=number)
    for frame in frames:
        aggregator.add(frame)
    for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
        held = cohort.scheme.committee.member(cohort.keys.client(member))
        for odd in (None, "request", 5, [1]):
            with pytest.raises(errors.ParameterError, match=r"request is of type .* does not hold bytes"):
                held.answer(odd)
        aggregator.committee.answer(buffer(held.answer(buffer(request))))
    assert aggregator.finish()


@pytest.mark.parametrize("odd", [None, "frame", 5, [1, 2], np.zeros(3, np.float32), object()])
@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_what_holds_no_bytes_is_no_frame(cohorts, name, odd):
    cohort = cohorts(name)
    aggregator = cohort.scheme.aggregator(cohort.keys.server())
    for refused in (aggregator.add, cohort.decryptor.open, cohort.decryptor.sums):
        with pytest.raises(errors.ParameterError, match=r"frame .*does not hold bytes"):
            refused(odd)


# --- arrays ----------------------------------------------------------------------------------


def at_odd_offset(x):
    return np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


def in_others_order(x):
    return x.astype(x.dtype.newbyteorder())


LAYOUTS = {
    "at an odd offset": at_odd_offset,
    "in another byte order": in_others_order,
    "both": lambda x: at_odd_offset(in_others_order(x)),
    "backwards": lambda x: x[::-1].copy()[::-1],
    "of a record": lambda x: np.rec.fromarrays([np.zeros(len(x), np.uint8), x], names=["a", "b"])["b"],
    "a list": lambda x: x.tolist(),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("name", SCHEMES)
def test_an_array_is_its_values_however_they_lie(cohorts, name, dtype, layout):
    values = (VALUES if np.dtype(dtype).kind == "f" else np.sign(VALUES)).astype(dtype)
    (mean,) = cohorts(name).mean([LAYOUTS[layout](values)])
    np.testing.assert_allclose(mean, values, atol=2e-3)
    assert mean.dtype.isnative


def test_a_float64_in_another_byte_order_saturates_as_any_float64_does(cohorts):
    large = np.full(3, 1e300)
    ours, theirs = (cohorts("plain").mean([x])[0] for x in (large, in_others_order(large)))
    np.testing.assert_array_equal(ours, theirs)
    assert (ours > 0.99).all()


@pytest.mark.parametrize("part", ["reference", "like"])
@pytest.mark.parametrize("layout", ["at an odd offset", "in another byte order", "both"])
def test_references_are_read_as_updates_are(layout, part):
    codec = Codec(bits=16, clip="auto", target="delta", top=0.5)
    scheme = fedcipher.scheme("flashe", clients=2, codec=codec)
    made = scheme.keygen(2)
    first = np.linspace(-1, 1, 1000).astype(np.float32)
    aggregator = scheme.aggregator(made.server())
    for k, lies in enumerate([first, LAYOUTS[layout](first)]):
        aggregator.add(scheme.encryptor(made.client(k)).encrypt([first], round=1, reference=[lies]))
    given = {"reference": [first], "like": [first], part: [LAYOUTS[layout](first)]}
    (mean,) = scheme.decryptor(made.client(0)).decrypt(aggregator.finish(), **given)
    assert np.abs(mean).max() > 0.9


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (VALUES, "give a list of arrays"),
        ({"w": VALUES}, "give a list of arrays"),
        (None, "give a list of arrays"),
        ("update", "give a list of arrays"),
        ([np.array([None])], "object is not supported"),
        ([np.array([1j])], "complex128 is not supported"),
        ([np.array(["1"])], "is not supported"),
        ([[[1, 2], [3]]], "is not an array"),
        ([np.ma.array([1.0, 2.0], mask=[False, True])], "masked values"),
        ([np.array([1], "datetime64[s]")], "is not supported"),
    ],
)
@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_what_is_no_list_of_arrays_is_refused_by_name(cohorts, name, update, said):
    cohort = cohorts(name)
    for refused in (cohort.encryptors[0].encrypt, cohort.encryptors[0].precompute):
        with pytest.raises(errors.LayoutError, match=said):
            refused(update, round=next(cohort.rounds))


@pytest.mark.parametrize(
    ("lanes", "counts", "said"),
    [
        ([1.0, 0.5], 1, "whole numbers"),
        ([2.0, 3.0], 1, "0 or 1"),
        ([0.0, 1e9], 1, "from -"),
        ([1.0], 2, "counts"),
        ([[1.0]], 0, "whole numbers"),
        ([2**24 + 1], 0, "whole numbers"),
        ([float("nan")], 0, "whole numbers"),
    ],
)
@pytest.mark.parametrize("update", [[VALUES], []])
def test_a_lane_whose_sum_would_not_be_exact_is_refused(cohorts, lanes, counts, said, update):
    """Beyond its range a lane was cut, and the exact sum was another number."""
    cohort = cohorts("flashe")
    with pytest.raises(errors.ParameterError, match=said):
        cohort.encryptors[0].encrypt(update, round=next(cohort.rounds), lanes=np.array(lanes), counts=counts)


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_travels_as_its_spec(cohorts, name):
    scheme = cohorts(name).scheme
    for made in (pickle.loads(pickle.dumps(scheme)), copy.deepcopy(scheme), copy.copy(scheme)):
        assert made.spec() == scheme.spec() and made.codec == scheme.codec
        # Its keys are this scheme's.
        made.decryptor(cohorts(name).keys.client(1)).decrypt(cohorts(name).aggregate)
    varied = fedcipher.scheme("bfv", clients=4, codec=Codec(bits="auto"))
    assert pickle.loads(pickle.dumps(varied)).spec() == varied.spec()


def test_what_holds_keys_or_rounds_says_that_it_cannot_be_copied(cohorts):
    cohort = cohorts("bfv")
    member = cohorts("oneshot").scheme.committee.member(cohorts("oneshot").keys.client(0))
    for held in (cohort.keys, cohort.encryptors[0], cohort.aggregator, cohort.decryptor, member):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(errors.UnsupportedError, match="spec"):
                copied(held)


@pytest.mark.parametrize("damage", [{"codec": None}, {"codec": {"bit": 3}}, {"params": 3}, {"scheme": None}, None])
def test_what_is_no_spec_is_refused(damage):
    spec = scheme_of("flashe").spec()
    with pytest.raises(errors.ParameterError):
        from_spec(None if damage is None else {**spec, **damage})
    spec.pop("codec")
    with pytest.raises(errors.ParameterError):
        from_spec(spec)


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["\ud800", "a\0b", "x" * 5000, "x" * 256, "/y/" * 2000, None, 3, b"x", [], "~no-such-user/x"]
)
def test_what_is_no_path_is_refused_by_whatever_takes_one(tmp_path, monkeypatch, path):
    flower = pytest.importorskip("flwr.serverapp.strategy")
    from fedcipher.adapters.flower import SecureStrategy, open_run

    monkeypatch.chdir(tmp_path)
    scheme = scheme_of("bfv")
    made = scheme.keygen(3)
    folder = keys.save(made, scheme, tmp_path / "keys")
    taking = {
        "load_client": keys.load_client,
        "load_server": keys.load_server,
        "locate": keys.store.locate,
        "a run": lambda given: open_run(given, folder / "client-0.key"),
        "a run's key": lambda given: open_run(tmp_path, given),
        "keys of a strategy": lambda given: SecureStrategy(flower.FedAvg(), given, out="new"),
    }
    if path != "~no-such-user/x":
        # A folder of that name is a folder.
        taking["save"] = lambda given: keys.save(made, scheme, given)
        taking["save_server"] = lambda given: keys.store.save_server(made.server(), scheme, given)
        taking["a name of keys"] = keys.store.named_folder
        if path is not None:
            taking["an output"] = lambda given: SecureStrategy(flower.FedAvg(), folder, out=given)
    if isinstance(path, str):
        taking["an opener"] = lambda given: SecureStrategy(flower.FedAvg(), folder, opener=given)
    before = sorted(tmp_path.rglob("*"))
    for refused in taking.values():
        with pytest.raises(errors.FedcipherError):
            refused(path)
    assert sorted(tmp_path.rglob("*")) == before


# --- all public signatures ---------------------------------------------------------------------


class Odd:
    """Looks like a number, and is none."""

    def __index__(self):
        return "one"  # noqa: PLE0305

    __float__ = __index__


ODD = [
    *(None, True, False, -1, 0, 1, 3, 0.0, 0.5, 1.5, -1.0, float("nan"), float("inf"), 2**63, 2**64, -(2**70), 10**400),
    *("", "x", "auto", "delta", "nul\0", "\ud800", "x" * 5000),
    *(b"", b"x", b"x" * 5000, bytearray(b"FEDC"), memoryview(b"F")),
    *(np.int64(2), np.uint8(1), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("x"), np.bytes_(b"x")),
    *(np.array(3), np.array(0.5), np.zeros(0), np.zeros((2, 0), np.float32), np.zeros(5, ">f4"), np.array([None])),
    *(np.array([1j]), np.array(["x"]), np.zeros(2, [("a", "f4")]), np.zeros(2, "datetime64[s]"), np.array([np.nan])),
    *([], (), [None], [1], [1.5], ["x"], [b"x"], [[1], [2, 3]], [VALUES], [VALUES, None], [in_others_order(VALUES)]),
    *([np.full(3, np.inf)], [2**70], [-1], [True], {}, {"a": 1}, {"clip": 1}, {1}, set(), object(), Odd(), [Odd()]),
    *(int("1" * 50), 1 + 1j, Ellipsis, NotImplemented, slice(3), range(3), iter([]), zip(), type, Exception("x")),
]


def valid(cohort):
    """For each parameter of a public function, by name, what it may be."""
    codec, number = {"bits": 12, "clip": 1.0}, next(cohort.rounds)
    return {
        "name": "flashe",
        "params": {},
        "cohort": 3,
        "key": cohort.keys.client(0),
        "keys": cohort.keys,
        "client": 1,
        "update": [VALUES],
        "arrays": [VALUES],
        "model": [VALUES],
        "names": ["x"],
        "round": number,
        "reference": [VALUES],
        "like": [VALUES],
        "ranges": [1.0],
        "frame": cohort.aggregate,
        "frames": [],
        "results": [],
        "state": b"",
        "common": b"",
        "piece": b"",
        "sampled": [0, 1, 2],
        "reader": 0,
        "codec": Codec(**codec),
        "roster": None,
        "identity": None,
        "joined": [],
        "lanes": None,
        "self": None,
        "made_by": cohort.scheme,
        "cls": type(cohort.scheme),
        "folder": "new",
        "path": "client-0.key",
        "spec": cohort.scheme.spec(),
        "clip": 1.0,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "rounds": 5,
        "elements": 100,
        "shares": 2,
    }


SERVERS = {"aggregator", "readers", "server_decryptor", "round_plan", "roster_in"}
OBJECTS = {
    "Scheme": lambda cohort: cohort.scheme,
    "Codec": lambda cohort: cohort.scheme.codec,
    "KeySet": lambda cohort: cohort.keys,
    "Encryptor": lambda cohort: cohort.encryptors[1],
    "Decryptor": lambda cohort: cohort.decryptor,
    "Aggregator": lambda cohort: cohort.scheme.aggregator(cohort.keys.server()),
    "Committee": lambda cohort: cohort.scheme.committee,
    "CommitteeRound": lambda cohort: cohort.scheme.aggregator(cohort.keys.server()).committee,
    "Privacy": lambda cohort: Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5),
    "fedcipher": lambda cohort: fedcipher,
    "keys": lambda cohort: keys,
    "schemes": lambda cohort: schemes,
}


def public_functions():
    """Names of all functions, constructors and methods that the public modules lead to."""
    for module, names in ((fedcipher, fedcipher.__all__), (keys, keys.__all__), (schemes, schemes.__all__)):
        for name in names:
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield f"{module.__name__.rpartition('.')[2]}.{name}"
            elif inspect.isclass(found) and found.__name__ in OBJECTS:
                yield from methods_of(found)
    yield from methods_of(Privacy)


def methods_of(cls):
    for method, _ in inspect.getmembers(cls, inspect.isfunction):
        if not method.startswith("_"):
            yield f"{cls.__name__}.{method}"
    # A committee is a scheme's, and is made by it alone.
    if not inspect.isabstract(cls) and not cls.__name__.startswith("Committee"):
        yield f"{cls.__name__}."


def called(name, cohort):
    """The function, and arguments that it takes."""
    owner, _, method = name.partition(".")
    function = getattr(OBJECTS[owner](cohort), method) if method else type(OBJECTS[owner](cohort))
    known = valid(cohort)
    if method == "keygen":
        known["epoch"] = 1
    if method in SERVERS:
        known["key"] = cohort.keys.server()
    if owner in ("Encryptor", "Decryptor", "Aggregator"):
        known.pop("model")
    if owner == "KeySet":
        known.update(clients=cohort.keys.clients, server_key=cohort.keys.server())
    given = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(clients=3, max_weight=1, min_contributions=2, codec=known["codec"], key_bits=128)
        elif parameter.name in known and parameter.default is parameter.empty:
            given[parameter.name] = known[parameter.name]
        elif parameter.default is not parameter.empty:
            given[parameter.name] = parameter.default
        else:
            raise AssertionError(f"{name} has a parameter {parameter.name}; say in valid() what it may be")
    return function, given


@pytest.mark.parametrize("name", sorted(set(public_functions())))
def test_each_odd_argument_alone_is_taken_or_refused(cohorts, name):
    cohort = cohorts("oneshot" if name.startswith("Committee") else "flashe")
    for parameter in called(name, cohort)[1]:
        for value in ODD:
            # What the last call was given may be used up.
            function, given = called(name, cohort)
            given[parameter] = value
            try:
                function(**given)
            except errors.FedcipherError as error:
                assert str(error)


@pytest.mark.parametrize("name", sorted(set(public_functions())))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_public_function_ends_in_a_bare_error(cohorts, name, data):
    chosen = st.just("oneshot") if name.startswith("Committee") else st.sampled_from(SCHEMES)
    cohort = cohorts(data.draw(chosen, label="scheme"))
    function, given = called(name, cohort)
    changed = data.draw(st.lists(st.sampled_from(sorted(given) or [None]), max_size=2, unique=True), label="changed")
    for parameter in changed:
        if parameter is not None:
            given[parameter] = data.draw(st.sampled_from(ODD), label=parameter)
    try:
        function(**given)
    except errors.FedcipherError as error:
        assert str(error)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("value", [0, "", {}, False, NotImplemented], ids=repr)
def test_nothing_but_none_stands_for_the_default_codec(name, value):
    with pytest.raises(errors.ParameterError, match="codec"):
        fedcipher.scheme(name, clients=3, codec=value)


def test_the_walk_over_public_functions_finds_them():
    found = set(public_functions())
    assert {"Codec.", "Codec.layout", "Scheme.keygen", "Encryptor.encrypt", "Decryptor.open"} <= found
    assert {"Aggregator.add", "KeySet.client", "KeySet.", "Privacy.", "Privacy.epsilon"} <= found
    assert {"fedcipher.scheme", "keys.save", "keys.load_client", "schemes.from_spec"} <= found
    assert {"Committee.join", "Committee.with_joined", "CommitteeRound.answer"} <= found and len(found) > 60
