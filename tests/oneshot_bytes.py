"""Bytes of `oneshot` for its second implementation: frames, parameters, keys, rosters, tags, statements and shares."""

import itertools
import os
import struct
import unicodedata
from dataclasses import dataclass, field
from hashlib import sha3_256, sha256, sha512, shake_256
from hmac import digest as hmac_digest

import blake3
import ed25519_reference
import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from xwing_reference import _derived as derived
from xwing_reference import _sized as sized

UPDATE, AGGREGATE, CLIENT_KEY, SERVER_KEY, REQUEST, ANSWER, COMPLAINT, PROPOSAL, AGREEMENT, PREKEY = range(1, 11)
SIGNATURE, VERIFY, SEAL_KEY, ENCAPPED, GCM = 3373, 1984, 1216, 1120, 16
TAGS = 2**127 - 1
"""The prime field of tags and pads."""
ETA = 42


class Refused(ValueError):
    """What the page says is to be refused."""


def check(holds, why):
    if not holds:
        raise Refused(why)


# Chance


class Chance:
    """The operating system's."""

    def bytes(self, count):
        return os.urandom(count)

    def encapsulated(self, key):
        """ML-KEM-768: (secret, ciphertext)."""
        return MLKEM768PublicKey.from_public_bytes(key).encapsulate()

    def lattice_signature(self, seed, words, context):
        return MLDSA65PrivateKey.from_seed_bytes(seed).sign(words, context)

    def below(self, bound):
        return int.from_bytes(self.bytes(32), "little") % bound

    def binomial(self, count):
        """Centred: the difference of two sums of 42 bits."""
        bits = np.unpackbits(np.frombuffer(self.bytes(count * 11), np.uint8)).reshape(count, 88).astype(np.int64)
        return bits[:, :ETA].sum(1) - bits[:, ETA : 2 * ETA].sum(1)


class Seeded(Chance):
    """What follows from a seed; it takes implementations that let one choose their random bytes."""

    def __init__(self, seed):
        self._seed, self._count = seed, 0

    def bytes(self, count):
        self._count += 1
        return shake_256(self._seed + struct.pack("<Q", self._count)).digest(count)

    def encapsulated(self, key):
        from kyber_py.ml_kem import ML_KEM_768

        return ML_KEM_768._encaps_internal(key, self.bytes(32))

    def lattice_signature(self, seed, words, context):
        from dilithium_py.ml_dsa import ML_DSA_65

        secret = ML_DSA_65._keygen_internal(seed)[1]
        message = b"\0" + bytes([len(context)]) + context + words
        return ML_DSA_65._sign_internal(secret, message, self.bytes(32))


# Bytes


def u16(n):
    return struct.pack("<H", n)


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def element(n):
    return n.to_bytes(16, "little")


class Reader:
    def __init__(self, content):
        self.content, self.at = content, 0

    def take(self, count):
        check(self.at + count <= len(self.content), "it ends early")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, size):
        return int.from_bytes(self.take(size), "little")

    def element(self):
        made = self.number(16)
        check(made < TAGS, "no element of the field of tags")
        return made

    def rest(self):
        return self.take(len(self.content) - self.at)

    def end(self):
        check(self.at == len(self.content), "there is more than belongs to it")


def packed_len(count, width):
    return (count * width + 7) // 8


def packed(values, width):
    """Lanes in a row, the first in the lowest bits."""
    text = "".join(f"{int(v):0{width}b}" for v in reversed(list(values)))
    return int(text or "0", 2).to_bytes(packed_len(len(text), 1), "little")


def unpacked(content, width, count):
    number = int.from_bytes(content, "little")
    check(len(content) == packed_len(count, width) and number >> (count * width) == 0, "no lanes of this width")
    text = f"{number:0{count * width}b}"
    return [int(text[len(text) - (k + 1) * width : len(text) - k * width], 2) for k in range(count)]


def _crc_table():
    table = list(range(256))
    for _ in range(8):
        table = [n >> 1 ^ (0x9A6C9329AC4BC9B5 if n & 1 else 0) for n in table]
    return table


