"""Decides whether a training run failed: no client succeeded in a round, or its figures are not finite numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedcipher.app.report import RoundResult
from fedcipher.federation.server.outcome import Outcome

__all__ = ["failure"]

_MIN_KEPT = 0.5
"""The same limit as `SecureStrategy(least_kept=...)`, for every round."""


def failure(rounds: Sequence[RoundResult]) -> str:
    """The first failure of a run with its first known cause, in one sentence; empty for a run without a failure."""
    for result in rounds:
        why = _failure(result)
        if why:
            return f"round {result.round}: {why}"
    outcome = Outcome.of_ends(rounds)
    if outcome.lost:
        return outcome.text("" if outcome.done else "the model is unchanged")
    return ""


def _failure(result: RoundResult) -> str:
    if not result.clients:
        return f"no client succeeded; first cause: {_cause(result)}"
    wrong = [f"{name} is {value}" for name, value in result.metrics.items() if not math.isfinite(value)]
    # A client counts its values that are not numbers, and sends zeros in their place.
    if result.saturated:
        wrong.append(f"{result.saturated:.0f} values of a client's update are not finite numbers")
    if result.kept is not None and result.kept < _MIN_KEPT:
        return f"{100 * result.kept:.0f}% of the clients' updates are kept: more --bits, or leave out --clip"
    if wrong:
        return f"{', '.join(wrong)}: the model or its training has left the numbers; a smaller --learning-rate may help"
    # Training reports a loss. Only evaluation reports accuracy, in rounds that have a model to evaluate.
    if not result.unfinished and not result.not_opened and "accuracy" not in result.metrics:
        return f"no client evaluated the model; first cause: {_cause(result)}"
    return ""


def _cause(result: RoundResult) -> str:
    return next(iter(result.left_out), None) or result.unfinished or "no client answered"
