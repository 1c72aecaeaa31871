"""Clip ranges, and the quantiser against its definition."""

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, errors
from fedcipher.codec import gaussian_clip, vanished
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

finite = st.floats(-100, 100, width=32)


@settings(max_examples=200, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.integers(0, 300), elements=finite), bits=st.integers(4, 24), clip=st.floats(0.01, 50)
)
def test_quantiser_is_its_definition(x, bits, clip):
    alpha = float(np.float32(clip))
    layout = Codec(bits=bits, clip=alpha).layout([x])
    ints, clipped = layout.quantise([x])
    levels = 2**bits - 2
    exact = (np.clip(x.astype(np.float64), -alpha, alpha) + alpha) * (levels / (2 * alpha))
    # Half a level, and the rounding of doubles near 2^52.
    assert np.all(np.abs(ints - exact) <= 0.5 + 1e-6)
    assert clipped == [int(np.sum(np.abs(x) > np.float32(alpha)))]
    assert ints.max(initial=0) <= levels


@settings(max_examples=50, deadline=None)
@given(value=st.floats(-1, 1, width=32), bits=st.integers(4, 16))
def test_stochastic_rounding_is_unbiased_and_adjacent(value, bits):
    x = np.full(4096, value, np.float32)
    ints, _ = Codec(bits=bits, clip=1.0).layout([x]).quantise([x], stochastic=True)
    levels = 2**bits - 2
    exact = (float(np.float32(value)) + 1) * levels / 2
    assert set(np.unique(ints)) <= {np.floor(exact), np.ceil(exact), np.rint(exact)}
    # Six deviations of the mean of 4096 coins.
    assert abs(ints.mean() - exact) <= 6 * 0.5 / 64 + 1e-3


@settings(max_examples=200, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.integers(0, 8), elements=st.floats(-1, 1, width=32)),
    before=st.sampled_from([0, 1023, 5000]),
    scale=st.sampled_from([1.0, 0.02, 1e-4]),
    bits=st.integers(3, 12),
)
def test_what_vanishes_is_what_the_quantiser_leaves_nothing_of(x, before, scale, bits):
    x = np.concatenate([np.zeros(before, np.float32), x * np.float32(scale)])
    layout = Codec(bits=bits, clip=1.0).layout([x])
    ints, _ = layout.quantise([x])
    gone = x.any() and set(ints.tolist()) == {2 ** (bits - 1) - 1}
    assert vanished(layout, [x]) == [x.size if gone else 0]


def test_an_encryptor_counts_the_tensors_of_which_nothing_is_sent():
    # A batch norm's variances in the hybrid-HE study's codec, beside a kernel that it carries.
    update = [np.full(6, 0.01, np.float32), np.full(4, -1.5, np.float32), np.zeros(3, np.float32)]
    for codec, found in (
        (Codec(bits=8, clip=5.0, target="weights"), [6, 0, 0]),
        (Codec(bits=8, clip=(0.1, 5.0, 5.0), target="weights"), [0, 0, 0]),
        (Codec(bits=8, clip=5.0, rounding="stochastic"), []),
        (Codec(bits=8), []),
    ):
        scheme = fedcipher.scheme("flashe", clients=2, codec=codec)
        encryptor = scheme.encryptor(scheme.keygen(2).client(0))
        encryptor.encrypt(update, round=1, reference=update)
        assert encryptor.stats.vanished_by_tensor == found


def test_zero_is_exact():
    for bits in (4, 12, 24):
        ints, _ = Codec(bits=bits, clip=0.3).layout([np.zeros(3, np.float32)]).quantise([np.zeros(3, np.float32)])
        assert ints.tolist() == [2 ** (bits - 1) - 1] * 3


def test_auto_ranges_follow_the_public_reference(rng):
    codec = Codec(bits=8, margin=2.0, floor=0.25, target="weights")
    reference = [np.array([0.5, -3.0], np.float32), np.zeros(4, np.float32)]
    layout = codec.layout([np.zeros(2, np.float32), np.zeros(4, np.float32)], reference)
    assert [t[2] for t in layout.tensors] == [6.0, 0.25]
    with pytest.raises(errors.CodecError, match="reference"):
        codec.layout([np.zeros(2, np.float32)])
    with pytest.raises(errors.LayoutError, match="shapes"):
        codec.layout([np.zeros(2, np.float32)], [np.zeros(3, np.float32)])
    with pytest.raises(errors.CodecError, match="NaN"):
        codec.layout([np.zeros(1, np.float32)], [np.array([np.nan], np.float32)])
    assert [t[2] for t in Codec(target="delta").layout([np.zeros(2, np.float32)]).tensors] == [1.0]


def test_no_reference_makes_a_range_smaller_than_its_floor():
    """A small range would cut each update to what a server chooses."""
    small = [np.full(4, 1e-30, np.float32)]
    for codec, floor in (
        (Codec(bits=8, margin=2.0, floor=0.25, target="weights"), 0.25),
        (Codec(bits=8, target="weights"), 0.25),
        (Codec(bits=16, target="weights"), 1.0),
    ):
        ((_, _, alpha, _),) = codec.layout([np.zeros(4, np.float32)], small).tensors
        assert alpha == floor


def test_aciq_minimises_the_error_it_claims_to(rng):
    x = rng.normal(0, 1, 200_000)
    for bits in (4, 6, 8):
        best = gaussian_clip(bits)

        def error(alpha, bits=bits):
            levels = 2**bits - 2
            q = np.rint((np.clip(x, -alpha, alpha) + alpha) * levels / (2 * alpha)) * 2 * alpha / levels - alpha
            return np.mean((q - x) ** 2)

        grid = np.linspace(0.5 * best, 1.6 * best, 45)
        assert error(best) < 1.05 * min(error(a) for a in grid)
    layout = Codec(bits=8, clip="aciq", margin=1.0, floor=0.01).layout([x.astype(np.float32)], [x])
    assert abs(layout.tensors[0][2] - gaussian_clip(8)) < 0.05


def test_bad_codecs():
    for bad in ({"bits": 1}, {"bits": 25}, {"bits": [8, 30]}, {"bits": 8.5}, {"margin": 0}, {"floor": float("nan")}):
        with pytest.raises(errors.ParameterError):
            Codec(**bad)
    # The last two are numbers, and no float32.
    for clip in ("tight", 0, -1.0, float("nan"), float("inf"), [1.0, -1.0], None, 1e-44, 1e39):
        with pytest.raises(errors.ParameterError):
            Codec(clip=clip)
    with pytest.raises(errors.LayoutError, match="bits names 2"):
        Codec(bits=[8, 8], clip=1.0).layout([np.zeros(1, np.float32)])
    with pytest.raises(errors.LayoutError, match="clip names 2"):
        Codec(clip=[1.0, 1.0]).layout([np.zeros(1, np.float32)])
