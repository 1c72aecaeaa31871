"""Scales and peaks that follow the clients' updates, whatever size these are."""

import math

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.codec import Codec
from fedcipher.errors import ForgedAggregateError, StateError
from fedcipher.federation.ranges import FIRST, MAGNITUDES, PEAKS, WEIGHTS, Ranges, exponent_of, power_of
from flower_harness import NAMES, LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from scheme_lists import adds, hides, of_committee, schemes_that

SIZES = st.floats(-90, 90).map(lambda octaves: float(np.float32(2.0**octaves)))


@given(st.floats(1e-38, 1e38))
def test_an_exponent_is_the_least_that_holds_a_value(value):
    exponent = exponent_of(value)
    assert power_of(exponent - 1) < value <= power_of(exponent)
    assert power_of(exponent) == pytest.approx(2.0 ** (exponent / 4), rel=1e-7)
    assert np.float32(power_of(exponent)) == power_of(exponent)


def summed(ranges, sizes, shares=None):
    """Lanes of clients whose root mean squares are ``sizes``, one tensor."""
    shares = shares or [1.0] * len(sizes)
    lanes = [
        ranges.histogram_counts([np.array([size], np.float32)], share)
        for size, share in zip(sizes, shares, strict=True)
    ]
    return np.sum(lanes, axis=0).tolist()


def after(sizes, first=1.0, rounds=1):
    ranges = Ranges([first], weighted=False)
    for _ in range(rounds):
        ranges.check(summed(ranges, sizes), len(sizes))
        ranges.observe(summed(ranges, sizes))
    return ranges.scales[0]


@settings(deadline=None)
@given(size=SIZES, others=st.lists(st.floats(0.1, 1.0), max_size=14), first=SIZES)
def test_a_scale_is_a_little_more_than_the_largest_update_after_few_rounds(size, others, first):
    """Wherever it begins: it moves by sixteen octaves a round."""
    rounds = math.ceil(abs(math.log2(size / first)) / 16) + 3
    made = after([size, *(size * other for other in others)], first, rounds)
    assert size * 2**0.5 * (1 - 1e-6) <= made <= size * 2**0.75 * (1 + 1e-6)


@settings(deadline=None)
@given(size=st.floats(-60, 20).map(lambda octaves: 2.0**octaves), others=st.lists(st.floats(0.1, 1.0), max_size=14))
def test_one_sum_of_histograms_finds_the_first_scale(size, others):
    ranges = Ranges([1.0, 1.0], weighted=False, measuring=True)
    sizes = [size, *(size * other for other in others)]
    lanes = [ranges.histogram_counts([np.array([x], np.float32), np.zeros(3, np.float32)], 1.0) for x in sizes]
    lanes = np.sum(lanes, axis=0).tolist()
    ranges.check(lanes, len(sizes))
    ranges.observe(lanes)
    assert size * 2**0.5 * (1 - 1e-6) <= ranges.scales[0] < size * 2**1.5 * (1 + 1e-6)
    # Of what nobody has moved nothing is known.
    assert ranges.scales[1] == 1.0
    assert len(ranges.histogram_counts([np.zeros(1), np.zeros(1)], 1.0)) < len(lanes), "from here on it follows"


def test_zeros_say_nothing_of_the_next_round():
    assert after([0.0] * 5, first=0.5) == 0.5
    assert after([0.0, 0.0, 1.0], first=0.5) == after([1.0], first=0.5)


def test_one_client_in_sixteen_widens_nothing_and_one_of_fewer_not_without_end():
    calm = after([1.0] * 15)
    assert after([1.0] * 15 + [1000.0]) == calm
    assert after([1.0] * 14 + [1000.0]) == 16 * calm
    # The second largest of sixteen clients counts.
    assert after([1.0] * 14 + [1000.0] * 2) > 500 * calm


