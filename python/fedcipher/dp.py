"""Differential privacy of a client: updates are clipped, and each client adds a share of the sum's noise.

A client clips its update x of d values to the L2 norm ``clip``, rounds it to the codec's grid, adds discrete Gaussian
noise and only then encrypts. A sum of n clients therefore carries n shares of noise for every reader. In steps of the
grid:

* **Rounding.** Let ``clip`` be r steps. x is rounded stochastically until its norm is at most D,

      D^2 = min((r + sqrt(d))^2, r^2 + d/4 + sqrt(2 ln(1/beta)) (r + sqrt(d)/2)).

  A single rounding exceeds D with probability at most beta (Kairouz, Liu and Steinke, ICML 2021, "The Distributed
  Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", theorem 1 and proposition 22). D thus
  bounds the change of the sum by one client.
* **Noise.** With h shares of variance s^2 >= 1/4, replacing a client's update by zero in the sum is
  (eps^2 / 2)-concentrated private. In proposition 14 of that paper, t is the distance between a sum of discrete
  Gaussians and a discrete Gaussian,

      eps = min(sqrt(D^2 / (h s^2) + 2 t d), D / (sqrt(h) s) + t sqrt(d)),  t = 10 sum_(k<h) exp(-2 pi^2 s^2 k/(k+1)).

  s is chosen so that eps is at most ``1 / noise_multiplier``, with the sum replaced by its upper bound
  ``(h - 1) exp(-pi^2 s^2)``. `Privacy.epsilon` therefore holds for every model and every number of bits.
* **Range.** Noise exceeds T = s sqrt(2 ln(2 d h rounds / eta)) steps with probability at most eta, over all rounds and
  all h shares together. (A discrete Gaussian is subgaussian: Canonne, Kamath and Steinke, NeurIPS 2020, "The Discrete
  Gaussian for Differential Privacy".) The range holds clip and T. Values beyond it are cut and counted; this costs
  ``(1 + e^epsilon) eta``, which is 2^-10 of ``delta``.

Shares: h is one less than the scheme's ``min_contributions``, because a client that reads the sum knows its own noise.
For `oneshot`, h is ``min_contributions - corrupt_clients``. The assumption is that in each round h clients add their
noise and keep it secret. More clients add more noise.

docs/explanation/dp.md describes the guarantee and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedcipher._arguments import instance_of, real_number, whole_number
from fedcipher._optional import load, require
from fedcipher.errors import ParameterError

__all__ = ["Grid", "Privacy", "grid"]

_TAIL_SHARE = 2.0**-10
"""The fraction of delta that covers noise beyond the range."""
_BETA = 1e-6
"""Probability that a rounding is repeated. It is small, so the time of an encryption does not reveal the norm."""
_MAX_ROUNDS = 1 << 32
_NUMERATOR_BITS = 43
_MIN_DEVIATION = 0.5
_MARGIN = 1 + 2.0**-20
"""A factor of the deviation that covers very small distances t."""
_BITS = range(3, 25)
_MAX_INFLATION = 4
"""The largest factor by which rounding may enlarge a client's squared sensitivity, and so the noise's variance."""


@dataclass(frozen=True)
class Privacy:
    """Clipping and noise. As part of the codec they are the same for all clients, and a server cannot disable them.

    Parameters
    ----------
    clip
        Largest L2 norm of an update, over all its arrays, in the model's unit.
    noise_multiplier
        Standard deviation of the sum's noise, divided by the largest change of the sum by one client.
    rounds
        Most updates of a client under one key set. Epsilon is for this number; the encryptor refuses more.
    delta
        Probability with which epsilon may fail to hold.

    Raises `ParameterError`.
    """

    clip: float
    noise_multiplier: float
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        for name, least, most in (("clip", 1e-20, 1e20), ("noise_multiplier", 1e-3, 1e6), ("delta", 1e-30, 0.5)):
            value = real_number(getattr(self, name), f"the privacy's {name}", least, most)
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "rounds", whole_number(self.rounds, "the privacy's rounds", 1, _MAX_ROUNDS))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Privacy:
        """Make a privacy from its fields in a key file. Raises `ParameterError`."""
        if set(fields) != set(cls.__dataclass_fields__):
            raise ParameterError(f"privacy needs exactly the fields {', '.join(cls.__dataclass_fields__)}")
        return cls(**fields)

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float, rounds: int, clip: float) -> Privacy:
        """Make a privacy with the least noise that gives ``epsilon`` after all ``rounds``.

        Raises `ParameterError`, and `DependencyError` without the extra ``[dp]``.
        """
        # The constructor checks the other parameters.
        made = cls(clip=clip, noise_multiplier=1.0, rounds=rounds, delta=delta)
        epsilon = real_number(epsilon, "epsilon", 1e-3, 1e3)
        accounting = _accounting()

        def event(noise_multiplier: float) -> Any:
            return accounting.SelfComposedDpEvent(_event(noise_multiplier), made.rounds)

        noise = accounting.calibrate_dp_mechanism(
            _accountant,
            event,
            epsilon,
            made._delta_of_noise,
            accounting.LowerEndpointAndGuess(1e-3, 1.0),
        )
        return cls(clip=made.clip, noise_multiplier=noise, rounds=made.rounds, delta=made.delta)

    def epsilon(self, rounds: int | None = None) -> float:
        """Epsilon at ``delta`` for a client that has given ``rounds`` updates; ``None`` for all of its updates.

        The Renyi accountant of Google's ``dp-accounting`` computes epsilon. Random sampling of clients does not reduce
        epsilon here, because the server and the readers see which clients take part. Without updates epsilon is 0.

        Raises `ParameterError` for more updates than ``Privacy.rounds``, `DependencyError` without the extra ``[dp]``.
        """
        given = self.rounds if rounds is None else whole_number(rounds, "rounds", 0, self.rounds)
        _accounting()
        if not given:
            return 0.0
        accountant = _accountant()
        accountant.compose(_event(self.noise_multiplier), given)
        return float(accountant.get_epsilon(self._delta_of_noise))

    def statement(self, shares: int) -> str:
        """State the guarantee for people: what is protected, from whom, and the assumption. Raises as `epsilon`.

        ``shares`` is the number of honest clients whose noise counts (`Scheme.noise_shares`).
        """
        shares = whole_number(shares, "shares", 1)
        return (
            f"Differentially private for each client, all of its data together: epsilon {self.epsilon():.4g} at delta "
            f"{self.delta:g} after {self.rounds} updates ({self.epsilon(1):.4g} after one), against any reader of sums "
            f"and models, if in each round at least {shares} clients beside the reader add their noise and keep it "
            "secret. Not covered: which clients take part and when, times, and the metrics that clients return."
        )

    @property
    def _delta_of_noise(self) -> float:
        return self.delta * (1 - _TAIL_SHARE)

    def tail(self, elements: int, shares: int) -> float:
        """The standard deviations of noise that the range must hold, for ``shares`` clients and ``elements`` values.

        The bound covers all rounds together.
        """
        elements, shares = whole_number(elements, "elements", 1), whole_number(shares, "shares", 1)
        rho = self.rounds / (2 * self.noise_multiplier**2)
        # Bun and Steinke 2016, proposition 1.3: an upper bound of the accountant's epsilon.
        epsilon = rho + 2 * math.sqrt(rho * math.log(1 / self._delta_of_noise))
        log_one_and_exp = epsilon + math.log1p(math.exp(-epsilon))
        log_eta = math.log(self.delta * _TAIL_SHARE) - log_one_and_exp
        return math.sqrt(2 * (math.log(2.0 * elements * shares * self.rounds) - log_eta))


@dataclass(frozen=True)
class Grid:
    """The grid and the noise for updates of one size."""

    alpha: float
    """Range of a value, in the model's unit; a float32."""
    step: float
    """A step of the grid, in the model's unit."""
    square: int
    """The squared L2 norm, in square steps, of the largest change of the sum by one client."""
    numerator: int
    """The variance of one client's noise is ``numerator / 2**shift`` square steps."""
    shift: int

    @property
    def sensitivity(self) -> float:
        """The L2 norm, in steps, of the largest change of the sum by one client."""
        return math.sqrt(self.square)

    @property
    def variance(self) -> float:
        """The variance of one client's noise, in square steps."""
        return math.ldexp(self.numerator, -self.shift)

    def noise_norm(self, elements: int, contributions: int) -> float:
        """The expected L2 norm of the noise in the mean of ``contributions`` clients, in the model's unit."""
        return math.sqrt(elements * self.variance / contributions) * self.step


