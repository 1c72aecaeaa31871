"""The adapters under test, one line each. A line imports its driver, and the driver its framework, when it is used."""

from importlib import import_module

_DRIVERS = {
    "flower-mod": "conformance.flower:Mod",
    "flower-older": "conformance.flower:Older",
    "flower-guard": "conformance.guarded:Guarded",
    "sockets": "conformance.sockets:Sockets",
    "nvflare-tasks": "conformance.nvflare:Tasks",
    "declearn-rounds": "conformance.declearn:Rounds",
}
NAMES = list(_DRIVERS)


def driver(name):
    """The driver called ``name``."""
    module, cls = _DRIVERS[name].split(":")
    return getattr(import_module(module), cls)
