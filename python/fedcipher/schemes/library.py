"""Schemes whose arithmetic is a library's: the codec, keys, frames and checks around it.

A scheme of this kind is an `Arithmetic`: whole numbers in, ciphertext bytes out. Which frames may enter
a sum is decided by the same code as for the schemes of the core.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._optional import require
from fedcipher.codec import Codec
from fedcipher.errors import FrameError, NonceReuseError
from fedcipher.schemes.base import (
    Aggregator,
    Contribution,
    Decryptor,
    Encryptor,
    KernelDecryptor,
    KernelEncryptor,
    KeySet,
    Scheme,
)

__all__ = ["Adder", "Arithmetic", "LibraryScheme", "Numbers"]

Numbers = NDArray[np.uint64]


class Adder(ABC):
    """One running sum of ciphertexts."""

    @abstractmethod
    def add(self, payload: bytes, elements: int, scale: int) -> None:
        """Add ``scale`` times a payload of ``elements`` values; on any error the sum is as it was."""

    @abstractmethod
    def finish(self) -> bytes:
        """The payload of the sum."""


class Arithmetic(ABC):
    """What a library does with whole numbers below ``2**width``, sums included.

    Malformed ciphertexts raise `FrameError`.
    """

    @abstractmethod
    def keygen(self) -> tuple[bytes, bytes]:
        """(what every client holds, what the server holds)."""

    @abstractmethod
    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        """Encrypts values."""

    @abstractmethod
    def adder(self, public: bytes) -> Adder:
        """An empty sum."""

    @abstractmethod
    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        """Decrypts a payload of so many values."""


class LibraryScheme(Scheme):
    """A scheme over an `Arithmetic`; subclasses construct it and know how wide a sum may be."""

    _arithmetic: Arithmetic

    def __init__(self, codec: Codec, params: dict[str, Any]) -> None:
        require(f"scheme {self.name!r}", self.info.extra, *self.info.packages)
        self.codec = codec
        self.max_weight = params["max_weight"]
        self._params = params
        text = json.dumps({**params, "bits": codec.bit_widths}, sort_keys=True)
        self._library = _native.Library(self.name, text, params["clients"], params["max_weight"])

    def field_bits(self, limit: int) -> int:
        """Bits of a sum; `BoundError` beyond ``limit``."""
        return max(self._library.field_bits(bits, limit) for bits in self.codec.bit_widths)

    def params(self) -> dict[str, Any]:
        return dict(self._params)

    def describe(self) -> dict[str, str]:
        return {"clients": str(self._params["clients"])}

    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        ids = list(range(cohort)) if isinstance(cohort, int) else list(cohort)
        secret, public = self._arithmetic.keygen()
        clients, server = self._library.keygen(ids, epoch, secret, public)
        return KeySet({key.client: key for key in clients}, server)

    def encryptor(self, key: _native.ClientKey) -> Encryptor:
        seal = self._arithmetic.sealer(self._library.secret(key))
        return KernelEncryptor(_EncryptKernel(self._library, key, seal), self.codec)

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        adder = self._arithmetic.adder(self._library.public(key))
        return _Aggregator(self._library.admission(key, round), adder)

    def decryptor(self, key: _native.ClientKey) -> Decryptor:
        open_ = self._arithmetic.opener(self._library.secret(key))
        return KernelDecryptor(_DecryptKernel(self._library, key, open_))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._params.items())})"


class _EncryptKernel:
    def __init__(self, library: _native.Library, key: _native.ClientKey, seal: Callable[[Numbers], bytes]) -> None:
        self._library = library
        self._key = key
        self._seal = seal
        self._last_round = -1

    def encrypt(
        self,
        layout: _native.Layout,
        arrays: list[NDArray[np.float32]],
        round: int,
        weight: int,
        plan: bytes,
        stochastic: bool,
    ) -> tuple[bytes, list[int], float]:
        self._library.check_weight(self._key, weight)
        # Randomised encryption survives it; a second update in one round is a mistake all the same.
        if round <= self._last_round:
            raise NonceReuseError(f"round {round} is not after round {self._last_round}; use the next round")
        began = time.perf_counter()
        ints, clipped = layout.quantise(arrays, stochastic)
        values = ints.astype(np.uint64) * np.uint64(weight)
        seconds = time.perf_counter() - began
        frame = self._library.update(self._key, layout, round, weight, self._seal(values))
        self._last_round = round
        return frame, clipped, seconds

    def precompute(self, round: int, layout: _native.Layout, plan: bytes) -> None:
        """Nothing is independent of the data."""

    def setup_bytes(self) -> int:
        return 0

    def export_state(self) -> bytes:
        return b""

    def import_state(self, state: bytes) -> None:
        if state:
            raise FrameError("this scheme has no state to take up")


class _Aggregator(Aggregator):
    def __init__(self, admission: _native.Admission, adder: Adder) -> None:
        self._admission = admission
        self._adder = adder

    def add(self, frame: bytes, *, scale: int = 1) -> Contribution:
        return Contribution(*self._admission.admit(frame, scale, self._add))

    def _add(self, payload: bytes, layout: _native.Layout, scale: int) -> None:
        self._adder.add(payload, layout.elements, scale)

    def finish(self, progress: Callable[[int, int], None] | None = None) -> bytes:
        return self._admission.aggregate(self._adder.finish())


class _DecryptKernel:
    def __init__(
        self, library: _native.Library, key: _native.ClientKey, open_: Callable[[bytes, int], Numbers]
    ) -> None:
        self._library = library
        self._key = key
        self._open = open_

    def decrypt(
        self, frame: bytes, round: int | None = None
    ) -> tuple[_native.Layout, int, list[tuple[int, int]], NDArray[np.float32], NDArray[np.uint32] | None]:
        layout, found, contributions, _, means = self._opened(frame, round)
        return layout, found, contributions, means, None

    def decrypt_sums(self, frame: bytes) -> tuple[list[tuple[int, int]], Numbers]:
        _, _, contributions, sums, _ = self._opened(frame, None)
        return contributions, sums

    def _opened(
        self, frame: bytes, round: int | None
    ) -> tuple[_native.Layout, int, list[tuple[int, int]], Numbers, NDArray[np.float32]]:
        layout, found, contributions, payload = self._library.open(self._key, frame, round)
        sums = self._open(payload, layout.elements)
        return layout, found, contributions, sums, self._library.means(layout, sum(w for _, w in contributions), sums)
