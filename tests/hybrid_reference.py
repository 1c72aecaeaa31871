"""A second implementation of what parties sign with: ML-DSA-65 beside Ed25519, both over one representative."""

from hashlib import sha256, sha512

import ed25519_reference as ed
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LATTICE_KEY, LATTICE = 1952, 3309
KEY_LEN, SIGNATURE_LEN = LATTICE_KEY + 32, LATTICE + 64
_LABEL = b"COMPSIG-MLDSA65-Ed25519-SHA512"


def _mldsa():
    return pytest.importorskip("cryptography.hazmat.primitives.asymmetric.mldsa", reason="no ML-DSA")


def representative(domain, message):
    """What both halves sign."""
    return b"CompositeAlgorithmSignatures2025" + _LABEL + bytes([len(domain)]) + domain + sha512(message).digest()


class SigningKey:
    """Of a party whose Ed25519 seed this is."""

    def __init__(self, seed):
        own = sha256(b"fedcipher ml-dsa-65 seed of ed25519 seed 1\0" + seed).digest()
        self._lattice = _mldsa().MLDSA65PrivateKey.from_seed_bytes(own)
        self._curve = Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self):
        return self._lattice.public_key().public_bytes_raw() + self._curve.public_key().public_bytes_raw()

    def lattice(self, domain, message):
        """The first half of a signature."""
        return self._lattice.sign(representative(domain, message), _LABEL)

    def sign(self, domain, message):
        return self.lattice(domain, message) + self._curve.sign(representative(domain, message))


def holds(key, domain, message, signature):
    """Whether both halves do, the second as ZIP 215 says."""
    said, lattice = representative(domain, message), _mldsa().MLDSA65PublicKey.from_public_bytes(key[:LATTICE_KEY])
    try:
        lattice.verify(signature[:LATTICE], said, _LABEL)
    except InvalidSignature:
        return False
    return ed.holds(key[LATTICE_KEY:], said, signature[LATTICE:])


def is_key(key):
    """Any bytes are an ML-DSA-65 key, if they are as many."""
    return len(key) == KEY_LEN and ed.is_key(key[LATTICE_KEY:])
