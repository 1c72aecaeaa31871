"""Schemes that use another library's arithmetic, with this package's codec, keys, frames and checks.

Such a scheme defines an `Arithmetic`: whole numbers in, ciphertext bytes out. The core decides which frames may enter a
sum, as it does for its own schemes. This package has no such scheme: another package derives one and registers it
(`fedcipher.schemes.register`).
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._arguments import as_bytes, callable_or_none, truth, whole_number
from fedcipher._optional import missing
from fedcipher.codec import Codec
from fedcipher.errors import DecryptError, DependencyError, FrameError
from fedcipher.frame import Contribution
from fedcipher.schemes.base import (
    Aggregator,
    Decryptor,
    Encryptor,
    KernelDecryptor,
    KernelEncryptor,
    KeySet,
    Scheme,
    client_key,
    cohort_of,
    plain_params,
    round_of,
    server_key,
    state_dir,
)

__all__ = ["Adder", "Arithmetic", "LibraryScheme", "Numbers"]

Numbers = NDArray[np.uint64]


class Adder(ABC):
    """One running sum of ciphertexts."""

    @abstractmethod
    def add(self, payload: bytes, elements: int) -> None:
        """Add a payload of ``elements`` values. An error leaves the sum unchanged."""

    @abstractmethod
    def finish(self) -> bytes:
        """The payload of the sum."""


class Arithmetic(ABC):
    """A library's operations on whole numbers. All numbers and sums are below ``2**width``.

    Malformed ciphertexts raise `FrameError`.
    """

    slots: int = 1
    """Values in one ciphertext."""

    @abstractmethod
    def keygen(self) -> tuple[bytes, bytes]:
        """Make (the secret that all clients share, the server's public key)."""

    @abstractmethod
    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        """Return a function that encrypts values into a payload."""

    @abstractmethod
    def adder(self, public: bytes) -> Adder:
        """Return an empty sum."""

    @abstractmethod
    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        """Return a function that decrypts a payload, given the number of its values."""


class LibraryScheme(Scheme):
    """A scheme over an `Arithmetic`. A subclass sets ``_arithmetic`` and checks the width of sums (`field_bits`)."""

    _arithmetic: Arithmetic

    def __init__(self, codec: Codec, params: dict[str, Any]) -> None:
        absent = missing(*self.info.packages)
        if absent:
            raise DependencyError(f"scheme {self.name!r} needs {', '.join(absent)}; {self.info.install}")
        self.codec = codec
        params = plain_params(params)
        self.check_widths(codec)
        self.max_weight = params["max_weight"]
        self.min_contributions = _native.min_contributions(params["clients"], params["min_contributions"])
        self._params = {**params, "min_contributions": self.min_contributions}
        text = json.dumps({**self._params, "bits": codec.bit_widths}, sort_keys=True)
        privacy = codec.privacy and json.dumps(asdict(codec.privacy))
        self._library = _native.Library(
            self.name, text, params["clients"], params["max_weight"], self.min_contributions, privacy
        )

    def field_bits(self, limit: int) -> int:
        """Bits of a sum. Raises `BoundError` if the sum needs more than ``limit`` bits."""
        return max(self._library.field_bits(bits, limit) for bits in self.codec.bit_widths)

    def params(self) -> dict[str, Any]:
        return dict(self._params)

    @property
    def levels(self) -> _native.Levels:
        return self._library.levels()

    @property
    def values_per_ciphertext(self) -> int:
        return self._arithmetic.slots

    def describe(self) -> dict[str, str]:
        return {"clients": str(self._params["clients"])}

    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        ids = cohort_of(cohort, epoch)
        secret, public = self._arithmetic.keygen()
        clients, server = self._library.keygen(ids, whole_number(epoch, "epoch"), secret, public)
        return KeySet({key.client: key for key in clients}, server)

    def encryptor(self, key: _native.ClientKey) -> Encryptor:
        key = client_key(key)
        seal = self._arithmetic.sealer(self._library.secret(key))
        return KernelEncryptor(_EncryptKernel(self._library.sender(key, state_dir()), seal, self.levels), self)

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        adder = self._arithmetic.adder(self._library.public(server_key(key)))
        return _Aggregator(self._library.admission(key, round_of(round)), adder)

    def decryptor(self, key: _native.ClientKey, *, in_memory: bool = False) -> Decryptor:
        open_ = self._arithmetic.opener(self._library.secret(client_key(key)))
        receiver = self._library.receiver(key, None if truth(in_memory, "in_memory") else state_dir())
        return KernelDecryptor(_DecryptKernel(receiver, open_), self.codec)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._params.items())})"


