"""What a report of a preset has beside the tables of its measurement."""

from __future__ import annotations

from fedcipher.bench.study import Study

from fedcipher_research.bench.preset import Preset
from fedcipher_research.published.tables import Beside, beside

__all__ = ["compared", "facts"]


def compared(study: Study, preset: Preset) -> Beside:
    """Published figures beside ours."""
    return beside(preset.outcomes(study))


def facts(study: Study) -> list[tuple[str, str]]:
    """Where and how it was measured."""
    return [
        ("command", f"`{study.command}`"),
        ("begun", study.began),
        ("link", str(study.link)),
        ("server", study.server or "a process of the same machine, over loopback TCP"),
        *study.machine.items(),
    ]
