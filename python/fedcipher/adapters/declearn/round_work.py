"""A client's rounds, without declearn: a message becomes a request for the app, and its result becomes one frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import CharterError, LayoutError
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.charter import Purpose, Settings
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import KeyHolder
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import CONFIG, Config, Message, record_in
from fedcipher.federation.refusal import refused
from fedcipher.federation.round_settings import RoundSettings

__all__ = ["REQUEST_FIELDS", "Request", "RoundWork", "evaluated", "request_record", "request_settings", "trained"]

RECORD, KEY = "declearn", "request"
"""The record of a message that has the request's fields, and its one key."""
REQUEST_FIELDS: dict[Purpose, list[str]] = {
    "train": ["batches", "n_epoch", "n_steps", "timeout"],
    "evaluate": ["batches", "n_steps", "timeout"],
}
"""The fields of declearn's requests that a charter fixes. Round and weights follow from the chain."""


def request_record(fields: Mapping[str, Any]) -> Config:
    """The record of a message with a request's ``fields``. Raises `TypeError` for values that JSON lacks."""
    return Config({KEY: json.dumps(fields, sort_keys=True, allow_nan=False)})


def request_settings(fields: Mapping[str, Any]) -> Settings:
    """The charter's settings for requests with these ``fields`` in every round."""
    return Settings({f"config:{RECORD}": {KEY: {"is": request_record(fields)[KEY]}}})


class Request:
    """A computation for the app: the ``purpose``, the round's ``index``, its ``fields`` and the model's ``arrays``."""

    def __init__(self, message: Message, work: Work) -> None:
        self.purpose: Purpose = "train" if work.updates else "evaluate"
        record, settings = record_in(message.content, RECORD, Config), record_in(message.content, CONFIG, Config)
        if record is None or settings is None:
            raise CharterError("the message has no request for declearn")
        self.fields: dict[str, Any] = json.loads(record[KEY])
        if sorted(self.fields) != REQUEST_FIELDS[self.purpose]:
            raise CharterError("the message's request does not have the fields that declearn's has")
        self.index = RoundSettings.parse(settings).index
        # A copy, because apps may write into the arrays of a model.
        self.arrays = {name: np.array(values) for name, values in work.model.items()}


class RoundWork:
    """A client's session, with the work that the app has not answered yet.

    ``holder`` returns the holder of the client's key.
    """

    def __init__(self, holder: Callable[[], KeyHolder]) -> None:
        self._session = ClientSession(holder, self._digest)
        self._told: str | None = None
        self._message = Message(0, "")
        self._work: Work | None = None

    def tell(self, told: bytes) -> None:
        """Note what the server has told the app before the first round. Clients that were told else do not sum."""
        if self._told is not None:
            raise CharterError("the server sends a second model and optimiser in one run")
        self._told = told.hex()

    def _digest(self) -> bytes:
        if self._told is None:
            raise CharterError("the server asks before it has sent model and optimiser")
        return digest_of_context({"told": self._told}, "declearn")

    @property
    def open(self) -> bool:
        """Whether the app has still to answer."""
        return self._work is not None

    def receive(self, raw: bytes) -> Request | bytes:
        """The request that the message ``raw`` makes of the app, or the reply to it if it makes none."""
        self.drop()
        message, session = Message(0, ""), self._session
        try:
            message = Message.parse(raw)
            opened = session.open(message)
            if opened is None:
                raise CharterError(f"a message of type {message.type!r} belongs to no run")
            if isinstance(opened, Message):
                return opened.to_bytes()
            self._message, self._work = message, opened
            return Request(message, opened)
        except Exception as error:
            self.drop()
            return refused(message, error).to_bytes()

    def seal(self, result: Callable[[Work], AppResult]) -> bytes:
        """The reply with one frame of the app's ``result``; an error in ``result`` is a failure of the app."""
        work, self._work = self._work, None
        if work is None:
            raise CharterError("the app answers, and nothing was asked")
        with work:
            try:
                made = result(work)
            except Exception as error:
                made = AppResult.raised(error)
            try:
                return self._session.seal(self._message, work, made).to_bytes()
            except Exception as error:
                return refused(self._message, error).to_bytes()

    def drop(self) -> None:
        """Drop work that the app has not answered."""
        work, self._work = self._work, None
        if work is not None:
            work.__exit__()


def trained(work: Work, updates: Mapping[str, Any], weight: float) -> AppResult:
    """The app's result from declearn's ``updates``, by name: the model before less the model after, times ``weight``.

    Raises `LayoutError` for other names or shapes than the model's.
    """
    if sorted(updates) != sorted(work.names):
        raise LayoutError(f"the update has the arrays {sorted(updates)}, and the model has {sorted(work.names)}")
    return AppResult(
        [_after(name, before, updates[name], weight) for name, before in work.model.items()],
        {"num-examples": float(weight)},
    )


def _after(name: str, before: Array, update: Any, weight: float) -> Array:
    change = np.asarray(update)
    if change.shape != before.shape:
        raise LayoutError(f"the update of {name!r} has the shape {change.shape}, and the model's is {before.shape}")
    return (before - change / weight).astype(before.dtype)


def evaluated(states: Mapping[str, tuple[float, float]]) -> AppResult:
    """The app's result from sums and divisors of mean metrics, by name. The divisor of ``loss`` is the weight."""
    means = {name: total / divisor for name, (total, divisor) in states.items() if divisor}
    return AppResult([], {**means, "num-examples": float(states["loss"][1])})


def model_of(names: Sequence[str], arrays: Sequence[Array]) -> dict[str, Array]:
    """A model by name, in arrays of its own."""
    return {name: np.array(values) for name, values in zip(names, arrays, strict=True)}
