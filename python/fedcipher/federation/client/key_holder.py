"""Who a client encrypts as: the holder of a key file, or a host with an engine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from fedcipher._files import resolved
from fedcipher.engine import Engine, connect
from fedcipher.errors import AccessError, KeyFormatError, UnsupportedError, WrongEpochError
from fedcipher.federation.charter import Charter
from fedcipher.federation.policy import SIMULATION_POLICY, Policy, load_policy
from fedcipher.federation.query import Query
from fedcipher.federation.store import Store
from fedcipher.foreign_text import quoting_log
from fedcipher.keys.store import client_file, hold, home, load_coordinator, locate, open_client
from fedcipher.schemes import Decryptor, Encryptor, Member, Scheme
from fedcipher.schemes.base import state_dir

__all__ = ["KeyHolder", "key_holder_of", "spend", "take_prekeys"]

_log = quoting_log("fedcipher.federation")


class KeyHolder(Protocol):
    """An encryptor and a decryptor, wherever the key is, and the memory of their holder."""

    scheme: Scheme
    store: Store
    simulated: bool
    """Whether the run's own configuration names the keys: their holder is no site of its own."""
    clear: frozenset[str]
    """Metrics that this client lets leave in the clear."""

    @property
    def client(self) -> int: ...
    def hold(self) -> None:
        """Take the key into use again: a process of many clients may have let go of its file."""
        ...

    def policy(self) -> Policy: ...
    def key_set(self, charter: Charter | Query) -> str: ...
    def encryptor(self, epoch: int = 0) -> Encryptor: ...
    def decryptor(self) -> Decryptor: ...
    @property
    def is_member(self) -> bool:
        """Whether it is of the committee."""
        ...

    def member(self, epoch: int) -> Member: ...


def spend(holder: KeyHolder, charter: Charter | Query) -> None:
    """Count the next frame, of any purpose, against the site's budgets of differential privacy.

    Raises `PrivacyBudgetError`.
    """
    privacy, budgets = holder.scheme.codec.privacy, holder.policy().privacy_budgets
    if privacy is not None and budgets:
        holder.store.charge_privacy_budget(f"{charter.key_set}-{charter.epoch}", holder.client, privacy.rounds, budgets)


def take_prekeys(encryptor: Encryptor, frames: list[bytes]) -> None:
    """Before anything is computed: what was recorded of shares opens only as long as members keep these keys."""
    for why in encryptor.take_prekeys(frames):
        _log.warning("a prekey of the committee is not used: %s", why)


class _Site:
    """What a key holder's own operator has configured."""

    def __init__(self, identity: str, *, simulated: bool, clear: frozenset[str]) -> None:
        self.store = Store(state_dir(), identity)
        self.simulated, self.clear = simulated, clear

    def policy(self) -> Policy:
        """The site's; a simulation whose keys the run names, and no file of a policy, has no site to protect."""
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
        """The engine holds its keys."""

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
        """The charter's: an engine encrypts under its key of that epoch only, whose frames are of no other key set.

        Raises `WrongEpochError` for epoch 0, which an engine takes for the newest: it would be several keys in a run.
        """
        if charter.epoch == 0:
            raise WrongEpochError("the charter names no key epoch: with an engine a run has the keys of one epoch")
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

    def policy(self) -> Policy:
        """The site's, with the coordinator that the key file names."""
        policy = super().policy()
        if not self._coordinator:
            return policy
        return replace(policy, coordinators=(*policy.coordinators, self._coordinator))

    def key_set(self, charter: Charter | Query) -> str:
        """The key's. Raises `WrongEpochError` for a charter of another epoch."""
        if charter.epoch != self._epoch:
            raise self._other_epoch(charter.epoch)
        return self._key.fingerprint

    def _other_epoch(self, epoch: int) -> WrongEpochError:
        return WrongEpochError(
            f"the round is of key epoch {epoch}, {self._path.name} of epoch {self._epoch}; get the current key file"
        )

    @property
    def client(self) -> int:
        return self._key.client

    def encryptor(self, epoch: int = 0) -> Encryptor:
        if epoch not in (0, self._epoch):
            raise self._other_epoch(epoch)
        # A party of a roster need not be all of these.
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
                raise UnsupportedError(f"{self.scheme.name} has no committee: its clients share a key")
            self._member = committee.member(self._key)
        return self._member


# One process serves many messages, and in simulation many clients: keys and connections are opened once.
_holders: dict[tuple[str, str, float], KeyHolder] = {}


def key_holder_of(own: Mapping[str, Any], run: Mapping[str, Any]) -> KeyHolder:
    """The holder of this node's key, by its operator's ``own`` settings and those of the ``run``.

    An engine where ``fedcipher-engine`` (``own``, or the variable ``FEDCIPHER_ENGINE``) names one, as
    the device ``fedcipher-device``, else ``client-<partition-id>``, else its only one;
    ``fedcipher-credentials`` is the folder for TLS. Otherwise the key file that ``fedcipher-key`` names,
    else ``client-<partition-id>.key`` in the folder ``fedcipher-keys`` (``own``, ``FEDCIPHER_KEYS``,
    or, where neither is set, ``run``). Paths are absolute; the folder may be a name of ``keygen --name``.

    The run's settings come with the run, that is, from the server. They cannot name an engine: the engine is
    shown every update in the clear.
    """
    target = _setting(own, "fedcipher-engine")
    if target:
        device = _setting(own, "fedcipher-device") or _partition_name(own)
        slot = (target, device, 0.0)
        if slot not in _holders:
            engine = connect(target, device=device, credentials=_setting(own, "fedcipher-credentials") or None)
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


def _setting(own: Mapping[str, Any], name: str) -> str:
    """What this node's operator has set."""
    return str(own[name]) if name in own else os.environ.get(name.replace("-", "_").upper(), "")


def _partition_name(own: Mapping[str, Any]) -> str:
    return f"client-{own['partition-id']}" if "partition-id" in own else ""


def _clear(own: Mapping[str, Any]) -> frozenset[str]:
    """Metrics that this node's operator lets leave in the clear, separated by commas."""
    return frozenset(name.strip() for name in _setting(own, "fedcipher-clear").split(",") if name.strip())


def _key_path(own: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[Path, bool]:
    """The key file, and whether the run's settings name it."""
    if "fedcipher-key" in own:
        return locate(str(own["fedcipher-key"])), False
    chosen = _setting(own, "fedcipher-keys")
    folder = chosen or str(run.get("fedcipher-keys", ""))
    if not folder or "partition-id" not in own:
        raise KeyFormatError(
            "no key for this client: set fedcipher-engine, or fedcipher-key in the node config, or fedcipher-keys in "
            "the run config (or FEDCIPHER_KEYS) to the folder made by `fedcipher keygen`"
        )
    return client_file(locate(folder), int(cast(int, own["partition-id"]))), not chosen
