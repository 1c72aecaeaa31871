"""Differential privacy of a client: its update is clipped, and the sum carries noise of which each client adds a share.

A client's update x of d values is cut to the L2 norm ``clip``, put on the codec's grid, given discrete Gaussian noise
and only then encrypted, so a sum of n clients carries n shares of noise whoever opens it. In steps of the grid:

* **Rounding.** With r steps to ``clip``, x is rounded stochastically again and again until its norm is at most D,

      D^2 = min((r + sqrt(d))^2, r^2 + d/4 + sqrt(2 ln(1/beta)) (r + sqrt(d)/2)),

  which one rounding misses with probability at most beta (Kairouz, Liu and Steinke, ICML 2021, "The Distributed
  Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", theorem 1 and proposition 22). So D
  bounds what one client changes of the sum.
* **Noise.** With h shares of variance s^2 >= 1/4, whether a client's update or zero is in the sum is
  (eps^2 / 2)-concentrated private (proposition 14 there, in which t is the distance of a sum of discrete Gaussians
  from one),

      eps = min(sqrt(D^2 / (h s^2) + 2 t d), D / (sqrt(h) s) + t sqrt(d)),  t = 10 sum_(k<h) exp(-2 pi^2 s^2 k/(k+1)).

  s is chosen so that eps is at most ``1 / noise_multiplier``, with the sum replaced by the larger
  ``(h - 1) exp(-pi^2 s^2)``: what `Privacy.epsilon` says holds for every model and every number of bits.
* **Range.** Noise beyond T = s sqrt(2 ln(2 d h rounds / eta)) steps occurs with probability at most eta in all rounds
  of all h shares together (a discrete Gaussian is subgaussian: Canonne, Kamath and Steinke, NeurIPS 2020, "The
  Discrete Gaussian for Differential Privacy"). The range holds clip and T. What is beyond is cut and counted; that
  costs ``(1 + e^epsilon) eta``, which is 2^-10 of ``delta``.

Shares: h is one less than the scheme's ``min_contributions``, because a client that reads the sum knows its own noise;
for `oneshot` ``min_contributions - corrupt_clients``. The assumption is that so many clients of a round add their noise
and do not tell it. More clients add more noise.

docs/explanation/dp.md says what this gives and what not.
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
"""Of delta, what pays for noise beyond the range."""
_BETA = 1e-6
"""Probability that a rounding is repeated. So small that the time of an update does not tell of its norm."""
_MOST_ROUNDS = 1 << 32
_NUMERATOR_BITS = 43
_LEAST_DEVIATION = 0.5
_MARGIN = 1 + 2.0**-20
"""Of the deviation: room for the distance t where it is next to nothing."""
_BITS = range(3, 25)
_MOST_INFLATION = 4
"""By how much rounding may enlarge the square of what a client can change: as much as that the noise grows."""


@dataclass(frozen=True)
class Privacy:
    """Clipping and noise; part of the codec, so that all clients have the same and no server can turn it off.

    Parameters
    ----------
    clip
        Largest L2 norm of an update, over all its arrays, in the model's unit.
    noise_multiplier
        Deviation of the noise of the sum, over what one client can change of it.
    rounds
        Most updates that a client gives under one key set; what epsilon is of. Its encryptor refuses more.
    delta
        Probability with which epsilon may not hold.
    """

    clip: float
    noise_multiplier: float
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        for name, least, most in (("clip", 1e-20, 1e20), ("noise_multiplier", 1e-3, 1e6), ("delta", 1e-30, 0.5)):
            value = real_number(getattr(self, name), f"the privacy's {name}", least, most)
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "rounds", whole_number(self.rounds, "the privacy's rounds", 1, _MOST_ROUNDS))

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Privacy:
        """From a key file. Raises `ParameterError`."""
        if set(said) != set(cls.__dataclass_fields__):
            raise ParameterError(f"privacy has {', '.join(cls.__dataclass_fields__)}, and nothing else")
        return cls(**said)

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float, rounds: int, clip: float) -> Privacy:
        """With the least noise that gives ``epsilon`` after all ``rounds``.

        Raises `ParameterError`, and `DependencyError` without the extra ``[dp]``.
        """
        # Also checks the other parameters.
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
        """Epsilon at ``delta`` for a client that has given so many updates; ``None``: all it may give.

        By the accountant of Renyi differential privacy of Google's ``dp-accounting``. That who takes part is drawn at
        random is not counted: the server and the readers see who does.

        Of no update it is 0. Raises `ParameterError` for more than all, `DependencyError` without the extra ``[dp]``.
        """
        given = self.rounds if rounds is None else whole_number(rounds, "rounds", 0, self.rounds)
        _accounting()
        if not given:
            return 0.0
        accountant = _accountant()
        accountant.compose(_event(self.noise_multiplier), given)
        return float(accountant.get_epsilon(self._delta_of_noise))

    def statement(self, shares: int) -> str:
        """For people: what is promised, to whom, on what assumption. Raises as `epsilon`."""
        shares = whole_number(shares, "shares", 1)
        return (
            f"Differentially private for each client, all of its data together: epsilon {self.epsilon():.4g} at delta "
            f"{self.delta:g} after {self.rounds} updates ({self.epsilon(1):.4g} after one), for whoever reads sums and "
            f"models, if in each round at least {shares} clients beside the reader add their noise and do not tell it. "
            "Not covered: who takes part and when, times, and the metrics that clients return."
        )

    @property
    def _delta_of_noise(self) -> float:
        return self.delta * (1 - _TAIL_SHARE)

    def tail(self, elements: int, shares: int) -> float:
        """Deviations of the noise that the range holds: ``shares`` clients and ``elements`` values, in all rounds."""
        elements, shares = whole_number(elements, "elements", 1), whole_number(shares, "shares", 1)
        spent = self.rounds / (2 * self.noise_multiplier**2)
        # Bun and Steinke 2016, proposition 1.3: no less than what an accountant says.
        epsilon = spent + 2 * math.sqrt(spent * math.log(1 / self._delta_of_noise))
        log_one_and_exp = epsilon + math.log1p(math.exp(-epsilon))
        log_eta = math.log(self.delta * _TAIL_SHARE) - log_one_and_exp
        return math.sqrt(2 * (math.log(2.0 * elements * shares * self.rounds) - log_eta))


@dataclass(frozen=True)
class Grid:
    """How updates of one size become noisy integers."""

    alpha: float
    """Range of a value, in the model's unit; a float32."""
    step: float
    square: int
    """Square of the L2 norm, in steps, of what one client can change of the sum."""
    numerator: int
    """The variance of one client's noise is ``numerator / 2**shift`` square steps."""
    shift: int

    @property
    def sensitivity(self) -> float:
        """The root of `square`."""
        return math.sqrt(self.square)

    @property
    def variance(self) -> float:
        """Of one client's noise, in square steps."""
        return math.ldexp(self.numerator, -self.shift)

    def noise_norm(self, elements: int, contributions: int) -> float:
        """L2 norm to expect of the noise in the mean of so many clients, in the model's unit."""
        return math.sqrt(elements * self.variance / contributions) * self.step


