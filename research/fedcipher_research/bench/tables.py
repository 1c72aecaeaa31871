"""Tables of a preset's report that a plain measurement does not have."""

from __future__ import annotations

from fedcipher.bench.study import Study

from fedcipher_research.bench.preset import Preset
from fedcipher_research.published.tables import Beside, beside

__all__ = ["compared", "facts"]


def compared(study: Study, preset: Preset) -> Beside:
    """The table of published figures beside ours."""
    return beside(preset.outcomes(study))


def facts(study: Study) -> list[tuple[str, str]]:
    """(name, text) of the facts about the machine and the measurement."""
    return [
        ("command", f"`{study.command}`"),
        ("begun", study.began),
        ("link", str(study.link)),
        ("server", study.server or "a process of the same machine, over loopback TCP"),
        *study.machine.items(),
    ]
