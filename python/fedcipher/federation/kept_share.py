"""The share of its update that each client's coding keeps: the part of the coded update along the true one.

The share is <coded, update> / <update, update>, for each array and for all arrays together. Cutting to a range lowers
the share. So does rounding to the nearest step if the range is too wide. Random rounding keeps everything on average,
so its noise is not counted. The error's size alone would mislead: an unbiased code with an error as large as the update
loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, Layout, Levels, largest_magnitude
from fedcipher.federation.answers import Answer, Sums
from fedcipher.federation.charter import Charter
from fedcipher.schemes import Scheme

__all__ = [
    "KEPT_SHARE",
    "MIN_KEPT_SHARE",
    "kept_share_answer",
    "kept_share_lanes",
    "kept_shares",
    "mean_kept_shares",
    "rounds_at_random",
]

KEPT_SHARE = "fedcipher.kept"
"""Name of the lanes: one for the whole update, then one for each array."""
MIN_KEPT_SHARE = 0.95
"""Clients and readers of sums warn if a share is smaller."""
_HALF = 0.5
_SAMPLE = 1 << 16
"""The number of values of an array that are examined at most, at even strides."""


def kept_share_answer(charter: Charter, scheme: Scheme) -> tuple[Answer, ...]:
    """The answer for the lanes, for dense deltas only.

    Sparse updates send later what they leave out. Whole models are not updates. Privacy leaves no room for lanes.
    """
    codec = scheme.codec
    if codec.target != "delta" or codec.top is not None or scheme.sends_parts or codec.privacy is not None:
        return ()
    return (Answer(KEPT_SHARE, 1 + len(charter.arrays), 1 / 256, _HALF, "sum"),)


def kept_share_lanes(parts: Sequence[float]) -> list[float]:
    """Shares as a client sends them: cut to 0 to 1 and shifted by -1/2.

    So a lying client changes the mean by at most one client's share.
    """
    return [min(max(part, 0.0), 1.0) - _HALF for part in parts]


def rounds_at_random(charter: Charter, scheme: Scheme) -> bool:
    """Whether clients round at random if ranges do not follow the updates (else see `fedcipher.federation.coding`).

    They do if the codec asks for it, or if clients have different weights: the update of a client with a small weight
    is a small part of its range. The choice depends on public values only, because others can observe the time of
    coding.
    """
    return scheme.codec.rounding == "stochastic" or not charter.equal_weights


def kept_shares(update: Sequence[Array], layout: Layout, levels: Levels, *, unbiased: bool) -> list[float]:
    """The shares of ``update`` that coding in ``layout`` keeps: of all arrays together, then of each array.

    The share of an array of zeros is 1. ``unbiased``: whether values are rounded at random.
    """
    along, whole = 0.0, 0.0
    parts: list[float] = []
    for x, (_, bits, alpha, _) in zip(update, layout.tensors, strict=True):
        coded, size = _products(x, alpha, levels.of(bits) // 2, unbiased=unbiased)
        parts.append(coded / size if size else 1.0)
        # Each value of a sample stands for several values.
        weight = max(1.0, x.size / _SAMPLE)
        along, whole = along + weight * coded, whole + weight * size
    return [along / whole if whole else 1.0, *parts]


def _products(x: Array, alpha: float, half: int, *, unbiased: bool) -> tuple[float, float]:
    """<coded, x> and <x, x> of a sample. The range is -``alpha`` to ``alpha``, with ``half`` steps on either side."""
    largest = largest_magnitude(x)
    if not largest > 0:
        return 0.0, 0.0
    held = _sampled(x)
    size = float(held @ held)
    if unbiased and largest <= alpha:
        return size, size
    coded = np.clip(held, -alpha, alpha)
    if not unbiased:
        step = alpha / half
        coded = np.rint(coded / step) * step
    return float(coded @ held), size


def _sampled(x: Array) -> NDArray[np.float64]:
    flat = x.reshape(-1)
    return flat[:: -(-flat.size // _SAMPLE)].astype(np.float64)


def mean_kept_shares(sums: Sequence[Sums]) -> list[float]:
    """Mean shares over the clients whose app answered: of all arrays together, then of each array.

    Empty if the frames have no such lanes.
    """
    if not sums or KEPT_SHARE not in sums[0].numbers:
        return []
    counted = sum(s.counted for s in sums)
    return [
        _HALF + sum(held) / counted if counted else 1.0
        for held in zip(*(s.numbers[KEPT_SHARE] for s in sums), strict=True)
    ]
