"""Starts apps behind walls, as a site's rules say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedcipher.errors import GuardError
from fedcipher.guard.app_program import APP_PORT
from fedcipher.guard.jail import Jail, JailSpec, Limits, python_paths, start, walls
from fedcipher.guard.policy import AppRules

__all__ = ["BehindWalls"]

_MIB = 1 << 20


class BehindWalls:
    """The `StartApp` of a guard. Raises `GuardError` if a wall does not hold on this machine."""

    def __init__(self, rules: AppRules) -> None:
        failed = [wall for wall in walls() if not wall.holds]
        if failed:
            raise GuardError(
                f"the wall {failed[0].name!r} does not hold: {failed[0].tried}; {failed[0].remedy}. The guard does not "
                "start; `fedcipher guard check` tries each wall"
            )
        self._limits = Limits(
            memory=rules.memory_mib * _MIB, processes=rules.processes, file_size=rules.file_mib * _MIB
        )
        self._read_only = (*python_paths(), *map(Path, rules.data))
        for path in map(Path, rules.data):
            if not path.exists():
                raise GuardError(f"data of the guard's rules has {path}, which does not exist")

    def __call__(self, arguments: list[str], environment: Mapping[str, str], folder: Path) -> Jail:
        """Start an app that may write to ``folder`` and reaches the guard's socket, and nothing else."""
        return start(JailSpec(self._read_only, folder, self._limits), arguments, environment, APP_PORT)
