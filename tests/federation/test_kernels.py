"""The passes over an update's values: those that a GPU makes are the native ones, to the bit.

Here numpy stands for PyTorch, whose operations of these names are the same, and PyTorch itself where it is installed;
`tools/check_gpu.py` compares on a GPU.
"""

import fedcipher
import numpy as np
import pytest
from fedcipher.codec import Codec
from fedcipher.federation.kernels import OnDevice, kernels_of, split
from fedcipher.tensors import with_numpy

SEED, DRAWS = bytes(range(16)), bytes(range(16, 32))
LENGTHS = [3, 700, 0, 66_000, 41]


class There:
    """The operations of PyTorch, on this processor, for arrays of numpy."""

    def __init__(self):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        self._kernels, self._to = OnDevice(torch, torch.device("cpu")), torch.from_numpy

    def __getattr__(self, name):
        def call(first, *others, **given):
            arrays = isinstance(first, list)
            first = [self._to(x.copy()) for x in first] if arrays else self._to(np.array(first))
            others = [self._to(x.copy()) if isinstance(x, np.ndarray) else x for x in others]
            made = getattr(self._kernels, name)(first, *others, **given)
            return tuple(with_numpy(made)) if isinstance(made, tuple) else with_numpy([made])[0]

        return call


@pytest.fixture(params=[lambda: OnDevice(np), There], ids=["numpy", "torch"])
def both(rng, request):
    arrays = [(rng.standard_t(3, n) * 10.0 ** rng.integers(-3, 3)).astype(np.float32) for n in LENGTHS]
    native, _ = kernels_of(arrays)
    return native, request.param(), arrays


def test_rows_are_the_same_to_the_bit(both):
    native, device, arrays = both
    divisors = [0.3, 1e-3, 1.0, 7.7, 1e20]
    made = native.divided(arrays, divisors), device.divided(arrays, divisors)
    assert made[0].tobytes() == made[1].tobytes()
    for count in (0, 1, 2, 3, 300, 4096, 5000, len(made[0])):
        rows = [native.rotated(row[:count].copy(), SEED, back=False) for row in made]
        turned = device.rotated(made[1][:count].copy(), SEED, back=False)
        assert rows[0].tobytes() == turned.tobytes()
        assert native.rotated(rows[0], SEED, back=True).tobytes() == device.rotated(turned, SEED, back=True).tobytes()


def test_cuts_and_steps_are_the_same_to_the_bit(both):
    native, device, arrays = both
    row, ends = np.concatenate(arrays), [0.1, 2.5, 1.0, 0.7, 1e9]
    cut, seen = native.cut(row.copy(), LENGTHS, ends), device.cut(row.copy(), LENGTHS, ends)
    assert cut[1] == seen[1] and sum(cut[1])
    assert cut[0].tobytes() == seen[0].tobytes() and cut[2].tobytes() == seen[2].tobytes()
    wide = [1e30] * len(LENGTHS)
    assert native.cut(row.copy(), LENGTHS, wide)[2] is device.cut(row.copy(), LENGTHS, wide)[2] is None
    for at_random in (True, False):
        for step in (0.013, 3.0):
            given = {"at_random": at_random, "draws": DRAWS, "stream": 5}
            made = [k.whole_steps(row.copy(), step, **given) for k in (native, device)]
            assert made[0].tobytes() == made[1].tobytes()
    made = [k.multiplied(row.copy(), 1e36) for k in (native, device)]
    assert made[0].tobytes() == made[1].tobytes()


def test_sums_are_the_same_but_for_their_last_bits(both):
    native, device, arrays = both
    for x in split(np.concatenate(arrays), LENGTHS):
        assert device.mean_square(x) == pytest.approx(native.mean_square(x), rel=1e-12)
        assert device.dot(x, x) == pytest.approx(native.dot(x, x), rel=1e-12)
        assert device.nearest_squares(x, 0.2) == pytest.approx(native.nearest_squares(x, 0.2), rel=1e-9)


def test_tensors_are_encrypted_as_they_are(rng):
    """Those of JAX, and of PyTorch where it is installed: the frames of numpy's arrays."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    update = [rng.normal(size=(30, 4)).astype(np.float32), rng.normal(size=9).astype(np.float32)]
    scheme = fedcipher.scheme("flashe", clients=2, codec=Codec(bits=16, clip=1.0))
    keys, sums = scheme.keygen(2), []
    for round_, arrays in ((1, update), (2, [jax.numpy.asarray(x) for x in update])):
        aggregator = scheme.aggregator(keys.server(), round=round_)
        for k in range(2):
            aggregator.add(scheme.encryptor(keys.client(k)).encrypt(arrays, round=round_))
        sums.append(scheme.decryptor(keys.client(0)).decrypt(aggregator.finish()))
    for one, other in zip(*sums, strict=True):
        assert one.tobytes() == other.tobytes()
    half = with_numpy([jax.numpy.ones(3, jax.numpy.bfloat16)])[0]
    assert half.dtype == np.float32 and half.tolist() == [1, 1, 1]


def test_tensors_of_pytorch_are_numpys_arrays():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    learned = torch.ones(3, 2, requires_grad=True)
    made = with_numpy([learned, torch.ones(2, dtype=torch.bfloat16), torch.arange(6).reshape(2, 3).t(), None])
    assert [x.tolist() for x in made[:3]] == [[[1, 1]] * 3, [1, 1], [[0, 3], [1, 4], [2, 5]]] and made[3] is None
    assert [x.dtype.name for x in made[:3]] == ["float32", "float32", "int64"]
