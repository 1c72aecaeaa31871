"""From the mean of a round to the next global model: clients add the mean, or an optimiser makes a step with it.

If the server may see the mean, the strategy's own object optimises. Otherwise clients make the step themselves after
they open the sum: FedAdam, FedYogi or FedAdagrad (Reddi et al., Adaptive Federated Optimization, ICLR 2021), or FedAvgM
(Hsu, Qi and Brown, 2019, arXiv 1909.06335). The formulas are those of Flower's classes of these names.

All clients must compute the same bytes, or the next round does not open. So each number results from additions,
multiplications, divisions and square roots of single elements, which IEEE 754 rounds in one way. The types are written
out, because NumPy 2 promotes differently from NumPy 1. Nothing is summed over elements, and the power in Adam's rate
does not use the C library. Flushing of subnormal numbers to zero (``torch.set_flush_denormal``) must be off on all
clients, or on for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import ParameterError, StrategyError

__all__ = ["KINDS", "Optimiser", "Steps", "apply_delta", "in_type_of", "saturated"]

_ADAPTIVE = ("eta", "beta_1", "beta_2", "tau")
# For each kind: Flower's class, and its attributes that influence the step. eta_l does not.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "adam": ("FedAdam", _ADAPTIVE),
    "yogi": ("FedYogi", _ADAPTIVE),
    "adagrad": ("FedAdagrad", _ADAPTIVE),
    "avgm": ("FedAvgM", ("server_learning_rate", "server_momentum")),
}
_SHARES = ("beta_1", "beta_2", "server_momentum")
_SMALLEST, _LARGEST = 1e-30, 1e6
# 30 digits, then rounded to a double: the result is the same on every machine. No trap raises.
_EXACT = Context(prec=30, traps=[])


def apply_delta(model: Sequence[Array], delta: Sequence[Array]) -> list[Array]:
    """``model + delta`` in the model's types, like `saturated`.

    Whole numbers are rounded. A boolean becomes true from one half on.
    """
    # The app may have called `numpy.seterr` to raise exceptions at overflows.
    with np.errstate(all="ignore"):
        return [saturated(old, _plus_change(old, change)) for old, change in zip(model, delta, strict=True)]


def _plus_change(old: Array, change: Array) -> Array:
    if old.dtype.kind in "iu":
        return _plus_whole(old, np.rint(np.asarray(change, np.float64)))
    return np.asarray(old + np.asarray(change, np.float32 if old.dtype.kind == "b" else None))


def _plus_whole(old: Array, change: Array) -> Array:
    """Integers plus whole numbers in float64, saturated. Computed modulo 2^64, where sums are exact."""
    type_, farthest = np.iinfo(old.dtype), math.nextafter(2.0**64, 0)
    at, least, most = old.astype(np.uint64), np.uint64(type_.min % 2**64), np.uint64(type_.max)
    up = np.minimum(np.clip(change, 0, farthest).astype(np.uint64), most - at)
    down = np.minimum(np.clip(-change, 0, farthest).astype(np.uint64), at - least)
    return np.asarray(at + up - down).astype(old.dtype)


def in_type_of(model: Array, values: Array) -> Array:
    """``values`` in the type of ``model``.

    For integer types they are rounded and saturate. A boolean becomes true from one half on.
    """
    if model.dtype.kind == "b" and values.dtype.kind != "b":
        return np.asarray(values >= 0.5)
    if model.dtype.kind in "iu" and values.dtype != model.dtype:
        values = _clipped_to(np.iinfo(model.dtype), values)
    return np.asarray(values.astype(model.dtype, copy=False))


def saturated(model: Array, values: Array) -> Array:
    """Like `in_type_of`, but the result is always finite: values saturate, and NaN becomes 0.

    Used for results of an opened sum, because a refusal would reveal something about the mean.
    """
    with np.errstate(all="ignore"):
        return _finite(in_type_of(model, _finite(values)))


def _finite(values: Array) -> Array:
    """``values`` with infinities replaced by the type's largest magnitude, and NaN by zero."""
    return values if values.dtype.kind != "f" or np.isfinite(values).all() else np.asarray(np.nan_to_num(values))


def _clipped_to(type_: np.iinfo[Any], values: Array) -> Array:
    """``values`` rounded and clipped to the integer type ``type_``. A cast alone depends on the processor."""
    if values.dtype.kind in "iu":
        own = np.iinfo(values.dtype)
        return np.clip(values, max(type_.min, own.min), min(type_.max, own.max))
    if values.dtype.kind != "f":
        return values
    most = float(type_.max)
    highest = most if most <= type_.max else math.nextafter(most, 0)
    return np.clip(np.rint(values.astype(np.float64)), float(type_.min), highest)


