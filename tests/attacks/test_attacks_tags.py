"""Attack 20: who has one key file, and an upload's tag, looks for the integers behind it by lattice reduction.

A tag is a linear form mod 2^127 - 1 of an update's integers and noise, under a pad. Where the attacker knows the pad,
and there are fewer than 127 bits to find, LLL finds them.
"""

import hashlib
import hmac
import math
import struct
import time

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import Codec
from flint import fmpz_mat
from wire_tools import payload, payload_start

CLIENTS, P, TAG, CLIP = 6, 2**127 - 1, 16, 2.0
# Bits that the attack looks for: well below 127, so that nothing else fits.
SOUGHT, TRIES = 105, 4


class Reader:
    """What a client's key file says of tags: `docs/reference/protocol.md`, in Python's own HMAC."""

    def __init__(self, key_file):
        self.root = payload(key_file)[:32]

    def _derived(self, label):
        extracted = hmac.digest(bytes(32), self.root, hashlib.sha256)
        return hmac.digest(extracted, label + b"\x01", hashlib.sha256)

    def _element(self, label, *parts):
        drawn = hmac.digest(self._derived(label), b"".join(parts), hashlib.sha256)[:TAG]
        return (int.from_bytes(drawn, "little") & P) % P

    def forms(self, frame):
        """(r of the words, r of the noise, the pad that the cohort's secret makes) of an update."""
        start = payload_start(frame)
        layout = frame[wire_tools.FIXED + 12 : start]
        common = frame[8:56] + frame[80:112] + frame[56:80] + struct.pack("<Q", len(layout)) + layout
        context = hashlib.sha256(common + hashlib.sha256(b"").digest()).digest()
        r = [self._element(b"fedcipher v2 mac polynomial", context, label) for label in (b"words", b"noise")]
        return *r, self._element(b"fedcipher v2 mac pad", context, frame[wire_tools.FIXED : wire_tools.FIXED + 12])


def tag_of(frame):
    return int.from_bytes(wire_tools.body(frame)[-TAG:], "little")


def short_solution(target, factors, centres, radii):
    """Integers x, each within its radius of its centre, with ``sum factors x = target`` mod P; or nothing."""
    n, left = len(factors), target - sum(f * c for f, c in zip(factors, centres, strict=True))
    # Each unknown weighs as much as the widest, and the equation more than all.
    widest = max(radii)
    scale, heavy = [widest // r for r in radii], widest << n
    rows = [[scale[k] * (j == k) for j in range(n)] + [0, heavy * factors[k]] for k in range(n)]
    rows += [[0] * n + [widest, -heavy * left], [0] * (n + 1) + [heavy * P]]
    for row in fmpz_mat(rows).lll().tolist():
        row = [int(x) for x in row]
        if row[-1] == 0 and abs(row[-2]) == widest:
            found = [row[k] // scale[k] * (row[-2] // widest) for k in range(n)]
            if all(abs(x) <= r for x, r in zip(found, radii, strict=True)):
                return [x + c for x, c in zip(found, centres, strict=True)]
    return None


class Victim:
    """Uploads of one client, and another party's key file."""

    def __init__(self, name, preset, bits):
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, preset=preset, codec=Codec(bits=bits, clip=CLIP))
        keys = self.scheme.keygen(CLIENTS)
        self.encryptor = wire_tools.encryptor(self.scheme, keys, 0)
        self.reader = Reader(keys.clients[CLIENTS - 1].to_bytes())
        self.top = self.scheme.levels.of(bits)
        # Now: a ledger takes no round that was begun before it was made.
        self.round = int(time.time()) << 20

    def upload(self, levels):
        """An update of just these integers."""
        self.round += 1
        values = (np.array(levels) / self.top * 2 - 1) * CLIP
        return self.encryptor.encrypt([values.astype(np.float32)], round=self.round)

    def noise(self, count):
        """(Coefficients of an upload of ``count`` numbers, what the largest noise of one may be)."""
        said = self.scheme.describe()
        bits, error = int(said["wire bits up"]), 42 if self.scheme.name == "oneshot" else 21
        more = len(self.upload([0] * count)) - len(self.upload([0]))
        # Where the largest coefficient is rounded up it has one bit more.
        dropped = int(said["log q"]) - bits
        return 1 + round(8 * more / bits), [error + (1 << d >> 1) for d in (dropped, dropped + 1)]

    def read(self, frame, guesses, radius):
        """The numbers of an upload, as far as its tag shows them to who knows them to ``radius`` levels."""
        words, noise, pad = self.reader.forms(frame)
        used, largest = self.noise(len(guesses))
        powers = [pow(r, k + 1, P) for r, count in ((words, len(guesses)), (noise, used)) for k in range(count)]
        for most in largest:
            # Noise is shifted to be no less than zero.
            centres, radii = [*guesses, *[most] * used], [*[radius] * len(guesses), *[most] * used]
            if found := short_solution((tag_of(frame) - pad) % P, powers, centres, radii):
                return found[: len(guesses)]
        return None


def answers_read(rng, name, preset, bits, count):
    """How many of four uploads of ``count`` numbers are read, by who guesses each as well as makes 105 bits to find."""
    victim = Victim(name, preset, bits)
    used, largest = victim.noise(count)
    left = int(SOUGHT - used * math.log2(2 * max(largest))) // count
    radius = min(1 << left >> 1, victim.top // 2)
    read = 0
    for _ in range(TRIES):
        guesses = rng.integers(radius, victim.top - radius, count, endpoint=True).tolist()
        truth = [int(g + d) for g, d in zip(guesses, rng.integers(-radius, radius, count, endpoint=True), strict=True)]
        read += victim.read(victim.upload(truth), guesses, radius) == truth
    return read


CASES = [(p, b, n) for p in ("compact", "fast") for b in (8, 12, 16) for n in (1, 2, 8)]


@pytest.mark.parametrize(("preset", "bits", "count"), CASES)
def test_attack_20_a_key_file_and_an_upload_show_no_number(rng, preset, bits, count):
    assert answers_read(rng, "oneshot", preset, bits, count) == 0


@pytest.mark.parametrize(("preset", "bits", "count"), CASES)
def test_attack_20_reads_a_scheme_whose_clients_share_a_key(rng, preset, bits, count):
    """What the attack can do: tags of `bfv` have the cohort's pads only, and its clients could open all anyway."""
    assert answers_read(rng, "bfv", preset, bits, count) == TRIES
