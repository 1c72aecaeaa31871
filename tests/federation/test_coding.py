"""Updates as the values of frames and back: nothing is lost, and the noise is what public numbers say."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from fedcipher.codec import Levels
from fedcipher.federation.coding import coding_of
from fedcipher.federation.ranges import Ranges
from hypothesis import given, settings
from hypothesis import strategies as st

SEED = bytes(range(16))
DRAWS = partial(np.random.default_rng(7).bytes, 16)
"""A seed of rounding after the other, the same in every run of the tests."""
SHAPES = [(40, 50), (3000,), (7,), (60, 60)]
LIKE = [np.zeros(shape, np.float32) for shape in SHAPES]
LEVELS = Levels()


def heavy(rng, shape, size):
    """Values of which few are far larger than the rest, as gradients are."""
    return (rng.standard_t(3, shape) * size).astype(np.float32)


def drawn(rng, *, sizes=(1e-2, 1e-4, 1.0, 1e-6), factor=1.0):
    return [heavy(rng, shape, size * factor) for shape, size in zip(SHAPES, sizes, strict=True)]


def followed(updates, shares=None):
    """Ranges that have seen these updates once, and the sums of their lanes beside them."""
    ranges = Ranges([1.0] * len(LIKE), weighted=shares is not None, measuring=True)
    for _ in range(2):
        lanes = np.sum(
            [ranges.histogram_counts(u, s) for u, s in zip(updates, shares or [1.0] * len(updates), strict=True)], 0
        )
        ranges.observe(lanes.tolist())
    lanes = [ranges.histogram_counts(u, s) for u, s in zip(updates, shares or [1.0] * len(updates), strict=True)]
    return ranges, np.sum(lanes, axis=0).tolist()


def coding(ranges, bits=4, **given):
    return coding_of(ranges, LIKE, [bits] * len(LIKE), LEVELS, **given)


def noise(code, ranges, lanes, total):
    return code.noise(ranges, lanes, total, [x.size for x in LIKE])


def parts(code, ranges, lanes, total):
    return code.parts(ranges, lanes, total, [x.size for x in LIKE])


def decoded(code, values, seed=SEED):
    return code.decode(values, seed, [1.0] * len(values))


def kept(got, want):
    return float(got.reshape(-1).astype(np.float64) @ want.reshape(-1) / (want.astype(np.float64) ** 2).sum())


def test_arrays_with_high_peaks_are_rotated_together_and_others_have_their_peaks_range(rng):
    ranges, _ = followed([drawn(rng)])
    code = coding(ranges)
    assert code.rotated == (1, 1, 0, 1)
    assert {end for end, group in zip(code.ranges, code.rotated, strict=True) if group} == {3.0}
    assert 1 <= code.ranges[2] <= 7**0.5
    # Too few values to be normal.
    few = [np.zeros(5, np.float32), np.array([1.0] * 249, np.float32)]
    spiked = [np.array([0, 0, 0, 0, 1.0], np.float32), np.concatenate([[30.0], np.ones(248)]).astype(np.float32)]
    ranges = Ranges([1.0, 1.0], weighted=False, measuring=True)
    ranges.observe(ranges.histogram_counts(spiked, 1.0))
    code = coding_of(ranges, few, [4, 4], LEVELS)
    assert not any(code.rotated)
    coded = code.encode(spiked, SEED, DRAWS())
    assert coded.clipped == 0 and coded.kept == [1.0] * 3


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_nothing_is_lost_on_average(rng, bits, factor):
    """Of one update in many frames, also of a client whose update is smaller than the others'."""
    ranges, _ = followed([drawn(rng), drawn(rng, factor=factor)])
    code, update = coding(ranges, bits), drawn(rng, factor=factor)
    total = [np.zeros(x.shape) for x in update]
    for frame in range(400):
        seed = frame.to_bytes(16, "little")
        coded = code.encode(update, seed, DRAWS())
        for sum_, x in zip(total, decoded(code, coded.values, seed), strict=True):
            sum_ += x.astype(np.float64) / 400
    # The third array has seven values.
    for got, want, most in zip(total, update, [0.05, 0.05, 0.3, 0.05], strict=True):
        assert kept(got, want) == pytest.approx(1, abs=most)


def test_what_is_coded_and_what_is_cut_are_the_update(rng):
    ranges, _ = followed([drawn(rng)])
    code, update = coding(ranges, 16), drawn(rng, factor=3.0)
    coded = code.encode(update, SEED, DRAWS())
    back = decoded(code, coded.values)
    assert coded.clipped >= sum(x.size for x in update) / 2
    lost = along = 0.0
    for got, rest, want, part in zip(back, coded.rest, update, coded.kept[1:], strict=True):
        whole = got if rest is None else got + rest
        assert np.linalg.norm(whole - want) < 2e-3 * np.linalg.norm(want)
        assert part == pytest.approx(kept(got, want), abs=2e-3) and part < 0.9
        lost, along = lost + (1 - part) * float((want**2).sum()), along + float((want**2).sum())
    assert coded.kept[0] == pytest.approx(1 - lost / along, abs=1e-6)


