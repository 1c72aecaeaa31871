"""Who a ClientApp encrypts as: the holder of a key file, or a host with an engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, cast

from flwr.app import Context

from fedcipher.engine import connect
from fedcipher.errors import KeyFormatError, WrongEpochError
from fedcipher.keys.store import client_file, locate, open_client
from fedcipher.schemes import Decryptor, Encryptor, Member, Scheme

__all__ = ["Party", "party_of"]


class Party(Protocol):
    """An encryptor and a decryptor, wherever the key is."""

    scheme: Scheme

    @property
    def client(self) -> int: ...
    def encryptor(self, epoch: int = 0) -> Encryptor: ...
    def decryptor(self) -> Decryptor: ...
    def member(self) -> Member: ...


class _KeyFile:
    def __init__(self, path: Path) -> None:
        self.scheme, key = open_client(path)
        self._path, self._epoch, self._key = path, key.epoch, key
        self._encryptor: Encryptor | None = None
        self._decryptor: Decryptor | None = None
        self._member: Member | None = None

    @property
    def client(self) -> int:
        return self._key.client

    def encryptor(self, epoch: int = 0) -> Encryptor:
        if epoch not in (0, self._epoch):
            raise WrongEpochError(
                f"the round is of key epoch {epoch}, {self._path.name} of epoch {self._epoch}; get the current key file"
            )
        # A party of a roster need not be all of these.
        if self._encryptor is None:
            self._encryptor = self.scheme.encryptor(self._key)
        return self._encryptor

    def decryptor(self) -> Decryptor:
        if self._decryptor is None:
            self._decryptor = self.scheme.decryptor(self._key)
        return self._decryptor

    def member(self) -> Member:
        if self._member is None:
            self._member = self.scheme.member(self._key)
        return self._member


# One process serves many messages, and in simulation many clients: keys and connections are opened once.
_parties: dict[tuple[str, str, float], Party] = {}


def party_of(ctxt: Context) -> Party:
    """The party of this node.

    An engine where ``fedcipher-engine`` (node config, or the variable ``FEDCIPHER_ENGINE``) names one, as
    the device ``fedcipher-device``, else ``client-<partition-id>``, else its only one;
    ``fedcipher-credentials`` is the folder for TLS. Otherwise the key file that ``fedcipher-key`` names,
    else ``client-<partition-id>.key`` in the folder ``fedcipher-keys`` (node config, ``FEDCIPHER_KEYS``,
    or, where neither is set, the run config). Paths are absolute; the folder may be a name of ``keygen --name``.

    The run config comes with the run, that is, from the server. It cannot name an engine: the engine is
    shown every update in the clear.
    """
    target = _setting(ctxt, "fedcipher-engine")
    if target:
        device = _setting(ctxt, "fedcipher-device") or _partition_name(ctxt)
        slot = (target, device, 0.0)
        if slot not in _parties:
            _parties[slot] = connect(target, device=device, credentials=_setting(ctxt, "fedcipher-credentials") or None)
        return _parties[slot]
    path = _key_path(ctxt)
    try:
        slot = (str(path.resolve()), "", path.stat().st_mtime)
    except OSError:
        slot = (str(path), "", 0.0)
    if slot not in _parties:
        _parties[slot] = _KeyFile(path)
    return _parties[slot]


def _setting(ctxt: Context, name: str) -> str:
    """What this node's operator has set."""
    if name in ctxt.node_config:
        return str(ctxt.node_config[name])
    return os.environ.get(name.replace("-", "_").upper(), "")


def _partition_name(ctxt: Context) -> str:
    return f"client-{ctxt.node_config['partition-id']}" if "partition-id" in ctxt.node_config else ""


def _key_path(ctxt: Context) -> Path:
    if "fedcipher-key" in ctxt.node_config:
        return locate(str(ctxt.node_config["fedcipher-key"]))
    folder = _setting(ctxt, "fedcipher-keys") or str(ctxt.run_config.get("fedcipher-keys", ""))
    if not folder or "partition-id" not in ctxt.node_config:
        raise KeyFormatError(
            "no key for this client: set fedcipher-engine, or fedcipher-key in the node config, or fedcipher-keys in "
            "the run config (or FEDCIPHER_KEYS) to the folder made by `fedcipher keygen`"
        )
    return client_file(locate(folder), int(cast(int, ctxt.node_config["partition-id"])))
