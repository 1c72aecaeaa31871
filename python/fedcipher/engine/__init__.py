"""Encryption in another process, which alone holds keys; see docs/how-to/offload.md.

>>> engine = fedcipher.engine.connect("unix:/run/fedcipher/engine.sock")  # doctest: +SKIP
>>> frame = engine.encryptor().encrypt(update, round=7)  # doctest: +SKIP
"""

from fedcipher.engine.authority import Authority
from fedcipher.engine.host import Engine, connect

__all__ = ["Authority", "Engine", "connect"]
