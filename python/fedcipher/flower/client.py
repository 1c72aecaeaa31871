"""The client mod: decrypts what arrives, lets the app train, encrypts what leaves, and denies the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord

from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import LayoutError, NonceReuseError, ParameterError, PlaintextError, RoundError, StateError
from fedcipher.flower import committee, protocol
from fedcipher.flower.model import GlobalModel, named
from fedcipher.flower.outgoing import Expected, checked
from fedcipher.flower.party import party_of
from fedcipher.flower.records import CLIPPED
from fedcipher.flower.refusal import refuse
from fedcipher.flower.settings import RoundSettings
from fedcipher.foreign_text import quoting_log

if TYPE_CHECKING:
    # Only types, and not in every Flower that works.
    from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["client_mod", "make_client_mod"]

_log = quoting_log("fedcipher.flower")


def client_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Encrypt every update this ClientApp sends, decrypt every aggregate it receives, and refuse the rest.

    The key is in an engine or in a file; `fedcipher.flower.party` says which settings name it.

    Flower sends ``train``, ``train.default``, ``train.NAME`` to handlers of one category, the word before
    the dot. With the settings of a `SecureStrategy` round, training messages of any name are answered with
    one encrypted update and evaluation messages with metrics. Every other message is refused before the
    app sees it: other categories (``query``), and every message without the round's settings;
    `make_client_mod` can allow some by name. Each reply passes one check right before it leaves.

    Whatever fails, in here or in the app, becomes one constant refusal (`fedcipher.flower.refusal`), so
    that the round goes on without this client; the cause stands in this client's log under the reference
    that the refusal carries.
    """
    return _answer(msg, ctxt, call_next, frozenset())


def make_client_mod(*, allow: Iterable[str] = ()) -> Mod:
    """`client_mod` that also answers messages without a round's settings, of the types named in ``allow``.

    >>> app = ClientApp(mods=[make_client_mod(allow=["query.stats"])])              # doctest: +SKIP

    Their replies leave in the clear. They may carry metrics and settings, no arrays and no bytes.
    Raises `ParameterError` for a name that is no message type of Flower's.
    """
    allowed = frozenset(_split(name) for name in ([allow] if isinstance(allow, str) else allow))
    for category, action in allowed:
        if not action.isidentifier() or category not in (MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY):
            raise ParameterError(
                f"{category}.{action} is no message type; allow a category (train, evaluate, query) or, behind a "
                "dot, one function of it, such as query.stats"
            )

    def mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        return _answer(msg, ctxt, call_next, allowed)

    return mod


def _split(message_type: str) -> tuple[str, str]:
    """Category and function; Flower takes ``query`` for ``query.default``."""
    category, dot, action = message_type.partition(".")
    return category, action if dot else "default"


