"""A second implementation of what opens a sealed share: X-Wing in HPKE's base mode with SHAKE256, and AES-256-GCM."""

from hashlib import sha3_256, sha256, shake_256

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LATTICE, ENCAPPED = 1088, 1120
_SUITE = b"HPKE" + bytes.fromhex("647a00110002")
_EXPORT = b"fedcipher oneshot v1 share"


def _derived(secrets, label, context, length):
    words = [secrets, b"HPKE-v1", _SUITE, _sized(label), length.to_bytes(2, "big"), context]
    return shake_256(b"".join(words)).digest(length)


def _sized(content):
    return len(content).to_bytes(2, "big") + content


def decapsulated(secret, encapped, info):
    """X, for the holder of the key of 32 bytes; other bytes for anybody else."""
    mlkem = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.mlkem", reason="no ML-KEM")
    seed, sent = shake_256(secret).digest(96), encapped[LATTICE:]
    own = X25519PrivateKey.from_private_bytes(seed[64:])
    lattice = mlkem.MLKEM768PrivateKey.from_seed_bytes(seed[:64]).decapsulate(encapped[:LATTICE])
    curve = own.exchange(X25519PublicKey.from_public_bytes(sent))
    shared = sha3_256(lattice + curve + sent + own.public_key().public_bytes_raw() + b"\\.//^\\").digest()
    context = b"\0" + _sized(b"") + _sized(info)
    exporter = _derived(_sized(b"") + _sized(shared), b"secret", context, 32 + 12 + 64)[44:]
    return _derived(exporter, b"sec", _EXPORT, 32)


def _cipher(x):
    return AESGCM(sha256(b"fedcipher oneshot v1 share key" + x).digest())


def sealed(x, data, share):
    return _cipher(x).encrypt(bytes(12), share, data)


def opened(x, data, content):
    """The share; None where X or data are others."""
    try:
        return _cipher(x).decrypt(bytes(12), content, data)
    except InvalidTag:
        return None
