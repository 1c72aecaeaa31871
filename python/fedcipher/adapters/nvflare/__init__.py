"""Encrypted updates for NVFlare 2.9. docs/how-to/nvflare.md names the modules; importing this one imports no NVFlare.

>>> from fedcipher.adapters.nvflare.recipe import SecureFedAvgRecipe                            # doctest: +SKIP
>>> recipe = SecureFedAvgRecipe(name="hello", keys="hello", train_script="client.py", ...)     # doctest: +SKIP
"""
