"""Two lines for an existing Flower app: a client mod and a strategy wrapper.

>>> app = ClientApp(mods=[fedcipher.flower.client_mod])              # doctest: +SKIP
>>> strategy = fedcipher.flower.SecureStrategy(FedAvg(), "keys")     # doctest: +SKIP
"""

from fedcipher._optional import require

require("fedcipher.flower", "flower", "flwr")

from fedcipher.flower.client import client_mod, make_client_mod
from fedcipher.flower.strategy import ClientRecord, RoundRecord, SecureStrategy

__all__ = ["ClientRecord", "RoundRecord", "SecureStrategy", "client_mod", "make_client_mod"]
