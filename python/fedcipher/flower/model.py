"""The global model on one client: what it knows of it, what it trained from, and the digest of both."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.codec import Codec
from fedcipher.errors import LayoutError, RoundError, StateError
from fedcipher.flower import protocol
from fedcipher.flower.clip_feedback import ClipFeedback, carries_use, split_use, use_of
from fedcipher.flower.optimiser import Steps
from fedcipher.flower.settings import RoundSettings
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Decrypted, Decryptor, Scheme

__all__ = ["GlobalModel", "model_digest", "named"]

_log = quoting_log("fedcipher.flower")

_MODEL = protocol.PREFIX + "model"
_DELTA = protocol.PREFIX + "delta"
_STATE = protocol.PREFIX + "state"
_TRAINED = protocol.PREFIX + "trained"
_MOMENTS = (protocol.PREFIX + "moment.1", protocol.PREFIX + "moment.2")
_EARLIER = "earlier."


def named(names: Sequence[str], arrays: Sequence[NumpyArray]) -> ArrayRecord:
    """Arrays under the model's names."""
    if len(names) != len(arrays):
        raise LayoutError(f"{len(arrays)} arrays for the {len(names)} names of the model")
    # np.ascontiguousarray would make a row of one out of an array without dimensions.
    return ArrayRecord({name: Array(np.asarray(x, order="C")) for name, x in zip(names, arrays, strict=True)})


