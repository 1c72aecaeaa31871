"""Float tensors to unsigned integers and back: clip, quantise, keep order and shapes.

The kernels are in `crates/fedcipher-core/src/codec.rs`; this module chooses the clip ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedcipher._native import Layout
from fedcipher.errors import CodecError, LayoutError, ParameterError

__all__ = ["Array", "Codec", "Layout", "flat_float32", "restore"]

Array = NDArray[Any]

# The position is the code on the wire: append only.
_DTYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)

_GAUSS_MIN_ELEMENTS = 32


@dataclass(frozen=True)
class Codec:
    """How updates become integers; all clients of a cohort use the same codec.

    Parameters
    ----------
    bits
        Bits of a value, 4 to 24: one number, or one per tensor.
    clip
        Largest magnitude kept. A number; one per tensor; ``"auto"``: ``margin`` times the largest
        magnitude of the same tensor in the public reference (FedBit section III-A); ``"aciq"``: the
        clip that minimises the mean square error of a normal distribution fitted to the reference
        (dACIQ, FLASHE section 5). The reference is the previous *global* model or update, which
        every client knows, never private data.
    margin
        Safety factor of the fitted ranges: single clients move further than their mean.
    floor
        Smallest fitted range.
    start
        Range of a tensor while there is no reference for it.
    rounding
        ``"nearest"``, or ``"stochastic"`` (unbiased).
    target
        What the clients send: whole ``"weights"``, or the ``"delta"`` against the global model.
    top
        Send only this fraction of each tensor, the same coordinates from every client, chosen from public
        data (`fedcipher.schemes.sparse`); what is not sent waits for its turn (error feedback). Tensors below
        256 elements are sent whole. Needs ``target="delta"``.
    """

    bits: int | Sequence[int] = 16
    clip: float | Sequence[float] | Literal["auto", "aciq"] = "auto"
    margin: float = 2.0
    floor: float = 0.25
    start: float = 1.0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    target: Literal["weights", "delta"] = "weights"
    top: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int):
            object.__setattr__(self, "bits", tuple(self.bits))
        if not isinstance(self.clip, (int, float, str)):
            object.__setattr__(self, "clip", tuple(self.clip))
        if any(not 4 <= b <= 24 for b in self.bit_widths):
            raise ParameterError(f"bits={self.bits}: each must be in 4..24")
        if isinstance(self.clip, str) and self.clip not in ("auto", "aciq"):
            raise ParameterError(f"clip={self.clip!r} is not a number, 'auto' or 'aciq'")
        for name in ("margin", "floor", "start"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ParameterError(f"{name}={getattr(self, name)} is not a positive number")
        if self.rounding not in ("nearest", "stochastic") or self.target not in ("weights", "delta"):
            raise ParameterError(f"rounding={self.rounding!r}, target={self.target!r}: unknown choice")
        if self.top is not None and not 0 < self.top <= 1:
            raise ParameterError(f"top={self.top} is not a fraction in (0, 1]")
        if self.top is not None and self.target != "delta":
            raise ParameterError("top sends part of an update, so the codec must be Codec(target='delta')")

    @property
    def bit_widths(self) -> list[int]:
        """The distinct bit widths, which a scheme needs to cut its fields."""
        return sorted({self.bits} if isinstance(self.bits, int) else set(self.bits))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a key file."""
        return asdict(self)

    def layout(self, update: Sequence[Array], reference: Sequence[Array] | None = None) -> Layout:
        """Shapes, types, bits and clip ranges of ``update``: public, and part of every frame."""
        bits = [self.bits] * len(update) if isinstance(self.bits, int) else list(self.bits)
        if len(bits) != len(update):
            raise LayoutError(f"bits names {len(bits)} tensors but the update has {len(update)}")
        if reference is not None:
            _check_reference(update, reference)
        ranges = self._ranges(len(update), bits, reference)
        described: list[tuple[int, int, float, list[int]]] = []
        for x, b, alpha in zip(update, bits, ranges, strict=True):
            name = np.asarray(x).dtype.name
            if name not in _DTYPES:
                raise LayoutError(f"dtype {name} is not supported; cast to one of {', '.join(_DTYPES)}")
            described.append((_DTYPES.index(name), b, alpha, list(np.shape(x))))
        return Layout(described)

    def _ranges(self, count: int, bits: list[int], reference: Sequence[Array] | None) -> list[float]:
        if isinstance(self.clip, (int, float)):
            return [float(self.clip)] * count
        if not isinstance(self.clip, str):
            if len(self.clip) != count:
                raise LayoutError(f"clip names {len(self.clip)} tensors but the update has {count}")
            return [float(c) for c in self.clip]
        if reference is None:
            if self.target == "weights":
                raise CodecError(
                    f"clip={self.clip!r} fits ranges to a public reference and none was given; pass "
                    "reference=<previous global model>, or a fixed clip=<number>"
                )
            return [self.start] * count
        return [self._fitted(np.asarray(r), b) for r, b in zip(reference, bits, strict=True)]

    def _fitted(self, reference: Array, bits: int) -> float:
        x = np.abs(reference.astype(np.float64, copy=False))
        if x.size == 0:
            return self.start
        if not np.isfinite(x).all():
            raise CodecError("the reference model holds NaN or infinity; restart from a sound global model")
        if self.clip == "aciq" and x.size >= _GAUSS_MIN_ELEMENTS:
            spread = float(np.sqrt(np.mean(np.square(x)))) * gaussian_clip(bits)
        else:
            spread = float(x.max())
        return float(np.float32(max(self.margin * spread, self.floor)))


