"""The plan and the options of a job's run, as the job's JSON has them. No framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from fedcipher.errors import StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import Config, Content, Message
from fedcipher.federation.optimiser_step import KINDS, Optimiser
from fedcipher.federation.server.setup import Plan, RunOptions, RunSetup
from fedcipher.federation.server.survey import survey

__all__ = ["check_options", "content_of", "plan_of", "setup_of"]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `StrategyError` for ``options`` that a run does not have."""
    unknown = sorted(set(options) - set(RunOptions.__annotations__))
    if unknown:
        raise StrategyError(f"{unknown} are not options of a run; its options are {list(RunOptions.__annotations__)}")


def setup_of(keys: str, options: Mapping[str, Any]) -> RunSetup:
    """The setup of a run from the options of a job. Raises the errors of `RunSetup`."""
    check_options(options)
    given = dict(options)
    for name in ("train_answers", "evaluate_answers"):
        given[name] = [Answer(*answer) if isinstance(answer, list) else answer for answer in given.get(name, ())]
    return RunSetup(keys, **cast(RunOptions, given))


def plan_of(setup: RunSetup, rounds: int, optimiser: Sequence[Any] | None, settings: Mapping[str, Any]) -> Plan:
    """The plan of a run of ``rounds`` rounds. Raises `ParameterError` for an optimiser that clients do not accept."""

    def configure(purpose: Purpose, index: int) -> list[Message]:
        if purpose == "evaluate" and not setup.answers["evaluate"]:
            return []
        return [Message(0, purpose, content_of(settings), "arrays")]

    kind, *numbers = optimiser or [None]
    made = None if kind is None else Optimiser(str(kind), tuple(float(number) for number in numbers))
    name = "SecureFedAvg" if made is None else KINDS[made.kind][0]
    return replace(survey(name, configure, rounds), optimiser=made)


def content_of(settings: Mapping[str, Any]) -> Content:
    """The content of a message beside the model: the app's settings."""
    return {"config": Config(settings)}
