"""`flashe`: additive symmetric masking with an AES PRF (arXiv 2109.00675)."""

from __future__ import annotations

from typing import Literal

from fedcipher.codec import Codec, codec_or
from fedcipher.errors import ParameterError
from fedcipher.schemes.base import NativeScheme, SchemeInfo

__all__ = ["Flashe"]


class Flashe(NativeScheme):
    """FLASHE: every value hidden by AES masks that cancel in the sum.

    Withstands eavesdroppers and a server without a key, also one that cheats: under AES and HMAC-SHA256 as PRFs it
    learns no update, and clients open only genuine sums. One client that colludes with the server opens every
    update, for all rounds of its key: the cohort shares one.

    Parameters
    ----------
    clients, max_weight
        Most clients of a round and largest weight of one; they fix w = b + ceil(log2 of the total).
    masking
        ``"double"``: neighbours cancel, decrypting costs two masks a run of consecutive clients
        (FLASHE, section 3.3: The Base Cryptosystem); ``"single"``: one mask a client; ``"adaptive"``: the
        server counts and chooses.
    key_bits
        AES-128 or AES-256.
    per_client_top
        Each client sends this fraction of each layer of its own choice, largest magnitudes first, the rest
        kept for the next round (algorithm 1); layers below 256 elements whole. Needs
        ``Codec(target="delta")``. ``Codec(top=...)``, one choice for the whole cohort, is the better default:
        it attributes nothing, costs no tags a coordinate and works in every scheme.

    Notes
    -----
    With ``per_client_top`` the server leaves out coordinates that fewer than ``min_contributions`` clients
    sent, and a mean is over those who sent it; coordinates that nobody sent, or that were left out, are zero
    in it. Clients check what remains with a tag of 61 bits a coordinate, up and down. What stays open: the server sees
    which clients chose the same coordinates (not which these are), and may leave out more of them; every
    client sees, of the coordinates that remain, which clients sent each. What is left out is lost to error
    feedback: its sender does not learn of it in time.
    """

    name = "flashe"
    info = SchemeInfo(
        summary="AES masks mod 2^w that cancel in the sum",
        withstands="a server without a key, also one that cheats; eavesdroppers",
        broken_by="one client colluding with the server: it opens everybody, for all rounds of its key",
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
                f"top is the codec's: Codec(top={top}, target='delta') sends one set of coordinates that is common to "
                f"all clients; per_client_top={top} lets each client choose its own, which shows who sent what"
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
