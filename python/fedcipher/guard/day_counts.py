"""Counts what reaches apps in a day, on disk, so that a restarted guard counts on."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from fedcipher._files import write_whole
from fedcipher.errors import CharterError, StateError
from fedcipher.foreign_files import parse_json, read_file

__all__ = ["DayCounts"]

_MAX_BYTES = 1 << 16


class DayCounts:
    """The counts of the present day (UTC) in the file ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, what: str, most: int) -> None:
        """Count one of ``what``, on disk when this returns. Raises `CharterError` if the day has had ``most``."""
        today = datetime.now(timezone.utc).date().isoformat()
        read = self._read()
        # A clock that goes back begins no new day.
        counts: dict[str, Any] = read if str(read.get("day", "")) >= today else {"day": today}
        number = int(counts.get(what, 0)) + 1
        if most and number > most:
            raise CharterError(f"this site's apps have had {most} {what} today, as many as the guard's rules allow")
        counts[what] = number
        write_whole(self._path, json.dumps(counts).encode())

    def _read(self) -> dict[str, Any]:
        try:
            content = parse_json(read_file(self._path, _MAX_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StateError(f"{self._path} is damaged ({error}); remove the file tomorrow") from error
        if not isinstance(content, dict):
            raise StateError(f"{self._path} is damaged; remove the file tomorrow")
        return cast("dict[str, Any]", content)
