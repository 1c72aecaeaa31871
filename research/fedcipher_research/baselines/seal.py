"""`bfv-lib` and `ckks`: baselines by Microsoft SEAL through TenSEAL, with a vector of slots in each ciphertext.

A damaged ciphertext can crash SEAL. So SEAL reads ciphertexts of other parties in a process of its own (`sandbox`).
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from fedcipher._optional import load
from fedcipher.codec import Codec, codec_or
from fedcipher.errors import DecryptError, FrameError, KeyFormatError, ParameterError
from fedcipher.schemes.base import SchemeInfo
from fedcipher.schemes.library import Adder, Arithmetic, LibraryScheme, Numbers

from fedcipher_research._optional import INSTALL
from fedcipher_research.baselines.sandbox import Sandbox

__all__ = ["BfvLib", "Ckks"]

_LENGTH = struct.Struct("<I")
_DEGREES = (4096, 8192, 16384, 32768)
_WITHSTANDS = "a server that keeps to the protocol, eavesdroppers (post-quantum)"
_BROKEN_BY = "one client colluding with the server: it opens every update, for all rounds of its key"


class BfvLib(LibraryScheme):
    """BFV of a general library: public-key encryption, with one value in each of N slots.

    Protects updates from a server that follows the protocol and from eavesdroppers, under ring-LWE at 128 bits (SEAL's
    default moduli). A client that colludes with the server exposes every update.

    ``clients`` and ``max_weight`` determine the plaintext modulus: a prime above twice the largest sum. ``degree`` is
    N, a power of two up to 32768. By default, N is the smallest degree at which SEAL's 128-bit modulus holds the sums.
    """

    name = "bfv-lib"
    info = SchemeInfo(
        summary="BFV by SEAL (TenSEAL), slot batching, public-key; a baseline",
        withstands=_WITHSTANDS,
        broken_by=_BROKEN_BY,
        cost="about 13x up and down",
        source="BFV; SEAL",
        baseline=True,
        packages=("tenseal", "gmpy2"),
        install=INSTALL,
    )
    variants: ClassVar[dict[str, dict[str, Any]]] = {"bfv-lib-16384": {"degree": 16384}}

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        degree: int | None = None,
        codec: Codec | None = None,
    ) -> None:
        params = {"clients": clients, "max_weight": max_weight, "min_contributions": min_contributions}
        # Older keys name no degree, so the default degree is not in the parameters either.
        super().__init__(codec_or(codec, 12), params if degree is None else {**params, "degree": degree})
        self._arithmetic = Sandbox(_Bfv(self.field_bits(57), degree))


class Ckks(LibraryScheme):
    """CKKS by SEAL: approximate arithmetic, used here with enough precision that every integer sum is exact.

    Protects updates from a server that follows the protocol and from eavesdroppers, under ring-LWE at 128 bits. A
    client that colludes with the server exposes every update. Do not send decrypted sums back to the server: they
    reveal information about the key (IND-CPA-D, Li and Micciancio 2021).

    ``clients`` and ``max_weight`` limit the sums, which must stay 12 bits below a double's precision.
    """

    name = "ckks"
    info = SchemeInfo(
        summary="CKKS by SEAL (TenSEAL), slot batching, public-key; a baseline",
        withstands=_WITHSTANDS,
        broken_by=f"{_BROKEN_BY}; decrypted sums shown to the server",
        cost="about 34x up and down",
        source="CKKS; SEAL",
        baseline=True,
        packages=("tenseal",),
        install=INSTALL,
    )

    def __init__(
        self, *, clients: int, max_weight: int = 1, min_contributions: float | None = None, codec: Codec | None = None
    ) -> None:
        params = {"clients": clients, "max_weight": max_weight, "min_contributions": min_contributions}
        super().__init__(codec_or(codec, 12), params)
        self.field_bits(40)
        self._arithmetic = Sandbox(_Ckks())


class _Seal(Arithmetic):
    """Arithmetic on payloads: vectors of at most `slots` values, each after its length."""

    ntt_form = False
    scale = 1.0

    @abstractmethod
    def context(self) -> Any:
        """A fresh TenSEAL context with its keys."""

    @abstractmethod
    def vector(self, context: Any, values: Numbers) -> Any:
        """Encrypts at most `slots` values."""

    @abstractmethod
    def read(self, context: Any, data: bytes) -> Any:
        """A vector from its bytes."""

    @abstractmethod
    def numbers(self, decrypted: list[Any]) -> Numbers:
        """Whole numbers from what the library decrypts."""

    def keygen(self) -> tuple[bytes, bytes]:
        made = self.context()
        keys = {"save_galois_keys": False, "save_relin_keys": False}
        return (
            made.serialize(save_public_key=True, save_secret_key=True, **keys),
            made.serialize(save_public_key=False, save_secret_key=False, **keys),
        )

    def load(self, key: bytes) -> Any:
        """A context from a key's bytes."""
        tenseal = load("tenseal")
        try:
            return tenseal.context_from(key)
        except (ValueError, RuntimeError, TypeError):
            raise KeyFormatError(
                "this is not a key of this scheme and version; make keys with `fedcipher-research keygen`"
            ) from None

    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        context = self.load(secret)

        def seal(values: Numbers) -> bytes:
            parts = (values[k : k + self.slots] for k in range(0, len(values), self.slots))
            return frame(self.vector(context, part) for part in parts)

        return seal

    def adder(self, public: bytes) -> Adder:
        return _VectorSum(self, self.load(public))

    def parse(self, context: Any, payload: bytes, elements: int) -> list[Any]:
        """The vectors of a payload."""
        vectors: list[Any] = []
        at = 0
        for start in range(0, elements, self.slots):
            if len(payload) < at + _LENGTH.size:
                raise FrameError(f"payload ends after {len(vectors)} ciphertexts")
            (size,) = _LENGTH.unpack_from(payload, at)
            data = payload[at + _LENGTH.size : at + _LENGTH.size + size]
            at += _LENGTH.size + size
            try:
                vector = self.read(context, data)
            except (ValueError, RuntimeError, IndexError) as error:
                raise FrameError(f"ciphertext {len(vectors)} cannot be read: {error}") from error
            if vector.size() != min(self.slots, elements - start):
                raise FrameError(f"ciphertext {len(vectors)} holds {vector.size()} values")
            if not self.fresh(context, vector):
                raise FrameError(f"ciphertext {len(vectors)} has another form than this scheme's encryptor makes")
            vectors.append(vector)
        if at != len(payload):
            raise FrameError(f"payload has {len(payload)} bytes instead of {at}")
        return vectors

    def fresh(self, context: Any, vector: Any) -> bool:
        """Return True if a vector has the form of an encryption, or of a sum of encryptions.

        The library accepts ciphertexts of any degree, level and scale of its parameters. Without this check, the first
        ciphertext of a sum would determine which others can be added.
        """
        parts = vector.ciphertext()
        if len(parts) != 1:
            return False
        (part,) = parts
        return (
            part.size() == 2
            and part.parms_id() == context.seal_context().data.first_parms_id()
            and part.is_ntt_form() == self.ntt_form
            and part.scale == self.scale
            and not part.is_transparent()
        )

    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        context = self.load(secret)

        def open_(payload: bytes, elements: int) -> Numbers:
            vectors = self.parse(context, payload, elements)
            return np.concatenate([np.zeros(0, np.uint64), *(self.numbers(v.decrypt()) for v in vectors)])

        return open_