_CRC = _crc_table()


def checksum(content):
    made = (1 << 64) - 1
    for byte in content:
        made = made >> 8 ^ _CRC[(made ^ byte) & 255]
    return u64(made ^ (1 << 64) - 1)


@dataclass(frozen=True)
class Head:
    """Of a frame; ``of``: (client, weight) each."""

    kind: int
    scheme: bytes
    params: bytes
    key_id: bytes
    epoch: int
    round: int = 0
    elements: int = 0
    model: bytes = bytes(16)
    memory: bytes = bytes(16)
    of: tuple = ()
    layout: bytes = b""

    def common(self):
        """What all updates of a sum have alike."""
        numbers = struct.pack("<4Q", self.epoch, self.round, self.elements, len(self.layout))
        return self.scheme + self.params + self.key_id + self.model + self.memory + numbers + self.layout

    def to_bytes(self, length):
        names = self.scheme + self.params + self.key_id
        numbers = struct.pack("<3Q", self.epoch, self.round, self.elements)
        lengths = struct.pack("<IIQ", len(self.of), len(self.layout), length)
        start = b"FEDC" + bytes([5, self.kind, 0, 0])
        return start + names + numbers + self.model + self.memory + lengths + listed(self.of) + self.layout

    def frame(self, payload):
        whole = self.to_bytes(len(payload)) + payload
        return whole + checksum(whole)

    def key(self):
        """What names a key set."""
        return self.scheme, self.params, self.key_id, self.epoch


def listed(of):
    return b"".join(struct.pack("<IQ", *one) for one in of)


def parse(frame):
    """(Head, payload) of a frame."""
    check(len(frame) >= 136, "shorter than any frame")
    check(checksum(frame[:-8]) == frame[-8:], "damaged")
    r = Reader(frame[:-8])
    check(r.take(5) == b"FEDC\5", "no frame of version 5")
    kind = r.number(1)
    check(1 <= kind <= 10 and r.number(2) == 0, "an unknown kind")
    scheme, params, key_id = r.take(16), r.take(16), r.take(16)
    epoch, round, elements = r.number(8), r.number(8), r.number(8)
    model, memory = r.take(16), r.take(16)
    clients, layout, length = r.number(4), r.number(4), r.number(8)
    check(r.at + 12 * clients + layout + length == len(r.content), "lengths that do not add up")
    of = tuple((r.number(4), r.number(8)) for _ in range(clients))
    check(all(a[0] < b[0] for a, b in itertools.pairwise(of)), "clients out of order")
    head = Head(kind, scheme, params, key_id, epoch, round, elements, model, memory, of, r.take(layout))
    return head, r.rest()


@dataclass(frozen=True)
class Layout:
    """``tensors``: (type, bits, range, shape) each."""

    tensors: tuple

    @staticmethod
    def of(content):
        r, tensors = Reader(content), []
        for _ in range(r.number(2)):
            kind, bits, dims = r.number(1), r.number(1), r.number(1)
            (alpha,) = struct.unpack("<f", r.take(4))
            tensors.append((kind, bits, alpha, tuple(r.number(4) for _ in range(dims))))
            check(2 <= bits <= 24 and 0 < alpha < float("inf") and dims <= 8, "no tensor")
        r.end()
        check(tensors, "no tensors")
        return Layout(tuple(tensors))

    def to_bytes(self):
        each = (bytes([k, b, len(s)]) + struct.pack("<f", a) + b"".join(map(u32, s)) for k, b, a, s in self.tensors)
        return u16(len(self.tensors)) + b"".join(each)

    def elements(self):
        return sum(count for _, _, count in self.segments())

    def segments(self):
        """(bits, first element, elements) of each run of tensors of as many bits."""
        made, at = [], 0
        for _, bits, _, shape in self.tensors:
            count = int(np.prod(shape, dtype=np.int64))
            if count and made and made[-1][0] == bits:
                made[-1] = (bits, made[-1][1], made[-1][2] + count)
            elif count:
                made.append((bits, at, count))
            at += count
        return made


