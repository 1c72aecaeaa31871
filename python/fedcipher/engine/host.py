"""A training host's view of its engine: encryptors, decryptors and members that hold no key."""

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
    """Connect to the engine at ``target``.

    Parameters
    ----------
    target
        ``unix:/path``, or ``host:port`` for mutual TLS.
    device
        The engine's device that this host encrypts as. Needed only if the host may use several devices.
    credentials
        For TLS: the folder made by ``fedcipher authority enrol NAME --role host --device DEVICE``.
    patience
        How many seconds the engine may stay silent during a call. The engine may work ten times as long without
        progress in a call. Signs of life queue behind other bytes: over a link of 100 kbit/s give 120.

    Raises `EngineUnavailableError`, `StalledError`, `AccessError`, `UnknownDeviceError`, and `DependencyError` if this
    build has no engine client.
    """
    require_feature("an engine", "engine-client")
    held = None if credentials is None else as_path(credentials, "credentials")
    patience = seconds(patience, "patience")
    return Engine(_native.EngineClient(as_text(target, "target"), as_text(device, "device"), held, patience))


def scheme_of(spec: str) -> Scheme:
    """The scheme in the ``spec`` of an engine or an authority. Raises `EngineError` if ``spec`` is not JSON."""
    try:
        said = parse_json(spec)
    except ValueError as error:
        raise EngineError(f"the other side did not send a scheme: {error}; does it have this version?") from error
    return from_spec(said)


class Engine:
    """One device of an engine. A call after a lost connection connects again."""

    def __init__(self, client: _native.EngineClient) -> None:
        self._client = client
        spec, self.client, self.epochs = client.describe()
        self.scheme: Scheme = scheme_of(spec)
        self._encryptors: dict[int, Encryptor] = {}

    def encryptor(self, epoch: int = 0) -> Encryptor:
        """An encryptor under the key of ``epoch``; 0: the engine's newest key at each call."""
        epoch = whole_number(epoch, "epoch")
        if epoch not in self._encryptors:
            # Two epochs are usable at a time. Drop the encryptors of earlier ones.
            self._encryptors = {e: made for e, made in self._encryptors.items() if e in (0, epoch - 1)}
            self._encryptors[epoch] = KernelEncryptor(
                _Remote(self._client, epoch, committee=self.scheme.info.committee), self.scheme
            )
        return self._encryptors[epoch]

    def decryptor(self) -> Decryptor:
        """A decryptor for aggregates of every epoch that the engine still has; a frame names its epoch."""
        return KernelDecryptor(self._client, self.scheme.codec)

    def member(self, epoch: int = 0) -> Member:
        """This device as a member of the committee; its calls raise `AccessError` if the device is not a member.

        A request names its epoch. Prekeys are made and forgotten for ``epoch``. With 0, prekeys are made for the
        newest epoch and forgotten for all epochs.
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
        # Engines without prekeys never serve a scheme with a committee.
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
