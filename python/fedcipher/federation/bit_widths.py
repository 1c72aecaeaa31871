"""The number of bits of a value in the next round, for runs that choose it (`Codec(bits="auto")`).

More bits cost bytes, and fewer bits add noise. A reader that opens a sum knows the noise from the opened mean and the
opened histograms. More bits pay off if the noise is large compared with the mean and with the spread of the clients'
updates, which the mean contains anyway.

A server must not learn more of an opened sum than its role allows. So its opener, or a committee's readers, advise it
once a round: more bits, fewer bits, or neither. The server then chooses. Clients accept any of the codec's widths,
because the choice changes the rounding alone and reveals nothing else of a sum.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fedcipher.codec import Codec
from fedcipher.federation.answers import Answer
from fedcipher.foreign_text import quoting_log

__all__ = ["ADVICE", "BitWidths", "Noise", "advice_answer"]

_log = quoting_log("fedcipher.federation")

ADVICE = "fedcipher.bits"
"""Name of the advice in a report."""
_OF_MEAN, _OF_SPREAD = 1 / 4, 1 / 2
"""More bits pay off if the noise exceeds these parts of the mean's square and of the clients' spread."""
_FEWER_BITS_FACTOR = 4
"""Fewer bits are enough if their noise is so many times smaller than both parts."""
_WORDS = {1: "much noise to the mean", -1: "little noise to need so many bits"}
_ROUNDS, _AGREE = 4, 3
"""The bits change when `_AGREE` of the last `_ROUNDS` rounds advise the same."""


def advice_answer() -> Answer:
    """The answer for the advice, which a report has in addition to the charter's answers."""
    return Answer(ADVICE, 0, 1.0, 1.0, "sum")


@dataclass(frozen=True)
class Noise:
    """Squared lengths of the parts of one mean of updates."""

    added: float
    """The noise that rounding adds."""
    with_fewer: float | None
    """The noise that rounding would add with the next smaller number of bits; None if there is none."""
    mean: float
    """The mean without the noise of rounding."""
    spread: float
    """The difference between the clients, as far as the mean contains it."""

    @property
    def advice(self) -> int:
        """1 if more bits pay off, -1 if fewer are enough, else 0."""
        limits = _OF_MEAN * self.mean, _OF_SPREAD * self.spread
        if self.added > max(limits):
            return 1
        return -1 if self.with_fewer is not None and _FEWER_BITS_FACTOR * self.with_fewer < min(limits) else 0


class BitWidths:
    """The server's choice among the bits of ``codec``, round by round."""

    def __init__(self, codec: Codec) -> None:
        self._widths = codec.bit_widths if codec.adaptive else []
        self._place = len(self._widths) // 2
        self._recent: deque[int] = deque(maxlen=_ROUNDS)

    @property
    def bits(self) -> int:
        """Bits of a value in the next round; 0 if the codec leaves no choice."""
        return self._widths[self._place] if self._widths else 0

    def take_advice(self, advice: int) -> bool:
        """Count a round's `Noise.advice`; returns whether the bits change."""
        self._recent.append(advice)
        place = self._place + advice
        if not advice or self._recent.count(advice) < _AGREE or not 0 <= place < len(self._widths):
            return False
        self._place = place
        self._recent.clear()
        _log.info("values have %s bits from the next round on: rounding added too %s", self.bits, _WORDS[advice])
        return True
