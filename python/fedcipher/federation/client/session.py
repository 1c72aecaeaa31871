"""A client's side of a run, independent of any framework: a message becomes work for the app, or an immediate answer.

A message is checked before any data is used, and an invalid message raises an error. After the app has computed,
nothing is refused. If the app fails or returns an invalid update, the client sends a frame of zeros that does not
count.
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
from fedcipher.federation.charter import PURPOSES, Purpose, digest_of
from fedcipher.federation.client import committee, consent, queries, reports
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.egress import checked
from fedcipher.federation.client.evidence import FRAME, Recorder, frame_facts
from fedcipher.federation.client.frame import RoundFrame
from fedcipher.federation.client.key_holder import KeyHolder, take_prekeys
from fedcipher.federation.client.model import ClientModel
from fedcipher.federation.messages import (
    CLEAR,
    COMMITTEE,
    CONFIG,
    CONSENT,
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
    named,
    payload_bytes,
    record_in,
    wire_record,
)
from fedcipher.federation.round_settings import RoundSettings

__all__ = ["ClientSession", "Work"]

_QUERY = "query"


class Work:
    """The work that a message asks of the app.

    Use it as a context, and pass it to `ClientSession.seal` with the app's result. ``record`` is the name of the record
    that holds the model. ``names`` and ``arrays`` are the model; a query has none. ``updates`` says whether the result
    must have arrays like the model's.
    """

    def __init__(
        self,
        finish: Callable[[AppResult], Content],
        lock: ExitStack,
        *,
        record: str = "",
        names: Sequence[str] = (),
        arrays: Sequence[Array] = (),
        updates: bool = False,
    ) -> None:
        self.record, self.names, self.arrays, self.updates = record, list(names), list(arrays), updates
        self._finish, self._lock = finish, lock

    def finish(self, result: AppResult) -> Content:
        """Return the reply's content, and release the client's store for other messages."""
        with self._lock:
            return self._finish(result)

    @property
    def model(self) -> dict[str, Array]:
        """The model's arrays by name."""
        return dict(zip(self.names, self.arrays, strict=True))

    def inputs(self, content: Content) -> Content:
        """The app's part of a message's ``content``: its settings and the model, without the run's own records."""
        model: Content = {self.record: named(self.names, self.arrays)} if self.record else {}
        return {name: record for name, record in content.items() if name not in (CONFIG, QUERY)} | model

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


class ClientSession:
    """Answers the messages of runs for the holder of one key.

    ``holder`` returns the key's holder. ``context`` returns the digest of the settings that no charter lists
    (`fedcipher.federation.app_inputs.digest_of_context`). Neither is called for a message that belongs to no run.
    ``consents`` decides whether the site's people agree to a run; without it, the site's policy alone decides.
    """

    def __init__(
        self,
        holder: Callable[[], KeyHolder],
        context: Callable[[], bytes],
        *,
        consents: consent.Consent | None = None,
    ) -> None:
        self._find_holder, self._context, self._consents = holder, context, consents
        self.recorder: Recorder | None = None
        """The log of the site whose key answered the last message; None if the site keeps none."""

    def _holder(self) -> KeyHolder:
        holder = self._find_holder()
        self.recorder = holder.recorder
        return holder

    def open(self, message: Message, *, queries_too: bool = False) -> Work | Message | None:
        """Return work for the app, an answer that needs no app, or None for a message that does not belong to a run.

        With ``queries_too``, the queries of `fedcipher.federation.server.query_sum` are answered as well. Raises
        `FedcipherError` if the message is refused.
        """
        content, category = message.content, message.type.partition(".")[0]
        if queries_too and category == _QUERY and record_in(content, QUERY, Config) is not None:
            return self._query(message)
        asked = record_in(content, CONSENT, Config)
        if asked is not None:
            return self._reply(message, consent.answer(asked, self._holder(), self._consents))
        if REPORT in content:
            return self._reply(message, reports.report(message, self._holder(), self._context()))
        config = record_in(content, CONFIG, Config)
        if config is not None and category in PURPOSES:
            return self._round(message, RoundSettings.parse(config), PURPOSES[PURPOSES.index(category)])
        if COMMITTEE in content:
            # Answered without the app, so that the reply cannot contain its data.
            return self._reply(message, committee.answer(content[COMMITTEE], self._holder()))
        return None

    def seal(self, message: Message, work: Work, result: AppResult) -> Message:
        """The reply to ``message``: one frame of the app's ``result``, and nothing else of the result."""
        return self._reply(message, work.finish(result))

    @staticmethod
    def _reply(message: Message, content: Content) -> Message:
        return Message(message.node, message.type, content)

    def _agreed(self, digest: bytes, document: bytes) -> bool:
        return self._consents is None or self._consents.given(digest, document)

    def _query(self, message: Message) -> Work | Message:
        document = message.content[QUERY].get("document")
        if isinstance(document, bytes) and not self._agreed(digest_of(document), document):
            return self._reply(message, consent.waiting())
        holder, lock = self._holder(), ExitStack()
        with lock:
            lock.enter_context(holder.store.locked())
            query = queries.QueryFrame(message, holder, self._context())
            return Work(query.seal, lock.pop_all())

    def _round(self, message: Message, settings: RoundSettings, purpose: Purpose) -> Work | Message:
        """Open one message of a round: all checks come first, then the app, then one frame."""
        if not self._agreed(settings.charter, settings.document):
            return self._reply(message, consent.waiting())
        holder, lock = self._holder(), ExitStack()
        with lock:
            lock.enter_context(holder.store.locked())
            opened = _RoundMessage(message, holder, settings, purpose, self._context())
            saved = opened.saved_result()
            if saved is not None:
                return self._reply(message, opened.encrypted(saved))
            charter = opened.model.charter
            return Work(
                opened.finish,
                lock.pop_all(),
                record=charter.record,
                names=charter.names,
                arrays=opened.model.arrays,
                updates=purpose == "train",
            )


