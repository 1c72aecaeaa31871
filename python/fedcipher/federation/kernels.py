"""The array operations of `fedcipher.federation.coding`, in native code and on a GPU.

Both compute the same values to the bit: butterflies run in one order, divisions and steps follow IEEE 754, and no
operations are fused. Only sums may differ in their last bits on a GPU. Each client uses sums of its own update only.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fedcipher import _native
from fedcipher.tensors import is_on_gpu, torch_of, with_numpy

__all__ = ["Kernels", "OnDevice", "kernels_of", "split"]

_MAX_BLOCK = 4096
"""Same value as ``rotation::MAX_BLOCK`` in Rust."""
_DRAWN = 1 << 26
"""Number of values whose random draws are on a GPU at one time."""


class Kernels(Protocol):
    """The operations. Arrays are flat, float32 and finite. A row is a concatenation of arrays."""

    def flat(self, x: Any) -> Any:
        """``x`` with shape (number of values,)."""
        ...

    def divided(self, arrays: Sequence[Any], divisors: Sequence[float]) -> Any:
        """All arrays concatenated, each divided by its own divisor."""
        ...

    def rotated(self, row: Any, seed: bytes, *, back: bool) -> Any:
        """A row rotated by the rotation of ``seed``, or rotated back. May overwrite the row."""
        ...

    def cut(self, row: Any, lengths: Sequence[int], ends: Sequence[float]) -> tuple[Any, list[int], Any | None]:
        """A row clipped to -``ends`` to ``ends``, the number of clipped values of each array, and the cut part.

        If nothing was cut, None stands for the cut part. May overwrite the row.
        """
        ...

    def whole_steps(self, values: Any, step: float, *, at_random: bool, draws: bytes, stream: int) -> Any:
        """Values rounded to the nearest multiple of ``step``, or at random to one of two. May overwrite the values."""
        ...

    def multiplied(self, values: Any, factor: float) -> Any:
        """Values times ``factor``, computed in double precision and clipped to float32. May overwrite the values."""
        ...

    def dot(self, x: Any, y: Any) -> float:
        """The dot product of two arrays."""
        ...

    def mean_square(self, x: Any) -> float:
        """The mean of the squares; 0 for an empty array."""
        ...

    def nearest_squares(self, values: Any, step: float) -> Sequence[float]:
        """Mean squares of values, of their nearest multiples of ``step``, and of the differences."""
        ...


class _Native:
    def flat(self, x: Any) -> Any:
        return np.ascontiguousarray(x).reshape(-1)

    def divided(self, arrays: Sequence[Any], divisors: Sequence[float]) -> Any:
        return _native.divided(list(arrays), list(divisors))

    def rotated(self, row: Any, seed: bytes, *, back: bool) -> Any:
        _native.rotate(row, seed, back)
        return row

    def cut(self, row: Any, lengths: Sequence[int], ends: Sequence[float]) -> tuple[Any, list[int], Any | None]:
        beyond, over = _native.cut(row, list(lengths), list(ends))
        return row, beyond, over

    def whole_steps(self, values: Any, step: float, *, at_random: bool, draws: bytes, stream: int) -> Any:
        _native.whole_steps(values, step, at_random, draws, stream)
        return values

    def multiplied(self, values: Any, factor: float) -> Any:
        _native.multiply(values, factor)
        return values

    def dot(self, x: Any, y: Any) -> float:
        return _native.dot(x, y)

    def mean_square(self, x: Any) -> float:
        return _native.mean_square(x)

    def nearest_squares(self, values: Any, step: float) -> Sequence[float]:
        return _native.nearest_squares(values, step)


class OnDevice:
    """`Kernels` made of operations that PyTorch and NumPy share; ``xp`` is one of the two modules."""

    def __init__(self, xp: Any, device: Any = None) -> None:
        self._xp, self._device = xp, device

    def flat(self, x: Any) -> Any:
        return x.reshape(-1)

    def divided(self, arrays: Sequence[Any], divisors: Sequence[float]) -> Any:
        pairs = zip(arrays, divisors, strict=True)
        return self._xp.concatenate([x / self._scalar(divisor) for x, divisor in pairs])

    def rotated(self, row: Any, seed: bytes, *, back: bool) -> Any:
        count = len(row)
        block = min(_MAX_BLOCK, 1 << (count.bit_length() - 1)) if count else 1
        whole, last = count // block * block, count - block
        if not back:
            row = self._joined(self._transformed(row[:whole] * self._signs(seed, 0, whole), block), row[whole:])
            if whole < count:
                row = self._joined(row[:last], self._transformed(row[last:] * self._signs(seed, 1, block), block))
            return row
        if whole < count:
            row = self._joined(row[:last], self._transformed(row[last:], block) * self._signs(seed, 1, block))
        return self._joined(self._transformed(row[:whole], block) * self._signs(seed, 0, whole), row[whole:])

    def _joined(self, first: Any, second: Any) -> Any:
        return self._xp.concatenate([first, second]) if len(second) else first

    def _transformed(self, values: Any, block: int) -> Any:
        """The Hadamard transform of each block, like ``rotation::hadamard`` in Rust."""
        level = 1
        while level < block:
            pairs = values.reshape(block // (2 * level), 2, level, -1)
            a, b = pairs[:, 0], pairs[:, 1]
            values = self._xp.stack([a + b, a - b], 1)
            level *= 2
        return values.reshape(-1) * self._scalar(1 / math.sqrt(block))

    def _signs(self, seed: bytes, part: int, count: int) -> Any:
        prefix = bytes([part]) + bytes(11)
        held = self._moved(_native.key_stream(seed, prefix, 0, -(-count // 128)))
        bits = (held[:, None] >> self._moved(np.arange(8, dtype=np.uint8))) & 1
        return 1 - 2 * self._xp.asarray(bits.reshape(-1)[:count], dtype=self._xp.float32)

    def cut(self, row: Any, lengths: Sequence[int], ends: Sequence[float]) -> tuple[Any, list[int], Any | None]:
        limits = [float(np.float32(end)) for end in ends]
        held = [self._xp.clip(x, -end, end) for x, end in zip(split(row, lengths), limits, strict=True)]
        made = self._xp.concatenate(held)
        beyond = [int((x != y).sum()) for x, y in zip(split(row, lengths), held, strict=True)]
        return made, beyond, row - made if any(beyond) else None

    def whole_steps(self, values: Any, step: float, *, at_random: bool, draws: bytes, stream: int) -> Any:
        prefix = bytes(8) + stream.to_bytes(4, "big")
        made: list[Any] = []
        for at in range(0, len(values), _DRAWN):
            some = values[at : at + _DRAWN]
            # Drawn also without random rounding, so that both ways take the same work.
            words = _native.key_stream(draws, prefix, at // 4, -(-len(some) // 4)).view(np.uint32)[: len(some)]
            shift = self._wide(self._moved(words.view(np.int32))) * 2.0**-32
            shift = shift + self._xp.asarray(shift < 0, dtype=self._xp.float64)
            share = 1.0 if at_random else 0.0
            steps = self._xp.floor(
                self._wide(some) / self._scalar(step, wide=True) + (shift * share + 0.5 * (1.0 - share))
            )
            made.append(self._xp.asarray(steps * step, dtype=self._xp.float32))
        return self._xp.concatenate(made) if made else values

    def multiplied(self, values: Any, factor: float) -> Any:
        most = float(np.finfo(np.float32).max)
        return self._xp.asarray(self._xp.clip(self._wide(values) * factor, -most, most), dtype=self._xp.float32)

    def dot(self, x: Any, y: Any) -> float:
        return float((self._wide(x) * self._wide(y)).sum())

    def mean_square(self, x: Any) -> float:
        return self.dot(x, x) / max(1, len(x))

    def nearest_squares(self, values: Any, step: float) -> Sequence[float]:
        nearest = self._xp.floor(self._wide(values) / self._scalar(step, wide=True) + 0.5) * step
        between = nearest - self._wide(values)
        sums = [self.dot(values, values), float((nearest * nearest).sum()), float((between * between).sum())]
        return [total / max(1, len(values)) for total in sums]

    def _wide(self, x: Any) -> Any:
        return self._xp.asarray(x, dtype=self._xp.float64)

    def _moved(self, x: Any) -> Any:
        """A NumPy array, moved to the device of the values."""
        return x if self._device is None else self._xp.from_numpy(x).to(self._device)

    def _scalar(self, value: float, *, wide: bool = False) -> Any:
        """A scalar on the device of the values. PyTorch would replace a host divisor by a product with its inverse."""
        dtype = self._xp.float64 if wide else self._xp.float32
        return self._xp.asarray(float(value), dtype=dtype, **({} if self._device is None else {"device": self._device}))


def split(row: Any, lengths: Sequence[int]) -> list[Any]:
    """The arrays of a row, as views."""
    return [row[start:end] for start, end in pairwise(np.cumsum([0, *lengths]))]


_NATIVE = _Native()


def kernels_of(update: Sequence[Any]) -> tuple[Kernels, list[Any]]:
    """The kernels for ``update``, and its arrays on their device: a GPU if all arrays are on it, else the host."""
    if update and all(is_on_gpu(x) for x in update):
        tensors = [torch_of(x) for x in update]
        if len({x.device for x in tensors}) == 1 and tensors[0].is_cuda:
            torch = importlib.import_module("torch")
            return OnDevice(torch, tensors[0].device), [x.to(torch.float32) for x in tensors]
    return _NATIVE, with_numpy(update)
