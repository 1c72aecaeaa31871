"""What the device has to compute, on Python's integers: a second implementation, by other means than the core's.

A product in the ring is one product of long integers (Kronecker substitution), so no transform is involved; the core
itself is what crates/fedcipher-accel compares the device with.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from constants import PRIMES, N, T

__all__ = [
    "DELTA",
    "PRIMES",
    "N",
    "Q",
    "T",
    "a_beats",
    "beats",
    "compose",
    "decode",
    "e_beats",
    "encrypt",
    "masks",
    "pack",
    "result",
    "ring_product",
    "times_secret",
    "wide_beats",
]  # fmt: skip

Q = PRIMES[0] * PRIMES[1]
DELTA = Q // T
_SLOT = 128


def _long(values: list[int]) -> int:
    return int.from_bytes(b"".join(v.to_bytes(_SLOT // 8, "little") for v in values), "little")


def ring_product(a: list[int], s: list[int], p: int) -> list[int]:
    """a s mod (x^n + 1, p), coefficients in 0..p."""
    n = len(a)
    product = _long([v % p for v in a]) * _long([v % p for v in s])
    data = product.to_bytes(2 * n * _SLOT // 8 + 8, "little")
    word = [int.from_bytes(data[i * 16 : i * 16 + 16], "little") for i in range(2 * n)]
    return [(word[i] - word[i + n]) % p for i in range(n)]


def compose(r0: int, r1: int) -> int:
    """The number mod q behind two residues."""
    p0, p1 = PRIMES
    return r0 + p0 * ((r1 - r0) * pow(p0, -1, p1) % p1)


def times_secret(a0: list[int], a1: list[int], s: list[int]) -> list[int]:
    parts = [ring_product(a, s, p) for a, p in zip((a0, a1), PRIMES, strict=True)]
    return [compose(r0, r1) for r0, r1 in zip(*parts, strict=True)]


def masks(product: list[int], e: list[int]) -> list[int]:
    return [(x + y) % Q for x, y in zip(product, e, strict=False)]


def encrypt(mask: list[int], m: list[int], *, delta: int = DELTA, drop: int = 0) -> list[int]:
    half = (1 << drop) >> 1
    return [((x + delta * y) % Q + half) >> drop for x, y in zip(mask, m, strict=False)]


def decode(x: int, *, delta: int = DELTA, t: int = T) -> tuple[int, int] | None:
    """Plaintext and noise behind delta m + noise mod q; None outside the plaintext space."""
    m = (x + delta // 2) // delta
    if m < t:
        return m, x - m * delta
    return (0, x - Q) if x >= Q - delta // 2 else None


def pack(values: list[int], width: int) -> bytes:
    total = 0
    for k, v in enumerate(values):
        total |= v << (k * width)
    return total.to_bytes((len(values) * width + 7) // 8, "little")


def beats(data: bytes) -> bytes:
    """Filled up to whole beats of 16 bytes."""
    return data + bytes(-len(data) % 16)


def a_beats(a0: list[int], a1: list[int]) -> bytes:
    return b"".join(x.to_bytes(8, "little") + y.to_bytes(8, "little") for x, y in zip(a0, a1, strict=True))


def e_beats(e: list[int]) -> bytes:
    return beats(bytes(v % 256 for v in e))


def wide_beats(values: list[int]) -> bytes:
    return b"".join(v.to_bytes(16, "little") for v in values)


def result(word: int) -> tuple[int, int]:
    """Plaintext and noise in a beat that DECRYPT sends under fedbit-paper."""
    noise = word >> 32
    return word & 0xFFFFFFFF, noise - (1 << 96) if noise >> 95 else noise
