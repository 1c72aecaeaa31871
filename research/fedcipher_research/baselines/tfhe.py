"""`tfhe`: radix integers of TFHE. When carries fill up, each block takes a bootstrapping."""

from __future__ import annotations

from collections.abc import Callable

from fedcipher.codec import Codec, codec_or
from fedcipher.errors import DecryptError, FrameError, KeyFormatError
from fedcipher.schemes.base import SchemeInfo
from fedcipher.schemes.library import Adder, Arithmetic, LibraryScheme, Numbers

__all__ = ["Tfhe"]

_BLOCK_BITS = 2


class Tfhe(LibraryScheme):
    """Sums of TFHE radix integers by tfhe-rs: one integer for each value, with 2 message and 2 carry bits in a block.

    Protects updates from a server that follows the protocol and from eavesdroppers, under LWE at 128 bits (failure
    below 2**-128). A client that colludes with the server exposes every update. TFHE allows any computation on the
    values, which averaging does not need: the scheme is here for measurements.

    ``clients`` and ``max_weight`` determine how many blocks hold a sum.
    """

    name = "tfhe"
    info = SchemeInfo(
        summary="TFHE radix integers, by tfhe-rs; a baseline, for hundreds of values",
        withstands="a server that keeps to the protocol, eavesdroppers (post-quantum)",
        broken_by="one client colluding with the server: it opens every update, for all rounds of its key",
        cost="about 160x up, 74,000x down; bootstrappings on the server",
        source="TFHE; tfhe-rs",
        baseline=True,
        packages=("fedcipher_tfhe",),
        install="in a checkout of Fedcipher: make tfhe",
    )

    def __init__(
        self, *, clients: int, max_weight: int = 1, min_contributions: float | None = None, codec: Codec | None = None
    ) -> None:
        super().__init__(
            codec_or(codec, 12),
            {"clients": clients, "max_weight": max_weight, "min_contributions": min_contributions},
        )
        self._arithmetic = _Tfhe(-(-self.field_bits(62) // _BLOCK_BITS))


class _Tfhe(Arithmetic):
    def __init__(self, blocks: int) -> None:
        self._blocks = blocks

    def keygen(self) -> tuple[bytes, bytes]:
        import fedcipher_tfhe

        return fedcipher_tfhe.keygen(self._blocks)

    def sealer(self, secret: bytes) -> Callable[[Numbers], bytes]:
        import fedcipher_tfhe

        try:
            return fedcipher_tfhe.Client(secret, self._blocks).encrypt
        except ValueError as error:
            raise KeyFormatError(str(error)) from None

    def adder(self, public: bytes) -> Adder:
        return _Sum(public, self._blocks)

    def opener(self, secret: bytes) -> Callable[[bytes, int], Numbers]:
        import fedcipher_tfhe

        try:
            client = fedcipher_tfhe.Client(secret, self._blocks)
        except ValueError as error:
            raise KeyFormatError(str(error)) from None

        def open_(payload: bytes, elements: int) -> Numbers:
            try:
                return client.decrypt(payload, elements)
            except ValueError as error:
                raise FrameError(str(error)) from error
            except RuntimeError as error:
                raise DecryptError(str(error)) from error

        return open_


class _Sum(Adder):
    def __init__(self, public: bytes, blocks: int) -> None:
        import fedcipher_tfhe

        try:
            self._sum = fedcipher_tfhe.Sum(public, blocks)
        except ValueError as error:
            raise KeyFormatError(str(error)) from None

    def add(self, payload: bytes, elements: int) -> None:
        try:
            self._sum.add(payload, elements)
        except ValueError as error:
            raise FrameError(str(error)) from error

    def finish(self) -> bytes:
        return self._sum.finish()