def test_weights_are_beside_the_largest_of_the_last_eight_rounds():
    ranges = Ranges([1.0], weighted=True)
    assert ranges.recent_weight == 1.0
    ranges.observe(summed(ranges, [1.0] * 3, [1.0, 0.001, 0.0]))
    assert ranges.recent_weight == 1.0
    for _ in range(8):
        ranges.observe(summed(ranges, [1.0] * 3, [0.001, 0.0005, 0.0]))
    # Far from one a bin is an octave.
    assert 0.001 <= ranges.recent_weight < 0.002
    before = ranges.recent_weight
    ranges.observe(summed(ranges, [0.0] * 3, [0.0] * 3))
    assert ranges.recent_weight == before
    other = Ranges([1.0], weighted=True)
    other.restore(ranges.export())
    assert vars(other) == vars(ranges)


@pytest.mark.parametrize("measuring", [False, True])
def test_a_peak_is_the_largest_beside_the_root_mean_square(measuring):
    ranges = Ranges([1.0, 1.0], weighted=False, measuring=measuring)
    assert ranges.peaks == [1.0, 1.0]
    spiked = np.array([2.0] + [0.0] * 15, np.float32)
    lanes = [ranges.histogram_counts([x, np.zeros(16, np.float32)], 1.0) for x in (spiked, np.ones(16), -np.ones(16))]
    ranges.observe(np.sum(lanes, axis=0).tolist())
    assert ranges.peaks[0] == pytest.approx(4.0)
    assert (ranges.peaks[1], ranges.moved) == (1.0, [True, False])
    spiked = np.array([1.0] + [0.0] * 9999, np.float32)
    ranges.observe(np.sum([ranges.histogram_counts([spiked, spiked], 1.0)] * 3, axis=0).tolist())
    assert ranges.peaks == [PEAKS.last] * 2 and PEAKS.last > 6
    ranges.observe(np.sum([ranges.histogram_counts([np.zeros(9), spiked], 1.0)] * 3, axis=0).tolist())
    assert (ranges.peaks, ranges.moved) == ([PEAKS.last] * 2, [False, True])


