"""The client mod: decrypts what arrives, lets the app train, encrypts what leaves."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FedcipherError, PlaintextError, StateError
from fedcipher.flower import protocol
from fedcipher.flower.party import party_of
from fedcipher.schemes import Scheme

__all__ = ["client_mod"]

_MOD_FAILED = 6  # flwr.common.constant.ErrorCode.MOD_FAILED_PRECONDITION
_MODEL = protocol.PREFIX + "model"
_DELTA = protocol.PREFIX + "delta"
_STATE = protocol.PREFIX + "state"


def client_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Encrypt every update this ClientApp sends and decrypt every aggregate it receives.

    The key is in an engine or in a file; `fedcipher.flower.party` says which settings name it.

    What Fedcipher refuses becomes an error reply that names the cause, so that the round goes on
    without this client; an update never leaves unencrypted.
    """
    if protocol.CONFIG not in msg.content.config_records:
        if msg.metadata.message_type in (MessageType.TRAIN, MessageType.EVALUATE):
            error = PlaintextError("the server does not use SecureStrategy; refusing to send plaintext")
            return _refuse(msg, error)
        return call_next(msg, ctxt)
    try:
        return _Call(msg, ctxt).run(call_next)
    except FedcipherError as error:
        return _refuse(msg, error)


def _refuse(msg: Message, error: FedcipherError) -> Message:
    return Message(Error(code=_MOD_FAILED, reason=f"{type(error).__name__}: {error}"), reply_to=msg)


