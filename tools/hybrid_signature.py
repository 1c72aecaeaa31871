"""A second implementation of the hybrid signature of crates/fedcipher-core/src/sign/hybrid.rs: OpenSSL's, for updates.

python tools/hybrid_signature.py                        prints a line for crates/fedcipher-core/tests/mldsa.in
python tools/hybrid_signature.py KEY MESSAGE SIGNATURE  checks a signature of Fedcipher; all in hex
"""

from __future__ import annotations

import hashlib
import secrets
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey

LABEL = b"COMPSIG-MLDSA65-Ed25519-SHA512"
CONTEXT = b"fedcipher update 1\0"


def representative(message: bytes) -> bytes:
    head = b"CompositeAlgorithmSignatures2025" + LABEL + bytes([len(CONTEXT)]) + CONTEXT
    return head + hashlib.sha512(message).digest()


def sign(seed: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Sign ``message``. Returns the public key and the signature."""
    curve = Ed25519PrivateKey.from_private_bytes(seed)
    of_curve = hashlib.sha256(b"fedcipher ml-dsa-65 seed of ed25519 seed 1\0" + seed).digest()
    lattice = MLDSA65PrivateKey.from_seed_bytes(of_curve)
    key = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
    words = representative(message)
    return key, lattice.sign(words, LABEL) + curve.sign(words)


def check(key: bytes, message: bytes, signature: bytes) -> None:
    words = representative(message)
    MLDSA65PublicKey.from_public_bytes(key[:1952]).verify(signature[:3309], words, LABEL)
    Ed25519PublicKey.from_public_bytes(key[1952:]).verify(signature[3309:], words)


if len(sys.argv) == 4:
    check(*map(bytes.fromhex, sys.argv[1:]))
    print("both halves are valid")
else:
    secret, text = secrets.token_bytes(32), b"words"
    print("openssl", secret.hex(), text.hex(), *(part.hex() for part in sign(secret, text)))