def model_digest(arrays: Sequence[NumpyArray], settings: RoundSettings, codec: Codec) -> bytes:
    """SHA-256 of a global model and of what turns an update of it into a number in the sum.

    Over each array's name, type, shape and bytes, the weighting (``unit``, ``weighted_by``), the codec, and the
    optimiser that makes the next model of the sum; every part goes in behind its length, so that no two models give
    the same bytes. Updates that were trained from different models must not sum to anything that opens (Pasquini,
    Francati and Ateniese, CCS 2022, "Eluding secure aggregation").
    """
    hashed = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        hashed.update(struct.pack("<Q", len(part)))
        hashed.update(part)

    add(b"fedcipher global model 1")
    add(json.dumps(codec.to_dict(), sort_keys=True).encode())
    add(struct.pack("<d", settings.unit))
    add(settings.weighted_by.encode())
    add(Steps(settings.optimiser, settings.run).identity)
    add(struct.pack("<Q", len(arrays)))
    for name, values in zip(settings.names, arrays, strict=True):
        add(name.encode())
        add(values.dtype.str.encode())
        add(struct.pack(f"<{values.ndim}Q", *values.shape))
        add(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return hashed.digest()


@dataclass
class _Standing:
    """The model after so many aggregates, and what the next one needs."""

    model: list[NumpyArray]
    delta: list[NumpyArray] | None
    """Of the last aggregate."""
    moments: list[list[NumpyArray]]
    ranges: bytes
    have: int
    """Aggregates of the segment."""
    last: int
    """Round of the last one; 0 before there is one."""


class GlobalModel:
    """What one client's Flower state says of the global model; every change is in the state at once."""

    def __init__(self, ctxt: Context, settings: RoundSettings, scheme: Scheme, *, training: bool) -> None:
        self._state = ctxt.state
        self._settings = settings
        self._codec = scheme.codec
        self._carries_use = carries_use(scheme)
        # Where one client can spoil a sum, its aggregate may be taken back.
        self._goes_back = scheme.info.committee
        self._feedback: ClipFeedback | None = None
        self._newest = settings.round - 1 if training else settings.round
        self.arrays: list[NumpyArray] = []
        self.reference: list[NumpyArray] | None = None
        """The public arrays that clip ranges are fitted to."""
        self.digest = b""
        self._aggregates = 0

    def prepared(self, update: list[NumpyArray]) -> tuple[list[NumpyArray], list[NumpyArray] | None]:
        """``update`` as it is encrypted, and the public reference that its clip ranges are fitted to.

        The reference is the last aggregate's mean; before there is one, what stands for the ranges that the server
        names, or for those of `Codec.first_ranges`. Where updates carry the use of their ranges
        (`fedcipher.flower.clip_feedback`), it stands for the ranges that follow from it, and one more tensor has
        this update's use.
        """
        codec, reference = self._codec, self.reference
        if self._feedback is not None:
            ranges = self._feedback.ranges
            use = use_of(update, ranges)
            return [*update, use], codec.reference_of([*ranges, 1.0], [*update, use])
        if codec.top is None and not self._aggregates:
            reference = codec.reference_of(self._first_ranges(self.arrays), self.arrays)
        return update, reference

    def _first_ranges(self, model: list[NumpyArray]) -> list[float]:
        # The server's come from outside: so small that what is cut would measure the update, the codec fits none.
        return list(self._settings.ranges) or self._codec.first_ranges(model)

    def difference(self, trained: Sequence[NumpyArray]) -> list[NumpyArray]:
        """``trained`` less the global model: whole numbers as such, everything else as float32."""
        out: list[NumpyArray] = []
        for new, old in zip(trained, self.arrays, strict=True):
            if new.dtype == old.dtype == np.float32:
                out.append(np.asarray(new - old))
            elif new.dtype.kind in "iu" and old.dtype.kind in "iu":
                out.append(np.asarray(new.astype(np.int64) - old.astype(np.int64)))
            else:
                out.append(np.asarray(new.astype(np.float64) - old.astype(np.float64), dtype=np.float32))
        return out

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
            if self._settings.optimiser is not None:
                raise RoundError("the round's settings name an optimiser, whose step needs deltas: target='delta'")
            if len(brought) + bool(first) != 1:
                raise LayoutError(f"{len(brought)} aggregates and {len(first)} arrays are not one global model")
            self.arrays = first or self._open(brought[0][1], decryptor).arrays
            self._aggregates = len(brought)
            self.reference = self.arrays
        else:
            self._apply(brought, first, decryptor)
        self.digest = model_digest(self.arrays, self._settings, self._codec)
        self._announce(brought[-1][0] if brought else 0)

    def _apply(self, frames: list[tuple[int, bytes]], initial: list[NumpyArray], decryptor: Decryptor) -> None:
        settings = self._settings
        steps = Steps(settings.optimiser, settings.run)
        at, earlier = self._beginning(frames, initial, steps), None
        steps.moments = at.moments
        feedback = ClipFeedback(self._codec, self._first_ranges(at.model)) if self._carries_use else None
        if feedback is not None:
            feedback.restore(at.ranges)
        for sequence, frame in frames:
            if sequence <= at.have:
                continue
            if sequence != at.have + 1:
                raise StateError(f"aggregate {at.have + 1} is missing; the server sends all again next round")
            self.reference = at.delta
            opened = self._open(frame, decryptor, at.model)
            delta, ranges = opened.arrays, b""
            if feedback is not None:
                delta, use = split_use(delta)
                feedback.observe(use)
                ranges = feedback.export()
            model = steps.step(at.model, delta, opened.round)
            earlier, at = at, _Standing(model, delta, steps.moments, ranges, sequence, opened.round)
        if at.last != settings.last:
            raise StateError(
                f"this client has opened the aggregate of round {at.last - settings.run}, which the server has "
                "withdrawn since: it has another model than the others and cannot go on with this run"
            )
        if earlier is not None and self._goes_back:
            self._keep(earlier, _EARLIER)
        if feedback is not None:
            at.ranges = feedback.export()
        self._keep(at, "")
        self.remember(run=settings.run, segment=settings.segment, steps=steps.identity)
        self.reference = at.delta
        self._feedback = feedback
        self._aggregates = at.have
        self.arrays = at.model

    def _beginning(self, frames: list[tuple[int, bytes]], initial: list[NumpyArray], steps: Steps) -> _Standing:
        """Where the aggregates that a message brings begin."""
        settings = self._settings
        same_run = (self.recall("run"), self.recall("segment")) == (settings.run, settings.segment)
        # What is known stays, also where the server sends everything again: no aggregate is opened twice.
        known = self._standing("") if same_run else None
        if known is not None:
            if self.recall("steps") != steps.identity:
                raise RoundError("the optimiser and its numbers are not those that this client began the run with")
            earlier = self._standing(_EARLIER) if self._was_withdrawn(known, frames) else None
            return earlier or known
        if not initial:
            raise StateError("this client has lost its global model; the server sends it again next round")
        for key in (_MODEL, _DELTA, *_MOMENTS):
            self._state.pop(_EARLIER + key, None)
        return _Standing([np.array(x) for x in initial], None, [], b"", 0, 0)

    def _was_withdrawn(self, known: _Standing, frames: list[tuple[int, bytes]]) -> bool:
        """Whether the server has taken back the last aggregate of ``known``, one that others could not open."""
        if not self._goes_back or known.have == 0 or known.last == self._settings.last:
            return False
        same = [_native.inspect(frame)[3] == known.last for sequence, frame in frames if sequence == known.have]
        return same == [False] or (not same and all(sequence < known.have for sequence, _ in frames))

    def _standing(self, prefix: str) -> _Standing | None:
        """What `_keep` has under ``prefix``."""
        model = self._kept(prefix + _MODEL)
        if model is None:
            return None
        moments = [moment for moment in (self._kept(prefix + key) for key in _MOMENTS) if moment is not None]
        ranges = cast(bytes, self.recall(prefix + "ranges") or b"")
        have, last = cast(int, self.recall(prefix + "have")), cast(int, self.recall(prefix + "last"))
        return _Standing([np.array(x) for x in model], self._kept(prefix + _DELTA), moments, ranges, have, last)

    def _kept(self, key: str) -> list[NumpyArray] | None:
        """What `_keep` has under ``key``, read-only."""
        record = self._state.array_records.get(key)
        return None if record is None else [protocol.to_numpy(x) for x in record.values()]

    def _keep(self, standing: _Standing, prefix: str) -> None:
        """Put it in the state, and what it has not out: that was of another run."""
        arrays = [standing.model, standing.delta, *standing.moments, *[None] * (len(_MOMENTS) - len(standing.moments))]
        for key, values in zip((_MODEL, _DELTA, *_MOMENTS), arrays, strict=True):
            if values is None:
                self._state.pop(prefix + key, None)
            else:
                self._state[prefix + key] = named(self._settings.names, values)
        kept = {"ranges": standing.ranges, "have": standing.have, "last": standing.last}
        self.remember(**{prefix + key: value for key, value in kept.items() if value != b""})

    def _open(self, frame: bytes, decryptor: Decryptor, like: list[NumpyArray] | None = None) -> Decrypted:
        """Open an aggregate as its round's, bound to the model this client trained from in that round.

        ``like`` is the model it changes, where it is a delta.
        """
        number = _native.inspect(frame)[3]
        if not self._settings.run < number <= self._newest:
            raise RoundError(f"an aggregate of round {number} is not of this run before round {self._newest + 1}")
        trained = self._state.config_records.get(_TRAINED, ConfigRecord())
        model = cast("bytes | None", trained.get(str(number)))
        reference = None if like is None else self.reference
        opened = decryptor.open(frame, round=number, model=model, reference=reference, like=like)
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

    @property
    def unsent(self) -> bytes:
        """What this client's updates of this run have not sent yet, as `keep_unsent` had it."""
        return self.recall("unsent") if self.recall("unsent_run") == self._settings.run else b""

    def keep_unsent(self, state: bytes) -> None:
        """An encryptor's state, for the next round of this run."""
        self.remember(unsent=state, unsent_run=self._settings.run)

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
