"""A scheme of another package, as small as one can be: it hides nothing. FEDCIPHER_SCHEMES=toy_scheme registers it."""

import numpy as np
from fedcipher.codec import codec_or
from fedcipher.errors import FrameError
from fedcipher.schemes import SchemeInfo, register
from fedcipher.schemes.library import Adder, Arithmetic, LibraryScheme


class Sum(Adder):
    """Adds whole numbers."""

    def __init__(self):
        self._sum = 0

    def add(self, payload, elements):
        if len(payload) != 8 * elements:
            raise FrameError(f"{len(payload)} bytes of {elements} values")
        self._sum = self._sum + np.frombuffer(payload, "<u8")

    def finish(self):
        return self._sum.astype("<u8").tobytes()


class Whole(Arithmetic):
    """Eight bytes a value."""

    def keygen(self):
        return b"secret", b"public"

    def sealer(self, secret):
        return lambda values: values.astype("<u8").tobytes()

    def adder(self, public):
        return Sum()

    def opener(self, secret):
        return lambda payload, elements: np.frombuffer(payload, "<u8").astype(np.uint64)


@register
class Toy(LibraryScheme):
    """Values in the clear, behind the core's keys, frames and tags."""

    name = "toy"
    info = SchemeInfo(
        summary="whole numbers in the clear; for tests",
        withstands="nothing",
        broken_by="anyone who sees the wire",
        cost="eight bytes a value",
        source="tests/toy_scheme.py",
        hides=False,
    )

    def __init__(self, *, clients, max_weight=1, min_contributions=None, codec=None):
        params = {"clients": clients, "max_weight": max_weight, "min_contributions": min_contributions}
        super().__init__(codec_or(codec, 12), params)
        self._arithmetic = Whole()
