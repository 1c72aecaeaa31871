"""`pasta-bfv`: hybrid homomorphic encryption, PASTA on the client, BFV on the server."""

from __future__ import annotations

from typing import Literal

from fedcipher import _native
from fedcipher.codec import Codec, codec_or
from fedcipher.schemes.base import Aggregator, NativeAggregator, NativeScheme, SchemeInfo, round_of, server_key
from fedcipher.schemes.workers import PartedSum, Workers

__all__ = ["PastaBfv"]


class PastaBfv(NativeScheme):
    """Clients encrypt with the stream cipher PASTA. The server converts to BFV ciphertexts and adds these.

    Withstands eavesdroppers and a server without a key. The assumptions are the security of PASTA, ring-LWE at 128 bits
    and HMAC-SHA256 as a PRF. Clients open only genuine sums, even from a malicious server. Such a server may learn a
    bit of the key from each client in each round (docs/explanation/security.md). One client that colludes with the
    server opens every update, because the clients share the BFV secret. The server multiplies by the weights, so a
    client's upload does not depend on its weight.

    Parameters
    ----------
    clients, max_weight
        Most clients in a round, and largest weight of a client. The weighted sum must stay below p.
    variant
        4: PASTA-4, 32 words in a block, 4 rounds; 3: PASTA-3, 128 words, 3 rounds (ePrint 2021/731).
    prime_bits
        17: p = 65537, N = 16384; 33: p = 8088322049, N = 32768, for weighted sums above 17 bits.
    """

    name = "pasta-bfv"
    info = SchemeInfo(
        summary="PASTA stream cipher on the client, transciphered into BFV on the server",
        withstands="a server without a key, eavesdroppers; false sums of a malicious server"
        " (R false sums in an epoch reveal at most log2(R + 1) bits of the key through a client:"
        " docs/explanation/security.md)",
        broken_by="one client colluding with the server: it decrypts every update, in all rounds of its key",
        cost="17 or 33 bits per value up, from 108 down; the server evaluates a circuit per 8192 values",
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
    def values_per_ciphertext(self) -> int:
        return int(self.describe()["values per ciphertext up"])

    @property
    def workers(self) -> Workers:
        return Workers(self._native)

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        native = self._native.aggregator(server_key(key), round_of(round))
        return NativeAggregator(native, parted=PartedSum(native))
