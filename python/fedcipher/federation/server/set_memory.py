"""Remembers the sets of clients of a server's sums, where the rule of sets covers more than one position.

All first positions of a key set count together, and so do all its queries. Under a committee, parties remember sets by
identity, so all rosters and epochs count together. Parties refuse a sum that breaks the rule. A server that remembers
the sets can choose one that the parties open.
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
    """The sets of one ``kind`` (``"first"`` or ``"queries"``) under ``key``, stored in the state folder.

    Raises `RunError` if the file is damaged.
    """

    def __init__(self, kind: str, scheme: Scheme, key: _native.ServerKey) -> None:
        self._identified = scheme.committee is not None
        of = "identities" if self._identified else key.fingerprint
        self._path: Path = state_dir() / f"sets-{of}-{kind}.bin"
        self._names = key.names if self._identified else {client: client for client in key.cohort}
        self._numbers = {name: client for client, name in self._names.items()}
        self._minimum = scheme.min_contributions
        self._memory = self._read()

    @property
    def groups(self) -> list[tuple[list[int], int]]:
        """Groups of clients that have been in the same sets, each with the minimum of these sets.

        A client that is not under this key appears as its name, a number that is not a client id.
        """
        groups = self._memory.groups()
        return [([self._numbers.get(name, name) for name in group], self._memory.least(group)) for group in groups]

    def minimum_of(self, clients: Collection[int]) -> int:
        """The minimum for a sum of ``clients``: the scheme's, or a larger one of an earlier sum."""
        return max(self._minimum, self._memory.least(self._names_of(clients)))

    def refresh(self) -> None:
        """Read the file again, because servers of other runs may have stored sets since."""
        self._memory = self._read()

    def fitting(self, clients: Collection[int]) -> list[int]:
        """The largest subset of ``clients`` that may be summed, sorted."""
        return sorted(self._numbers[name] for name in self._memory.largest_fitting(self._names_of(clients)))

    def remember(self, *sets: Collection[int]) -> None:
        """Store ``sets`` before their sums are made, or before a committee is asked for them.

        Raises `SetRuleError`, and stores none of them, if they break the rule with sets that servers of other runs have
        stored since `refresh`.
        """
        make_private_folder(self._path.parent)
        with wait_locked(self._path.with_suffix(".lock")):
            memory = self._read()
            for clients in sets:
                memory.admit(self._names_of(clients))
            write_whole(self._path, memory.to_bytes())
        self._memory = memory

    def _read(self) -> _native.SetMemory:
        if not self._path.exists():
            return _native.SetMemory(self._minimum)
        try:
            return _native.SetMemory.from_bytes(read_file(self._path, MAX_INDEX), self._minimum)
        except (OSError, FedcipherError) as error:
            made = "identities" if self._identified else "keys"
            raise RunError(
                f"{self._path} is damaged, or of another version: {error}; make new {made}, then remove the file"
            ) from error

    def _names_of(self, clients: Collection[int]) -> list[int]:
        return sorted(self._names[client] for client in clients)
