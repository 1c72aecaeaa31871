"""Which sets of clients a server's sums have had, where the rule of sets looks beyond one position.

All first positions of a key set count together, and so do all its queries. Where a committee fixes the sets, parties
remember them by identity: all rosters and epochs count together. Parties refuse a sum that breaks the rule; a server
that remembers the sets chooses one that they open.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedcipher import _native
from fedcipher._files import make_private_folder, wait_locked, write_whole
from fedcipher.errors import FedcipherError, RunError
from fedcipher.foreign_files import MAX_INDEX, read_file
from fedcipher.schemes.base import Scheme, state_dir

__all__ = ["ServerSets"]


class ServerSets:
    """The sets of one ``kind`` (``"first"``, ``"queries"``) under ``key``, kept in the state folder.

    Raises `RunError` for a damaged file.
    """

    def __init__(self, kind: str, scheme: Scheme, key: _native.ServerKey) -> None:
        self._identified = scheme.committee is not None
        of = "identities" if self._identified else key.fingerprint
        self._path: Path = state_dir() / f"sets-{of}-{kind}.bin"
        self._names = key.names if self._identified else {client: client for client in key.cohort}
        self._numbers = {name: client for client, name in self._names.items()}
        self._minimum = scheme.min_contributions
        self._memory = self._kept()

    @property
    def groups(self) -> list[tuple[list[int], int]]:
        """Clients by which of the sets they have been in, with the minimum that these were made under.

        A client that this key does not have is an unknown number.
        """
        groups = self._memory.groups()
        return [([self._numbers.get(name, name) for name in group], self._memory.least(group)) for group in groups]

    def least(self, clients: Collection[int]) -> int:
        """The largest minimum that ``clients`` keep: the scheme's, or that of an earlier sum."""
        return max(self._minimum, self._memory.least(self._named(clients)))

    def refresh(self) -> None:
        """Read again: servers of other runs may have remembered sets meanwhile."""
        self._memory = self._kept()

    def fitting(self, clients: Collection[int]) -> list[int]:
        """The largest part of ``clients`` that may be summed."""
        return sorted(self._numbers[name] for name in self._memory.largest_fitting(self._named(clients)))

    def remember(self, *sets: Collection[int]) -> None:
        """Sums of these ``sets`` are about to be made, or a committee is about to be asked for them.

        Raises `SetRuleError`, and remembers none of them, where they do not fit what servers of other runs have
        remembered since `refresh`.
        """
        make_private_folder(self._path.parent)
        with wait_locked(self._path.with_suffix(".lock")):
            memory = self._kept()
            for clients in sets:
                memory.admit(self._named(clients))
            write_whole(self._path, memory.to_bytes())
        self._memory = memory

    def _kept(self) -> _native.SetMemory:
        if not self._path.exists():
            return _native.SetMemory(self._minimum)
        try:
            return _native.SetMemory.from_bytes(read_file(self._path, MAX_INDEX), self._minimum)
        except (OSError, FedcipherError) as error:
            made = "identities" if self._identified else "keys"
            raise RunError(
                f"{self._path} is damaged, or of another build: {error}; make new {made}, then remove it"
            ) from error

    def _named(self, clients: Collection[int]) -> list[int]:
        return sorted(self._names[client] for client in clients)