# Parameters, and what follows from them

RINGS = {"fast": (2048, [9007199254614017]), "compact": (4096, [9007199254429697, 9007199254364161])}


@dataclass(frozen=True)
class Packing:
    """How values of some bits lie in coefficients, and how these travel."""

    width: int
    count: int
    t: int
    delta: int
    drop: int
    up: int
    down: int
    noise: int


@dataclass(frozen=True)
class Part:
    """Values ``start..start + len`` in ``used`` coefficients of a ciphertext from number ``first`` on."""

    start: int
    len: int
    first: int
    used: int
    packing: Packing


def canonical(domain, *fields):
    """Fields with tags from 1 on: numbers, lists of numbers, and encodings."""
    out = struct.pack("<H", len(domain)) + domain.encode()
    for tag, said in enumerate(fields, 1):
        listed = said if isinstance(said, list) else [said]
        parts = (
            struct.pack("<d", x) if isinstance(x, float) else x if isinstance(x, bytes) else u64(x) for x in listed
        )
        value = b"".join(parts)
        out += struct.pack("<HI", tag, len(value)) + value
    return out


@dataclass(frozen=True)
class Params:
    clients: int
    max_weight: int
    min_contributions: int
    preset: str
    bits: tuple
    members: int = 5
    threshold: int = 4
    corrupt_clients: int = 1
    corrupt_members: int = 1
    pack: int = 1
    reveal: str = "clients"
    prekey_rounds: int = 1
    prekey_hours: int = 24

    @staticmethod
    def of(spec):
        """Of a scheme as `fedcipher.scheme(...).spec()` says it."""
        bits = spec["codec"]["bits"]
        bits = (bits,) if isinstance(bits, int) else tuple(bits)
        return Params(bits=bits, **spec["params"])

    def encoded(self):
        bounds = canonical("fedcipher bounds", self.clients, self.max_weight, self.min_contributions)
        preset = {"compact": 1, "fast": 2}[self.preset]
        committee = (self.members, self.threshold, self.corrupt_clients, self.corrupt_members, self.pack)
        reveal = {"clients": 0, "server": 1}[self.reveal]
        life = (self.prekey_rounds, self.prekey_hours)
        primes = [int(prime) for prime in RINGS[self.preset][1]]
        return canonical(
            "fedcipher scheme oneshot", 3, bounds, preset, list(self.bits), *committee, reveal, *life, primes
        )

    def digest(self):
        return sha256(self.encoded()).digest()[:16]

    @property
    def n(self):
        return RINGS[self.preset][0]

    @property
    def q(self):
        return int(np.prod([int(p) for p in RINGS[self.preset][1]], dtype=object))

    @property
    def needed(self):
        return self.threshold + self.pack - 1

    def field_bits(self, bits):
        return (self.clients * self.max_weight * (2**bits - 2)).bit_length()

    def largest(self, bits):
        """The largest value of a client: even, at least 2^bits - 2, whose sum fits the field."""
        weight = self.clients * self.max_weight
        return max(2 * (((1 << self.field_bits(bits)) - 1) // (2 * weight)), 2**bits - 2)

    def room(self):
        """Bits of a coefficient that may carry values."""
        return self.q.bit_length() - 1 - (2 * (self.clients * ETA + 1)).bit_length()

    def lanes(self):
        """Bits of counts and of digits, which each frame may have beside its values."""
        exact = lambda b: self.clients * (self.largest(b) // 2) <= 1 << 24  # noqa: E731
        digit = [b for b in range(16, 1, -1) if self.field_bits(b) <= min(self.room(), 63) and exact(b)]
        return 2, digit[0] if digit else 2

    def packing(self, bits):
        check(bits in (*self.bits, *self.lanes()), "a width that the parameters do not have")
        width, log_q = self.field_bits(bits), self.q.bit_length()
        check(width <= min(self.room(), 63), "sums that do not fit")
        used = self.room() // width * width
        t, delta = 1 << used, 1 << (log_q - 1 - used)
        fits = lambda d: (n := self.clients * (ETA + half(d))) < delta // 2 and 2 * n < 1 << 64  # noqa: E731
        drop = max((d for d in range(min(log_q // 2, 31)) if fits(d)), default=0)
        up = (self.q - 1 + half(drop) >> drop).bit_length()
        down = min(up + self.clients.bit_length(), log_q)
        return Packing(width, used // width, t, delta, drop, up, down, ETA + half(drop))

    def shape(self, layout):
        """The parts of each ciphertext."""
        blocks = [[]]
        for bits, start, count in layout.segments():
            packing, end = self.packing(bits), start + count
            while start < end:
                first = blocks[-1][-1].first + blocks[-1][-1].used if blocks[-1] else 0
                room, left = self.n - first, end - start
                length = left if left <= packing.count * room else packing.count * (room - room % 256)
                if not length:
                    blocks.append([])
                    continue
                blocks[-1].append(Part(start, length, first, -(-length // packing.count), packing))
                start += length
        return [block for block in blocks if block]

    # Shares

    @property
    def p(self):
        """The field of shares."""
        values = 2 * ETA * self.clients + 1
        bits = max(values.bit_length(), 3)
        found = (n for b in range(bits, 32) for n in range((1 << b) - 1, max(values, 1 << b - 1) - 1, -1) if prime(n))
        return next(found)

    @property
    def p_bits(self):
        return (self.p - 1).bit_length()

    @property
    def masks(self):
        return -(-80 // (self.p_bits - 1))

    @property
    def shared(self):
        """Numbers of a share of the secret."""
        return -(-self.n // self.pack)

    def share_len(self, place):
        columns = packed_len(self.shared + self.masks, self.p_bits)
        return (32 if place + 1 < self.threshold else columns) + 32

    @property
    def sum_len(self):
        return packed_len(self.shared, self.p_bits) + 16

    @property
    def combination_len(self):
        return packed_len(self.masks, self.p_bits) + 16


def half(drop):
    return 1 << drop >> 1


def prime(n):
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


# Streams and fields


def stream_bytes(key, prefix, count):
    """AES-256 in counter mode: the prefix of 12 bytes, then a number of 4 bytes, big-endian."""
    return Cipher(algorithms.AES(key), modes.CTR(prefix + bytes(4))).encryptor().update(bytes(count))


class Stream:
    """Words of 64 bits."""

    def __init__(self, key, prefix=bytes(12)):
        self._more = Cipher(algorithms.AES(key), modes.CTR(prefix + bytes(4))).encryptor()

    def word(self):
        return int.from_bytes(self._more.update(bytes(8)), "little")

    def below(self, bound):
        while True:
            product = self.word() * bound
            if product % (1 << 64) >= (1 << 64) % bound:
                return product >> 64

    def element(self):
        while True:
            made = (self.word() << 64 | self.word()) & TAGS
            if made < TAGS:
                return made


def lagrange(nodes, at, p):
    """How the values at ``nodes`` count for that at ``at``."""
    made = []
    for own in nodes:
        others = [x for x in nodes if x != own]
        above = below = 1
        for x in others:
            above, below = above * (at - x) % p, below * (own - x) % p
        made.append(above * pow(below, -1, p) % p)
    return made


def at(points, values, where, p):
    """The value of the polynomial through points; values are numbers, or arrays of numbers."""
    weights = lagrange(points, where, p)
    return sum(w * v % p for w, v in zip(weights, values, strict=True)) % p


def public_polynomial(params, seed, index):
    """The coefficients mod q of polynomial ``index``."""
    rows = []
    for limb, p in enumerate(RINGS[params.preset][1]):
        stream = Stream(seed, struct.pack(">QI", index, limb))
        mask, row = (1 << p.bit_length()) - 1, []
        while len(row) < params.n:
            word = stream.word() & mask
            if word < p:
                row.append(word)
        rows.append((p, row))
    q = params.q
    weights = [q // p * pow(q // p, -1, p) for p, _ in rows]
    return [
        sum(w * x for w, x in zip(weights, each, strict=True)) % q for each in zip(*(r for _, r in rows), strict=True)
    ]


def product(params, a, s):
    """``a s`` mod X^n + 1 and q, by one product of large integers."""
    n, q, size = params.n, params.q, 24
    number = lambda row: int.from_bytes(b"".join(int(x).to_bytes(size, "little") for x in row), "little")  # noqa: E731
    small = [int(x) for x in s]
    made = number(a) * (number(max(x, 0) for x in small) - number(max(-x, 0) for x in small))
    made += number([1 << 8 * size - 1] * (2 * n))
    content = made.to_bytes(2 * n * size + size, "little")
    parts = [int.from_bytes(content[k * size : (k + 1) * size], "little") - (1 << 8 * size - 1) for k in range(2 * n)]
    return [(parts[k] - parts[k + n]) % q for k in range(n)]


# Keys


def representative(purpose, message):
    context = f"fedcipher {purpose} 1\0".encode()
    start = b"CompositeAlgorithmSignatures2025" + LABEL + bytes([len(context)])
    return start + context + sha512(message).digest()


LABEL = b"COMPSIG-MLDSA65-Ed25519-SHA512"


def holds(key, purpose, message, signature):
    """Whether both halves of a signature hold."""
    if len(key) != VERIFY or len(signature) != SIGNATURE or not ed25519_reference.is_key(key[1952:]):
        return False
    words, curve = representative(purpose, message), signature[3309:]
    try:
        MLDSA65PublicKey.from_public_bytes(key[:1952]).verify(signature[:3309], words, LABEL)
    except InvalidSignature:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key[1952:]).verify(curve, words)
        return True
    except InvalidSignature:
        # RFC 8032 without the cofactor refuses more than ZIP 215.
        return ed25519_reference.holds(key[1952:], words, curve)


class Seal:
    """A key of X-Wing, by its 32 bytes."""

    def __init__(self, secret):
        seed = shake_256(secret).digest(96)
        self._lattice, self._curve = (
            MLKEM768PrivateKey.from_seed_bytes(seed[:64]),
            X25519PrivateKey.from_private_bytes(seed[64:]),
        )
        self._own = self._curve.public_key().public_bytes_raw()
        self.secret, self.public = secret, self._lattice.public_key().public_bytes_raw() + self._own

    def shared(self, encapped):
        sent = encapped[1088:]
        try:
            curve = self._curve.exchange(X25519PublicKey.from_public_bytes(sent))
            lattice = self._lattice.decapsulate(encapped[:1088])
        except ValueError as error:
            raise Refused("no encapsulated key") from error
        return combined(lattice, curve, sent, self._own)

    def open(self, info, sealed):
        key, nonce, _ = schedule(self.shared(sealed[:ENCAPPED]), info)
        return opened(key, nonce, sealed[ENCAPPED:], b"")


def combined(lattice, curve, sent, own):
    return sha3_256(lattice + curve + sent + own + b"\\.//^\\").digest()


def encapsulated(chance, public):
    """(Secret, encapsulated key) for the holder of a key."""
    lattice, inside = chance.encapsulated(public[:1184])
    own = X25519PrivateKey.from_private_bytes(chance.bytes(32))
    sent = own.public_key().public_bytes_raw()
    curve = own.exchange(X25519PublicKey.from_public_bytes(public[1184:]))
    return combined(lattice, curve, sent, public[1184:]), inside + sent


def schedule(shared, info):
    """HPKE's base mode: (key, nonce, secret of exports)."""
    made = derived(sized(b"") + sized(shared), b"secret", b"\0" + sized(b"") + sized(info), 108)
    return made[:32], made[32:44], made[44:]


def exported(shared, info):
    """X: what an envelope's key and commitment are made of."""
    return derived(schedule(shared, info)[2], b"sec", b"fedcipher oneshot v1 share", 32)


def sealed_to(chance, public, info, content):
    shared, sent = encapsulated(chance, public)
    key, nonce, _ = schedule(shared, info)
    return sent + AESGCM(key).encrypt(nonce, content, b"")


def opened(key, nonce, content, data):
    try:
        return AESGCM(key).decrypt(nonce, content, data)
    except InvalidTag as error:
        raise Refused("what does not open") from error


class Identity:
    """A party's own keys, of 64 bytes: a seed to sign with, and a key of X-Wing."""

    def __init__(self, content, chance=None):
        self.content, self.chance, self.seal = content, chance or Chance(), Seal(content[32:])
        self._curve = Ed25519PrivateKey.from_private_bytes(content[:32])
        self._seed = sha256(b"fedcipher ml-dsa-65 seed of ed25519 seed 1\0" + content[:32]).digest()
        lattice = MLDSA65PrivateKey.from_seed_bytes(self._seed).public_key().public_bytes_raw()
        self.verify = lattice + self._curve.public_key().public_bytes_raw()

    def sign(self, purpose, message):
        words = representative(purpose, message)
        return self.chance.lattice_signature(self._seed, words, LABEL) + self._curve.sign(words)


@dataclass(frozen=True)
class Member:
    """A party as its roster names it."""

    id: int
    name: str
    roles: int
    verify: bytes
    sealing: bytes
    root: bytes = b""

    client = property(lambda self: bool(self.roles & 1))
    member = property(lambda self: bool(self.roles & 2))
    reader = property(lambda self: bool(self.roles & 4))


def root_info(id):
    return b"fedcipher oneshot v1 root" + u32(id)


@dataclass
class Roster:
    content: bytes
    root: bytes = b""
    parties: list = field(default_factory=list)

    @staticmethod
    def make(chance, parties):
        root = chance.bytes(32)
        content = b"FEDROST3" + root_digest(root) + u32(len(parties))
        for p in sorted(parties, key=lambda p: p.id):
            sealed = sealed_to(chance, p.sealing, root_info(p.id), root)
            name = p.name.encode()
            content += u32(p.id) + bytes([p.roles, len(name)]) + name + p.verify + p.sealing + sealed
        return Roster(content)

    def __post_init__(self):
        r = Reader(self.content)
        check(r.take(8) == b"FEDROST3", "no roster")
        self.root = r.take(32)
        for _ in range(r.number(4)):
            id, roles, length = r.number(4), r.number(1), r.number(1)
            name = r.take(length).decode()
            self.parties.append(Member(id, name, roles, r.take(VERIFY), r.take(SEAL_KEY), r.take(32 + ENCAPPED + GCM)))
        self.content = self.content[: r.at]
        self._check()

    def _check(self):
        ids, names = [p.id for p in self.parties], [p.name for p in self.parties]
        check(all(a < b for a, b in itertools.pairwise(ids)), "numbers out of order")
        check(all(1 <= p.roles <= 7 for p in self.parties), "no role")
        shown = all(n and all(unicodedata.category(c) != "Cc" for c in n) for n in names)
        check(shown and len(set(names)) == len(names), "names")
        keys = [k for p in self.parties for k in (p.verify[1952:], p.verify[:1952], p.sealing)]
        check(len(set(keys)) == len(keys), "two parties of one key")

    def digest(self, params, epoch):
        return sha256(b"fedcipher oneshot v1 roster" + params.digest() + u64(epoch) + self.content).digest()

    def fingerprint(self, params, epoch):
        said = sha256(params.encoded()).digest() + self.digest(params, epoch)
        return sha256(b"fedcipher oneshot v1 fingerprint" + said).digest()

    def get(self, id):
        return next((p for p in self.parties if p.id == id), None)

    def members(self):
        return [p for p in self.parties if p.member]

    def readers(self):
        return [p for p in self.parties if p.reader]

    def joined(self, identity):
        """The number of a party, and the cohort's root."""
        own = next((p for p in self.parties if p.verify == identity.verify), None)
        check(own, "not in the roster")
        root = identity.seal.open(root_info(own.id), own.root)
        check(root_digest(root) == self.root, "the roster's maker has sealed another root")
        return own.id, root


def root_digest(root):
    return sha256(b"fedcipher oneshot v2 digest of the root" + root).digest()


# Tags


def hkdf(root, label):
    return hmac_digest(hmac_digest(bytes(32), root, "sha256"), label.encode() + b"\1", "sha256")


def field_of(key, content):
    """An element from HMAC."""
    made = int.from_bytes(hmac_digest(key, content, "sha256")[:16], "little") & TAGS
    return made % TAGS


class Mac:
    """What the cohort's root gives."""

    def __init__(self, root):
        self._keys = {
            n: hkdf(root, f"fedcipher v2 {n}") for n in ("mac polynomial", "mac pad", "model", "memory", "mac veil")
        }

    def model(self, model):
        return hmac_digest(self._keys["model"], model, "sha256")[:16]

    def memory(self, id):
        return self._block(memory_id(id), "encryptor") if id else bytes(16)

    def _block(self, content, way):
        cipher = Cipher(algorithms.AES(self._keys["memory"]), modes.ECB())
        return getattr(cipher, way)().update(content)

    def read_memory(self, tag):
        """The memory that a tag names; None for none."""
        if tag == bytes(16):
            return None
        found = self._block(tag, "decryptor")
        check(found[0] <= 1 and found[1:5] == bytes(4), "a memory of another root")
        return found

    def veil(self, statement):
        return field_of(self._keys["mac veil"], statement)

    def round(self, head, bound):
        context = sha256(head.common() + sha256(bound).digest()).digest()
        r = [field_of(self._keys["mac polynomial"], context + label) for label in (b"words", b"noise")]
        return *r, lambda one: field_of(self._keys["mac pad"], context + struct.pack("<IQ", *one))


def memory_id(id):
    digest = blake3.blake3(id, derive_key_context="fedcipher v2 memory id").digest()
    return bytes([id[0] == 1]) + bytes(4) + digest[:11]


def words_tag(params, layout, r, values):
    """The polynomial of all values, by segment."""
    total = 0
    for bits, start, count in layout.segments():
        width, own = params.field_bits(bits), [int(v) for v in values[start : start + count]]
        power = pow(r, start + 1, TAGS)
        for k, value in enumerate(own):
            if width > 16 or k % 256 < 128:
                beside = own[k + 128] << width if width <= 16 and k + 128 < count else 0
                total += power * (value | beside)
            power = power * r % TAGS
    return total % TAGS


def noise_tag(params, r, index, noise):
    power, total = pow(r, index * params.n + 1, TAGS), 0
    for word in noise:
        total, power = total + power * word, power * r % TAGS
    return total % TAGS


# What is signed


@dataclass(frozen=True)
class Context:
    """A round, as all its parties must have it."""

    roster: bytes
    round: int
    model: bytes
    memory: bytes
    common: bytes

    @staticmethod
    def of(roster, head, common=None):
        return Context(roster, head.round, head.model, head.memory, common or sha256(head.common()).digest())

    def to_bytes(self):
        return self.roster + u64(self.round) + self.model + self.memory + self.common

    def labelled(self, label):
        return b"fedcipher oneshot v1 " + label + b"\0" + self.to_bytes()

    def seed(self):
        return sha256(self.labelled(b"a")).digest()

    def update(self, one, tag, digests):
        return self.to_bytes() + listed([one]) + element(tag) + digests

    def share_data(self, one, tag, ciphertexts):
        return sha256(b"fedcipher oneshot v2 share of" + self.update(one, tag, ciphertexts)).digest()

    def share_info(self, client, member, number):
        words = u64(self.round) + u32(client) + u32(member) + u64(number)
        return b"fedcipher oneshot v2 share" + self.roster + words

    def key_info(self, member, reader):
        return self.labelled(b"key") + u32(member) + u32(reader)

    def answer(self, of, member, content):
        return self.to_bytes() + u32(member) + sha256(listed(of)).digest() + sha256(content).digest()

    def combinations(self, params, asked):
        """(Rows of numbers, an element): how the shares of a client are combined."""
        said = self.update(asked.one, asked.tag, asked.digests)
        stream, count = Stream(sha256(self.labelled(b"combination") + said).digest()), params.masks * params.shared
        words = b"".join(stream.word().to_bytes(8, "little") for _ in range((count + 1) // 2))
        numbers = np.frombuffer(words, "<u4")[:count] % (1 << params.p_bits - 1)
        return numbers.astype(object).reshape(params.masks, params.shared), stream.element()

    def member(self, member, content):
        """What a member says of groups, by their digest, or of clients that it accuses."""
        return self.to_bytes() + u32(member) + content


@dataclass(frozen=True)
class Asked:
    """What a client has signed, and its signature."""

    one: tuple
    signature: bytes
    tag: int
    digests: bytes

    @staticmethod
    def read(params, one, r):
        signature, tag = r.take(SIGNATURE), r.element()
        return Asked(one, signature, tag, r.take(32 * (1 + params.members)))

    def to_bytes(self):
        return self.signature + element(self.tag) + self.digests

    def check(self, roster, context):
        party = roster.get(self.one[0])
        check(party and party.client, "no client of the roster")
        message = context.update(self.one, self.tag, self.digests)
        check(holds(party.verify, "update", message, self.signature), "a signature of an update")


class Share:
    """A share as it travels."""

    def __init__(self, r, length):
        start = r.at
        self.number = r.number(8)
        if self.number:
            self.committed, self.encapped, self.sealed = r.take(32), r.take(ENCAPPED), r.take(length + GCM)
        self.content = r.content[start : r.at]

    def digest(self):
        return sha256(self.content).digest()

    def is_of(self, x):
        return sha256(b"fedcipher oneshot v1 committed" + x).digest() == self.committed

    def opened(self, x, data):
        return opened(share_key(x), bytes(12), self.sealed, data)


def share_key(x):
    return sha256(b"fedcipher oneshot v1 share key" + x).digest()


def read_share(params, place, content):
    """(Numbers of secrets and masks, share of the pad, share of its mask) of a member's share."""
    check(len(content) == params.share_len(place), "a share of another length")
    r = Reader(content)
    body, pad, mask = r.take(len(content) - 32), r.element(), r.element()
    if place + 1 < params.threshold:
        return drawn(params, body), pad, mask
    return numbers(params, body, params.shared + params.masks), pad, mask


def numbers(params, content, count):
    made = unpacked(content, params.p_bits, count)
    check(all(v < params.p for v in made), "no number of the field")
    return np.array(made, object)


def drawn(params, seed):
    stream = Stream(seed)
    return np.array([stream.below(params.p) for _ in range(params.shared + params.masks)], object)


def split(params, chance, secret, pad):
    """A share of each member."""
    p, size = params.p, params.shared
    rows = []
    for k in range(params.pack):
        column = [int(secret[i]) % p if (i := g * params.pack + k) < params.n else 0 for g in range(size)]
        rows.append(np.array(column + [chance.below(p) for _ in range(params.masks)], object))
    seeds = [chance.bytes(32) for _ in range(params.threshold - 1)]
    rows += [drawn(params, seed) for seed in seeds]
    nodes = [-k for k in range(params.pack)] + list(range(1, params.threshold))
    made = list(seeds)
    for j in range(params.threshold, params.members + 1):
        made.append(packed(at(nodes, rows, j, p), params.p_bits))
    pads, masks = (split_element(params, chance, x) for x in (pad, chance.below(TAGS)))
    return [m + element(a) + element(b) for m, a, b in zip(made, pads, masks, strict=True)]


def split_element(params, chance, x):
    values = [x, *(chance.below(TAGS) for _ in range(params.needed - 1))]
    return [at(range(params.needed), values, j, TAGS) for j in range(1, params.members + 1)]
