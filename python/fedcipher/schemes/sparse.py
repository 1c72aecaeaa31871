"""Selects the part of an update that a round sends, the same part for every client, and keeps the rest for later.

Public data determine the coordinates of a round: the last aggregate's mean and the round number
(`crates/fedcipher-core/src/sparse.rs`). The choice therefore reveals nothing about a client, no positions travel, and a
scheme sees a smaller dense update. If clients disagree on the set, their sum does not open, because the MAC covers the
set's digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.codec import Array, Layout, Levels, flat_float32
from fedcipher.errors import FrameError, LayoutError, NotFiniteError, ParameterError

__all__ = ["CommonSet", "Feedback", "dequantised", "set_of"]

_LARGEST = float(np.finfo(np.float32).max)


class CommonSet:
    """The set of coordinates of one round.

    Parameters
    ----------
    like
        Arrays of the model's shapes.
    reference
        The last aggregate's mean, which all clients have; None before the first aggregate.
    round, top
        Number of the round, and the fraction of each tensor to send (0 to 1).

    Raises `LayoutError` if the reference has other shapes.
    """

    def __init__(self, like: Sequence[Array], reference: Sequence[Array] | None, round: int, top: float) -> None:
        self.shapes = [np.shape(x) for x in like]
        lengths = [math.prod(shape) for shape in self.shapes]
        if reference is not None and [np.shape(r) for r in reference] != self.shapes:
            raise LayoutError(f"the reference has shapes {[np.shape(r) for r in reference]}, not {self.shapes}")
        flat = None if reference is None else np.concatenate([*flat_float32(reference), np.empty(0, np.float32)])
        self.index = _native.common_set(lengths, flat, round, top)
        self.elements = sum(lengths)
        ends = np.searchsorted(self.index, np.cumsum([0, *lengths]))
        self._cuts: list[int] = ends[1:-1].tolist()
        self.counts: list[int] = np.diff(ends).tolist()
        text = f"fedcipher common set: {self.shapes}: ".encode()
        self.digest = hashlib.sha256(text + self.index.astype("<u4").tobytes()).digest()
        """SHA-256 of the set: associated data, which the MAC covers, on both ends."""

    def gather(self, flat: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the chosen values of a flat update, tensor by tensor."""
        return np.split(flat[self.index], self._cuts)

    def scatter(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Put values of `gather` back at their coordinates of a flat update, with zeros elsewhere."""
        flat = np.zeros(self.elements, np.float32)
        flat[self.index] = values
        return flat

    def gathered(self, layout: Layout) -> Layout:
        """The layout of the result of `gather`, for an update of ``layout``."""
        tensors = zip(layout.tensors, self.counts, strict=True)
        return Layout([(dtype, bits, alpha, [count]) for (dtype, bits, alpha, _), count in tensors])

    def scattered(self, layout: Layout) -> Layout:
        """The layout of the whole update for a layout of `gathered`; `LayoutError` for a layout of another set."""
        if [shape for _, _, _, shape in layout.tensors] != [[count] for count in self.counts]:
            raise LayoutError(
                "the aggregate has other coordinates than this round; give the reference (the last aggregate's mean) "
                "and the shapes that its clients had"
            )
        tensors = zip(layout.tensors, self.shapes, strict=True)
        return Layout([(dtype, bits, alpha, list(shape)) for (dtype, bits, alpha, _), shape in tensors])


class Feedback:
    """The values that a client has not sent yet, to add to its next update (error feedback). Secret to the client."""

    def __init__(self) -> None:
        self._residual = np.empty(0, np.float32)

    def corrected(self, update: Sequence[Array]) -> NDArray[np.float32]:
        """``update``, flat, plus the unsent values. Raises `NotFiniteError`, `LayoutError`."""
        flat = flat_float32(update)
        for tensor, x in enumerate(flat):
            if not np.isfinite(x).all():
                index = int(np.argmin(np.isfinite(x)))
                raise NotFiniteError(
                    f"tensor {tensor} holds {x[index]} at flat index {index}; training diverged: lower the "
                    "learning rate or drop this client from the round"
                )
        total = np.concatenate([*flat, np.empty(0, np.float32)])
        if self._residual.size == 0:
            return total
        if self._residual.size != total.size:
            raise LayoutError(
                f"the error feedback has {self._residual.size} values but the update has {total.size}; make "
                "another encryptor for a model of other shapes"
            )
        with np.errstate(over="ignore"):
            return np.clip(total + self._residual, -_LARGEST, _LARGEST)

    def keep(self, corrected: NDArray[np.float32], index: NDArray[np.uint32], sent: NDArray[np.float32]) -> None:
        """Keep the unsent values, and the clipping and quantisation error of the sent values."""
        residual = corrected.copy()
        residual[index] -= sent
        self._residual = residual

    def export(self) -> bytes:
        """The unsent values as float32, little-endian; empty before the first update."""
        return self._residual.astype("<f4").tobytes()

    def restore(self, state: bytes) -> None:
        """Continue with the result of `export`. Raises `FrameError`."""
        residual = np.frombuffer(state, "<f4").astype(np.float32) if len(state) % 4 == 0 else None
        if residual is None or not np.isfinite(residual).all():
            raise FrameError("the stored error-feedback state is damaged; delete it to start from zero")
        self._residual = residual


def dequantised(layout: Layout, integers: NDArray[np.uint32], levels: Levels) -> NDArray[np.float32]:
    """Convert ``integers`` to float32 values. Quantising these to the nearest gives the same integers again."""
    out = np.empty(integers.size, np.float32)
    start = 0
    for _, bits, alpha, shape in layout.tensors:
        end = start + math.prod(shape)
        most = levels.of(bits)
        out[start:end] = (integers[start:end].astype(np.float64) - most // 2) * (2.0 * alpha / most)
        start = end
    return out


def set_of(like: Sequence[Array] | None, reference: Sequence[Array] | None, round: int, top: float) -> CommonSet:
    """The set of a round, for a decryptor. Raises `ParameterError` if neither argument gives the model's shapes."""
    shapes = like if like is not None else reference
    if shapes is None:
        raise ParameterError(
            "an aggregate of a codec with top has no positions: pass like=<the model's arrays>, and from the second "
            "aggregate on reference=<the previous aggregate's mean>"
        )
    return CommonSet(shapes, reference, round, top)
