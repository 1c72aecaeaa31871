"""A client's side of a run, apart from any framework: a message becomes work for the app, or an answer at once.

A message is judged before data is touched; what is wrong with it is raised. After the app has computed nothing is
refused: an app that fails, or returns something else than an update, makes a frame of zeros that counts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import RoundError
from fedcipher.federation.app_inputs import check_app_inputs
from fedcipher.federation.charter import PURPOSES, Purpose
from fedcipher.federation.client import committee, queries, reports
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.egress import checked
from fedcipher.federation.client.frame import RoundFrame
from fedcipher.federation.client.key_holder import KeyHolder, take_prekeys
from fedcipher.federation.client.model import ClientModel
from fedcipher.federation.messages import (
    CLEAR,
    COMMITTEE,
    CONFIG,
    CONTEXT,
    METRICS,
    QUERY,
    REPORT,
    UPDATE,
    Arrays,
    Config,
    Content,
    Message,
    Metrics,
    payload_bytes,
    record_in,
    wire_record,
)
from fedcipher.federation.round_settings import RoundSettings

__all__ = ["ClientSession", "Work"]

_QUERY = "query"


class Work:
    """What a message asks of the app: use it as a context, and give it to `ClientSession.seal` with the app's result.

    ``record`` is the name of the record that holds the model, ``names`` and ``arrays`` are the model; there is none in
    a query. ``updates`` says whether the result must have arrays like the model's.
    """

    def __init__(
        self,
        finish: Callable[[AppResult], Content],
        held: ExitStack,
        *,
        record: str = "",
        names: Sequence[str] = (),
        arrays: Sequence[Array] = (),
        updates: bool = False,
    ) -> None:
        self.record, self.names, self.arrays, self.updates = record, list(names), list(arrays), updates
        self._finish, self._held = finish, held

    def finish(self, result: AppResult) -> Content:
        """The reply's content. The client's memory is free for other messages from then on."""
        with self._held:
            return self._finish(result)

    @property
    def model(self) -> dict[str, Array]:
        """The model's arrays by name."""
        return dict(zip(self.names, self.arrays, strict=True))

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


class ClientSession:
    """The holder of one key, towards the servers of its runs.

    ``holder`` gives the key's holder, and ``context`` the digest of what no charter lists
    (`fedcipher.federation.app_inputs.digest_of_context`): neither is asked for a message that is not of a run.
    """

    def __init__(self, holder: Callable[[], KeyHolder], context: Callable[[], bytes]) -> None:
        self._holder, self._context = holder, context

    def open(self, message: Message, *, queries_too: bool = False) -> Work | Message | None:
        """Work for the app, an answer for which no app starts, or None for a message that is of no run.

        ``queries_too`` answers the queries of `fedcipher.federation.server.query_sum` as well. Raises `FedcipherError`
        for what is refused.
        """
        content, category = message.content, message.type.partition(".")[0]
        if queries_too and category == _QUERY and record_in(content, QUERY, Config) is not None:
            return self._query(message)
        if REPORT in content:
            return self._reply(message, reports.report(message, self._holder(), self._context()))
        config = record_in(content, CONFIG, Config)
        if config is not None and category in PURPOSES:
            return self._round(message, RoundSettings.parse(config), PURPOSES[PURPOSES.index(category)])
        if COMMITTEE in content:
            # Never reaches the app: nothing of it can be in the reply.
            return self._reply(message, committee.answer(content[COMMITTEE], self._holder()))
        return None

    def seal(self, message: Message, work: Work, result: AppResult) -> Message:
        """The reply to ``message``: one frame, and nothing else of the app's ``result``."""
        return self._reply(message, work.finish(result))

    @staticmethod
    def _reply(message: Message, content: Content) -> Message:
        return Message(message.node, message.type, content)

    def _query(self, message: Message) -> Work:
        holder, held = self._holder(), ExitStack()
        with held:
            held.enter_context(holder.store.locked())
            asked = queries.QueryFrame(message, holder, self._context())
            return Work(asked.seal, held.pop_all())

    def _round(self, message: Message, settings: RoundSettings, purpose: Purpose) -> Work | Message:
        """One message of a round: everything that can be refused comes first, then the app, then one frame."""
        holder, held = self._holder(), ExitStack()
        with held:
            held.enter_context(holder.store.locked())
            asked = _Asked(message, holder, settings, purpose, self._context())
            kept = asked.kept()
            if kept is not None:
                return self._reply(message, asked.sealed(kept))
            charter = asked.model.charter
            return Work(
                asked.finish,
                held.pop_all(),
                record=charter.record,
                names=charter.names,
                arrays=asked.model.arrays,
                updates=purpose == "train",
            )


class _Asked:
    """One message of a round that this client answers."""

    def __init__(
        self, message: Message, holder: KeyHolder, settings: RoundSettings, purpose: Purpose, context: bytes
    ) -> None:
        self._holder, self._settings = holder, settings
        self._purpose: Purpose = purpose
        self.model = model = ClientModel(holder, settings, context)
        charter = model.charter
        record = record_in(message.content, charter.record, Arrays)
        if message.type != charter.types[purpose] or record is None:
            raise RoundError("the message is of another type than the charter names, or brings no model")
        check_app_inputs(message.content, charter, purpose, settings.index, without=frozenset([charter.record, CONFIG]))
        # A reader, or a member of a committee, need not be a client.
        encryptor = holder.encryptor(charter.epoch)
        take_prekeys(encryptor, settings.prekeys)
        began = time.perf_counter()
        with _quiet_floats():
            model.receive(record, holder.decryptor())
        decrypted = time.perf_counter() - began
        model.claim(purpose)
        self._phases = {"decrypt_seconds": decrypted, "download_bytes": payload_bytes(record)}
        self._frame = RoundFrame(model, encryptor, settings, purpose)
        self._frame.prepare()

    def kept(self) -> AppResult | None:
        """The result that has told the present ranges how large its update is, where there is one."""
        return self.model.kept_work() if self._purpose == "train" and not self.model.measuring else None

    def finish(self, result: AppResult) -> Content:
        """The reply with what the app has just made."""
        result = self._frame.without_odd_weight(result)
        self._frame.warn(result)
        return self.sealed(result)

    def sealed(self, result: AppResult) -> Content:
        """The reply with ``result``."""
        model, charter, purpose = self.model, self.model.charter, self._purpose
        with _quiet_floats():
            frame = self._frame.seal(result)
        if purpose == "train":
            if model.measuring:
                model.keep_work(result, charter.metrics("train"))
            else:
                model.drop_work()
        told: dict[str, Any] = {"digest": model.context}
        if model.unopened:
            # Whether a tag is right depends on no private value, unless whoever altered the sum has the cohort's key.
            # Under `oneshot` that party then learns whether the altered sum is in range
            # (docs/evidence/proof.md, theorem 2).
            told["unopened"] = model.unopened
        content: Content = {
            charter.record: wire_record({UPDATE: frame}),
            METRICS: Metrics({**self._frame.phases, **self._phases}),
            CONTEXT: Config(told),
        }
        clear = {name: result.metrics[name] for name in charter.clear[purpose] if name in result.metrics}
        allowed = {name: value for name, value in clear.items() if name in self._holder.clear}
        if allowed and not model.measuring:
            content[CLEAR] = Metrics(allowed)
        scheme = self._holder.scheme.name
        return checked(content, scheme, self._settings.round, frozenset(charter.clear[purpose]))


def _quiet_floats() -> np.errstate:
    """An app may have made an overflow an exception (`numpy.seterr`): then a refusal would tell of its data."""
    return np.errstate(all="ignore")