def grid(privacy: Privacy, bits: int, elements: int, shares: int) -> Grid:
    """Find the finest grid of ``bits`` bits that holds the clip and the noise of updates of ``elements`` values.

    A grid is too coarse if rounding more than doubles a client's largest change of the sum, and with it the noise.
    ``shares`` is the number of clients whose noise is certainly in a sum. Raises `ParameterError`, with the bits that
    would suffice.
    """
    instance_of(privacy, Privacy, "privacy", "give a Privacy")
    bits, elements = whole_number(bits, "bits", 2, _BITS[-1]), whole_number(elements, "elements")
    return _grid_of(privacy, bits, elements, whole_number(shares, "shares", 1))


@lru_cache(maxsize=64)
def _grid_of(privacy: Privacy, bits: int, elements: int, shares: int) -> Grid:
    made = _grid(privacy, bits, max(elements, 1), shares)
    if made is not None:
        return made
    enough = next((b for b in _BITS if b > bits and _grid(privacy, b, max(elements, 1), shares)), None)
    fix = (
        f"Codec(bits={enough}), --bits {enough}"
        if enough
        else "more clients (min_contributions), a larger epsilon or a smaller model"
    )
    raise ParameterError(
        f"{bits} bits are too few for a grid for {elements} values with noise of {privacy.noise_multiplier:g} times "
        f"one client's largest change, from {shares} clients; use {fix}"
    )


