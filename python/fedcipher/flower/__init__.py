"""Two lines for an existing Flower app: a client mod and a strategy wrapper.

>>> app = ClientApp(mods=[fedcipher.flower.client_mod])              # doctest: +SKIP
>>> strategy = SecureStrategy(FedAvg(), "keys", out="run")           # doctest: +SKIP
"""

from fedcipher._optional import require

require("fedcipher.flower", "flower", "flwr")

from fedcipher.flower.client import client_mod, make_client_mod
from fedcipher.flower.legacy import numpy_client_app
from fedcipher.flower.records import ClientRecord, RoundRecord
from fedcipher.flower.run_folder import open_run
from fedcipher.flower.strategy import SecureStrategy

__all__ = [
    "ClientRecord",
    "RoundRecord",
    "SecureStrategy",
    "client_mod",
    "make_client_mod",
    "numpy_client_app",
    "open_run",
]