class _RoundMessage:
    """One message of a round, from its checks to the reply."""

    def __init__(
        self, message: Message, holder: KeyHolder, settings: RoundSettings, purpose: Purpose, context: bytes
    ) -> None:
        self._holder, self._settings = holder, settings
        self._purpose: Purpose = purpose
        self.model = model = ClientModel(holder, settings, context)
        charter = model.charter
        record = record_in(message.content, charter.record, Arrays)
        if message.type != charter.types[purpose] or record is None:
            raise RoundError("the message has another type than the charter names, or brings no model")
        check_app_inputs(message.content, charter, purpose, settings.index, without=frozenset([charter.record, CONFIG]))
        # Made for messages of a round only, because a reader or a committee member need not be a client.
        encryptor = holder.encryptor(charter.epoch)
        take_prekeys(encryptor, settings.prekeys)
        began = time.perf_counter()
        with _float_errors_ignored():
            model.receive(record, holder.decryptor())
        decrypted = time.perf_counter() - began
        model.claim(purpose)
        self._phases = {"decrypt_seconds": decrypted, "download_bytes": payload_bytes(record)}
        self._frame = RoundFrame(model, encryptor, settings, purpose)
        self._frame.prepare()

    def saved_result(self) -> AppResult | None:
        """The saved result whose histogram is in the present ranges; None if there is none."""
        return self.model.saved_work() if self._purpose == "train" and not self.model.measuring else None

    def finish(self, result: AppResult) -> Content:
        """The reply with the result that the app has just computed."""
        result = self._frame.valid(result)
        self._frame.warn(result)
        return self.encrypted(result)

    def encrypted(self, result: AppResult) -> Content:
        """The reply with the encrypted ``result``."""
        model, charter, purpose = self.model, self.model.charter, self._purpose
        with _float_errors_ignored():
            frame = self._frame.seal(result)
        if purpose == "train":
            if model.measuring:
                model.save_work(result, charter.metrics("train"))
            else:
                model.drop_saved_work()
        context: dict[str, Any] = {"digest": model.context}
        if model.unopened:
            # Whether a tag is valid depends on no private value, unless the party that altered the sum has the cohort's
            # key. Under `oneshot` that party then learns whether the altered sum is in range
            # (docs/evidence/proof.md, theorem 2).
            context["unopened"] = model.unopened
        if self._holder.recorder is not None:
            what = "measure" if model.measuring and purpose == "train" else purpose
            bound = model.associated_data(purpose)
            facts = frame_facts(frame, charter.digest, what, self._settings.index, bound)
            context["head"] = self._holder.recorder.record(FRAME, facts)
        content: Content = {
            charter.record: wire_record({UPDATE: frame}),
            METRICS: Metrics({**self._frame.phases, **self._phases}),
            CONTEXT: Config(context),
        }
        clear = {name: result.metrics[name] for name in charter.clear[purpose] if name in result.metrics}
        allowed = {name: value for name, value in clear.items() if name in self._holder.clear}
        if allowed and not model.measuring:
            content[CLEAR] = Metrics(allowed)
        scheme = self._holder.scheme.name
        return checked(content, scheme, self._settings.round, frozenset(charter.clear[purpose]))


def _float_errors_ignored() -> np.errstate:
    """Ignore floating-point errors. If an app makes them exceptions (`numpy.seterr`), a refusal depends on data."""
    return np.errstate(all="ignore")
