"""`plain`: no encryption, the baseline for accuracy and cost."""

from __future__ import annotations

from fedcipher.codec import Codec, codec_or
from fedcipher.schemes.base import NativeScheme, SchemeInfo

__all__ = ["Plain"]


class Plain(NativeScheme):
    """The codec, bounds and frames of every scheme, with values in the clear.

    Hides nothing: the server and anyone on the wire read every update. Clients reject false sums, as in every scheme.
    """

    name = "plain"
    info = SchemeInfo(
        summary="no encryption, same codec and frames",
        withstands="nothing (clients reject false sums)",
        broken_by="any reader of the wire",
        cost="1.00x up and down",
        source="baseline",
        hides=False,
        baseline=True,
        widths=True,
    )

    def __init__(
        self, *, clients: int, max_weight: int = 1, min_contributions: float | None = None, codec: Codec | None = None
    ) -> None:
        params = {"clients": clients, "max_weight": max_weight, "min_contributions": min_contributions}
        super().__init__(codec_or(codec, 16), params)
