"""The holder of a client's key: a key file, or an engine on a host."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from fedcipher._files import resolved
from fedcipher._native import ClientKey
from fedcipher.engine import Engine, connect
from fedcipher.errors import AccessError, KeyFormatError, UnsupportedError, WrongEpochError
from fedcipher.federation.charter import Charter
from fedcipher.federation.client.evidence import Recorder
from fedcipher.federation.policy import SIMULATION_POLICY, Policy, load_policy
from fedcipher.federation.query import Query
from fedcipher.federation.store import Store
from fedcipher.foreign_text import quoting_log
from fedcipher.keys.store import client_file, hold, home, load_coordinator, locate, open_client
from fedcipher.schemes import Decryptor, Encryptor, Member, Scheme
from fedcipher.schemes.base import state_dir

__all__ = ["KeyHolder", "charge_privacy_budget", "key_holder_of", "own_setting", "take_prekeys"]

_log = quoting_log("fedcipher.federation")


class KeyHolder(Protocol):
    """An encryptor and a decryptor for one key, in a file or an engine, and the holder's stored state."""

    scheme: Scheme
    store: Store
    simulated: bool
    """Whether the run's configuration names the keys, as in a simulation. Such a holder is not a separate site."""
    clear: frozenset[str]
    """Metrics that this client may send in the clear."""
    recorder: Recorder | None
    """The site's log; None if the site keeps none."""

    @property
    def client(self) -> int: ...
    def log_key(self) -> ClientKey:
        """The key that signs the site's log. Raises `UnsupportedError` if an engine holds it."""
        ...

    def hold(self) -> None:
        """Lock the key file again, because a process with many clients may have released it."""
        ...

    def policy(self) -> Policy: ...
    def key_set(self, charter: Charter | Query) -> str: ...
    def encryptor(self, epoch: int = 0) -> Encryptor: ...
    def decryptor(self) -> Decryptor: ...
    @property
    def is_member(self) -> bool:
        """Whether the holder is a member of the committee."""
        ...

    def member(self, epoch: int) -> Member: ...


def charge_privacy_budget(holder: KeyHolder, charter: Charter | Query) -> None:
    """Count the next frame, of any purpose, against the site's privacy budgets. Raises `PrivacyBudgetError`."""
    privacy, budgets = holder.scheme.codec.privacy, holder.policy().privacy_budgets
    if privacy is not None and budgets:
        holder.store.charge_privacy_budget(f"{charter.key_set}-{charter.epoch}", holder.client, privacy.rounds, budgets)


def take_prekeys(encryptor: Encryptor, frames: list[bytes]) -> None:
    """Give the members' prekeys to ``encryptor`` before it computes.

    Recorded shares can be opened only while the members keep the keys.
    """
    for why in encryptor.take_prekeys(frames):
        _log.warning("a prekey of the committee is not used: %s", why)


class _Site:
    """The settings of a key holder's operator."""

    def __init__(self, identity: str, *, simulated: bool, clear: frozenset[str]) -> None:
        self.store = Store(state_dir(), identity)
        self.simulated, self.clear = simulated, clear
        self.recorder: Recorder | None = None

    def policy(self) -> Policy:
        """The site's policy. A simulation without a policy file has no site to protect: see `SIMULATION_POLICY`."""
        return load_policy(home() / "policy.json", SIMULATION_POLICY if self.simulated else None)


class _EngineHolder(_Site):
    def __init__(self, engine: Engine, where: str, *, clear: frozenset[str]) -> None:
        identity = hashlib.sha256(f"{where}\n{engine.client}".encode()).hexdigest()[:32]
        super().__init__(f"engine-{identity}", simulated=False, clear=clear)
        self.scheme, self._engine = engine.scheme, engine

    @property
    def client(self) -> int:
        return self._engine.client

    def hold(self) -> None:
        """Do nothing: the engine holds its keys."""

    def log_key(self) -> ClientKey:
        """Raise `UnsupportedError`: an engine signs updates only."""
        raise UnsupportedError("an engine does not sign a log; use a key file, or leave out fedcipher-log")

    def encryptor(self, epoch: int = 0) -> Encryptor:
        return self._engine.encryptor(epoch)

    def decryptor(self) -> Decryptor:
        return self._engine.decryptor()

    @property
    def is_member(self) -> bool:
        try:
            return bool(self.scheme.committee and self._engine.member().prekey())
        except AccessError:
            return False

    def member(self, epoch: int) -> Member:
        return self._engine.member(epoch)

    def key_set(self, charter: Charter | Query) -> str:
        """The charter's key set: an engine encrypts only with its key of the charter's epoch.

        Raises `WrongEpochError` for epoch 0, which an engine reads as the newest epoch. A run would then have several
        keys.
        """
        if charter.epoch == 0:
            raise WrongEpochError("the charter names no key epoch; with an engine, a run needs the keys of one epoch")
        return charter.key_set