def gaussian_clip(bits: int) -> float:
    """Clip range, in standard deviations, with least mean square error for a normal variable.

    Minimises quantisation ``alpha^2 / (3 * 4^b)`` plus clipping ``2 * int_alpha^inf (x - alpha)^2 phi``
    by ternary search; both are convex (ACIQ, Banner et al. 2019, section 3).
    """

    def error(alpha: float) -> float:
        tail = math.erfc(alpha / math.sqrt(2)) / 2
        density = math.exp(-alpha * alpha / 2) / math.sqrt(2 * math.pi)
        return alpha**2 / (3 * 4**bits) + 2 * ((1 + alpha**2) * tail - alpha * density)

    low, high = 0.1, 12.0
    for _ in range(100):
        third = (high - low) / 3
        if error(low + third) < error(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def _check_reference(update: Sequence[Array], reference: Sequence[Array]) -> None:
    ours, theirs = [np.shape(x) for x in update], [np.shape(r) for r in reference]
    if ours != theirs:
        raise LayoutError(f"the reference has shapes {theirs} but the update has {ours}")


def flat_float32(update: Sequence[Array]) -> list[NDArray[np.float32]]:
    """Flat contiguous float32 views or copies; finite float64 beyond float32 saturates, to be clipped."""
    flat: list[NDArray[np.float32]] = []
    limit = float(np.finfo(np.float32).max)
    for tensor in update:
        x = np.asarray(tensor)
        if x.dtype == np.float64:
            x = np.where(np.isinf(x), x, np.clip(x, -limit, limit))
        flat.append(np.ascontiguousarray(x, dtype=np.float32).reshape(-1))
    return flat


def restore(layout: Layout, flat: NDArray[np.float32]) -> list[Array]:
    """Cuts flat float32 values into the layout's shapes and types; integers are rounded."""
    out: list[Array] = []
    start = 0
    for code, _, _, shape in layout.tensors:
        dtype = np.dtype(_DTYPES[code])
        size = math.prod(shape)
        piece = flat[start : start + size].reshape(shape)
        start += size
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            piece = np.clip(np.rint(piece.astype(np.float64)), info.min, info.max)
        elif dtype.kind == "b":
            piece = piece >= 0.5
        out.append(piece.astype(dtype, copy=False))
    return out