@dataclass(frozen=True)
class Optimiser:
    """A kind of optimiser and its numbers: those of Flower's class for this ``kind``, in the order of `KINDS`.

    Rates and ``tau`` are 1e-30 to 1e6. Shares (betas, momentum) are at least 0 and below 1. Raises `ParameterError`.
    """

    kind: str
    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"{self.kind[:40]!r} is not an optimiser; use one of {list(KINDS)}")
        names = KINDS[self.kind][1]
        if len(self.numbers) != len(names):
            raise ParameterError(f"{len(self.numbers)} numbers are given for {self.kind}, which needs {list(names)}")
        for name, x in zip(names, self.numbers, strict=True):
            # Written so that NaN is refused too.
            if not (0 <= x < 1 if name in _SHARES else _SMALLEST <= x <= _LARGEST):
                allowed = "at least 0 and below 1" if name in _SHARES else f"{_SMALLEST:g} to {_LARGEST:g}"
                raise ParameterError(f"{name} is {x}; clients take {allowed}")

    def __str__(self) -> str:
        cls, names = KINDS[self.kind]
        return f"{cls}({', '.join(f'{n}={x:g}' for n, x in zip(names, self.numbers, strict=True))})"

    def check_types(self, model: Sequence[Array]) -> None:
        """Raise `StrategyError` if a rate or ``tau`` becomes zero or infinite in one of the model's types (float16)."""
        name, attributes = KINDS[self.kind]
        for dtype in {x.dtype for x in model if x.dtype.kind == "f"}:
            for attribute, x in zip(attributes, self.numbers, strict=True):
                with np.errstate(all="ignore"):
                    there = float(dtype.type(x))
                if attribute not in _SHARES and not 0 < there < math.inf:
                    raise StrategyError(f"{attribute}={x:g} of {name} is {there:g} in {dtype}, a type of the model")


class Steps:
    """The steps of a run: computes the model's next values, and keeps the optimiser's moments between steps.

    A step depends only on the optimiser, the round's index and the steps before.
    """

    def __init__(self, optimiser: Optimiser | None) -> None:
        self._optimiser = optimiser
        self.moments: list[list[Array]] = []
        """First and second moments, or the momentum. Each has one array for each array of the model, with the same
        shape. Empty before the first step."""

    def step(self, model: Sequence[Array], delta: Sequence[Array], index: int) -> list[Array]:
        """The model after the aggregate of the run's round ``index``, which opened to the mean ``delta``.

        The result equals that of Flower's class with NumPy 2, bit for bit. Only the powers in FedAdam's rate may
        differ, by one part in 1e15, because `numpy.power` may round differently. Arithmetic is in each array's type,
        and in float64 for integers and booleans, whose means are floats. Here clients differ from Flower: they round
        to the model's type after each step, while Flower continues with fractions.

        A result outside an array's type saturates, because a refusal would reveal something about the mean.
        """
        mean = apply_delta(model, delta)
        if self._optimiser is None:
            return mean
        old, new = [_for_arithmetic(x) for x in model], [_for_arithmetic(x) for x in mean]
        with np.errstate(all="ignore"):
            make = self._with_momentum if self._optimiser.kind == "avgm" else self._adapted
            values, moments = make(old, new, index)
            made = [saturated(x, np.asarray(v)) for x, v in zip(model, values, strict=True)]
            self.moments = [[_finite(np.asarray(x)) for x in moment] for moment in moments]
        return made

    def _with_momentum(
        self, model: list[Array], mean: list[Array], _number: int
    ) -> tuple[list[Array], list[list[Array]]]:
        assert self._optimiser is not None
        rate, share = self._optimiser.numbers
        gradient = [x - y for x, y in zip(model, mean, strict=True)]
        if self.moments:
            gradient = [_as(share, m) * m + g for m, g in zip(self.moments[0], gradient, strict=True)]
        return [x - _as(rate, g) * g for x, g in zip(model, gradient, strict=True)], [gradient] if share > 0 else []

    def _adapted(self, model: list[Array], mean: list[Array], number: int) -> tuple[list[Array], list[list[Array]]]:
        assert self._optimiser is not None
        eta, beta_1, beta_2, tau = self._optimiser.numbers
        delta = [y - x for x, y in zip(model, mean, strict=True)]
        squares = [d * d for d in delta]
        first, second = self.moments or ([np.zeros_like(x) for x in mean], [np.zeros_like(x) for x in mean])
        first = [_as(beta_1, m) * m + _as(1 - beta_1, d) * d for m, d in zip(first, delta, strict=True)]
        pairs = zip(second, squares, strict=True)
        match self._optimiser.kind:
            case "adam":
                second = [_as(beta_2, v) * v + _as(1 - beta_2, s) * s for v, s in pairs]
            case "yogi":
                second = [v - _as(1 - beta_2, s) * s * np.sign(v - s) for v, s in pairs]
            case _:
                second = [v + s for v, s in pairs]
        ratios = [(m, np.sqrt(v) + _as(tau, v)) for m, v in zip(first, second, strict=True)]
        if self._optimiser.kind == "adam":
            # Flower's rate is a NumPy float64, so the whole step is in float64.
            rate = np.float64(eta * math.sqrt(1 - _power(beta_2, number + 1)) / (1 - _power(beta_1, number + 1)))
            steps = [rate * m.astype(np.float64) / r.astype(np.float64) for m, r in ratios]
            values = [x.astype(np.float64) + s for x, s in zip(model, steps, strict=True)]
        else:
            values = [x + _as(eta, m) * m / r for x, (m, r) in zip(model, ratios, strict=True)]
        return values, [first, second]


def _for_arithmetic(x: Array) -> Array:
    return x if x.dtype.kind == "f" else x.astype(np.float64)


def _as(number: float, like: Array) -> Any:
    """``number`` in the type of ``like``, so that no version of NumPy promotes one of them."""
    return like.dtype.type(number)


def _power(base: float, exponent: int) -> float:
    return float(_EXACT.power(Decimal(base), exponent))
