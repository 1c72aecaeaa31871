"""Which of a codec's bits the next round has, where a run chooses (`Codec(bits="auto")`).

More bits cost bytes, and fewer add noise. Whoever opens a sum knows both the noise and what it drowns, from the opened
mean and the opened histograms. More bits pay where the noise is large beside the mean, and beside what the clients
differ by, which the mean carries anyway. A server must learn of an opened sum no more than it may: so it gets one word
a round, more or fewer or neither, from its opener or from a committee's readers, and chooses. Clients take any of the
codec's choices. A choice changes rounding, and nothing of what a sum shows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fedcipher.codec import Codec
from fedcipher.federation.answers import Answer
from fedcipher.foreign_text import quoting_log

__all__ = ["ADVICE", "Noise", "Widths", "advice_answer"]

_log = quoting_log("fedcipher.federation")

ADVICE = "fedcipher.bits"
"""Names the advice in a report."""
_OF_MEAN, _OF_SPREAD = 1 / 4, 1 / 2
"""More bits pay where noise is a larger part than these of the mean's square and of the clients' spread."""
_QUIET = 4
"""Fewer bits do where their noise would be so many times below both."""
_WORDS = {1: "much to the mean", -1: "little to pay for more"}
_ROUNDS, _AGREE = 4, 3
"""So many of the last rounds have to advise the same."""


def advice_answer() -> Answer:
    """What a report has beside the charter's answers."""
    return Answer(ADVICE, 0, 1.0, 1.0, "sum")


@dataclass(frozen=True)
class Noise:
    """Squared lengths, all of one mean of updates."""

    added: float
    """What rounding adds."""
    with_fewer: float | None
    """What it would add with the next fewer bits; None where there are none."""
    mean: float
    """The mean itself, without what rounding adds."""
    spread: float
    """What the clients differ by in it."""

    @property
    def advice(self) -> int:
        """1 where more bits pay, -1 where fewer do, else 0."""
        limits = _OF_MEAN * self.mean, _OF_SPREAD * self.spread
        if self.added > max(limits):
            return 1
        return -1 if self.with_fewer is not None and _QUIET * self.with_fewer < min(limits) else 0


class Widths:
    """The server's choice among the bits of ``codec``, round by round."""

    def __init__(self, codec: Codec) -> None:
        self._widths = codec.bit_widths if codec.adaptive else []
        self._place = len(self._widths) // 2
        self._heard: deque[int] = deque(maxlen=_ROUNDS)

    @property
    def bits(self) -> int:
        """Of the next round; 0 where the codec leaves no choice."""
        return self._widths[self._place] if self._widths else 0

    def hear(self, advice: int) -> bool:
        """Take up a round's `Noise.advice`; whether the bits change."""
        self._heard.append(advice)
        place = self._place + advice
        if not advice or self._heard.count(advice) < _AGREE or not 0 <= place < len(self._widths):
            return False
        self._place = place
        self._heard.clear()
        _log.info("values have %s bits from the next round on: rounding added too %s", self.bits, _WORDS[advice])
        return True
