"""`pasta-bfv`: hybrid homomorphic encryption, PASTA on the client, BFV on the server."""

from __future__ import annotations

from typing import Literal

from fedcipher import _native
from fedcipher.codec import Codec, codec_or
from fedcipher.schemes.base import Aggregator, NativeAggregator, NativeScheme, SchemeInfo, round_of, server_key
from fedcipher.schemes.workers import PartedSum, Workers

__all__ = ["PastaBfv"]


class PastaBfv(NativeScheme):
    """Clients encrypt with the stream cipher PASTA; the server deciphers it under BFV and adds.

    Withstands eavesdroppers and a server without a key, under the security of PASTA, ring-LWE at 128 bits and
    HMAC-SHA256 as a PRF. Also from a server that cheats clients open only genuine sums, but it may get a bit of the
    key a round and client (docs/explanation/security.md). One client that colludes with the server opens every update:
    the BFV secret is shared. The server multiplies by the weights, so a client's upload does not depend on its weight.

    Parameters
    ----------
    clients, max_weight
        Most clients of a round and largest weight of one; the weighted sum must stay below p.
    variant
        4: PASTA-4, 32 words a block, 4 rounds; 3: PASTA-3, 128 words, 3 rounds (ePrint 2021/731).
    prime_bits
        17: p = 65537, N = 16384; 33: p = 8088322049, N = 32768, for weighted sums 17 bits cannot hold.
    """

    name = "pasta-bfv"
    info = SchemeInfo(
        summary="PASTA stream cipher on the client, transciphered into BFV on the server",
        withstands="a server without a key, eavesdroppers; false sums of a server that cheats"
        " (of R that it tries a client tells at most log2(R + 1) bits of the key in an epoch:"
        " docs/explanation/security.md)",
        broken_by="one client colluding with the server: it opens everybody, for all rounds of its key",
        cost="17 or 33 bits a value up, from 108 down; the server evaluates a circuit per 8192 values",
        source="PASTA, ePrint 2021/731; hybrid HE",
        feature="hhe",
        workers=True,
    )

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        variant: Literal[3, 4] = 4,
        prime_bits: Literal[17, 33] = 17,
        codec: Codec | None = None,
    ) -> None:
        codec = codec_or(codec, 12)
        params = {
            "clients": clients,
            "max_weight": max_weight,
            "min_contributions": min_contributions,
            "variant": variant,
            "prime_bits": prime_bits,
        }
        super().__init__(codec, params)

    @property
    def grain(self) -> int:
        return int(self.describe()["values per ciphertext up"])

    @property
    def workers(self) -> Workers:
        return Workers(self._native)

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        native = self._native.aggregator(server_key(key), round_of(round))
        return NativeAggregator(native, parted=PartedSum(native))
