"""Federated averaging of encrypted updates: a scheme, chosen by name, gives an encryptor, aggregator and decryptor.

>>> import numpy as np, fedcipher
>>> scheme = fedcipher.scheme("bfv", clients=3, codec=fedcipher.Codec(bits=12, clip=1.0))
>>> keys = scheme.keygen(3)
>>> update = [np.full((2, 3), 0.25, np.float32)]
>>> aggregator = scheme.aggregator(keys.server())
>>> for j in range(3):
...     _ = aggregator.add(scheme.encryptor(keys.client(j)).encrypt(update, round=1))
>>> scheme.decryptor(keys.client(0)).decrypt(aggregator.finish())[0].round(3)
array([[0.25, 0.25, 0.25],
       [0.25, 0.25, 0.25]], dtype=float32)
"""

from fedcipher import _start as _start
from fedcipher import errors
from fedcipher._native import version as __version__
from fedcipher.codec import Codec
from fedcipher.schemes import Aggregator, Decryptor, Encryptor, KeySet, Scheme, scheme, scheme_names

__all__ = [
    "Aggregator",
    "Codec",
    "Decryptor",
    "Encryptor",
    "KeySet",
    "Scheme",
    "__version__",
    "errors",
    "scheme",
    "scheme_names",
]
