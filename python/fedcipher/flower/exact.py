"""Whole numbers of 64 bits through a codec of any width: sums of what clients send come out exact.

A codec turns floats into integers of ``bits`` bits and a scheme adds those exactly. A number is cut into limbs
that fit such an integer, each limb goes through as the float that becomes exactly it, and the sums of limbs are
put together again with Python's integers, which do not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Codec
from fedcipher.errors import CodecError, ParameterError

__all__ = ["check_codec", "encode", "limb_bits", "total"]

_BITS = 64
_OFFSET = 1 << (_BITS - 1)
# Floats hold products of 16-bit limbs and a clip range with room to spare: rounding finds the limb again.
_WIDEST = 16


def check_codec(codec: Codec) -> None:
    """Raise `ParameterError` for a codec that does not carry each integer exactly."""
    if codec.privacy is not None:
        raise ParameterError(
            "sums need a codec without privacy, whose noise would be in them; make other keys for them"
        )
    if not isinstance(codec.bits, int) or not isinstance(codec.clip, (int, float, str)):
        raise ParameterError("sums need a codec with one bit width and one clip for all tensors; make other keys")
    if codec.rounding != "nearest" or codec.top is not None:
        raise ParameterError("sums need a codec with rounding='nearest' and without top; make other keys for them")


def limb_bits(bits: int) -> int:
    """Bits of a number that one integer of a codec's ``bits`` carries."""
    return min(bits - 1, _WIDEST)


def encode(numbers: Sequence[int], codec: Codec) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An update of shape (limbs, numbers), float32, and the reference that fixes its clip range.

    Raises `CodecError` for a number outside -2**63 to 2**63 - 1, `ParameterError` as `check_codec`.
    """
    check_codec(codec)
    if not numbers:
        raise CodecError("there is no number to add up")
    for number in numbers:
        if not -_OFFSET <= number < _OFFSET:
            raise CodecError(f"{number} does not fit 64 bits; take a coarser resolution")
    width = limb_bits(codec.bit_widths[0])
    positive = [number + _OFFSET for number in numbers]
    limbs = [[(value >> shift) & ((1 << width) - 1) for value in positive] for shift in range(0, _BITS, width)]
    reference = np.ones((len(limbs), len(numbers)), np.float32)
    ((_, bits, clip, _),) = codec.layout([reference], [reference]).tensors
    half = (1 << (bits - 1)) - 1
    return (np.asarray(limbs, np.float64) * (clip / half)).astype(np.float32), reference


def total(sums: NDArray[np.uint64], contributors: int, bits: int) -> list[int]:
    """The sums of the clients' numbers, from the integer sums of their updates and how many clients are in them."""
    width, half = limb_bits(bits), (1 << (bits - 1)) - 1
    shifts = range(0, _BITS, width)
    if sums.size % len(shifts):
        raise CodecError(f"{sums.size} integers are not numbers of {len(shifts)} limbs each")
    rows = sums.reshape(len(shifts), -1).tolist()
    # Zero of a codec is half of its largest integer, once a client.
    return [
        sum((limb - contributors * half) << shift for limb, shift in zip(column, shifts, strict=True))
        - contributors * _OFFSET
        for column in zip(*rows, strict=True)
    ]