class _EncryptKernel:
    def __init__(self, sender: _native.Sender, seal: Callable[[Numbers], bytes], levels: _native.Levels) -> None:
        self._sender, self._seal, self._levels = sender, seal, levels

    def encrypt(
        self,
        layout: _native.Layout,
        arrays: list[NDArray[np.float32]],
        round: int,
        weight: int,
        round_plan: bytes,
        model: bytes,
        memory: bytes,
        associated_data: bytes,
        stochastic: bool,
    ) -> tuple[bytes, list[int], float]:
        began = time.perf_counter()
        integers, clipped = layout.quantise(arrays, stochastic, self._levels)
        seconds = time.perf_counter() - began
        frame = self._sender.update(layout, integers, round, weight, model, memory, associated_data, self._seal)
        return frame, clipped, seconds

    def take_prekeys(self, frames: list[bytes]) -> list[str]:
        """Does nothing: these schemes have no committee, because clients share a key."""
        return []

    def precompute(self, round: int, layout: _native.Layout, round_plan: bytes) -> None:
        """Reserve the round. No other work is independent of the data."""
        self._sender.reserve(round)

    def setup_bytes(self) -> int:
        return 0

    def export_state(self) -> bytes:
        return b""

    def import_state(self, state: bytes) -> None:
        if state:
            raise FrameError("this scheme has no state to import; give empty bytes")


class _Aggregator(Aggregator):
    def __init__(self, admission: _native.Admission, adder: Adder) -> None:
        self._admission = admission
        self._adder = adder

    def add(self, frame: bytes) -> Contribution:
        return Contribution(*self._admission.admit(as_bytes(frame, "frame"), self._add))

    def _add(self, payload: bytes, layout: _native.Layout) -> None:
        self._adder.add(payload, layout.elements)

    def finish(self, progress: Callable[[int, int], None] | None = None) -> bytes:
        callable_or_none(progress, "progress")
        return self._admission.aggregate(self._adder.finish())


class _DecryptKernel:
    def __init__(self, receiver: _native.Receiver, open_: Callable[[bytes, int], Numbers]) -> None:
        self._receiver = receiver
        self._open = open_

    def decrypt(
        self,
        frame: bytes,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        associated_data: bytes | None = None,
    ) -> tuple[_native.Layout, int, list[tuple[int, int]], NDArray[np.float32], NDArray[np.uint32] | None, list[int]]:
        opened, _, means = self._opened(frame, round, model, memory, associated_data)
        return opened.layout, opened.round, opened.contributions, means, None, []

    def decrypt_sums(
        self, frame: bytes, memory: bytes | None = None, associated_data: bytes | None = None
    ) -> tuple[list[tuple[int, int]], Numbers]:
        opened, sums, _ = self._opened(frame, None, None, memory, associated_data)
        return opened.contributions, sums

    def _opened(
        self, frame: bytes, round: int | None, model: bytes | None, memory: bytes | None, associated_data: bytes | None
    ) -> tuple[_native.Opened, Numbers, NDArray[np.float32]]:
        opened, payload = self._receiver.open(frame, round, model, memory, associated_data)
        try:
            sums = self._open(payload, opened.layout.elements)
        except DecryptError:
            opened.fail()
            raise
        return opened, sums, opened.means(sums)