def _answer(msg: Message, ctxt: Context, call_next: ClientAppCallable, allowed: frozenset[tuple[str, str]]) -> Message:
    try:
        category, action = _split(msg.metadata.message_type)
        if protocol.CONFIG in msg.content.config_records and category in (MessageType.TRAIN, MessageType.EVALUATE):
            call = _Call(msg, ctxt, training=category == MessageType.TRAIN)
            return checked(call.run(call_next), call.expected)
        if committee.is_for_member(msg):
            # Never reaches the app: nothing of it can be in the reply.
            return committee.answer(msg, ctxt)
        if (category, action) in allowed:
            return checked(call_next(msg, ctxt), None)
        raise PlaintextError(
            f"a message of type {msg.metadata.message_type!r} without a round of SecureStrategy; wrap the server's "
            "strategy, or allow the type with make_client_mod"
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of native code is a BaseException: none of these may travel with its text.
    except BaseException as error:
        return refuse(msg, error)


class _Call:
    """One message of a round: its settings, its global model and its reply."""

    def __init__(self, msg: Message, ctxt: Context, *, training: bool) -> None:
        self.msg = msg
        self.ctxt = ctxt
        self.training = training
        self.settings = RoundSettings.parse(msg.content.config_records.pop(protocol.CONFIG))
        self.party = party_of(ctxt)
        if training:
            # A reader, or a member of a committee, need not be a client.
            self.encryptor = self.party.encryptor(self.settings.epoch)
        self.expected = Expected(self.party.scheme.name, self.settings.round) if training else None
        self.model = GlobalModel(ctxt, self.settings, self.party.scheme, training=training)
        self.phases: dict[str, float | int] = {}

    def run(self, call_next: ClientAppCallable) -> Message:
        key = self.settings.record
        record = self.msg.content.array_records.get(key)
        if record is None:
            raise RoundError(f"the message has no ArrayRecord {key!r}, which is to hold the model")
        self.phases["download_bytes"] = protocol.record_bytes(record)
        if self.training:
            self._check_unanswered()
        began = time.perf_counter()
        self.model.receive(record, self.party.decryptor())
        self.phases["decrypt_seconds"] = time.perf_counter() - began
        self.msg.content.array_records[key] = named(self.settings.names, self.model.arrays)
        if self.training:
            self._prepare()
        began = time.perf_counter()
        reply = call_next(self.msg, self.ctxt)
        self.phases["train_seconds" if self.training else "evaluate_seconds"] = time.perf_counter() - began
        if not isinstance(cast(object, reply), Message) or reply.has_error():
            # The check on the way out says what is wrong with it.
            return reply
        if self.training:
            self._encrypt(reply)
        reply.content.metric_records[protocol.METRICS] = MetricRecord(cast(Any, self.phases))
        return reply

    def _check_unanswered(self) -> None:
        """Two updates of one round would let the server subtract one from the other."""
        answered = self.model.recall("answered") or 0
        if self.settings.round <= answered:
            raise NonceReuseError(f"round {self.settings.round} is not after round {answered}, answered already")

    def _prepare(self) -> None:
        began = time.perf_counter()
        if self.party.scheme.sends_parts:
            # What an earlier run has not sent is not of this one, and this process may have served it.
            self.encryptor.import_state(self.model.unsent)
        shaped, reference = self.model.prepared(self._shaped())
        self.encryptor.precompute(shaped, round=self.settings.round, reference=reference, plan=self.settings.plan)
        self.phases["offline_seconds"] = time.perf_counter() - began

    def _encrypt(self, reply: Message) -> None:
        key, record = _only(reply)
        if sorted(record.keys()) != sorted(self.settings.names):
            raise PlaintextError(f"the reply has arrays {list(record.keys())}, expected {self.settings.names}")
        # In the model's order, whatever the app's: JAX returns dicts sorted.
        update = [protocol.to_numpy(record[name]) for name in self.settings.names]
        for name, trained, given in zip(self.settings.names, update, self.model.arrays, strict=True):
            # NumPy would take one number for a whole array of them.
            if trained.shape != given.shape:
                raise LayoutError(
                    f"the reply's array {name!r} has the shape {trained.shape}, the model's {given.shape}: return each "
                    "array in the shape in which it came"
                )
        if self.party.scheme.codec.target == "delta":
            update = self.model.difference(update)
        weight = self._weight(reply)
        self.model.trained(self.settings.round)
        prepared, reference = self.model.prepared(update)
        frame = self.encryptor.encrypt(
            prepared,
            round=self.settings.round,
            weight=weight,
            reference=reference,
            plan=self.settings.plan,
            model=self.model.digest,
        )
        self.model.remember(answered=self.settings.round)
        if self.party.scheme.sends_parts:
            self.model.keep_unsent(self.encryptor.export_state())
        stats = self.encryptor.stats
        self.phases["encode_seconds"] = stats.encode_seconds
        self.phases["encrypt_seconds"] = stats.encrypt_seconds
        self.phases["upload_bytes"] = len(frame)
        self.phases["setup_bytes"] = stats.setup_bytes
        self.phases["clipped"] = stats.clipped
        self.phases["elements"] = stats.elements
        # Of what the app has given: `prepared` may carry a tensor more.
        counts = stats.vanished_by_tensor[: len(update)]
        if any(counts):
            self.phases["vanished"] = sum(counts)
            self._warn_of_rounding(counts)
        self._warn_of_clipping(update)
        if stats.scaled < 1:
            # Here only: how long an update is no noise covers.
            _log.info(
                "round %s: the update was multiplied by %.3g to keep the L2 norm of its privacy, %g",
                self.settings.round - self.settings.run,
                stats.scaled,
                self.party.scheme.codec.privacy and self.party.scheme.codec.privacy.clip,
            )
        reply.content.array_records[key] = protocol.wire_record({protocol.UPDATE: frame})

    def _shaped(self) -> list[NumpyArray]:
        """Arrays of an update's shapes and types."""
        return (
            self.model.arrays
            if self.party.scheme.codec.target == "weights"
            else self.model.difference(self.model.arrays)
        )

    def _warn_of_clipping(self, update: list[NumpyArray]) -> None:
        """A value beyond its range was cut to it: beyond a hundredth of a tensor, say which."""
        counts, names, sizes = self.encryptor.stats.clipped_by_tensor, self.settings.names, [x.size for x in update]
        if len(counts) < len(names):
            # An engine tells how many in all.
            counts, names, sizes = [sum(counts)], [", ".join(names)], [sum(sizes)]
        for name, size, clipped in zip(names, sizes, counts, strict=False):
            if clipped > CLIPPED * size:
                _log.warning(
                    "round %s: %s of %s values of %r were cut to their clip range, which grows by the next aggregate. "
                    "Where it stays: a larger margin or start in the Codec, or more bits",
                    self.settings.round - self.settings.run,
                    clipped,
                    size,
                    name,
                )

    def _warn_of_rounding(self, counts: list[int]) -> None:
        """A tensor of which only zeros are sent is another tensor."""
        for name, count in zip(self.settings.names, counts, strict=False):
            if count:
                _log.warning(
                    "round %s: all %s values of %r are below half a step of their range and are sent as zeros. A "
                    "clip of its own for each tensor, clip='auto' or more bits keeps them",
                    self.settings.round - self.settings.run,
                    count,
                    name,
                )

    def _weight(self, reply: Message) -> int:
        unit, name = self.settings.unit, self.settings.weighted_by
        if unit <= 0:
            return 1
        if self.party.scheme.codec.privacy is not None:
            # Before the number of examples is looked at, which a refusal must not depend on.
            raise ParameterError("the round weights by examples, which its privacy does not cover; weigh all the same")
        for record in reply.content.metric_records.values():
            if name in record:
                units = float(cast(float, record[name])) / unit
                if not math.isfinite(units):
                    raise StateError(f"the metric {name!r} is {record[name]}; it weights the update and must be finite")
                return max(1, round(units))
        raise StateError(f"the reply has no metric {name!r} to weight its update by; return it, or weight equally")


def _only(reply: Message) -> tuple[str, ArrayRecord]:
    items = list(reply.content.array_records.items())
    if len(items) != 1:
        raise PlaintextError(
            f"the training reply has {len(items)} ArrayRecords, {[key for key, _ in items]}; one leaves, encrypted: "
            "put all arrays into it under names of their own, the first model's arrays likewise"
        )
    return items[0]
