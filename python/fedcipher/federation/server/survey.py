"""What a strategy is going to tell its clients, found out before the first round by asking a copy of it.

The charter has to name every setting of every round before any client computes. So each round of training and
evaluation is configured once on a copy, with nodes that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedcipher.errors import ParameterError, StrategyError
from fedcipher.federation.app_inputs import records_of
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import PURPOSES, Purpose, Records, Settings, table_of
from fedcipher.federation.messages import Message
from fedcipher.federation.server.setup import Plan

__all__ = ["survey"]

_FEWEST = 2


def survey(name: str, configure: Callable[[Purpose, int], Sequence[Message]], rounds: int) -> Plan:
    """The plan of the strategy of this ``name``, from what its copy tells in so many ``rounds``.

    ``configure`` gives a round's messages without the model, each with its place. Raises `StrategyError` where
    clients of a round are told different things.
    """
    places: set[str] = set()
    types: dict[Purpose, str] = {purpose: purpose for purpose in PURPOSES}
    settings: dict[Purpose, Settings] = {}
    trains = False
    for purpose in PURPOSES:
        table: list[Records | None] = []
        # Of one round alone nobody sees whether a number counts rounds.
        for index in range(1, max(rounds, _FEWEST) + 1):
            try:
                messages = configure(purpose, index)
            except StrategyError:
                if index <= rounds:
                    raise
                break
            if messages:
                places |= {message.place for message in messages}
                types[purpose] = messages[0].type
            table.append(_told(name, purpose, index, messages) if messages else None)
        trains = trains or (purpose == "train" and any(told is not None for told in table[:rounds]))
        try:
            settings[purpose] = table_of(table)
        except ParameterError as error:
            raise StrategyError(f"{name}, {purpose}: {error}") from error
    if len(places) > 1:
        raise StrategyError(f"{name} sends the model in records {sorted(places)}; use one name")
    said = [value for s in settings.values() for record in s.values.values() for value in record.values()]
    listed = any("of" in value for value in said)
    return Plan(name, trains, record=next(iter(places), "arrays"), types=types, settings=settings, listed=listed)


def _told(name: str, purpose: Purpose, index: int, messages: Sequence[Message]) -> Records:
    told = [records_of(message.content, without=frozenset()) for message in messages]
    if any(encode(other) != encode(told[0]) for other in told):
        raise StrategyError(
            f"{name} tells the clients of round {index} different things ({purpose}): clients that "
            "were told different things do not sum. Give every client the same records"
        )
    return told[0]
