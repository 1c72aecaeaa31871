"""Finds out, before the first round, which settings a strategy will send to its clients.

The charter must contain every setting of every round before any client computes. So a copy of the strategy configures
each round of training and evaluation once, for nodes that do not exist.
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

_MIN_ROUNDS = 2


def survey(name: str, configure: Callable[[Purpose, int], Sequence[Message]], rounds: int) -> Plan:
    """The plan of the strategy ``name``, from the messages of its copy in ``rounds`` rounds.

    ``configure`` returns a round's messages without the model. The ``place`` of each message is the name of the model's
    record. Raises `StrategyError` if clients of one round get different settings.
    """
    places: set[str] = set()
    types: dict[Purpose, str] = {purpose: purpose for purpose in PURPOSES}
    settings: dict[Purpose, Settings] = {}
    trains = False
    for purpose in PURPOSES:
        table: list[Records | None] = []
        # One round does not show whether a number counts rounds, so there are at least two.
        for index in range(1, max(rounds, _MIN_ROUNDS) + 1):
            try:
                messages = configure(purpose, index)
            except StrategyError:
                if index <= rounds:
                    raise
                break
            if messages:
                places |= {message.place for message in messages}
                types[purpose] = messages[0].type
            table.append(_records_of_round(name, purpose, index, messages) if messages else None)
        trains = trains or (purpose == "train" and any(records is not None for records in table[:rounds]))
        try:
            settings[purpose] = table_of(table)
        except ParameterError as error:
            raise StrategyError(f"{name}, {purpose}: {error}") from error
    if len(places) > 1:
        raise StrategyError(f"{name} sends the model under several record names {sorted(places)}; use one name")
    values = [value for s in settings.values() for record in s.values.values() for value in record.values()]
    listed = any("of" in value for value in values)
    return Plan(name, trains, record=next(iter(places), "arrays"), types=types, settings=settings, listed=listed)


def _records_of_round(name: str, purpose: Purpose, index: int, messages: Sequence[Message]) -> Records:
    """The records that all ``messages`` of round ``index`` carry. Raises `StrategyError` if they differ."""
    records = [records_of(message.content, without=frozenset()) for message in messages]
    if any(encode(other) != encode(records[0]) for other in records):
        raise StrategyError(
            f"{name} sends different settings to the clients of round {index} ({purpose}), and updates made with "
            "different settings cannot be summed. Send the same records to every client"
        )
    return records[0]