class _FileHolder(_Site):
    def __init__(self, path: Path, *, simulated: bool, clear: frozenset[str]) -> None:
        self.scheme, key = open_client(path)
        super().__init__(f"{key.fingerprint}-{key.client}", simulated=simulated, clear=clear)
        self._path, self._epoch, self._key = path, key.epoch, key
        self._coordinator = load_coordinator(path)
        self._encryptor: Encryptor | None = None
        self._decryptor: Decryptor | None = None
        self._member: Member | None = None

    def hold(self) -> None:
        hold(self._path, self._key)

    def log_key(self) -> ClientKey:
        return self._key

    def policy(self) -> Policy:
        """The site's policy, with the coordinator that the key file names."""
        policy = super().policy()
        if not self._coordinator:
            return policy
        return replace(policy, coordinators=(*policy.coordinators, self._coordinator))

    def key_set(self, charter: Charter | Query) -> str:
        """The key file's key set. Raises `WrongEpochError` for a charter of another epoch."""
        if charter.epoch != self._epoch:
            raise self._other_epoch(charter.epoch)
        return self._key.fingerprint

    def _other_epoch(self, epoch: int) -> WrongEpochError:
        return WrongEpochError(
            f"the round has key epoch {epoch}, but {self._path.name} has epoch {self._epoch}; get the current key file"
        )

    @property
    def client(self) -> int:
        return self._key.client

    def encryptor(self, epoch: int = 0) -> Encryptor:
        if epoch not in (0, self._epoch):
            raise self._other_epoch(epoch)
        # Made when first needed, because a party of a roster need not be an encryptor.
        if self._encryptor is None:
            self._encryptor = self.scheme.encryptor(self._key)
        return self._encryptor

    def decryptor(self) -> Decryptor:
        if self._decryptor is None:
            self._decryptor = self.scheme.decryptor(self._key)
        return self._decryptor

    @property
    def is_member(self) -> bool:
        committee = self.scheme.committee
        return committee is not None and self.client in committee.members(self._key)

    def member(self, epoch: int) -> Member:
        if epoch != self._epoch:
            raise self._other_epoch(epoch)
        if self._member is None:
            committee = self.scheme.committee
            if committee is None:
                raise UnsupportedError(f"{self.scheme.name} has no committee, because its clients share a key")
            self._member = committee.member(self._key)
        return self._member


# One process serves many messages, and in simulation many clients: keys and connections are opened once.
_holders: dict[tuple[str, str, float], KeyHolder] = {}


def key_holder_of(own: Mapping[str, Any], run: Mapping[str, Any]) -> KeyHolder:
    """The holder of this node's key, from its operator's ``own`` settings and those of the ``run``.

    If ``fedcipher-engine`` (in ``own``, or the variable ``FEDCIPHER_ENGINE``) names an engine, the holder is that
    engine. Its device is ``fedcipher-device``, else ``client-<partition-id>``, else the engine's only device.
    ``fedcipher-credentials`` is the folder for TLS.

    Otherwise the holder is a key file: the one that ``fedcipher-key`` names, else ``client-<partition-id>.key`` in the
    folder ``fedcipher-keys``. That folder comes from ``own``, else from ``FEDCIPHER_KEYS``, else from ``run``. Paths
    are absolute. The folder may also be a name of ``keygen --name``.

    The run's settings come from the server. They cannot name an engine, because an engine sees every update in the
    clear.
    """
    target = own_setting(own, "fedcipher-engine")
    if target:
        device = own_setting(own, "fedcipher-device") or _partition_name(own)
        slot = (target, device, 0.0)
        if slot not in _holders:
            engine = connect(target, device=device, credentials=own_setting(own, "fedcipher-credentials") or None)
            _holders[slot] = _EngineHolder(engine, f"{target}\n{device}", clear=_clear(own))
        return _holders[slot]
    path, simulated = _key_path(own, run)
    try:
        slot = (str(resolved(path)), str(simulated), path.stat().st_mtime)
    except OSError:
        slot = (str(path), str(simulated), 0.0)
    if slot in _holders:
        _holders[slot].hold()
    else:
        _holders[slot] = _FileHolder(path, simulated=simulated, clear=_clear(own))
    return _holders[slot]


def own_setting(own: Mapping[str, Any], name: str) -> str:
    """The value that this node's operator has set, in ``own`` or as an environment variable; empty if there is none."""
    return str(own[name]) if name in own else os.environ.get(name.replace("-", "_").upper(), "")


def _partition_name(own: Mapping[str, Any]) -> str:
    return f"client-{own['partition-id']}" if "partition-id" in own else ""


def _clear(own: Mapping[str, Any]) -> frozenset[str]:
    """Metrics that this node's operator allows in the clear, from a setting separated by commas."""
    return frozenset(name.strip() for name in own_setting(own, "fedcipher-clear").split(",") if name.strip())


def _key_path(own: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[Path, bool]:
    """The key file, and whether the run's settings name it."""
    if "fedcipher-key" in own:
        return locate(str(own["fedcipher-key"])), False
    chosen = own_setting(own, "fedcipher-keys")
    folder = chosen or str(run.get("fedcipher-keys", ""))
    if not folder or "partition-id" not in own:
        raise KeyFormatError(
            "no key for this client: set fedcipher-engine, or fedcipher-key in the node config, or fedcipher-keys in "
            "the run config (or FEDCIPHER_KEYS) to the folder made by `fedcipher keygen`"
        )
    return client_file(locate(folder), int(cast(int, own["partition-id"]))), not chosen
