"""A second implementation of the predicate of Ed25519 signatures, slow and without secrets: ZIP 215 and which keys."""

from hashlib import sha512

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, P) % P
_I = pow(2, (P - 1) // 4, P)
NEUTRAL = (0, 1)


def add(a, b):
    """The sum of two points, as x and y."""
    (x1, y1), (x2, y2) = a, b
    part = _D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + part, -1, P)
    return x % P, (y1 * y2 + x1 * x2) * pow(1 - part, -1, P) % P


def times(number, point):
    """``point`` added up ``number`` times."""
    made = NEUTRAL
    while number:
        made, point, number = add(made, point) if number & 1 else made, add(point, point), number >> 1
    return made


def decoded(content):
    """A point, also where y is beyond P or x = 0 has a sign, as ZIP 215 says; None for what is no point."""
    number = int.from_bytes(content, "little")
    sign, y = number >> 255, (number & (1 << 255) - 1) % P
    square = (y * y - 1) * pow(_D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * _I % P
    if x * x % P != square:
        return None
    return (P - x) % P if x & 1 != sign else x, y


def encoded(point):
    """As RFC 8032 encodes it."""
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


BASE = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
EIGHT = decoded(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))
"""A point of order 8."""


def challenge(r, key, message):
    """The hash of all that is signed."""
    return int.from_bytes(sha512(r + key + message).digest(), "little")


def holds(key, message, signature):
    """Whether ZIP 215 takes the signature."""
    a, r, s = decoded(key), decoded(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= L:
        return False
    said = add(r, times(challenge(signature[:32], key, message) % L, a))
    return times(8, times(s, BASE)) == times(8, said)


def is_key(key):
    """Whether a key is encoded as RFC 8032 says, and of no small order."""
    point = decoded(key)
    return point is not None and encoded(point) == key and times(8, point) != NEUTRAL
