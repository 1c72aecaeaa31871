"""The adapters under test, one line each. A driver's module is imported when it is used, as is its framework."""

from importlib import import_module
from importlib.util import find_spec

_DRIVERS = {
    "sockets": "conformance.sockets:Sockets",
    "flower-mod": "conformance.flower:Mod flwr",
    "flower-older": "conformance.flower:Older flwr",
    "flower-guard": "conformance.guarded:Guarded flwr.supercore.runtime",
    "nvflare-tasks": "conformance.nvflare:Tasks",
    "nvflare-filters": "conformance.nvflare_filters:Filters nvflare",
    "declearn-rounds": "conformance.declearn:Rounds",
    "declearn-network": "conformance.declearn_network:Network declearn",
}
"""Each driver's class, and the module without which the driver cannot run."""
NAMES = list(_DRIVERS)


def missing(name):
    """Why the driver called ``name`` cannot run here; empty if it can."""
    needed = _DRIVERS[name].partition(" ")[2]
    try:
        here = not needed or find_spec(needed) is not None
    except ModuleNotFoundError:
        here = False
    return (
        "" if here else f"no {needed} here; `make e2e-nvflare` and `make e2e-declearn` have environments of their own"
    )


def driver(name):
    """The driver called ``name``."""
    module, cls = _DRIVERS[name].partition(" ")[0].split(":")
    return getattr(import_module(module), cls)
