"""The global model on one client: what it knows of it, what it trained from, and the digest of both."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.codec import Codec
from fedcipher.errors import LayoutError, RoundError, StateError
from fedcipher.flower import protocol
from fedcipher.flower.settings import RoundSettings
from fedcipher.schemes import Decryptor

__all__ = ["GlobalModel", "model_digest", "named"]

_log = logging.getLogger("fedcipher.flower")

_MODEL = protocol.PREFIX + "model"
_DELTA = protocol.PREFIX + "delta"
_STATE = protocol.PREFIX + "state"
_TRAINED = protocol.PREFIX + "trained"


def named(names: Sequence[str], arrays: Sequence[NumpyArray]) -> ArrayRecord:
    """Arrays under the model's names."""
    if len(names) != len(arrays):
        raise LayoutError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    return ArrayRecord({name: Array(np.ascontiguousarray(x)) for name, x in zip(names, arrays, strict=True)})


def model_digest(arrays: Sequence[NumpyArray], settings: RoundSettings, codec: Codec) -> bytes:
    """SHA-256 of a global model and of what turns an update of it into a number in the sum.

    Over each array's name, type, shape and bytes, the weighting (``unit``, ``weighted_by``) and the codec;
    every part goes in behind its length, so that no two models give the same bytes. Updates that were
    trained from different models must not sum to anything that opens (Pasquini, Francati and Ateniese,
    CCS 2022, "Eluding secure aggregation").
    """
    hashed = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        hashed.update(struct.pack("<Q", len(part)))
        hashed.update(part)

    add(b"fedcipher global model 1")
    add(json.dumps(codec.to_dict(), sort_keys=True).encode())
    add(struct.pack("<d", settings.unit))
    add(settings.weighted_by.encode())
    add(struct.pack("<Q", len(arrays)))
    for name, values in zip(settings.names, arrays, strict=True):
        add(name.encode())
        add(values.dtype.str.encode())
        add(struct.pack(f"<{values.ndim}Q", *values.shape))
        add(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return hashed.digest()


class GlobalModel:
    """What one client's Flower state says of the global model; every change is in the state at once."""

    def __init__(self, ctxt: Context, settings: RoundSettings, codec: Codec, *, training: bool) -> None:
        self._state = ctxt.state
        self._settings = settings
        self._codec = codec
        self._newest = settings.round - 1 if training else settings.round
        self.arrays: list[NumpyArray] = []
        self.reference: list[NumpyArray] | None = None
        """The public arrays that clip ranges are fitted to."""
        self.digest = b""

    def receive(self, record: ArrayRecord, decryptor: Decryptor) -> None:
        """Take up what a message brings: the initial model, aggregates, or both.

        Raises `LayoutError`, `StateError`, `RoundError` and what a decryptor raises.
        """
        frames = [(protocol.aggregate_sequence(k), k) for k in record if k.startswith(protocol.AGGREGATE_PREFIX)]
        frames.sort()
        initial = [key for key in record if not key.startswith(protocol.AGGREGATE_PREFIX)]
        if initial and initial != self._settings.names:
            raise LayoutError(f"the message has the arrays {initial}, its names are {self._settings.names}")
        first = [protocol.to_numpy(record[key]) for key in initial]
        brought = [(sequence, protocol.frame_bytes(record[key])) for sequence, key in frames]
        if self._codec.target == "weights":
            if len(brought) + bool(first) != 1:
                raise LayoutError(f"{len(brought)} aggregates and {len(first)} arrays are not one global model")
            self.arrays = first or self._open(brought[0][1], decryptor)
            self.reference = self.arrays
        else:
            self._apply(brought, first, decryptor)
        self.digest = model_digest(self.arrays, self._settings, self._codec)
        self._announce(brought[-1][0] if brought else 0)

    def _apply(self, frames: list[tuple[int, bytes]], initial: list[NumpyArray], decryptor: Decryptor) -> None:
        state, records = self._state, self._state.array_records
        same_run = self.recall("run") == self._settings.run
        # What is known stays, also where the server sends everything again: no aggregate is opened twice.
        if same_run and _MODEL in records:
            model = [np.array(protocol.to_numpy(x)) for x in records[_MODEL].values()]
            have = cast(int, self.recall("have"))
            self.reference = [protocol.to_numpy(x) for x in records[_DELTA].values()] if _DELTA in records else None
        elif initial:
            model, have = [np.array(x) for x in initial], 0
            state.pop(_DELTA, None)
        else:
            raise StateError("this client has lost its global model; the server sends it again next round")
        for sequence, frame in frames:
            if sequence <= have:
                continue
            if sequence != have + 1:
                raise StateError(f"aggregate {have + 1} is missing; the server sends all again next round")
            delta = self._open(frame, decryptor, model)
            model = [(m + d).astype(m.dtype) for m, d in zip(model, delta, strict=True)]
            have, self.reference = sequence, delta
        state[_MODEL] = named(self._settings.names, model)
        if self.reference is not None:
            state[_DELTA] = named(self._settings.names, self.reference)
        self.remember(run=self._settings.run, have=have)
        self.arrays = model

    def _open(self, frame: bytes, decryptor: Decryptor, like: list[NumpyArray] | None = None) -> list[NumpyArray]:
        """Open an aggregate as its round's, bound to the model this client trained from in that round.

        ``like`` is the model it changes, where it is a delta.
        """
        number = _native.inspect(frame)[3]
        if not self._settings.run < number <= self._newest:
            raise RoundError(f"an aggregate of round {number} is not of this run before round {self._newest + 1}")
        trained = self._state.config_records.get(_TRAINED, ConfigRecord())
        model = cast("bytes | None", trained.get(str(number)))
        reference = None if like is None else self.reference
        opened = decryptor.open(frame, round=number, model=model, reference=reference, like=like).arrays
        # Aggregates come in order: what is older will not be asked for.
        for older in [key for key in trained if int(key) < number]:
            del trained[older]
        return opened

    def trained(self, number: int) -> None:
        """This client trains from the present model in round ``number``."""
        records = self._state.config_records
        if _TRAINED not in records:
            records[_TRAINED] = ConfigRecord()
        records[_TRAINED][str(number)] = self.digest

    def remember(self, **values: int | bytes) -> None:
        """Keep values between messages."""
        records = self._state.config_records
        if _STATE not in records:
            records[_STATE] = ConfigRecord()
        for key, value in values.items():
            records[_STATE][key] = value

    def recall(self, key: str) -> Any:
        """What `remember` kept, or ``None``."""
        return self._state.config_records.get(_STATE, ConfigRecord()).get(key)

    def _announce(self, aggregates: int) -> None:
        """Say once a run what this client began with, so that people can compare."""
        if self.recall("announced") != self._settings.run:
            self.remember(announced=self._settings.run)
            _log.info(
                "the first global model of this run, after %s aggregates, has the SHA-256 %s; every client that "
                "began there must say the same",
                aggregates,
                self.digest.hex(),
            )
