"""Encryption by an engine, a separate process that alone holds the keys; see docs/how-to/offload.md.

>>> engine = fedcipher.engine.connect("unix:/run/fedcipher/engine.sock")  # doctest: +SKIP
>>> frame = engine.encryptor().encrypt(update, round=7)  # doctest: +SKIP
"""

from fedcipher.engine.authority import Authority
from fedcipher.engine.host import Engine, connect

__all__ = ["Authority", "Engine", "connect"]
