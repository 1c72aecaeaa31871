"""The passes over an update's values, beside numpy's own."""

import numpy as np
import pytest
from fedcipher import _native
from fedcipher.codec import root_mean_square
from fedcipher.errors import LayoutError

LENGTHS = [0, 1, 15, 16, 17, 3000, 70_001]


@pytest.fixture
def arrays(rng):
    return [(rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)).astype(np.float32) for n in LENGTHS]


def test_arrays_are_divided_each_by_its_own(arrays):
    divisors = [float(np.float32(1.7 ** (k - 3))) for k in range(len(arrays))]
    with np.errstate(over="ignore"):
        wanted = np.concatenate([x / np.float32(d) for x, d in zip(arrays, divisors, strict=True)])
    assert _native.divided(arrays, divisors).tobytes() == wanted.tobytes()
    with pytest.raises(LayoutError):
        _native.divided(arrays, divisors[1:])


def test_what_is_beyond_a_range_is_cut_and_given(arrays):
    row, ends = np.concatenate(arrays), [1.0, 2.0, 0.5, 1e-3, 1e3, 1.0, 1.0]
    made = row.copy()
    counts, over = _native.cut(made, LENGTHS, ends)
    end = np.repeat(np.array(ends, np.float32), LENGTHS)
    assert made.tobytes() == np.clip(row, -end, end).tobytes()
    assert over.tobytes() == (row - made).tobytes()
    bounds = np.cumsum([0, *LENGTHS])
    assert counts == [int((np.abs(row[a:b]) > e).sum()) for a, b, e in zip(bounds[:-1], bounds[1:], ends, strict=True)]
    assert _native.cut(made, LENGTHS, ends) == ([0] * len(LENGTHS), None)
    for lengths, some in ((LENGTHS[:-1], ends[:-1]), (LENGTHS, ends[1:]), ([2**63, 2**63], [1.0, 1.0])):
        with pytest.raises(LayoutError):
            _native.cut(made, lengths, some)


def test_products_end_where_float32_does(arrays):
    for x in arrays:
        made = x.copy()
        _native.multiply(made, 1e30)
        most = float(np.finfo(np.float32).max)
        assert made.tobytes() == np.clip(x.astype(np.float64) * 1e30, -most, most).astype(np.float32).tobytes()


def test_sums_are_of_squares_and_products(arrays):
    for x in arrays:
        wide = x.astype(np.float64)
        squares = float((wide * wide).sum())
        assert _native.dot(x, x) == pytest.approx(squares, rel=1e-12)
        assert _native.mean_square(x) == pytest.approx(squares / max(1, x.size), rel=1e-12)
        assert root_mean_square(x) == pytest.approx((squares / max(1, x.size)) ** 0.5, rel=1e-12)
        assert _native.dot(x, np.ones_like(x)) == pytest.approx(float(wide.sum()), rel=1e-9, abs=1e15)
    with pytest.raises(LayoutError):
        _native.dot(arrays[1], arrays[2])
    assert root_mean_square(np.array([3, 4], np.int64)) == pytest.approx(12.5**0.5)