class _Call:
    """One message: its configuration, its global model and its reply."""

    def __init__(self, msg: Message, ctxt: Context) -> None:
        self.msg = msg
        self.ctxt = ctxt
        self.config = msg.content.config_records.pop(protocol.CONFIG)
        self.party = party_of(ctxt)
        self.encryptor = self.party.encryptor(int(cast(int, self.config.get("epoch", 0))))
        self.round = int(cast(int, self.config["round"]))
        self.names = cast(list[str], self.config["names"])
        self.plan = cast(bytes, self.config["plan"])
        self.phases: dict[str, float | int] = {}

    def run(self, call_next: ClientAppCallable) -> Message:
        key, record = self._only(self.msg.content.array_records, "message")
        self.phases["download_bytes"] = protocol.record_bytes(record)
        began = time.perf_counter()
        model, reference = self._receive(record)
        self.phases["decrypt_seconds"] = time.perf_counter() - began
        self.msg.content.array_records[key] = _named(self.names, model)

        training = self.msg.metadata.message_type == MessageType.TRAIN
        if training:
            began = time.perf_counter()
            self._restore_state()
            self.encryptor.precompute(model, round=self.round, reference=reference, plan=self.plan)
            self.phases["offline_seconds"] = time.perf_counter() - began
        began = time.perf_counter()
        reply = call_next(self.msg, self.ctxt)
        self.phases["train_seconds" if training else "evaluate_seconds"] = time.perf_counter() - began
        if reply.has_error():
            return reply
        if training:
            self._encrypt_reply(reply, model, reference)
        elif reply.content.array_records:
            raise PlaintextError("an evaluation reply carries arrays; return metrics only")
        reply.content.metric_records[protocol.METRICS] = MetricRecord(cast(Any, self.phases))
        return reply

    @staticmethod
    def _only(records: Any, where: str) -> tuple[str, ArrayRecord]:
        items = list(records.items())
        if len(items) != 1:
            raise PlaintextError(f"the {where} has {len(items)} ArrayRecords; exactly one can be protected")
        return items[0]

    def _receive(self, record: ArrayRecord) -> tuple[list[NumpyArray], list[NumpyArray] | None]:
        """The global model, and the public reference for clip ranges."""
        frames = sorted((k, protocol.frame_bytes(v)) for k, v in record.items() if _is_aggregate(k))
        initial = [v.numpy() for k, v in record.items() if not _is_aggregate(k)]
        if self.party.scheme.codec.target == "weights":
            model = self.party.decryptor().decrypt(frames[-1][1]) if frames else initial
            return model, model
        return self._apply_deltas(frames, initial)

    def _apply_deltas(
        self, frames: list[tuple[str, bytes]], initial: list[NumpyArray]
    ) -> tuple[list[NumpyArray], list[NumpyArray] | None]:
        state = self.ctxt.state
        delta: list[NumpyArray] | None = None
        if initial:
            model, have = [np.array(x) for x in initial], 0
        elif _MODEL in state:
            model = [np.array(x) for x in state.array_records[_MODEL].to_numpy_ndarrays()]
            have = int(cast(int, state.config_records[_STATE]["have"]))
            if _DELTA in state:
                delta = state.array_records[_DELTA].to_numpy_ndarrays()
        else:
            raise StateError("this client has lost its global model; the server sends it again next round")
        for key, frame in frames:
            sequence = int(key.removeprefix(protocol.AGGREGATE_PREFIX))
            if sequence <= have:
                continue
            if sequence != have + 1:
                raise StateError(f"aggregate {have + 1} is missing; the server sends all again next round")
            delta = self.party.decryptor().decrypt(frame, reference=delta, like=model)
            model = [(m + d).astype(m.dtype) for m, d in zip(model, delta, strict=True)]
            have = sequence
        state[_MODEL] = _named(self.names, model)
        if delta is not None:
            state[_DELTA] = _named(self.names, delta)
        self._remember(have=have)
        return model, delta

    def _remember(self, **values: Any) -> None:
        records = self.ctxt.state.config_records
        if _STATE not in records:
            records[_STATE] = ConfigRecord({})
        for key, value in values.items():
            records[_STATE][key] = value

    def _restore_state(self) -> None:
        stored = self.ctxt.state.config_records.get(_STATE)
        if stored is not None and "encryptor" in stored:
            self.encryptor.import_state(cast(bytes, stored["encryptor"]))

    def _encrypt_reply(self, reply: Message, model: list[NumpyArray], reference: list[NumpyArray] | None) -> None:
        key, record = self._only(reply.content.array_records, "training reply")
        update = record.to_numpy_ndarrays()
        if list(record.keys()) != list(self.names):
            raise PlaintextError(f"the reply has arrays {list(record.keys())}, expected {list(self.names)}")
        if self.party.scheme.codec.target == "delta":
            update = [np.subtract(u, m, dtype=np.float32) for u, m in zip(update, model, strict=True)]
        frame = self.encryptor.encrypt(
            update, round=self.round, weight=self._weight(reply), reference=reference, plan=self.plan
        )
        state = self.encryptor.export_state()
        if state:
            self._remember(encryptor=state)
        stats = self.encryptor.stats
        self.phases["encode_seconds"] = stats.encode_seconds
        self.phases["encrypt_seconds"] = stats.encrypt_seconds
        self.phases["upload_bytes"] = len(frame)
        self.phases["setup_bytes"] = stats.setup_bytes
        self.phases["clipped"] = stats.clipped
        self.phases["elements"] = stats.elements
        reply.content.array_records[key] = protocol.wire_record({protocol.UPDATE: frame})
        _check_encrypted(reply, self.party.scheme)

    def _weight(self, reply: Message) -> int:
        unit = float(cast(float, self.config["unit"]))
        if unit <= 0:
            return 1
        name = str(self.config["weighted_by"])
        for record in reply.content.metric_records.values():
            if name in record:
                return max(1, round(float(cast(float, record[name])) / unit))
        raise StateError(f"the reply has no metric {name!r} to weight its update by; return it, or weight equally")


def _is_aggregate(key: str) -> bool:
    return key.startswith(protocol.AGGREGATE_PREFIX)


def _named(names: list[str], arrays: list[NumpyArray]) -> ArrayRecord:
    if len(names) != len(arrays):
        raise StateError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    return ArrayRecord({name: Array(np.ascontiguousarray(x)) for name, x in zip(names, arrays, strict=True)})


def _check_encrypted(reply: Message, scheme: Scheme) -> None:
    """Whatever leaves is exactly one frame of this scheme: there is no path for a plain array."""
    records = list(reply.content.array_records.values())
    arrays = [array for record in records for array in record.values()]
    if len(arrays) != 1:
        raise PlaintextError(f"the reply carries {len(arrays)} arrays beside its frame")
    if _native.inspect(protocol.frame_bytes(arrays[0]))[1] != scheme.name:
        raise PlaintextError("the reply's frame is of another scheme")