def test_zeros_stay_zeros(rng):
    like = [np.zeros(4000, np.float32), np.zeros(500, np.float32)]
    update = [heavy(rng, 4000, 1e-3), np.zeros(500, np.float32)]
    ranges = Ranges([1.0] * 2, weighted=False, measuring=True)
    ranges.observe(ranges.histogram_counts(update, 1.0))
    code = coding_of(ranges, like, [12] * 2, LEVELS)
    coded = code.encode(update, SEED, DRAWS())
    assert not coded.values[1].any()
    assert not decoded(code, coded.values)[1].any()


def test_after_a_round_of_zeros_an_array_is_coded_as_before(rng):
    """Of one array, and of all: nobody lost a range by standing still."""
    updates = [drawn(rng) for _ in range(3)]
    for still in ([0], [1, 3], [0, 1, 2, 3]):
        ranges, _ = followed(updates)
        before = coding(ranges, 4)
        zeros = [[x * np.float32(t not in still) for t, x in enumerate(update)] for update in updates]
        coded = coding(ranges, 4).encode(zeros[0], SEED, DRAWS())
        ranges.observe(np.sum([ranges.histogram_counts(u, 1.0) for u in zeros], axis=0).tolist())
        after = coding(ranges, 4)
        assert after.ranges == before.ranges
        assert all(after.rotated[t] == 2 for t in still if before.rotated[t])
        # In a group of its own what stands still gets nothing of the others.
        coded = after.encode(zeros[1], SEED, DRAWS())
        assert all(not coded.values[t].any() for t in still)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 12])
@pytest.mark.parametrize("shares", [None, [1.0, 0.01, 0.02, 0.5, 0.3, 0.01, 0.01, 0.2]])
def test_noise_is_what_public_numbers_say(rng, bits, shares):
    updates = [drawn(rng) for _ in range(8)]
    ranges, lanes = followed(updates, shares)
    code = coding(ranges, bits)
    beside = [share / ranges.recent_weight for share in shares or [1.0] * 8]
    error, fine = [np.zeros(x.shape) for x in LIKE], dataclasses.replace(code, steps=(1e-6,) * 4)
    for share, update in zip(beside, updates, strict=True):
        weighed = [x * np.float32(share) for x in update]
        pairs = zip(
            error, code.encode(weighed, SEED, DRAWS()).values, fine.encode(weighed, SEED, DRAWS()).values, strict=True
        )
        for sum_, got, want in pairs:
            sum_ += got - want
    said = noise(code, ranges, lanes, sum(beside))
    for t in range(len(LIKE)):
        true = float(np.mean(error[t] ** 2)) / sum(beside) ** 2
        # Of seven values much is chance.
        low, high = (0.5, 3) if LIKE[t].size > 7 else (0.1, 20)
        assert low < said[t] / true < high, (t, said[t], true)


def test_zeros_of_most_clients_are_no_noise(rng):
    like = [np.zeros(500, np.float32)]
    moved, still = [rng.uniform(-1, 1, 500).astype(np.float32)], [np.zeros(500, np.float32)]
    ranges = Ranges([1.0], weighted=False, measuring=True)
    for _ in range(2):
        lanes = np.sum([ranges.histogram_counts(x, 1.0) for x in [moved] * 2 + [still] * 18], axis=0).tolist()
        ranges.observe(lanes)
    code = coding_of(ranges, like, [3], LEVELS)
    assert not code.rotated[0]
    errors = [code.encode(moved, SEED, DRAWS()).values[0] - moved[0] / code.scales[0] for _ in range(50)]
    true = 2 * float(np.mean(np.square(errors))) / 20**2
    assert 0.5 < code.noise(ranges, lanes, 20.0, [500])[0] / true < 2


def test_a_mean_that_is_mostly_noise_moves_the_model_by_a_part_of_it(rng):
    """Clients of small weight alone, under a charter's largest."""
    updates = [drawn(rng) for _ in range(3)]
    shares = [1e-3] * 3
    ranges = Ranges([4.0] * len(LIKE), weighted=True)
    lanes = np.sum([ranges.histogram_counts(u, s) for u, s in zip(updates, shares, strict=True)], axis=0).tolist()
    code = coding(ranges, 4)
    means = [np.zeros(x.shape, np.float32) for x in LIKE]
    for update in updates:
        for sum_, y in zip(
            means, code.encode([x * np.float32(1e-3) for x in update], SEED, DRAWS()).values, strict=True
        ):
            sum_ += y / np.float32(3e-3)
    counting = parts(code, ranges, lanes, 3e-3 / ranges.recent_weight)
    assert all(0 < part < 0.1 for part in counting)
    made = code.decode(means, SEED, counting)
    for got, whole, part in zip(made, decoded(code, means), counting, strict=True):
        np.testing.assert_allclose(got, whole * part, rtol=1e-6)
    # What is left of the noise is less than one client's update, whose size a bin tells to an octave.
    left = [n * p * p for n, p in zip(noise(code, ranges, lanes, 3e-3 / ranges.recent_weight), counting, strict=True)]
    size = [np.sqrt(np.mean(np.square(x))) / scale for x, scale in zip(updates[0], code.scales, strict=True)]
    assert all(n < 4 * s * s for n, s in zip(left, size, strict=True))
    # Where it is not, nothing is taken away.
    ranges, lanes = followed(updates)
    code = coding(ranges, 12)
    assert parts(code, ranges, lanes, 3.0) == [1.0] * 4


