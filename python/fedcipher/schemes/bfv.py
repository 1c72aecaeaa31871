"""`bfv`: additive BFV over RLWE with bit-interleaved packing (FedBit)."""

from __future__ import annotations

from typing import Literal

from fedcipher.codec import Codec, codec_or
from fedcipher.schemes.base import NativeScheme, SchemeInfo

__all__ = ["Bfv"]


class Bfv(NativeScheme):
    """Symmetric additive BFV. Uploads and downloads carry only c0 and a 32-byte seed.

    Withstands eavesdroppers and a server without a key, even a malicious one. The assumptions are ring-LWE at 128 bits
    (docs/reference/parameters.md has the models) and HMAC-SHA256 as a PRF. Clients derive c1 from the cohort's seeds,
    and tags cover the noise. Otherwise a server could learn key bits by choosing c1, or by seeing which modified
    aggregates still open. One client that colludes with the server opens every update, because all clients share one
    secret key.

    Parameters
    ----------
    clients, max_weight
        Most clients in a round, and largest weight of a client. They determine field widths and noise.
    preset
        ``"compact"``: N = 4096, t as large as the noise allows; ``"fast"``: N = 2048, one prime;
        ``"fedbit-paper"``: N = 4096, t = 2281701377 as published. FedBit does not state q; here q has 106 bits.
    server_weights
        The server instead of the client multiplies by the weight. Noise then grows by the weight.
    """

    name = "bfv"
    info = SchemeInfo(
        summary="additive ring-LWE, bit-packed, seeds instead of c1",
        withstands="a server without a key, even a malicious one; eavesdroppers; post-quantum",
        broken_by="one client colluding with the server: it decrypts every update, in all rounds of its key",
        cost="1.08x to 1.11x up, 1.11x to 1.23x down with `compact` (10 to 100 clients); an NTT pair per 4096"
        " coefficients, offline",
        source="FedBit; BFV",
        widths=True,
    )

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        preset: Literal["compact", "fast", "fedbit-paper"] = "compact",
        server_weights: bool = False,
        codec: Codec | None = None,
    ) -> None:
        codec = codec_or(codec, 12)
        params = {
            "clients": clients,
            "max_weight": max_weight,
            "min_contributions": min_contributions,
            "preset": preset,
            "server_weights": server_weights,
        }
        super().__init__(codec, params)
