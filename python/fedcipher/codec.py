"""Converts float tensors to unsigned integers and back: clips, quantises, keeps order and shapes.

The kernels are in `crates/fedcipher-core/src/codec.rs`. This module chooses the clip ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._arguments import (
    as_array,
    as_arrays,
    as_plain,
    instance_of,
    listed,
    real_number,
    real_numbers,
    truth,
    whole_number,
)
from fedcipher._native import Layout, Levels
from fedcipher.dp import Privacy
from fedcipher.errors import CodecError, LayoutError, ParameterError

__all__ = [
    "AUTO_BITS",
    "MAX_BITS",
    "MIN_BITS",
    "Array",
    "Codec",
    "LaneCodec",
    "Layout",
    "Levels",
    "codec_or",
    "flat_float32",
    "largest_magnitude",
    "restore",
    "root_mean_square",
    "value_bits",
    "vanished",
    "without_lanes",
    "without_ranges",
]

Array = NDArray[Any]

# A type's position is its code on the wire, so only append.
_DTYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)

# The wire code of lanes beside an update: whole numbers with exact sums. The core never rounds them at random, and
# opening gives their sum instead of their mean (``codec::WHOLE``).
_WHOLE = 12
_SHORT = 128
"""Lanes per tensor if each client chooses its coordinates. FLASHE sends tensors of this size whole."""

_GAUSS_MIN_ELEMENTS = 32
# Outside these limits a step is not a float32, and no update could be encrypted under the keys.
_MIN_CLIP, _MAX_CLIP = 1e-30, 1e30
MIN_BITS, MAX_BITS = 2, 24
AUTO_BITS = (3, 5, 8)
"""These bits give at least 6, 24 and 254 steps."""
_OF_BITS = Levels()


@dataclass(frozen=True)
class Codec:
    """How updates become integers. All clients of a cohort use the same codec.

    Parameters
    ----------
    bits
        Bits of a value, 2 to 24: one number, or one for each tensor. With ``"auto"`` a run chooses among `AUTO_BITS`
        by the noise of its opened sums (`fedcipher.federation.bit_widths`). A value has at least ``2^bits - 1`` steps,
        and more if the field of a sum has room.
    clip
        Largest magnitude of a value; larger values are clipped. A number, or one for each tensor. ``"auto"``:
        ``margin`` times the largest magnitude of the same tensor in the public reference (FedBit, section V: FEDBIT
        FRAMEWORK). ``"aciq"``: the clip that minimises the mean square error of a normal distribution fitted to the
        reference (dACIQ; FLASHE, section 5.2: Executor Details). The reference is the previous *global* model or
        update, which every client knows. It is never private data.
    margin
        Safety factor of the fitted ranges, because single clients move further than their mean.
    floor
        Smallest fitted range, with ``top``, with ``clip="aciq"`` or for whole weights. ``None`` means 1 if the bits
        then give a step of at most 2^-11, and less below 12 bits, but at least 0.25. Other deltas have only float32's
        limit: in a range of 1 with 12 bits, an update of 1e-4 would vanish.
    start
        For deltas: the range of each tensor before the first reference. For whole weights: the smallest range
        (`first_ranges`). ``None``: a run whose ranges follow the updates (`fedcipher.federation.ranges`) finds them
        with a sum of histograms; other runs use 1.
    rounding
        ``"nearest"``, or ``"stochastic"`` (unbiased). If ranges follow, ``"nearest"`` applies only to values for which
        it is unbiased (`fedcipher.federation.coding`).
    target
        What clients send: the ``"delta"`` against the global model, or whole ``"weights"``.
    top
        Send only this fraction of each tensor (0 to 1). Public data determine the coordinates, which are the same for
        every client (`fedcipher.schemes.sparse`). Unsent values are added to the next update (error feedback). Tensors
        below 256 elements are sent whole. Needs ``target="delta"``.
    privacy
        A `fedcipher.dp.Privacy`: updates are clipped and every client adds its share of noise. Range and rounding
        follow from it. Needs one number of bits, ``clip="auto"``, ``target="delta"`` and no ``top``.
    adaptive
        Whether a run chooses among ``bits``, which then grow. ``bits="auto"`` sets this.
    """

    bits: int | Sequence[int] | Literal["auto"] = 16
    clip: float | Sequence[float] | Literal["auto", "aciq"] = "auto"
    margin: float = 2.0
    floor: float | None = None
    start: float | None = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    target: Literal["weights", "delta"] = "delta"
    top: float | None = None
    privacy: Privacy | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bits, str) and self.bits == "auto":
            object.__setattr__(self, "bits", AUTO_BITS)
            object.__setattr__(self, "adaptive", True)
        truth(self.adaptive, "adaptive")
        self._check_ranges()
        self._check_positive()
        if self.floor is not None and (self.clip, self.target, self.top) == ("auto", "delta", None):
            raise ParameterError(
                f"floor={self.floor}: ranges follow updates of any size; leave out floor, or give clip a number"
            )
        for given in (self.rounding, self.target):
            instance_of(given, str, "rounding or target", "give a text")
        if self.rounding not in ("nearest", "stochastic") or self.target not in ("weights", "delta"):
            raise ParameterError(f"rounding={self.rounding!r}, target={self.target!r}: unknown choice")
        if self.top is not None and not 0 < self.top <= 1:
            raise ParameterError(f"top={self.top} is not a fraction in (0, 1]")
        if self.top is not None and self.target != "delta":
            raise ParameterError("top sends part of an update, so the codec must be Codec(target='delta')")
        given: Any = self.privacy
        if isinstance(given, Mapping):
            # The form in a key file.
            object.__setattr__(self, "privacy", Privacy.of(cast("Mapping[str, Any]", given)))
        elif not (given is None or isinstance(given, Privacy)):
            raise ParameterError(f"privacy={given!r} is not a fedcipher.dp.Privacy")
        if self.privacy is not None:
            self._check_privacy()
        if self.adaptive:
            self._check_adaptive()

    def _check_ranges(self) -> None:
        if isinstance(self.clip, str) and self.clip not in ("auto", "aciq"):
            raise ParameterError(f"clip={self.clip!r} is not a number, 'auto' or 'aciq'")
        for name in ("bits", "clip"):
            object.__setattr__(self, name, _one_or_several(getattr(self, name), name))
        for bits in _values(self.bits):
            whole_number(bits, "bits", MIN_BITS, MAX_BITS)
        for clip in () if isinstance(self.clip, str) else _values(self.clip):
            real_number(clip, "clip", _MIN_CLIP, _MAX_CLIP)

    def _check_positive(self) -> None:
        for name in ("margin", "floor", "start", "top"):
            value = getattr(self, name)
            if value is None and name != "margin":
                continue
            number = real_number(value, name)
            if number <= 0:
                right = "a fraction in (0, 1]" if name == "top" else "a positive number"
                raise ParameterError(f"{name}={number} is not {right}")
            object.__setattr__(self, name, number)

    def _check_privacy(self) -> None:
        if self.target != "delta":
            raise ParameterError("privacy clips an update, so the codec must be Codec(target='delta')")
        if self.top is not None:
            raise ParameterError(
                "privacy and top cannot be combined: error feedback would subtract the noise of unsent values in a "
                "later round; leave out top"
            )
        if self.clip != "auto":
            raise ParameterError(f"clip={self.clip!r}: with privacy the range follows from its clip; leave out clip")
        if len(self.bit_widths) != 1:
            raise ParameterError(f"bits={self.bits}: privacy needs one grid; give one number of bits for all tensors")

    def _check_adaptive(self) -> None:
        if (self.clip, self.target, self.top) != ("auto", "delta", None):
            raise ParameterError(
                'bits="auto" needs ranges that follow the updates: clip="auto", target="delta" and no top; or give a '
                "number of bits"
            )
        if isinstance(self.bits, int) or self.bit_widths != list(self.bits):
            raise ParameterError(f"bits={self.bits}: an adaptive codec needs several numbers of bits in rising order")

    @property
    def _start(self) -> float:
        return 1.0 if self.start is None else self.start

    @property
    def bit_widths(self) -> list[int]:
        """The distinct bit widths, from which a scheme derives its fields."""
        return sorted({self.bits} if isinstance(self.bits, int) else {int(b) for b in self.bits})

    def at(self, bits: int = 0) -> Codec:
        """Return this codec with the ``bits`` that a run has chosen; 0 means the bits that a run begins with.

        Raises `ParameterError` for bits that are not a choice.
        """
        bits = whole_number(bits, "bits", 0, MAX_BITS)
        if not self.adaptive:
            if bits:
                raise ParameterError(f"bits={bits}: the bits of this codec are fixed; leave out bits, or give 0")
            return self
        widths = self.bit_widths
        chosen = bits or widths[len(widths) // 2]
        if chosen not in widths:
            raise ParameterError(f"bits={bits} is not one of {widths}")
        return replace(self, bits=chosen, adaptive=False)

    def bits_of(self, arrays: Sequence[Array]) -> list[int]:
        """Bits of a value, for each of these tensors."""
        count = len(listed(arrays, "arrays"))
        bits = self.at().bits if self.adaptive else self.bits
        return [bits] * count if isinstance(bits, int) else [int(b) for b in bits]

    def to_dict(self) -> dict[str, Any]:
        """The codec as plain values for a key file."""
        values = asdict(self)
        # Digests of models cover this text, so a codec without these fields keeps its earlier form.
        if self.privacy is None:
            del values["privacy"]
        if not self.adaptive:
            del values["adaptive"]
        return values

    def layout(
        self, update: Sequence[Array], reference: Sequence[Array] | None = None, levels: Levels = _OF_BITS
    ) -> Layout:
        """Shapes, types, bits and clip ranges of ``update``. They are public and part of every frame.

        ``levels`` are the levels of the scheme: ranges of whole numbers are multiples of their steps. With ``privacy``
        the scheme determines ranges (`fedcipher.schemes.noise`), and this raises `ParameterError`. Raises
        `LayoutError`, `CodecError`.
        """
        if self.privacy is not None:
            raise ParameterError("with privacy an update's range follows from the scheme; use the scheme's encryptor")
        update = as_arrays(update, "update")
        levels = instance_of(levels, Levels, "levels", "give Scheme.levels")
        bits = self.bits_of(update)
        if len(bits) != len(update):
            raise LayoutError(f"bits names {len(bits)} tensors but the update has {len(update)}")
        if reference is not None:
            reference = as_arrays(reference, "reference")
            _check_reference(update, reference)
        ranges = self._ranges(update, bits, reference, levels)
        described: list[tuple[int, int, float, list[int]]] = []
        for x, b, alpha in zip(update, bits, ranges, strict=True):
            described.append((_dtype_code(x), b, alpha, list(np.shape(x))))
        return Layout(described)

    def check(self, model: Sequence[Array], names: Sequence[str]) -> None:
        """Raise `LayoutError` or `CodecError`, with the array's name and the reason, if the model cannot be encoded."""
        model, names = listed(model, "model"), listed(names, "names")
        if len(model) != len(names):
            raise LayoutError(f"{len(names)} names for the {len(model)} arrays of a model")
        for name, given in zip(names, model, strict=True):
            try:
                values = as_array(given, "its value")
                _dtype_code(values)
                if not np.isfinite(values).all():
                    raise CodecError("the array holds NaN or infinity")
                if self.privacy is not None:
                    self.check_floats([values])
            except CodecError as error:
                raise type(error)(f"array {name!r}: {error}") from None
        # Checks that concern all arrays together: the numbers of bits and ranges.
        if self.privacy is None:
            self.layout(model, model)

    @staticmethod
    def check_floats(arrays: Sequence[Array]) -> None:
        """Raise `LayoutError` for arrays of whole numbers or truth values, which noise cannot hide."""
        for x in as_arrays(arrays, "arrays"):
            if x.dtype.kind != "f":
                raise LayoutError(
                    f"privacy covers only floats, and the array's type is {x.dtype.name}; leave the array out of the "
                    "model's ArrayRecord, or cast it to float32"
                )

    def first_ranges(self, model: Sequence[Array]) -> list[float]:
        """Clip ranges, one for each array, for the first update of a ``model`` without a public reference.

        For deltas these are ``start``, if given. Otherwise a range is ``margin`` times the largest magnitude of the
        array, and at least ``start``. The first movement of a tensor is unknown: a batch norm's mean begins at zero and
        moves to the mean of the data. If the bits allow, a range is therefore wider, up to a step of 2^-12, or 2^-10
        for arrays of at most one dimension, which are short and move furthest. Raises `LayoutError`.
        """
        model = as_arrays(model, "model")
        bits = self.bits_of(model)
        if len(bits) != len(model):
            raise LayoutError(f"bits names {len(bits)} tensors but the model has {len(model)}")
        if self.start is not None and self.target == "delta":
            return [self.start] * len(bits)
        ranges: list[float] = []
        for x, b in zip(model, bits, strict=True):
            largest = largest_magnitude(x)
            wide = ((1 << b) - 2) * (2.0**-11 if np.ndim(x) <= 1 else 2.0**-13)
            ranges.append(max(self._start, self.margin * largest, wide))
        return ranges

    def reference_of(self, ranges: Sequence[float], model: Sequence[Array]) -> list[Array]:
        """Make arrays with the shapes of ``model`` whose fitted ranges are exactly ``ranges``. Raises `LayoutError`."""
        model = as_arrays(model, "model")
        bits = self.bits_of(model)
        given = real_numbers(ranges, "ranges")
        if not len(given) == len(bits) == len(model):
            raise LayoutError(f"{len(given)} ranges and bits for {len(bits)} tensors, but the model has {len(model)}")
        out: list[Array] = []
        for alpha, x, b in zip(given, model, bits, strict=True):
            spread = gaussian_clip(b) if self.clip == "aciq" and x.size >= _GAUSS_MIN_ELEMENTS else 1.0
            out.append(np.broadcast_to(np.float64(alpha / (self.margin * spread)), x.shape))
        return out

    def _ranges(
        self, update: Sequence[Array], bits: list[int], reference: Sequence[Array] | None, levels: Levels
    ) -> list[float]:
        count = len(update)
        if isinstance(self.clip, (int, float)):
            return [float(self.clip)] * count
        if not isinstance(self.clip, str):
            if len(self.clip) != count:
                raise LayoutError(f"clip names {len(self.clip)} tensors but the update has {count}")
            return [float(c) for c in self.clip]
        if reference is None:
            if self.target == "weights":
                raise CodecError(
                    f"clip={self.clip!r} fits ranges to a public reference, which is missing; pass "
                    "reference=<previous global model>, or a fixed clip=<number>"
                )
            return [self._start] * count
        return [
            self._fitted(np.asarray(r), b, np.asarray(u), levels.of(b) // 2)
            for r, b, u in zip(reference, bits, update, strict=True)
        ]

    def _fitted(self, reference: Array, bits: int, update: Array, half: int) -> float:
        """The range of ``update``, which has ``half`` steps on either side of zero."""
        if update.dtype.kind in "iu":
            # Whole numbers stay exact: a step is a whole number, and 1 if the range allows.
            largest = largest_magnitude(reference)
            return float(np.float32(half * max(1, math.ceil(self.margin * largest / half - 1e-6))))
        if reference.size == 0:
            return self._start
        largest = largest_magnitude(reference)
        if not math.isfinite(largest):
            raise CodecError("the reference model holds NaN or infinity; restart from a global model of finite numbers")
        if self.clip == "aciq" and reference.size >= _GAUSS_MIN_ELEMENTS:
            squares = np.square(reference.astype(np.float64, copy=False))
            spread = float(np.sqrt(np.mean(squares))) * gaussian_clip(bits)
        else:
            spread = largest
        if spread == 0:
            # A reference of zeros gives no scale for the next update.
            return self.floor or self._start
        return float(np.float32(max(self.margin * spread, self._floor(bits))))

    def _floor(self, bits: int) -> float:
        if self.floor is not None:
            return self.floor
        if self.top is None and self.target == "delta":
            return _MIN_CLIP
        # Whole weights leave the range of their last mean during training. With top, error feedback keeps what is
        # rounded away, while a narrow range would clip clients that pull in different directions.
        return min(1.0, max(0.25, ((1 << bits) - 2) * 2.0**-12))


def codec_or(codec: Codec | None, bits: int) -> Codec:
    """``codec``, or a codec of ``bits`` bits for None. Raises `ParameterError` for other types."""
    return Codec(bits=bits) if codec is None else instance_of(codec, Codec, "codec", "give a fedcipher.Codec")


def _one_or_several(given: Any, name: str) -> Any:
    """Convert to Python's own numbers: a single value, or a tuple with a value for each tensor."""
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given.item()
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        return as_plain(given)
    values = tuple(as_plain(value) for value in cast("Iterable[Any]", given))
    if not values:
        raise ParameterError(f"{name} is empty; give one value, or one for each tensor")
    return values


def _values(given: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)


def gaussian_clip(bits: int) -> float:
    """The clip range, in standard deviations, with least mean square error for a normal variable of ``2^bits`` levels.

    A ternary search minimises quantisation ``alpha^2 / (3 * 4^b)`` plus clipping
    ``2 * int_alpha^inf (x - alpha)^2 phi``. Both are convex (ACIQ, Banner et al. 2019, section 3).
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


def largest_magnitude(x: Array) -> float:
    """The largest magnitude in ``x``; NaN if ``x`` holds NaN. Makes no copy of ``x``, which may be a large model."""
    # Negate as a float: the smallest integer of a type has no negative in that type, and a boolean has none.
    return max(float(x.max()), -float(x.min())) if x.size else 0.0


def root_mean_square(x: Array) -> float:
    """The root of the mean square of finite numbers, computed in float64; 0 for an empty array."""
    flat = np.asarray(x).reshape(-1)
    if flat.dtype != np.float32:
        # Other types are rare or small, so the copy is acceptable.
        return float(np.sqrt(np.mean(np.square(flat.astype(np.float64))))) if flat.size else 0.0
    return math.sqrt(_native.mean_square(np.ascontiguousarray(flat)))


def vanished(layout: Layout, flat: Sequence[NDArray[np.float32]], levels: Levels = _OF_BITS) -> list[int]:
    """The number of values of each tensor that rounding to the nearest turns entirely into zeros; 0 for other tensors.

    A single range for all tensors can do this to tensors of small values. A batch norm's variances, which must not be
    zero, vanish in 8 bits of a range of 5.
    """
    found: list[int] = []
    for (_, bits, alpha, _), x in zip(layout.tensors, flat, strict=True):
        least = alpha / levels.of(bits)
        # The first values usually suffice to show that something remains.
        largest = largest_magnitude(x[:1024])
        if not largest >= least:
            largest = largest_magnitude(x)
        found.append(x.size if 0 < largest < least else 0)
    return found


def _dtype_code(x: Array) -> int:
    name = np.asarray(x).dtype.name
    if name not in _DTYPES:
        raise LayoutError(f"dtype {name} is not supported; cast to one of {', '.join(_DTYPES)}")
    return _DTYPES.index(name)


def _check_reference(update: Sequence[Array], reference: Sequence[Array]) -> None:
    ours, theirs = [np.shape(x) for x in update], [np.shape(r) for r in reference]
    if ours != theirs:
        raise LayoutError(f"the reference has shapes {theirs} but the update has {ours}")


def flat_float32(update: Sequence[Array]) -> list[NDArray[np.float32]]:
    """Convert to flat contiguous float32 views or copies. Finite float64 values beyond float32 become its limits."""
    flat: list[NDArray[np.float32]] = []
    limit = float(np.finfo(np.float32).max)
    for tensor in update:
        x = np.asarray(tensor)
        if x.dtype == np.float64:
            x = np.where(np.isinf(x), x, np.clip(x, -limit, limit))
        flat.append(np.ascontiguousarray(x, dtype=np.float32).reshape(-1))
    return flat


_Described = list[tuple[int, int, float, list[int]]]


@dataclass(frozen=True)
class LaneCodec:
    """Encodes whole numbers beside an update: first counts, which are 0 or 1, then digits of larger numbers."""

    bits: tuple[int, int]
    """Bits of (a count, a digit)."""
    levels: Levels
    """The levels of the scheme."""
    short: bool = False
    """Whether to use many short tensors instead of long ones."""

    def _runs(self, lanes: int, counts: int) -> list[tuple[int, int]]:
        """(bits, lanes) of each tensor."""
        made: list[tuple[int, int]] = []
        for bits, size in zip(self.bits, (counts, lanes - counts), strict=True):
            step = _SHORT if self.short else max(1, size)
            made += [(bits, min(step, size - at)) for at in range(0, size, step)]
        return made

    def tensors(self, lanes: int, counts: int) -> _Described:
        """The layout of ``lanes`` lanes, of which the first ``counts`` are counts. A step is 1."""
        return [(_WHOLE, bits, float(self.levels.of(bits) // 2), [size]) for bits, size in self._runs(lanes, counts)]

    def beside(self, layout: Layout, lanes: int, counts: int) -> Layout:
        """``layout`` followed by the lanes."""
        return Layout([*layout.tensors, *self.tensors(lanes, counts)]) if lanes else layout

    def split(self, lanes: NDArray[np.float32] | None, counts: int) -> list[NDArray[np.float32]]:
        """Split ``lanes`` into the arrays of `tensors`."""
        if lanes is None:
            return []
        ends = np.cumsum([size for _, size in self._runs(lanes.size, counts)])
        return np.split(lanes, ends[:-1]) if lanes.size else []


def value_bits(layout: Layout) -> list[int]:
    """The distinct bits of the values in ``layout``, without the bits of lanes."""
    return sorted({bits for code, bits, _, _ in layout.tensors if code != _WHOLE})


def without_ranges(layout: Layout) -> Layout:
    """``layout`` with ranges of 1, for a frame whose ranges both ends know."""
    return Layout([(code, bits, 1.0, shape) for code, bits, _, shape in layout.tensors])


def without_lanes(layout: Layout, flat: NDArray[np.float32]) -> tuple[Layout | None, NDArray[np.float32], list[int]]:
    """Split an opened mean into layout, values and the exact sums of lanes. There is no layout without values."""
    tensors = layout.tensors
    count = sum(math.prod(shape) for code, _, _, shape in tensors if code == _WHOLE)
    if not count:
        return layout, flat, []
    rest = [tensor for tensor in tensors if tensor[0] != _WHOLE]
    means, lanes = flat[: flat.size - count], flat[flat.size - count :]
    return Layout(rest) if rest else None, means, [int(n) for n in lanes]


def restore(layout: Layout, flat: NDArray[np.float32]) -> list[Array]:
    """Cut flat float32 values into the layout's shapes and types. Integers are rounded. Raises `LayoutError`."""
    out: list[Array] = []
    start = 0
    for code, _, _, shape in layout.tensors:
        if code >= len(_DTYPES):
            # The core does not interpret this code. All clients of the cohort have sent the same one.
            raise LayoutError(
                f"an array has element type {code}, and this Fedcipher knows only 0 to {len(_DTYPES) - 1}; upgrade "
                "Fedcipher"
            )
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
