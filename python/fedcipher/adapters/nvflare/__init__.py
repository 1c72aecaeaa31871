"""Encrypted updates for NVFlare 2.9: filters for the sites, a controller for the server, a recipe and a builder.

>>> recipe = SecureFedAvgRecipe(name="hello", keys="hello", train_script="client.py", ...)     # doctest: +SKIP
"""

from fedcipher._optional import require

require("fedcipher.adapters.nvflare", "nvflare", "nvflare")

from fedcipher.adapters.nvflare.filters import DecryptTask, EncryptResult, NoAppExecutor
from fedcipher.adapters.nvflare.provision import KeyBuilder
from fedcipher.adapters.nvflare.recipe import SecureFedAvgRecipe
from fedcipher.adapters.nvflare.server import SecureFedAvg

__all__ = ["DecryptTask", "EncryptResult", "KeyBuilder", "NoAppExecutor", "SecureFedAvg", "SecureFedAvgRecipe"]