def _grid(privacy: Privacy, bits: int, elements: int, shares: int) -> Grid | None:
    half, tail = (1 << (bits - 1)) - 1, privacy.tail(elements, shares)

    def fits(reach: float) -> bool:
        # One step more than the clip, for rounding up and for float errors.
        return math.ceil(reach) + 1 + tail * _deviation(privacy, elements, shares, reach) <= half

    # Search the number of steps to the clip. More steps mean a finer grid, and more steps of noise.
    low, high = 0.0, float(half)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low <= half * 2.0**-60:
        return None
    alpha = np.float32(privacy.clip * half / low)
    if float(alpha) * low < privacy.clip * half:
        alpha = np.nextafter(alpha, np.float32(np.inf))
    reach = privacy.clip * half / float(alpha)
    if _square(reach, elements) > _MAX_INFLATION * reach**2:
        return None
    variance = _deviation(privacy, elements, shares, reach) ** 2
    shift = _NUMERATOR_BITS - max(0, math.frexp(variance)[1])
    return Grid(
        alpha=float(alpha),
        step=float(alpha) / half,
        square=_square(reach, elements),
        numerator=math.ceil(math.ldexp(variance, shift)),
        shift=shift,
    )


def _square(reach: float, elements: int) -> int:
    """D^2 of the module's docstring, rounded down because the squared norm of integers is an integer."""
    root = math.sqrt(elements)
    square = reach**2 + elements / 4 + math.sqrt(2 * math.log(1 / _BETA)) * (reach + root / 2)
    return math.floor(min(square, (reach + root) ** 2))


def _deviation(privacy: Privacy, elements: int, shares: int, reach: float) -> float:
    """s of the module's docstring: the least deviation, up to 2%, that gives every sum its noise."""
    sensitivity, most = math.sqrt(_square(reach, elements)), 1 / privacy.noise_multiplier

    def loss(deviation: float) -> float:
        distance = 10 * (shares - 1) * math.exp(-((math.pi * deviation) ** 2))
        one = sensitivity / (math.sqrt(shares) * deviation)
        return min(math.sqrt(one**2 + 2 * distance * elements), one + distance * math.sqrt(elements))

    deviation = max(sensitivity * privacy.noise_multiplier / math.sqrt(shares) * _MARGIN, _MIN_DEVIATION)
    while loss(deviation) > most:
        deviation *= 1.02
    return deviation


# The orders of Renyi divergence that the accountant tries: 1.01 to 10^5.
_ORDERS = [1 + 10 ** (k / 60) for k in range(-120, 301)]


def _accounting() -> Any:
    require("an epsilon", "dp", "dp_accounting")
    return load("dp_accounting")


def _accountant() -> Any:
    return load("dp_accounting.rdp").RdpAccountant(_ORDERS)


def _event(noise_multiplier: float) -> Any:
    # A sum of discrete Gaussians is concentrated private, but is not a Gaussian (GaussianDpEvent).
    return load("dp_accounting").ZCDpEvent(1 / (2 * noise_multiplier**2))
