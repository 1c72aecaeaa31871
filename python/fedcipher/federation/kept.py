"""How much of its update each client's coding keeps: the part of the coded update that lies along the true one.

That is <coded, update> / <update, update>, for each array and for all together. A cut to a range, and rounding to the
nearest step of a range that is too wide, take from it; rounding at random takes nothing in the mean, so its noise is
left out. Error alone is no measure: an unbiased code that is off by as much as the update loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher.codec import Array, Layout, Levels, largest_magnitude
from fedcipher.federation.answers import Answer, Sums
from fedcipher.federation.charter import Charter
from fedcipher.schemes import Scheme

__all__ = ["ENOUGH", "KEPT", "kept_answer", "kept_lanes", "kept_means", "kept_parts", "rounds_at_random"]

KEPT = "fedcipher.kept"
"""Names the lanes: of the whole update, then of each array."""
ENOUGH = 0.95
"""Below it clients and whoever opens sums warn."""
_HALF = 0.5
_SAMPLE = 1 << 16
"""Values of an array that are looked at, in even strides."""


def kept_answer(charter: Charter, scheme: Scheme) -> tuple[Answer, ...]:
    """The lanes, of dense deltas: what sparse updates leave out waits, and whole models are no updates."""
    codec = scheme.codec
    if codec.target != "delta" or codec.top is not None or scheme.sends_parts or codec.privacy is not None:
        return ()
    return (Answer(KEPT, 1 + len(charter.arrays), 1 / 256, _HALF, "sum"),)


def kept_lanes(parts: Sequence[float]) -> list[float]:
    """As a client sends them: from 0 to 1 about their middle, so that no lie is worth more than one client's loss."""
    return [min(max(part, 0.0), 1.0) - _HALF for part in parts]


def rounds_at_random(charter: Charter, scheme: Scheme) -> bool:
    """Whether clients round at random where no ranges follow (`fedcipher.federation.coding`).

    Where they weigh differently, since a small client's update is a small part of its range. It follows from public
    numbers, because the time of coding can be seen.
    """
    return scheme.codec.rounding == "stochastic" or not charter.equal_weights


def kept_parts(update: Sequence[Array], layout: Layout, levels: Levels, *, unbiased: bool) -> list[float]:
    """What coding in ``layout`` keeps of ``update``, together and by array; 1 of zeros. ``unbiased``: at random."""
    along, whole = 0.0, 0.0
    parts: list[float] = []
    for x, (_, bits, alpha, _) in zip(update, layout.tensors, strict=True):
        coded, size = _products(x, alpha, levels.of(bits) // 2, unbiased=unbiased)
        parts.append(coded / size if size else 1.0)
        # Of a sample each value stands for several.
        weight = max(1.0, x.size / _SAMPLE)
        along, whole = along + weight * coded, whole + weight * size
    return [along / whole if whole else 1.0, *parts]


def _products(x: Array, alpha: float, half: int, *, unbiased: bool) -> tuple[float, float]:
    """<coded, x> and <x, x> of a sample; a range has ``half`` steps on either side."""
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


def kept_means(sums: Sequence[Sums]) -> list[float]:
    """The means over the clients that count, together and by array; empty where the frames do not say."""
    if not sums or KEPT not in sums[0].numbers:
        return []
    counted = sum(s.counted for s in sums)
    return [
        _HALF + sum(held) / counted if counted else 1.0 for held in zip(*(s.numbers[KEPT] for s in sums), strict=True)
    ]
