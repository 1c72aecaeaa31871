"""A federation of declearn 2.9: a protected network and a configuration on clients, a subclass on the server.

>>> secagg = SecaggClient(key="/etc/fedcipher/client-0.key")                     # doctest: +SKIP
>>> FederatedClient(secagg.protect(network), train_data, secagg=secagg).run()    # doctest: +SKIP
>>> FederatedServer(model, network, optim, SecaggServer(keys="keys")).run(plan)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcipher.adapters.declearn.client import ProtectedNetwork, SecaggClient
    from fedcipher.adapters.declearn.server import FederatedServer, SecaggServer

__all__ = ["FederatedServer", "ProtectedNetwork", "SecaggClient", "SecaggServer"]


def __getattr__(name: str) -> Any:
    """Import declearn only for a class that needs it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    side = "server" if name.endswith("Server") else "client"
    return getattr(import_module(f"{__name__}.{side}"), name)
