"""Prints the known answers of `flashe/sparse.rs`: sparse FLASHE's secret permutation, with another library's AES."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

IN_CACHE, PARTS, BATCH = 1 << 18, 256, 1 << 16


def words(key: bytes, number: int) -> Iterator[int]:
    """The key stream of a round, as 64-bit words."""
    stream = Cipher(algorithms.AES(key), modes.CTR(number.to_bytes(8, "big") + bytes(8))).encryptor()
    while True:
        yield from np.frombuffer(stream.update(bytes(8 * BATCH)), "<u8").tolist()


def below(stream: Iterator[int], bound: int) -> int:
    """A uniform number in ``range(bound)``."""
    while True:
        product = next(stream) * bound
        if product % 2**64 >= 2**64 % bound:
            return product >> 64


def shuffled(elements: list[int], stream: Iterator[int]) -> list[int]:
    """Shuffle by Fisher-Yates. A longer list is first split into 256 parts by random bytes."""
    if len(elements) <= IN_CACHE:
        for i in range(len(elements) - 1, 0, -1):
            other = below(stream, i + 1)
            elements[i], elements[other] = elements[other], elements[i]
        return elements
    thrown = b"".join(next(stream).to_bytes(8, "little") for _ in range(-(-len(elements) // 8)))
    parts: list[list[int]] = [[] for _ in range(PARTS)]
    for element, part in zip(elements, thrown, strict=False):
        parts[part].append(element)
    return [element for part in parts for element in shuffled(part, stream)]


for length in (10, 1000, IN_CACHE, IN_CACHE + 1, 1_000_003):
    order = shuffled(list(range(length)), words(bytes(range(32)), 9))
    digest = hashlib.sha256(np.array(order, "<u4").tobytes()).hexdigest()
    print(f'({length}, {order[:4]}, "{digest}"),')