@settings(deadline=None)
@given(sizes=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=14))
def test_the_middle_size_is_of_those_that_move(sizes):
    ranges = Ranges([1.0, 1.0], weighted=False)
    lanes = [ranges.histogram_counts([np.array([x], np.float32), np.zeros(1, np.float32)], 1.0) for x in [0.0, *sizes]]
    (middle, moved), none = ranges.median_sizes(np.sum(lanes, axis=0).tolist())
    assert none == (0.0, 0) and moved == len(sizes)
    # A bin is at most an octave wide.
    assert sorted(sizes)[(len(sizes) - 1) // 2] * (1 - 1e-6) <= middle <= 2 * sorted(sizes)[len(sizes) // 2]


@pytest.mark.parametrize("state", [b"1", b"12" * 3, b"12" * 50])
def test_ranges_of_another_build_are_refused(state):
    with pytest.raises(StateError):
        Ranges([1.0] * 2, weighted=True).restore(state)


@pytest.mark.parametrize("measuring", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_that_are_no_clients_are_refused(weighted, measuring):
    ranges = Ranges([1.0], weighted=weighted, measuring=measuring)
    lanes = summed(ranges, [1.0] * 3)
    assert len(lanes) == (FIRST if measuring else MAGNITUDES).count + PEAKS.count + WEIGHTS.count * weighted
    ranges.check(lanes, 3)
    for clients in (2, 4):
        with pytest.raises(ForgedAggregateError):
            ranges.check(lanes, clients)
    for place in range(len(lanes)):
        wrong = list(lanes)
        wrong[place] += 1
        with pytest.raises(ForgedAggregateError):
            ranges.check(wrong, 3)
    wrong = list(lanes)
    wrong[0], wrong[1] = -1, wrong[1] + 1
    with pytest.raises(ForgedAggregateError):
        ranges.check(wrong, 3)


def trained(folder, caplog, name, size, examples, *, rounds, codec=None):
    """Per array: what a run of updates of ``size`` lost, 1 - <m', m>/<m, m>, beside the same in the clear.

    Of an array of which the first round's sum was not applied, that round is not counted.
    """
    clients = len(examples)
    rng, app = np.random.default_rng(1), ClientApp(mods=[client_mod])
    first = [rng.normal(0, 0.1, (40, 50)).astype(np.float32), np.zeros(50, np.float32)]
    true, later = ([np.zeros(x.shape) for x in first] for _ in range(2))

    @app.train()
    def train(msg, ctxt):
        k = ctxt.node_config["partition-id"]
        updates = [rng.normal(0.5, 1, x.shape) * size for x in first]
        moved = [a + u for a, u in zip(msg.content["arrays"].to_numpy_ndarrays(), updates, strict=True)]
        moved = [x.astype(np.float32) for x in moved]
        for counts in (true, later)[: msg.content["config"]["server-round"]]:
            for total, a, x in zip(counts, msg.content["arrays"].to_numpy_ndarrays(), moved, strict=True):
                total += (x.astype(np.float64) - a) * examples[k] / sum(examples)
        metrics = MetricRecord({"num-examples": examples[k]})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=msg)

    more = of_committee(name, members=clients, corrupt_clients=1, corrupt_members=1)
    scheme = fedcipher.scheme(name, clients=clients, **more, **({"codec": codec} if codec else {}))
    made = keys.save(scheme.keygen(clients), scheme, folder / "keys", examples_per_weight=60_000)
    everybody = {"min_train_nodes": clients, "min_available_nodes": clients}
    opener = {} if name == "oneshot" else {"opener": made / "client-0.key"}
    strategy = SecureStrategy(FedAvg(**everybody, fraction_evaluate=0.0), made, out=folder / "run", **opener)
    grid = LocalGrid(app, clients, made)
    strategy.start(grid, record(first), num_rounds=rounds)
    decryptor = scheme.decryptor(keys.load_client(made / "client-1.key")[1], in_memory=True)
    got = [x.astype(np.float64) - y for x, y in zip(strategy.open_model(decryptor), first, strict=True)]
    applied = [name not in caplog.text for name in NAMES]
    wanted = [t if whole else u for t, u, whole in zip(true, later, applied, strict=True)]
    return [float(1 - (g * t).sum() / (t * t).sum()) for g, t in zip(got, wanted, strict=True)], applied


@pytest.mark.parametrize("name", schemes_that(hides, adds))
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-5, 1e-7])
def test_small_updates_are_not_lost(tmp_path, caplog, name, size):
    """Of an update of 1e-4 nothing was left in 12 bits."""
    lost, applied = trained(tmp_path, caplog, name, size, [10, 20, 600, 40, 50], rounds=2)
    # Float32 itself rounds what is added to a model of 0.1.
    assert all(applied) and max(abs(x) for x in lost) < (0.01 if size > 1e-7 else 0.1), lost


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-5, 1e-7])
def test_a_first_range_that_is_too_wide_loses_one_round_and_says_so(tmp_path, caplog, size):
    codec = Codec(bits=12, start=1.0)
    lost, applied = trained(tmp_path, caplog, "bfv", size, [10, 20, 600, 40, 50], rounds=6, codec=codec)
    # Of the 50 values of the other array noise is left, and of the first round a part that is not counted as wanted.
    assert -0.5 < lost[0] < 0.1, lost
    said = [r.message for r in caplog.records if "noise of rounding" in r.message and r.message.startswith("round")]
    # Whoever opens sums says so too: shares of 60,000 examples are small in a range of 1.
    assert (said and not applied[0]) or size == 1e-2


def test_small_clients_lose_nothing_to_a_large_one_that_is_away(tmp_path, caplog):
    """The charter's largest weight is 60,000; these have 60."""
    lost, _ = trained(tmp_path, caplog, "bfv", 1e-3, [60] * 5, rounds=6, codec=Codec(bits=6))
    assert max(abs(x) for x in lost) < 0.05, lost
