"""`flashe`: additive symmetric masking with an AES PRF (arXiv 2109.00675)."""

from __future__ import annotations

from typing import Literal

from fedcipher.codec import Codec, codec_or
from fedcipher.errors import ParameterError
from fedcipher.schemes.base import NativeScheme, SchemeInfo

__all__ = ["Flashe"]


class Flashe(NativeScheme):
    """FLASHE: AES masks hide every value and cancel in the sum.

    Withstands eavesdroppers and a server without a key, even a malicious one. With AES and HMAC-SHA256 as PRFs, the
    server learns no update, and clients open only genuine sums. One client that colludes with the server opens every
    update of all rounds of its key, because the cohort shares one key.

    Parameters
    ----------
    clients, max_weight
        Most clients in a round, and largest weight of a client. They determine w = b + ceil(log2 of the total).
    masking
        ``"double"``: masks of neighbours cancel, and decryption costs two masks for each run of consecutive clients
        (FLASHE, section 3.3: The Base Cryptosystem). ``"single"``: one mask for each client. ``"adaptive"``: the
        server counts both costs and chooses.
    key_bits
        AES-128 or AES-256.
    per_client_top
        Each client chooses this fraction of each layer, largest magnitudes first, and keeps the rest for the next
        round (algorithm 1). Layers below 256 elements are sent whole. Needs ``Codec(target="delta")``.
        ``Codec(top=...)``, one choice for the whole cohort, is the better default: it does not reveal a client's
        choice, needs no tag for each coordinate and works in every scheme.

    Notes
    -----
    With ``per_client_top`` the server drops coordinates that fewer than ``min_contributions`` clients sent. A mean is
    over the clients that sent the coordinate; coordinates that were not sent, or were dropped, are zero. Clients check
    the remaining coordinates: each carries a tag of 61 bits, up and down.

    The server sees which clients chose the same coordinates (not which coordinates), and may drop more of them. Every
    client sees which clients sent each remaining coordinate. Dropped values are lost to error feedback, because their
    sender does not learn in time that they were dropped.
    """

    name = "flashe"
    info = SchemeInfo(
        summary="AES masks mod 2^w that cancel in the sum",
        withstands="a server without a key, even a malicious one; eavesdroppers",
        broken_by="one client colluding with the server: it decrypts every update, in all rounds of its key",
        cost="1.00x up and down; two AES blocks per 128/w values",
        source="FLASHE, arXiv 2109.00675",
        widths=True,
    )

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        masking: Literal["double", "single", "adaptive"] = "double",
        key_bits: int = 128,
        per_client_top: float | None = None,
        top: None = None,
        codec: Codec | None = None,
    ) -> None:
        codec = codec_or(codec, 16)
        if top is not None:
            raise ParameterError(
                f"top belongs to the codec: Codec(top={top}, target='delta') sends one set of coordinates for all "
                f"clients; per_client_top={top} lets each client choose its own, which shows which client sent what"
            )
        if per_client_top is not None and codec.target != "delta":
            raise ParameterError("per_client_top sends part of an update, so the codec must be Codec(target='delta')")
        if per_client_top is not None and codec.top is not None:
            raise ParameterError("per_client_top and Codec(top=...) both choose coordinates; give one of them")
        params = {
            "clients": clients,
            "max_weight": max_weight,
            "min_contributions": min_contributions,
            "masking": masking,
            "key_bits": key_bits,
            "per_client_top": per_client_top,
        }
        super().__init__(codec, params)
