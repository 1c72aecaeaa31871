"""Two lines for an existing Flower app: a client mod and a strategy wrapper.

>>> app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])     # doctest: +SKIP
>>> strategy = SecureStrategy(FedAvg(), "keys", out="run")           # doctest: +SKIP
"""

from fedcipher._optional import require

require("fedcipher.adapters.flower", "flower", "flwr")

from fedcipher.adapters.flower.analytics import secure_sum
from fedcipher.adapters.flower.legacy import numpy_client_app
from fedcipher.adapters.flower.mod import client_mod, make_client_mod, query_mod
from fedcipher.adapters.flower.strategy import SecureStrategy
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server.run_folder import open_run

__all__ = [
    "ClientRecord",
    "RoundRecord",
    "SecureStrategy",
    "client_mod",
    "make_client_mod",
    "numpy_client_app",
    "open_run",
    "query_mod",
    "secure_sum",
]