def test_means_that_are_mostly_noise_count_whole_where_one_clients_update_is_more(rng):
    """Clients that pull apart, at the fewest bits: to take a part of their mean away would lose training."""
    updates = [drawn(rng) for _ in range(8)]
    ranges, lanes = followed(updates)
    code = coding(ranges, 2)
    # The third array has seven values, and so the range of one that has all of them.
    assert parts(code, ranges, lanes, 8.0)[:2] == [1.0] * 2
    means = [np.zeros(x.shape, np.float32) for x in LIKE]
    for update in updates:
        for sum_, y in zip(means, code.encode(update, SEED, DRAWS()).values, strict=True):
            sum_ += y / 8
    for got, true in zip(
        decoded(code, means), [np.mean(each, axis=0) for each in zip(*updates, strict=True)], strict=True
    ):
        assert np.linalg.norm(got - true) > 0.7 * np.linalg.norm(true)


def test_rounding_is_to_the_nearest_where_the_clients_own_values_are_large_enough(rng):
    """Whatever the others' are: one of small weight, or of a small rate, is rounded at random."""
    ranges, _ = followed([drawn(rng) for _ in range(3)])
    for bits in (3, 4, 6, 8):
        code = coding(ranges, bits)
        for factor in (1.0, 0.1, 1e-2, 1e-4):
            update = drawn(rng, factor=factor)
            twice = [code.encode(update, SEED, DRAWS()).values for _ in range(2)]
            root = np.sqrt(np.mean([np.mean(np.square(y)) for t, y in enumerate(twice[0]) if code.rotated[t]]))
            for t, (a, b) in enumerate(zip(*twice, strict=True)):
                same, step = np.array_equal(a, b), code.steps[t]
                if not code.rotated[t] or root < 0.4 * step:
                    assert a.size < 100 or not same or not a.any(), (bits, factor, t)
                elif root > step:
                    assert same, (bits, factor, t)
                np.testing.assert_allclose(a / step, np.rint(a / step), atol=1e-4)
    code = coding(ranges, 8, at_random=True)
    update = drawn(rng)
    assert not np.array_equal(
        code.encode(update, SEED, DRAWS()).values[0], code.encode(update, SEED, DRAWS()).values[0]
    )


@pytest.mark.parametrize("bits", [3, 4, 6, 8])
@pytest.mark.parametrize("height", np.linspace(20, 64, 6))
def test_one_spike_in_a_block_is_coded_without_bias(rng, bits, height):
    """Rotated, it is one number with either sign, which the nearest step would shorten or stretch in all values."""
    like = [np.zeros(4096, np.float32)]
    update = [(rng.standard_normal(4096) * 1e-3).astype(np.float32)]
    update[0][77] = height
    ranges = Ranges([1.0], weighted=False, measuring=True)
    for _ in range(2):
        ranges.observe(
            np.sum(
                [ranges.histogram_counts(update, 1.0), ranges.histogram_counts([update[0] * 1.4], 1.0)], axis=0
            ).tolist()
        )
    code = coding_of(ranges, like, [bits], LEVELS)
    assert code.rotated == (1,)
    frames = [k.to_bytes(16, "little") for k in range(60)]
    means = np.mean([decoded(code, code.encode(update, seed, DRAWS()).values, seed)[0] for seed in frames], axis=0)
    assert means[77] == pytest.approx(height, rel=0.02)


@settings(deadline=None, max_examples=50)
@given(size=st.floats(-45, 38), spike=st.floats(0, 38), bits=st.integers(2, 24), at_random=st.booleans())
def test_no_update_makes_values_that_are_no_numbers(size, spike, bits, at_random):
    rng = np.random.default_rng(1)
    ranges, _ = followed([drawn(rng)])
    code = coding(ranges, bits, at_random=at_random)
    with np.errstate(all="ignore"):
        update = [np.clip(heavy(rng, x.shape, 1) * 10.0**size, -3e38, 3e38).astype(np.float32) for x in LIKE]
    update[0][3, 3] = np.float32(10.0**spike)
    coded = code.encode(update, SEED, DRAWS())
    for y, end, rest in zip(coded.values, code.ranges, coded.rest, strict=True):
        assert np.isfinite(y).all() and np.abs(y).max() <= end * (1 + 1e-6)
        assert rest is None or np.isfinite(rest).all()
    assert all(np.isfinite(x).all() for x in decoded(code, coded.values)) and np.isfinite(coded.kept).all()
