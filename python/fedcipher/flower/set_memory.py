"""Which sets of clients a server's sums have had, where the rule of sets looks beyond one position.

All first positions of a key set count together, and so do all its queries. Clients refuse a sum that breaks the rule;
a server that remembers the sets chooses one that they open.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedcipher import _native
from fedcipher._files import make_private_folder, write_whole
from fedcipher.errors import FedcipherError, RunError
from fedcipher.foreign_files import MAX_INDEX, read_file
from fedcipher.schemes.base import state_dir

__all__ = ["ServerSets"]


class ServerSets:
    """The sets of one ``kind`` (``"first"``, ``"queries"``) under the key set ``key``, kept in the state folder.

    Raises `RunError` for a damaged file.
    """

    def __init__(self, kind: str, key: _native.ServerKey, minimum: int) -> None:
        self._path: Path = state_dir() / f"sets-{key.fingerprint}-{kind}.bin"
        self._memory = _native.SetMemory(minimum)
        if self._path.exists():
            try:
                self._memory = _native.SetMemory.from_bytes(read_file(self._path, MAX_INDEX))
            except (OSError, FedcipherError) as error:
                raise RunError(f"{self._path} is damaged: {error}; use new keys, and remove it") from error

    @property
    def groups(self) -> list[list[int]]:
        """Clients by which of the sets they have been in."""
        return self._memory.groups()

    def fitting(self, clients: Collection[int]) -> list[int]:
        """The largest part of ``clients`` that may be summed."""
        return self._memory.largest_fitting(sorted(clients))

    def remember(self, clients: Collection[int]) -> None:
        """A sum of ``clients`` leaves this server. Raises what `SetMemory.admit` raises."""
        self._memory.admit(sorted(clients), [])
        make_private_folder(self._path.parent)
        write_whole(self._path, self._memory.to_bytes())
