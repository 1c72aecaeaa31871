"""Messages between the two sides, and aggregates that stay on their client, as types that declearn has registered.

This module has no postponed annotations, because declearn reads the types of fields.
"""

import dataclasses
from typing import Any, NoReturn

from fedcipher.adapters.declearn import api
from fedcipher.errors import UnsupportedError

__all__ = ["NAME", "Collector", "Held", "Ready", "RoundQuery", "RoundReply", "SetupQuery", "SumReader"]

NAME = "fedcipher"
"""``secagg_type`` of both sides."""
_PROTECT = "Fedcipher sends an update as one frame: give the client the network of SecaggClient.protect(network)"
_SUMS = "Fedcipher sums and opens frames itself, in the rounds of FederatedServer; this server asked for another sum"


@dataclasses.dataclass
class SetupQuery(api.secagg.SecaggSetupQuery):
    """Asks a client whether its network is protected. The fields of declearn's quantiser are not used."""

    typekey = "fedcipher-setup-query"


@dataclasses.dataclass
class Ready(api.messaging.Message):
    """The network is protected."""

    typekey = "fedcipher-ready"


@dataclasses.dataclass
class RoundQuery(api.messaging.Message):
    """A message of a run, in the bytes of `fedcipher.federation.messages.Message`."""

    typekey = "fedcipher-round-query"

    number: int
    content: bytes


@dataclasses.dataclass
class RoundReply(api.messaging.Message):
    """The reply to the `RoundQuery` of this number."""

    typekey = "fedcipher-round-reply"

    number: int
    content: bytes


class Held(api.secagg.SecureAggregate):
    """An aggregate in the clear, on its way from the app to the network of the same client. It has no form in bytes."""

    def __init__(self, value: Any) -> None:
        super().__init__(encrypted=[], enc_specs=[], cleartext=None, agg_cls=type(value), n_aggrg=1)
        self.value = value

    def aggregate_encrypted(self, val_a: list[int], val_b: list[int]) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_PROTECT)

    def aggregate(self, other: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_PROTECT)

    def to_dict(self) -> NoReturn:
        """Raise `UnsupportedError`: in bytes, the aggregate could leave its client in the clear."""
        raise UnsupportedError(_PROTECT)


class Collector(api.secagg.Encrypter):
    """Collects what declearn would encrypt in three parts or more, so that all of it goes into one frame."""

    def encrypt_uint(self, value: int) -> int:
        """Return 0: the number goes into the frame only if the charter lists it."""
        return 0

    def encrypt_float(self, value: float) -> int:
        """Return 0, like `encrypt_uint`."""
        return 0

    def encrypt_aggregate(self, value: Any) -> Held:
        """Hold ``value`` for the network."""
        return Held(value)

    def wrap_into_secure_aggregate(self, **_: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_PROTECT)


class SumReader(api.secagg.Decrypter):
    """The server's side of `Collector`: it opens nothing, because a round's sum is opened as a whole."""

    secure_aggregate_cls = Held

    def sum_encrypted(self, values: list[int]) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_SUMS)

    def decrypt_uint(self, value: int) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_SUMS)

    def decrypt_aggregate(self, value: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(_SUMS)
