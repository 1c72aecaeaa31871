"""The client mod: brings the model up to date, lets the app compute, encrypts what leaves, and denies the rest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from fedcipher._arguments import texts
from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import ParameterError, PlaintextError, RoundError
from fedcipher.federation.answers import Lanes, Tally
from fedcipher.federation.chain import lanes_of
from fedcipher.federation.charter import Purpose
from fedcipher.federation.ranges import HISTOGRAMS
from fedcipher.federation.whole_numbers import LARGEST, WHOLE
from fedcipher.flower import committee, protocol, reports
from fedcipher.flower.client_model import ClientModel
from fedcipher.flower.outgoing import checked, only_metrics
from fedcipher.flower.party import party_of
from fedcipher.flower.refusal import refuse
from fedcipher.flower.settings import RoundSettings
from fedcipher.flower.told import check_told, context_of
from fedcipher.flower.work import Work, computed, numbers_of
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Encryptor

if TYPE_CHECKING:
    # Only types, and not in every Flower that works.
    from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["client_mod", "make_client_mod", "take_prekeys", "type_of"]

_log = quoting_log("fedcipher.flower")
_UNEQUAL = 1.05
"""Numbers of examples beyond this ratio to their mean are unequal."""


def client_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Encrypt every update this ClientApp sends, decrypt every aggregate it receives, and refuse the rest.

    The key is in an engine or in a file; `fedcipher.flower.party` says which settings name it.

    Flower sends ``train``, ``train.default``, ``train.NAME`` to handlers of one category, the word before
    the dot. With the settings of a `SecureStrategy` round, messages of the charter's two types are answered with one
    encrypted frame: an update with the answers of training, or the answers of an evaluation. Every other message is
    refused before the app sees it: other categories (``query``), and every message without the round's settings;
    `make_client_mod` can allow some by name. Each reply to work of the app passes one check right before it leaves.

    A message is judged before data is touched, and refused with one constant text (`fedcipher.flower.refusal`); the
    cause stands in this client's log under the reference that the refusal carries. After that there is no refusal: an
    app that raises, or returns something else than an update, makes a frame of zeros that counts nothing.
    """
    return _answer(msg, ctxt, call_next, frozenset())


def make_client_mod(*, allow: Iterable[str] = ()) -> Mod:
    """`client_mod` that also answers messages without a round's settings, of the types named in ``allow``.

    >>> app = ClientApp(mods=[make_client_mod(allow=["query.stats"])])              # doctest: +SKIP

    Their replies leave in the clear. They may carry metrics and settings, no arrays and no bytes.
    Raises `ParameterError` for a name that is no message type of Flower's.
    """
    allowed = frozenset(type_of(name) for name in texts([allow] if isinstance(allow, str) else allow, "allow"))

    def mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        return _answer(msg, ctxt, call_next, allowed)

    return mod


def type_of(message_type: str) -> tuple[str, str]:
    """Category and function of a message type that a caller names. Raises `ParameterError`."""
    category, action = _split(message_type)
    if not action.isidentifier() or category not in (MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY):
        raise ParameterError(
            f"{message_type!r} is no message type; name a category (train, evaluate, query) or, behind a dot, one "
            "function of it, such as query.stats"
        )
    return category, action


def _split(message_type: str) -> tuple[str, str]:
    """Category and function; Flower takes ``query`` for ``query.default``."""
    category, dot, action = message_type.partition(".")
    return category, action if dot else "default"