def frame(vectors: Iterator[Any]) -> bytes:
    """Serialise vectors one after the other, each after its length."""
    out = bytearray()
    for vector in vectors:
        data = vector.serialize()
        out += _LENGTH.pack(len(data)) + data
    return bytes(out)


class _VectorSum(Adder):
    def __init__(self, arithmetic: _Seal, context: Any) -> None:
        self._arithmetic = arithmetic
        self._context = context
        self._sum: list[Any] = []

    def add(self, payload: bytes, elements: int) -> None:
        vectors = self._arithmetic.parse(self._context, payload, elements)
        try:
            self._sum = [a + b for a, b in zip(self._sum, vectors, strict=True)] if self._sum else vectors
        except (ValueError, RuntimeError) as error:
            raise FrameError(f"ciphertexts do not fit those before them: {error}") from error

    def finish(self) -> bytes:
        return frame(iter(self._sum))


class _Bfv(_Seal):
    def __init__(self, width: int, degree: int | None = None) -> None:
        gmpy2 = load("gmpy2")
        # SEAL's 109-bit modulus at N = 4096 leaves room for sums of up to about 30 bits.
        least = 4096 if width <= 28 else 8192
        if degree is not None and degree not in {n for n in _DEGREES if n >= least}:
            raise ParameterError(f"degree {degree} is not a power of two from {least} (which these sums need) to 32768")
        self.slots = degree or least
        step = 2 * self.slots
        # Decrypted values are signed, so the modulus must exceed twice the sum. Batching needs a prime = 1 modulo 2N.
        candidate = max((1 << (width + 1)) // step, 1) * step + 1
        while not gmpy2.is_prime(candidate):
            candidate += step
        self.modulus = candidate

    def context(self) -> Any:
        tenseal = load("tenseal")
        return tenseal.context(tenseal.SCHEME_TYPE.BFV, poly_modulus_degree=self.slots, plain_modulus=self.modulus)

    def vector(self, context: Any, values: Numbers) -> Any:
        tenseal = load("tenseal")
        return tenseal.bfv_vector(context, values.tolist())

    def read(self, context: Any, data: bytes) -> Any:
        tenseal = load("tenseal")
        return tenseal.bfv_vector_from(context, data)

    def numbers(self, decrypted: list[Any]) -> Numbers:
        # A wrong key gives any residue; the caller checks the sums against their bound.
        return np.asarray(decrypted, np.int64).astype(np.uint64)


class _Ckks(_Seal):
    slots = 4096
    ntt_form = True
    scale = 2.0**40

    def context(self) -> Any:
        tenseal = load("tenseal")
        made = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=2 * self.slots, coeff_mod_bit_sizes=[60, 40, 60]
        )
        made.global_scale = self.scale
        return made

    def vector(self, context: Any, values: Numbers) -> Any:
        tenseal = load("tenseal")
        return tenseal.ckks_vector(context, values.astype(np.float64))

    def read(self, context: Any, data: bytes) -> Any:
        tenseal = load("tenseal")
        return tenseal.ckks_vector_from(context, data)

    def numbers(self, decrypted: list[Any]) -> Numbers:
        found = np.asarray(decrypted, np.float64)
        rounded = np.rint(found)
        whole = np.isfinite(found).all() and np.abs(found - rounded).max(initial=0) <= 0.25
        # Above 2^53 a double does not hold every whole number, so the cast could give a wrong one.
        if not whole or rounded.min(initial=0) < 0 or rounded.max(initial=0) >= 2.0**53:
            raise DecryptError("decrypted values are not whole numbers: wrong key or damaged aggregate")
        return rounded.astype(np.uint64)
