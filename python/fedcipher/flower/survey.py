"""What a strategy is going to tell its clients, found out before the first round by asking a copy of it.

The charter has to name every setting of every round before any client computes. So each round of training and
evaluation is configured once on a copy, with nodes that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp.strategy import Strategy

from fedcipher.errors import ParameterError, StrategyError
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Purpose, Records, Settings, table_of
from fedcipher.flower.probe import MadeUpNodes, copy_of, quiet
from fedcipher.flower.told import records_of

__all__ = ["Survey", "survey"]

_FEWEST = 2
_TYPES: dict[Purpose, str] = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}


@dataclass(frozen=True)
class Survey:
    """A run's messages: where the model is in them, their types, and what they tell beside it."""

    record: str
    types: dict[Purpose, str]
    settings: dict[Purpose, Settings]
    listed: bool
    """Whether some setting is a list of values, one a round."""


def survey(
    strategy: Strategy,
    shown: ArrayRecord,
    rounds: int,
    configs: dict[Purpose, ConfigRecord],
    place_of: Callable[[Message, ArrayRecord], str],
) -> Survey:
    """Configure ``rounds`` rounds on a copy. Raises `StrategyError` where clients of a round are told different things.

    ``place_of`` finds the record of the model in a message.
    """
    places: set[str] = set()
    types: dict[Purpose, str] = dict(_TYPES)
    settings: dict[Purpose, Settings] = {}
    with quiet():
        asked = copy_of(strategy)
        for purpose in _TYPES:
            config = ConfigRecord(dict(configs[purpose]))
            table: list[Records | None] = []
            # Of one round alone nobody sees whether a number counts rounds.
            for index in range(1, max(rounds, _FEWEST) + 1):
                try:
                    messages = _messages(asked, purpose, index, shown, config)
                except StrategyError:
                    if index <= rounds:
                        raise
                    break
                if messages:
                    places |= {place_of(message, shown) for message in messages}
                    types[purpose] = messages[0].metadata.message_type
                told = _told(strategy, purpose, index, messages, shown, place_of) if messages else None
                table.append(told)
            settings[purpose] = _settings(strategy, purpose, table)
    if len(places) > 1:
        raise StrategyError(f"{type(strategy).__name__} sends the model in records {sorted(places)}; use one name")
    said = [value for s in settings.values() for record in s.values.values() for value in record.values()]
    return Survey(next(iter(places), "arrays"), types, settings, any("of" in value for value in said))


def _messages(
    strategy: Strategy, purpose: Purpose, index: int, shown: ArrayRecord, config: ConfigRecord
) -> list[Message]:
    configure: Callable[..., Iterable[Message]] = (
        strategy.configure_train if purpose == "train" else strategy.configure_evaluate
    )
    nodes: Any = MadeUpNodes(strategy)
    try:
        return list(configure(index, shown, config, nodes))
    except Exception as error:
        raise StrategyError(
            f"{type(strategy).__name__} does not configure round {index} ahead: {type(error).__name__}: {error}. The "
            "charter names every setting before the first round"
        ) from error


def _told(
    strategy: Strategy,
    purpose: Purpose,
    index: int,
    messages: list[Message],
    shown: ArrayRecord,
    place_of: Callable[[Message, ArrayRecord], str],
) -> Records:
    told = [records_of(m.content, without=frozenset([place_of(m, shown)])) for m in messages]
    if any(encode(other) != encode(told[0]) for other in told):
        raise StrategyError(
            f"{type(strategy).__name__} tells the clients of round {index} different things ({purpose}): clients that "
            "were told different things do not sum. Give every client the same records"
        )
    return told[0]


def _settings(strategy: Strategy, purpose: Purpose, table: list[Records | None]) -> Settings:
    try:
        return table_of(table)
    except ParameterError as error:
        raise StrategyError(f"{type(strategy).__name__}, {purpose}: {error}") from error
