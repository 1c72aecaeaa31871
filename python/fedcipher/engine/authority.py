"""The aggregator's view of the key authority: server keys of the usable epochs, and revoked clients."""

from __future__ import annotations

from pathlib import Path

from fedcipher import _native
from fedcipher._arguments import as_path, as_text, seconds
from fedcipher._optional import require_feature
from fedcipher.engine.host import scheme_of
from fedcipher.errors import EngineError, EngineUnavailableError, StalledError
from fedcipher.foreign_text import quoting_log
from fedcipher.keys.server_keys import ServerKeys

__all__ = ["Authority"]

_log = quoting_log("fedcipher.engine")


class Authority(ServerKeys):
    """The keys of a key authority; pass it to `SecureStrategy` as ``keys``, and rounds follow the authority's epochs.

    The constructor raises `EngineUnavailableError`, `StalledError` and `AccessError`. Later an authority that cannot
    be reached or does not answer is logged, and rounds continue under the keys fetched before.

    Parameters
    ----------
    target
        ``host:port`` of ``fedcipher authority serve``.
    credentials
        The folder made by ``fedcipher authority enrol NAME --role server``.
    patience
        How many seconds the authority may stay silent. One call may take ten times as long.
    """

    def __init__(self, target: str, credentials: str | Path, *, patience: float = 30.0) -> None:
        require_feature("an authority", "engine-client")
        credentials, patience = as_path(credentials, "credentials"), seconds(patience, "patience")
        self._client = _native.AuthorityClient(as_text(target, "target"), credentials, patience)
        self._keys: dict[int, _native.ServerKey] = {}
        self._revoked: frozenset[int] = frozenset()
        self.scheme = scheme_of(self._fetch())
        if not self._keys:
            raise EngineError("the authority has made no epoch yet; enrol the devices, then run its rotate command")

    def _fetch(self) -> str:
        spec, issued, usable, revoked = self._client.server_keys(list(self._keys))
        self._keys.update((epoch, _native.ServerKey.from_bytes(key)) for epoch, key in issued)
        self._keys = {epoch: key for epoch, key in self._keys.items() if epoch in usable}
        self._revoked = frozenset(revoked)
        return spec

    def _refresh(self) -> None:
        try:
            self._fetch()
        except (EngineUnavailableError, StalledError) as error:
            _log.warning("continuing with the keys of epoch %s: %s", max(self._keys), error)

    def current(self) -> _native.ServerKey:
        self._refresh()
        return self._keys[max(self._keys)]

    def revoked(self) -> frozenset[int]:
        self._refresh()
        return self._revoked

    def finish_epoch(self, epoch: int) -> None:
        try:
            self._client.finish_epoch(epoch)
        except (EngineUnavailableError, StalledError) as error:
            _log.warning("epochs before %s are not closed yet: %s", epoch, error)
