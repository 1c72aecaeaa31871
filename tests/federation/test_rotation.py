"""The core's rotation against numpy's single precision, level by level: the same bits."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fedcipher import _native

SEED = bytes(range(16))


def signs(part, count):
    counter = bytes([part]) + bytes(15)
    stream = Cipher(algorithms.AES(SEED), modes.CTR(counter)).encryptor().update(bytes(-(-count // 8)))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little")[:count]
    return (1 - 2 * bits.astype(np.float32)).astype(np.float32)


def transformed(columns):
    """Of each column of float32 values, whose number is a power of two."""
    rows, stride = columns.copy(), 1
    while stride < len(rows):
        pairs = rows.reshape(-1, 2, stride, rows.shape[1])
        rows = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(rows.shape)
        stride *= 2
    return rows * np.float32(1 / np.sqrt(float(len(rows))))


def turned(values):
    made, count = values.copy(), len(values)
    block = min(4096, 1 << (count.bit_length() - 1)) if count else 1
    whole = count // block * block
    made[:whole] *= signs(0, whole)
    made[:whole] = transformed(made[:whole].reshape(block, -1)).reshape(-1)
    if whole < count:
        made[count - block :] = transformed((made[count - block :] * signs(1, block)).reshape(-1, 1))[:, 0]
    return made


def rotated(values, seed, *, back=False):
    made = values.copy()
    _native.rotate(made, seed, back)
    return made


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 300, 4096, 5000, 25_450, 70_001])
def test_it_is_the_same_to_the_bit_and_can_be_taken_back(rng, count):
    values = (rng.normal(size=count) * 10.0 ** rng.integers(-6, 3, count)).astype(np.float32)
    made = rotated(values, SEED)
    assert made.tobytes() == turned(values).tobytes()
    back = rotated(made, SEED, back=True)
    assert np.linalg.norm(back - values) <= 1e-6 * np.linalg.norm(values)
    other = rotated(values, bytes(16))
    assert count < 8 or not np.array_equal(other, made)
