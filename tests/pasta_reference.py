"""PASTA as its paper writes it (ePrint 2021/731), slowly: whole matrices, Python integers, hashlib's SHAKE128."""

import hashlib

VARIANTS = {3: (128, 3), 4: (32, 4)}


def _elements(nonce, counter, p):
    """Field elements: 8 bytes big-endian, masked to the bits of p, taken when below p."""
    seed = nonce.to_bytes(8, "big") + counter.to_bytes(8, "big")
    length, at = 1 << 14, 0
    stream = hashlib.shake_128(seed).digest(length)
    mask = (1 << p.bit_length()) - 1
    while True:
        if at + 8 > length:
            length *= 2
            stream = hashlib.shake_128(seed).digest(length)
        value = int.from_bytes(stream[at : at + 8], "big") & mask
        at += 8
        if value < p:
            yield value


def _draw(elements, count, zero):
    out = []
    while len(out) < count:
        value = next(elements)
        if zero or value:
            out.append(value)
    return out


def _affine(half, first, constants, p):
    t = len(first)
    rows = [first]
    for _ in range(t - 1):
        row = rows[-1]
        rows.append([(first[j] * row[-1] + (row[j - 1] if j else 0)) % p for j in range(t)])
    return [
        (sum(m * x for m, x in zip(row, half, strict=True)) + c) % p for row, c in zip(rows, constants, strict=True)
    ]


def key_stream(variant, p, key, nonce, counter):
    """The t words that mask block ``counter``."""
    t, rounds = VARIANTS[variant]
    left, right = list(key[:t]), list(key[t:])
    elements = _elements(nonce, counter, p)
    for layer in range(rounds + 1):
        rows = [_draw(elements, t, False), _draw(elements, t, False)]
        constants = [_draw(elements, t, True), _draw(elements, t, True)]
        left = _affine(left, rows[0], constants[0], p)
        right = _affine(right, rows[1], constants[1], p)
        left, right = (
            [(2 * a + b) % p for a, b in zip(left, right, strict=True)],
            [(a + 2 * b) % p for a, b in zip(left, right, strict=True)],
        )
        if layer < rounds - 1:
            left, right = ([h[0]] + [(h[i] + h[i - 1] ** 2) % p for i in range(1, t)] for h in (left, right))
        elif layer == rounds - 1:
            left, right = ([x**3 % p for x in h] for h in (left, right))
    return left
