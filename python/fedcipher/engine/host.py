"""A training host's view of its engine: the objects of a scheme, without a key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._arguments import as_bytes, as_path, as_text, seconds, whole_number
from fedcipher._optional import require_feature
from fedcipher.errors import EngineError
from fedcipher.foreign_files import parse_json
from fedcipher.schemes import Decryptor, Encryptor, Member, Scheme, from_spec
from fedcipher.schemes.base import KernelDecryptor, KernelEncryptor

__all__ = ["Engine", "connect"]


def connect(target: str, *, device: str = "", credentials: str | Path | None = None, patience: float = 30.0) -> Engine:
    """The engine at ``target``.

    Raises `EngineUnavailableError`, `StalledError`, `AccessError`, `UnknownDeviceError`.

    Parameters
    ----------
    target
        ``unix:/path``, or ``host:port`` for mutual TLS.
    device
        Which of its devices this host encrypts as; needed only where it may use several of the engine's.
    credentials
        For TLS: the folder made by ``fedcipher authority enrol NAME --role host --device DEVICE``.
    patience
        Seconds that the engine may give no sign of life, at every call; ten times as many that it may work
        without moving a call on. A sign of life waits behind the bytes that are under way: over a link of 100 kbit/s
        give 120.

    Raises `EngineUnavailableError`, `StalledError`, `AccessError`, `UnknownDeviceError`, and `DependencyError` where
    this build has no engine client.
    """
    require_feature("an engine", "engine-client")
    held = None if credentials is None else as_path(credentials, "credentials")
    patience = seconds(patience, "patience")
    return Engine(_native.EngineClient(as_text(target, "target"), as_text(device, "device"), held, patience))


def spoken(spec: str) -> Scheme:
    """The scheme that an engine or an authority says it speaks. Raises `EngineError` for what is no JSON."""
    try:
        said = parse_json(spec)
    except ValueError as error:
        raise EngineError(f"the other side does not say a scheme: {error}; is it of this version?") from error
    return from_spec(said)


class Engine:
    """One device of an engine. A lost connection is made again at the next call."""

    def __init__(self, client: _native.EngineClient) -> None:
        self._client = client
        spec, self.client, self.epochs = client.describe()
        self.scheme: Scheme = spoken(spec)
        self._encryptors: dict[int, Encryptor] = {}

    def encryptor(self, epoch: int = 0) -> Encryptor:
        """Encrypts under the key of ``epoch``; 0: the newest the engine has at each call."""
        epoch = whole_number(epoch, "epoch")
        if epoch not in self._encryptors:
            # Two epochs are usable at a time; what came before them is of no use.
            self._encryptors = {e: made for e, made in self._encryptors.items() if e in (0, epoch - 1)}
            self._encryptors[epoch] = KernelEncryptor(
                _Remote(self._client, epoch, committee=self.scheme.info.committee), self.scheme
            )
        return self._encryptors[epoch]

    def decryptor(self) -> Decryptor:
        """Decrypts aggregates of every epoch the engine still has: a frame names its own."""
        return KernelDecryptor(self._client, self.scheme.codec)

    def member(self, epoch: int = 0) -> Member:
        """The member of the committee that this device is; its calls raise `AccessError` where it is none.

        A request names its own epoch. Prekeys are of ``epoch``; 0: of the newest, and all are forgotten.
        """
        return _RemoteMember(self._client, whole_number(epoch, "epoch"))

    def __repr__(self) -> str:
        return f"Engine({self.scheme!r}, client {self.client})"


class _Remote:
    """An `EncryptKernel` behind a connection."""

    def __init__(self, client: _native.EngineClient, epoch: int, *, committee: bool) -> None:
        self._client = client
        self._epoch = epoch
        self._committee = committee
        self._setup_bytes = 0

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
        made = self._client.encrypt(
            layout, arrays, self._epoch, round, weight, round_plan, model, memory, associated_data, stochastic
        )
        frame, clipped, self._setup_bytes, encode_seconds, _ = made
        return frame, [clipped], encode_seconds

    def precompute(self, round: int, layout: _native.Layout, round_plan: bytes) -> None:
        self._client.precompute(self._epoch, round, layout, round_plan)

    def take_prekeys(self, frames: list[bytes]) -> list[str]:
        # Engines that know no prekeys are none of a committee's.
        return self._client.take_prekeys(self._epoch, frames) if self._committee else []

    def setup_bytes(self) -> int:
        return self._setup_bytes

    def export_state(self) -> bytes:
        return self._client.export_state(self._epoch)

    def import_state(self, state: bytes) -> None:
        self._client.import_state(self._epoch, state)


class _RemoteMember:
    """A `Member` behind a connection."""

    def __init__(self, client: _native.EngineClient, epoch: int) -> None:
        self._client = client
        self._epoch = epoch

    def answer(self, request: bytes) -> bytes:
        return self._client.answer(as_bytes(request, "request"))

    def prekey(self) -> bytes:
        return self._client.prekey(self._epoch)

    def forget(self) -> None:
        self._client.forget(self._epoch)