def grid(privacy: Privacy, bits: int, elements: int, shares: int) -> Grid:
    """The finest grid of ``bits`` bits that holds the clip and the noise of updates of ``elements`` values.

    None is so coarse that rounding more than doubles what a client can change, and with it the noise.

    ``shares``: on how many clients' noise a sum can count. Raises `ParameterError`, naming the bits that would do.
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
        f"{bits} bits hold no grid for {elements} values with noise of {privacy.noise_multiplier:g} times what one "
        f"client can change, from {shares} clients; use {fix}"
    )


def _grid(privacy: Privacy, bits: int, elements: int, shares: int) -> Grid | None:
    half, tail = (1 << (bits - 1)) - 1, privacy.tail(elements, shares)

    def fits(reach: float) -> bool:
        # One step more than the clip: rounding up, also of a product that floats made too large.
        return math.ceil(reach) + 1 + tail * _deviation(privacy, elements, shares, reach) <= half

    # Steps to the clip: the more there are, the finer the grid and the larger, in steps, the noise.
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
    if _square(reach, elements) > _MOST_INFLATION * reach**2:
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
    """D^2 of the module's text; a norm's square is a whole number here."""
    root = math.sqrt(elements)
    square = reach**2 + elements / 4 + math.sqrt(2 * math.log(1 / _BETA)) * (reach + root / 2)
    return math.floor(min(square, (reach + root) ** 2))


def _deviation(privacy: Privacy, elements: int, shares: int, reach: float) -> float:
    """s of the module's text: the least, up to a step of 2%, that gives every sum its noise."""
    sensitivity, most = math.sqrt(_square(reach, elements)), 1 / privacy.noise_multiplier

    def loss(deviation: float) -> float:
        distance = 10 * (shares - 1) * math.exp(-((math.pi * deviation) ** 2))
        one = sensitivity / (math.sqrt(shares) * deviation)
        return min(math.sqrt(one**2 + 2 * distance * elements), one + distance * math.sqrt(elements))

    deviation = max(sensitivity * privacy.noise_multiplier / math.sqrt(shares) * _MARGIN, _LEAST_DEVIATION)
    while loss(deviation) > most:
        deviation *= 1.02
    return deviation


# Orders of Renyi divergence that are tried: 1.01 to 10^5.
_ORDERS = [1 + 10 ** (k / 60) for k in range(-120, 301)]


def _accounting() -> Any:
    require("an epsilon", "dp", "dp_accounting")
    return load("dp_accounting")


def _accountant() -> Any:
    return load("dp_accounting.rdp").RdpAccountant(_ORDERS)


def _event(noise_multiplier: float) -> Any:
    # Concentrated privacy, not GaussianDpEvent: that is what a sum of discrete Gaussians has.
    return load("dp_accounting").ZCDpEvent(1 / (2 * noise_multiplier**2))
