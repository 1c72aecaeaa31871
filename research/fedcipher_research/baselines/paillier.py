"""`paillier`: additively homomorphic encryption under the composite residuosity assumption."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from fedcipher._optional import load
from fedcipher.codec import Codec, codec_or
from fedcipher.errors import DecryptError, FrameError, KeyFormatError, ParameterError
from fedcipher.foreign_files import parse_json
from fedcipher.schemes.base import SchemeInfo
from fedcipher.schemes.library import Adder, Arithmetic, LibraryScheme, Numbers

from fedcipher_research._optional import INSTALL

__all__ = ["Paillier"]


class Paillier(LibraryScheme):
    """Paillier (1999) by python-paillier over gmpy2, with or without packing.

    Protects updates from a server that follows the protocol and from eavesdroppers, but not from a quantum computer.
    All clients share one secret key, so a client that colludes with the server exposes every update.

    Parameters
    ----------
    clients, max_weight
        The most clients of a round, and the largest weight of a client. They determine the field width.
    key_bits
        Bits of n: 2048 (112 bits of security) or 3072 (128).
    packing
        ``"batched"``: a ciphertext holds as many fields as fit below n. Each field is wide enough for its whole sum,
        so that no carry reaches the next field (BatchCrypt's idea). ``"none"``: one ciphertext for each value.
    """

    name = "paillier"
    info = SchemeInfo(
        summary="the classical additive scheme, by python-paillier; a baseline",
        withstands="a server that keeps to the protocol, eavesdroppers (not post-quantum)",
        broken_by="one client colluding with the server: it opens every update, for all rounds of its key; "
        "quantum computers",
        cost="about 2x batched, about 200x without packing; milliseconds a ciphertext",
        source="Paillier 1999; BatchCrypt",
        baseline=True,
        packages=("phe", "gmpy2"),
        install=INSTALL,
        post_quantum=False,
    )

    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "paillier-unpacked": {"packing": "none"},
        "paillier-3072": {"key_bits": 3072},
    }

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        key_bits: int = 2048,
        packing: Literal["batched", "none"] = "batched",
        codec: Codec | None = None,
    ) -> None:
        if key_bits not in (2048, 3072):
            raise ParameterError(f"key_bits={key_bits} is not 2048 or 3072")
        if packing not in ("batched", "none"):
            raise ParameterError(f"packing={packing!r} is not 'batched' or 'none'")
        params = {
            "clients": clients,
            "max_weight": max_weight,
            "min_contributions": min_contributions,
            "key_bits": key_bits,
            "packing": packing,
        }
        super().__init__(codec_or(codec, 12), params)
        width = self.field_bits(63)
        fields = (key_bits - 1) // width if packing == "batched" else 1
        self._arithmetic = _Paillier(key_bits, width, fields)


class _Paillier(Arithmetic):
    def __init__(self, key_bits: int, width: int, fields: int) -> None:
        self.key_bits, self.width, self.slots = key_bits, width, fields
        self.size = key_bits // 4

    def keygen(self) -> tuple[bytes, bytes]:
        paillier = load("phe.paillier")

        public, private = paillier.generate_paillier_keypair(n_length=self.key_bits)
        return (
            json.dumps({"p": hex(private.p), "q": hex(private.q)}).encode(),
            json.dumps({"n": hex(public.n)}).encode(),
        )

    def _private(self, secret: bytes) -> Any:
        paillier = load("phe.paillier")

        try:
            said = parse_json(secret)
            p, q = int(said["p"], 16), int(said["q"], 16)
            return paillier.PaillierPrivateKey(paillier.PaillierPublicKey(p * q), p, q)
        except (ValueError, KeyError, TypeError):
            raise KeyFormatError(
                "this is not a Paillier key of this version; make keys with `fedcipher-research keygen`"
            ) from None

    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        gmpy2 = load("gmpy2")
        public = self._private(secret).public_key

        def seal(values: Numbers) -> bytes:
            numbers = values.tolist()
            out = bytearray()
            for start in range(0, len(numbers), self.slots):
                plain = int(gmpy2.pack(numbers[start : start + self.slots], self.width))
                out += public.raw_encrypt(plain).to_bytes(self.size, "little")
            return bytes(out)

        return seal

    def adder(self, public: bytes) -> Adder:
        try:
            n = int(parse_json(public)["n"], 16)
        except (ValueError, KeyError, TypeError):
            raise KeyFormatError(
                "this is not a Paillier server key of this version; make keys with `fedcipher-research keygen`"
            ) from None
        return _Product(self, n)

    def parse(self, payload: bytes, elements: int, limit: Any) -> list[Any]:
        """The ciphertexts of a payload, as residues below ``limit``."""
        gmpy2 = load("gmpy2")
        count = -(-elements // self.slots)
        if len(payload) != count * self.size:
            raise FrameError(f"payload has {len(payload)} bytes instead of {count * self.size}")
        parts = (payload[k : k + self.size] for k in range(0, len(payload), self.size))
        found = [gmpy2.mpz(int.from_bytes(part, "little")) for part in parts]
        if any(not 0 < c < limit for c in found):
            raise FrameError("a ciphertext is not a residue modulo n squared")
        return found

    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        gmpy2 = load("gmpy2")
        private = self._private(secret)

        def open_(payload: bytes, elements: int) -> Numbers:
            out = np.zeros(elements, np.uint64)
            for k, c in enumerate(self.parse(payload, elements, private.public_key.nsquare)):
                start = k * self.slots
                count = min(self.slots, elements - start)
                fields = [int(x) for x in gmpy2.unpack(gmpy2.mpz(private.raw_decrypt(int(c))), self.width)]
                if len(fields) > count:
                    raise DecryptError("a plaintext has more fields than there are values; wrong key or damage")
                out[start : start + len(fields)] = fields
            return out

        return open_


class _Product(Adder):
    """Adds plaintexts by multiplying ciphertexts modulo n squared."""

    def __init__(self, arithmetic: _Paillier, n: int) -> None:
        gmpy2 = load("gmpy2")
        self._arithmetic = arithmetic
        self._modulus = gmpy2.mpz(n) ** 2
        self._sum: list[Any] = []

    def add(self, payload: bytes, elements: int) -> None:
        parts = self._arithmetic.parse(payload, elements, self._modulus)
        self._sum = [a * b % self._modulus for a, b in zip(self._sum, parts, strict=True)] if self._sum else parts

    def finish(self) -> bytes:
        return b"".join(int(c).to_bytes(self._arithmetic.size, "little") for c in self._sum)