def _answer(msg: Message, ctxt: Context, call_next: ClientAppCallable, allowed: frozenset[tuple[str, str]]) -> Message:
    try:
        category, action = _split(msg.metadata.message_type)
        if reports.is_for_reader(msg):
            return reports.report(msg, ctxt)
        if protocol.CONFIG in msg.content.config_records and category in (MessageType.TRAIN, MessageType.EVALUATE):
            return _round(msg, ctxt, call_next, "train" if category == MessageType.TRAIN else "evaluate")
        if committee.is_for_member(msg):
            # Never reaches the app: nothing of it can be in the reply.
            return committee.answer(msg, ctxt)
        if (category, action) in allowed:
            return only_metrics(call_next(msg, ctxt))
        raise PlaintextError(
            f"a message of type {msg.metadata.message_type!r} without a round of SecureStrategy; wrap the server's "
            "strategy, or allow the type with make_client_mod"
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of native code is a BaseException: none of these may travel with its text.
    except BaseException as error:
        return refuse(msg, error)


def _round(msg: Message, ctxt: Context, call_next: ClientAppCallable, purpose: Purpose) -> Message:
    """One message of a round: everything that can be refused first, then the app, then one frame."""
    settings = RoundSettings.parse(msg.content.config_records.pop(protocol.CONFIG))
    party = party_of(ctxt)
    with party.store.locked():
        model = ClientModel(party, settings, context_of(ctxt))
        charter = model.charter
        record = msg.content.array_records.get(charter.record)
        if msg.metadata.message_type != charter.types[purpose] or record is None:
            raise RoundError("the message is of another type than the charter names, or brings no model")
        check_told(msg.content, charter, purpose, settings.index, without=frozenset([charter.record]))
        # A reader, or a member of a committee, need not be a client.
        encryptor = party.encryptor(charter.epoch)
        take_prekeys(encryptor, settings.prekeys)
        downloaded = protocol.record_bytes(record)
        began = time.perf_counter()
        with _quiet_floats():
            model.receive(record, party.decryptor())
        decrypted = time.perf_counter() - began
        model.claim(purpose)
        msg.content.array_records[charter.record] = protocol.named(charter.names, model.arrays)
        sealed = _Sealed(model, encryptor, settings, purpose)
        sealed.prepare()
        # What has told the present ranges how large it is.
        work = model.kept_work() if purpose == "train" and not model.measuring else None
        if work is None:
            work = computed(msg, ctxt, call_next, model.arrays if purpose == "train" else None, charter.record)
            work = sealed.without_odd_weight(work)
            sealed.warn(work)
        with _quiet_floats():
            frame = sealed.seal(work)
        if purpose == "train":
            if model.measuring:
                model.keep_work(work, charter.metrics("train"))
            else:
                model.drop_work()
        phases = {**sealed.phases, "decrypt_seconds": decrypted, "download_bytes": downloaded}
        content = RecordDict({charter.record: protocol.wire_record({protocol.UPDATE: frame})})
        content[protocol.METRICS] = MetricRecord(cast(Any, phases))
        told: dict[str, Any] = {"digest": model.context}
        if model.unopened:
            # Whether a tag is right depends on no private value, unless whoever altered the sum has the cohort's key.
            # Under `oneshot` that party then learns whether the altered sum is in range (docs/proof.md, theorem 2).
            told["unopened"] = model.unopened
        content[protocol.CONTEXT] = ConfigRecord(told)
        clear = {name: work.metrics[name] for name in charter.clear[purpose] if name in work.metrics}
        allowed = {name: value for name, value in clear.items() if name in party.clear}
        if allowed and not model.measuring:
            content[protocol.CLEAR] = MetricRecord(cast(Any, allowed))
        return checked(
            Message(content, reply_to=msg), party.scheme.name, settings.round, frozenset(charter.clear[purpose])
        )


def take_prekeys(encryptor: Encryptor, frames: list[bytes]) -> None:
    """Before anything is computed: what was recorded of shares opens only as long as members keep these keys."""
    for why in encryptor.take_prekeys(frames):
        _log.warning("a prekey of the committee is not used: %s", why)


def _quiet_floats() -> np.errstate:
    """An app may have made an overflow an exception (`numpy.seterr`): then a refusal would tell of its data."""
    return np.errstate(all="ignore")


class _Sealed:
    """One frame of a round: its preparation, and what the app's work becomes."""

    def __init__(self, model: ClientModel, encryptor: Encryptor, settings: RoundSettings, purpose: Purpose) -> None:
        self._model, self._encryptor, self._settings = model, encryptor, settings
        self._purpose: Purpose = purpose
        self._scheme, self._charter = model.scheme, model.charter
        self._measures = purpose == "train" and model.measuring
        self._lanes: Lanes | None = (
            model.lanes if purpose == "train" else lanes_of(model.charter, model.scheme, purpose)
        )
        self._counts = False
        self.phases: dict[str, float | int] = {}

    def prepare(self) -> None:
        """What does not depend on the data, before the app computes."""
        if self._purpose != "train" or self._measures:
            return
        began = time.perf_counter()
        if self._scheme.sends_parts:
            self._encryptor.import_state(self._model.unsent)
        self._encryptor.precompute(
            self._model.shaped,
            round=self._settings.round,
            reference=self._model.reference,
            plan=self._settings.plan,
            lanes=0 if self._lanes is None else self._lanes.count,
            counts=0 if self._lanes is None else self._lanes.counts,
            hide_ranges=self._model.hides_ranges,
            bits=self._settings.bits,
        )
        self.phases["offline_seconds"] = time.perf_counter() - began

    def seal(self, work: Work) -> bytes:
        """The frame of what the app made, or one of zeros that counts nothing."""
        charter = self._charter
        values = {a.name: numbers_of(work.metrics.get(a.name)) for a in charter.answers[self._purpose]}
        values["fedcipher.seconds"] = [work.seconds]
        tally = Tally(not work.failed, self._examples(work), values)
        trains = self._purpose == "train"
        update = self._update(work, tally, values) if trains else []
        if self._measures:
            # Only how large it is leaves, in ``values``.
            trains, update = False, []
        lanes = None if self._lanes is None else self._lanes.encode(tally)
        frame = self._encryptor.encrypt(
            update,
            round=self._settings.round,
            reference=self._model.reference if trains else None,
            plan=self._settings.plan,
            model=self._model.binding(self._purpose),
            memory=self._model.memory(self._purpose),
            lanes=lanes,
            counts=0 if self._lanes is None else self._lanes.counts,
            unbiased=trains and self._model.at_random,
            hide_ranges=self._model.hides_ranges,
            bits=self._settings.bits,
        )
        # What a client that counts nothing did not send still waits.
        if self._counts and self._scheme.sends_parts:
            self._model.keep_unsent(self._encryptor.export_state())
        stats = self._encryptor.stats
        self.phases["encode_seconds"] = stats.encode_seconds
        self.phases["encrypt_seconds"] = stats.encrypt_seconds
        self.phases["upload_bytes"] = len(frame)
        self.phases["setup_bytes"] = stats.setup_bytes
        if stats.scaled < 1:
            # Here only: how long an update is no noise covers.
            _log.info(
                "round %s: the update was multiplied by %.3g to keep the L2 norm of its privacy",
                self._settings.index,
                stats.scaled,
            )
        return frame

    def _update(self, work: Work, tally: Tally, values: dict[str, list[float]]) -> list[NumpyArray]:
        """What is encrypted: the change, times this client's share of the largest weight; ``values`` gets counts."""
        model = self._model
        share, cut = 1.0, 0
        if self._lanes is not None and not self._charter.equal_weights:
            share = self._lanes.weight(tally.examples) / self._charter.largest_weight
        self._counts = not work.failed and share > 0
        if not self._counts:
            if self._scheme.sends_parts:
                self._encryptor.import_state(b"")
            update = [np.zeros_like(x) for x in model.shaped]
        else:
            update, odd = model.update(work.arrays)
            values["fedcipher.saturated"] = [odd]
            update = model.with_waiting(update)
            values[WHOLE], cut = cast("tuple[list[float], int]", model.whole(work.arrays))
        values[HISTOGRAMS] = cast("list[float]", model.counted(update, share))
        if self._counts:
            # Beside the largest weight of late, whatever the charter allows for.
            share /= model.omega
            if share != 1:
                update = [np.asarray(x * np.float32(share)) for x in update]
        if self._measures:
            return update
        update, counted = model.coded(update, share, counts=self._counts)
        values.update(counted)
        if cut:
            values["fedcipher.clipped"][0] += cut
            _log.warning("round %s: %s whole numbers were cut to %s", self._settings.index, cut, LARGEST)
        return update

    def _examples(self, work: Work) -> int | float:
        held = numbers_of(work.metrics.get(self._charter.weighted_by))
        return held[0] if held else 0.0

    def without_odd_weight(self, work: Work) -> Work:
        """``work``, or none where its number of examples is below 0 or no number: it has no weight."""
        examples = self._examples(work)
        if self._lanes is None or work.failed or examples >= 0:
            return work
        said = f"{self._charter.weighted_by!r} is {examples}; let the app count its examples from 0 on"
        return Work(seconds=work.seconds, failed=said)

    def warn(self, work: Work) -> None:
        """Say what of the app's ``work`` does not count."""
        charter, examples = self._charter, self._examples(work)
        surplus = sorted(set(work.metrics) - charter.metrics(self._purpose))
        if surplus:
            _log.warning(
                "round %s: the metrics %s stay on this client: the charter does not name them. Name them in "
                "SecureStrategy(%s_answers=[...])",
                self._settings.index,
                surplus,
                self._purpose,
            )
        if work.failed:
            # Under differential privacy nothing says how many have failed: that is data, and no noise covers it.
            counts = "count nothing" if self._lanes is not None else "count as an update, as privacy hides failures"
            _log.warning("round %s: this client sends zeros that %s: %s", self._settings.index, counts, work.failed)
        elif self._lanes is not None and not charter.equal_weights and self._lanes.weight(examples) == 0:
            _log.warning(
                "round %s: %r is %s, so this client's update counts nothing",
                self._settings.index,
                charter.weighted_by,
                examples,
            )
        elif not charter.equal_weights and examples > charter.largest_weight:
            _log.warning(
                "round %s: %s examples count as %s, the largest weight of the charter; make keys with "
                "`fedcipher keygen --examples %.0f`",
                self._settings.index,
                examples,
                charter.largest_weight,
                examples,
            )
        elif charter.equal_weights and self._purpose == "train":
            self._warn_unequal(examples)

    def _warn_unequal(self, examples: float) -> None:
        """Where FedAvg would weigh by examples, and these keys do not."""
        mean = self._model.mean_examples
        if not mean or mean / _UNEQUAL <= examples <= mean * _UNEQUAL:
            return
        _log.warning(
            "round %s: this client has %s examples, the clients of the last round had %.4g on average, and all weigh "
            "the same; to weigh by examples make keys with `fedcipher keygen --examples N`, N of the largest client",
            *(self._settings.index, examples, mean),
        )
