"""Whole numbers beside an update: counts and digits in lanes of their own, whose sums come out exact."""

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import Codec, errors
from fedcipher.federation.answers import Answer, Lanes, Tally
from fedcipher.schemes import scheme_class
from hypothesis import given, settings
from hypothesis import strategies as st
from scheme_lists import dense, one_width, schemes_and_params, schemes_that, widths

WIDTHS = [2, 3, 6, 12, 24]
SCHEMES = schemes_and_params(widths)
WIDE = schemes_and_params(widths, dense)
INT64 = Answer("number", 2, 1.0, float(2**63), "sum")
COUNTS = Answer("counts", 3, 1.0, 1.0, "sum")


def made(name, clients, bits, params):
    least = 3 if scheme_class(name).info.committee else 1
    return fedcipher.scheme(name, clients=clients, min_contributions=least, codec=Codec(bits=bits, clip=1.0), **params)


def lanes_of(scheme, *answers, largest_weight=1):
    return Lanes(answers, largest_weight=largest_weight, largest_digit=scheme.largest_digit, counts=[COUNTS])


def opened(scheme, lanes, tallies, update=()):
    """One round of clients with these tallies."""
    keys = scheme.keygen(max(5, len(tallies)))
    server = keys.server()
    aggregator = scheme.aggregator(server, round=1)
    plan = scheme.round_plan(server, range(len(tallies)))
    for client, tally in enumerate(tallies):
        frame = wire_tools.encryptor(scheme, keys, client).encrypt(
            update, round=1, round_plan=plan, lanes=lanes.encode(tally), counts=lanes.counts
        )
        aggregator.add(frame)
    for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
        aggregator.committee.answer(scheme.committee.member(keys.client(member)).answer(request))
    found = scheme.decryptor(keys.client(0)).open(aggregator.finish())
    return found.arrays, lanes.decode(found.lanes, len(tallies))


@pytest.mark.parametrize("clients", [1, 2, 100])
@pytest.mark.parametrize(("name", "params"), SCHEMES)
def test_counts_and_int64_are_exact_beside_values_of_every_width(rng, name, params, clients):
    of_round = max(4, clients // 10) if scheme_class(name).info.committee else clients
    scheme = made(name, max(clients, of_round), WIDTHS, params)
    lanes = lanes_of(scheme, INT64)
    update = [rng.uniform(-1, 1, 300 + k).astype(np.float32) for k, _ in enumerate(WIDTHS)]
    low, high = -(2**63), 2**63 - 1
    tallies = [Tally(True, 1, {"number": [low, high], "counts": [1, 0, int(k == 0)]}) for k in range(of_round)]
    arrays, sums = opened(scheme, lanes, tallies, update)
    assert sums.numbers["number"] == [of_round * low, of_round * high]
    assert sums.numbers["counts"] == [of_round, 0, 1] and sums.counted == of_round == sums.examples
    if "per_client_top" not in params:
        for got, x, bits in zip(arrays, update, WIDTHS, strict=True):
            np.testing.assert_allclose(got, x, atol=2.0 / scheme.levels.of(bits) + 1e-6)


@pytest.mark.parametrize("name", schemes_that(one_width))
def test_frames_of_lanes_alone_are_exact_in_other_schemes(name):
    scheme = made(name, 3, 6, {})
    lanes = lanes_of(scheme, INT64, Answer("mean", 0, 1e-6, 1e6), largest_weight=1 << 20)
    given = [(2**63 - 1, 60_000), (-(2**63), 1), (5, 77)]
    tallies = [Tally(True, w, {"number": [n, -n], "counts": [1, 1, 0], "mean": [1e6]}) for n, w in given]
    _, sums = opened(scheme, lanes, tallies)
    total = sum(max(-(2**63), n) for n, _ in given)
    assert sums.numbers["number"][0] == total and sums.numbers["counts"] == [3, 3, 0]
    assert sums.ratio(lanes.answers[1]) == [1e6] and sums.examples == 60_078


@settings(max_examples=200, deadline=None)
@given(
    largest_digit=st.integers(1, 1 << 17),
    numbers=st.lists(st.integers(-(2**63), 2**63), min_size=2, max_size=2),
    clients=st.integers(1, 4),
)
def test_digits_are_the_number(largest_digit, numbers, clients):
    lanes = Lanes([INT64], largest_weight=9, largest_digit=largest_digit)
    one = lanes.encode(Tally(True, 3, {"number": numbers}))
    assert one.size == lanes.count and np.abs(one).max() <= largest_digit and lanes.counts == 1
    # Float32 of all these is exact.
    assert np.array_equal(one, one.astype(np.int64))
    sums = lanes.decode([int(x) * clients for x in one], clients)
    assert sums.numbers["number"] == [n * clients for n in numbers] and sums.examples == 3 * clients


def test_a_sum_beyond_what_clients_can_send_is_a_forgery():
    lanes = Lanes([Answer("x", 0, 1.0, 100.0, "sum")], largest_weight=9, largest_digit=1000, counts=[COUNTS])
    honest = [2, 1, 0, 2, 18, -200]
    assert lanes.decode(honest, 2).numbers == {"counts": [1, 0, 2], "x": [-200]}
    for place, lie in ((0, 3), (0, -1), (1, -1), (3, 3), (4, 19), (4, -1), (5, 201), (5, -201)):
        with pytest.raises(errors.ForgedAggregateError, match="larger than its clients"):
            lanes.decode([lie if k == place else n for k, n in enumerate(honest)], 2)
    with pytest.raises(errors.ForgedAggregateError, match="5 lanes"):
        lanes.decode(honest[1:], 2)


@pytest.mark.parametrize(("name", "most"), [("flashe", 11.6), ("bfv", 12.8)])
@pytest.mark.parametrize("bits", WIDTHS)
def test_a_number_of_64_bits_is_few_bytes(name, most, bits):
    scheme = made(name, 100, bits, {})
    encryptor = scheme.encryptor(scheme.keygen(1).client(0))
    sizes = []
    for count, of_round in ((1, 1), (5001, 2)):
        lanes = lanes_of(scheme, Answer("number", count, 1.0, float(2**63), "sum"))
        kinds = {"lanes": lanes.encode(Tally(True, 1, {})), "counts": lanes.counts}
        sizes.append(len(encryptor.encrypt([], round=of_round, **kinds)))
    assert (sizes[1] - sizes[0]) / 5000 <= most


@pytest.mark.parametrize(("name", "params"), WIDE)
def test_lanes_do_not_depend_on_the_bits_of_values(name, params):
    found = {(made(name, 100, bits, params).lane_bits, made(name, 100, bits, params).largest_digit) for bits in WIDTHS}
    assert len(found) == 1 and found.pop()[0] == (2, 16)


def test_sparse_updates_keep_the_lanes_of_their_values():
    for bits in WIDTHS:
        scheme = made("flashe", 100, bits, {"per_client_top": 0.1})
        assert scheme.lane_bits == (bits, bits) and scheme.largest_digit * 100 <= 1 << 24
        lanes = lanes_of(scheme, Answer("number", 300, 1.0, 1.0, "sum"))
        key = scheme.keygen(1).client(0)
        frame = scheme.encryptor(key).encrypt(
            [np.zeros(4000, np.float32)], round=1, lanes=lanes.encode(Tally(True, 1, {})), counts=lanes.counts
        )
        # Positions, tags of 8 bytes and lanes of one width of a tenth of the values, and of all 305 lanes.
        assert len(frame) < 705 * (8 + 4) + 600


def test_lanes_have_no_weights(rng):
    scheme = fedcipher.scheme("plain", clients=2, max_weight=3, min_contributions=1)
    lanes = lanes_of(scheme, INT64)
    keys = scheme.keygen(2)
    kinds = {"lanes": lanes.encode(Tally(True, 1, {})), "counts": lanes.counts}
    with pytest.raises(errors.ParameterError, match="weight=3 with lanes"):
        scheme.encryptor(keys.client(0)).encrypt([], round=1, weight=3, **kinds)
