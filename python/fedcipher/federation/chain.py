"""The chain of a run's models: where the model stands, and what leads from one position to the next.

A position is a digest of the one before and of everything that the next update depends on: the model, the clip ranges
and the optimiser's moments. Every frame's tag names its position, so an aggregate opens at that position and nowhere
else, and updates that were computed at different positions do not sum. The first position names the charter, the first
model, and what a client's app is given that the charter cannot list (`fedcipher.federation.charter`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.errors import CharterError, DecryptError, ForgedAggregateError, LayoutError
from fedcipher.federation.answers import Answer, Lanes, Sums, limb_width
from fedcipher.federation.charter import Charter, Purpose, arrays_digest, digest_of
from fedcipher.federation.clip_feedback import ClipFeedback, carries_use, split_use, use_of
from fedcipher.federation.optimiser_step import Optimiser, Steps, saturated
from fedcipher.schemes import Decrypted, Decryptor, Scheme

__all__ = ["Chain", "Opened", "Standing", "lanes_of"]

Arrays = list[NDArray[Any]]
_COUNTS = 1e12
_SECONDS = 1e6
_COUNTERS: dict[Purpose, tuple[Answer, ...]] = {
    "train": (
        Answer("fedcipher.clipped", 0, 1.0, _COUNTS, "sum"),
        Answer("fedcipher.vanished", 0, 1.0, _COUNTS, "sum"),
        Answer("fedcipher.saturated", 0, 1.0, _COUNTS, "sum"),
        Answer("fedcipher.seconds", 0, 1e-3, _SECONDS, "sum"),
    ),
    "evaluate": (Answer("fedcipher.seconds", 0, 1e-3, _SECONDS, "sum"),),
}
"""What every client counts beside the charter's answers: values cut to their range, values of tensors that were rounded
to nothing, values that were no finite number, and the seconds of its app."""


def lanes_of(charter: Charter, scheme: Scheme, purpose: Purpose) -> Lanes | None:
    """The lanes of a frame of ``purpose``; none where privacy leaves no room for them."""
    if purpose == "train" and scheme.codec.privacy is not None:
        return None
    return Lanes(
        charter.answers[purpose],
        largest_weight=charter.largest_weight,
        width=limb_width(max(scheme.codec.bit_widths), int(scheme.params()["clients"])),
        counters=_COUNTERS[purpose],
    )


@dataclass
class Standing:
    """The model at one position, and what the next step needs."""

    model: Arrays
    delta: Arrays | None
    """The mean of the last step; none before there is one."""
    moments: list[Arrays]
    ranges: bytes
    position: bytes
    steps: int
    last: bytes = b""
    """Names the last step, see `Chain.last_of`."""


@dataclass(frozen=True)
class Opened:
    """One step that was opened: its groups' sums, and which of the frames did not open."""

    sums: list[Sums]
    clients: list[list[int]]
    failed: list[int] = field(default_factory=list[int])

    @property
    def answers(self) -> Sums | None:
        """The sums of all groups together; none where the frames carry no answers."""
        if not self.sums:
            return None
        first = self.sums[0]
        numbers = {
            name: [math.fsum(values) for values in zip(*(s.numbers[name] for s in self.sums), strict=True)]
            for name in first.numbers
        }
        clients, counted, examples = (
            sum(s.clients for s in self.sums),
            sum(s.counted for s in self.sums),
            sum(s.examples for s in self.sums),
        )
        return Sums(clients, counted, examples, numbers)


class Chain:
    """One run's models, as a client or another reader of its aggregates follows them.

    ``context`` is the digest of what a client's app is given beside the charter; a reader that is no client learns it
    from the run's folder. ``first`` is the first model, or ``standing`` a later position of the same charter.
    Raises `CharterError` where the first model is not the charter's.
    """

    def __init__(
        self,
        charter: Charter,
        scheme: Scheme,
        context: bytes,
        *,
        first: Sequence[NDArray[Any]] | None = None,
        standing: Standing | None = None,
    ) -> None:
        self.charter, self.scheme, self._context = charter, scheme, context
        self._codec = scheme.codec
        self._feedback: ClipFeedback | None = None
        self._steps = Steps(None if charter.optimiser is None else Optimiser(*charter.optimiser))
        self._lanes = lanes_of(charter, scheme, "train")
        if standing is None:
            self.at = self._begun([np.array(x) for x in first or ()])
        else:
            self.at = standing
        self._take_up()

    def _begun(self, model: Arrays) -> Standing:
        described = [(name, x.dtype.str, x.shape) for name, x in zip(self.charter.names, model, strict=False)]
        if described != list(self.charter.arrays) or len(model) != len(self.charter.arrays):
            raise CharterError("the first model has other arrays than the charter names")
        digest = arrays_digest(self.charter.names, model)
        if digest.hex() != self.charter.first:
            raise CharterError("the first model is not the one that the charter names")
        position = digest_of(b"fedcipher position 1", b"", self.charter.digest, self._context, digest, b"", b"")
        return Standing(model, None, [], b"", position, 0)

    def _take_up(self) -> None:
        """Ranges and moments of the standing."""
        if carries_use(self.scheme):
            self._feedback = ClipFeedback(self._codec, self._codec.first_ranges(self.at.model))
            self._feedback.restore(self.at.ranges)
        self._steps.moments = self.at.moments

    @property
    def model(self) -> Arrays:
        """The arrays of the present position."""
        return self.at.model

    @property
    def position(self) -> bytes:
        """Digest of the present position."""
        return self.at.position

    @property
    def shaped(self) -> Arrays:
        """Arrays of an update's shapes and types, without values of their own."""
        if not self.charter.equal_weights:
            # Shares of the largest weight are no whole numbers.
            types = [np.dtype(np.float32) for _ in self.at.model]
        elif self._codec.target == "weights":
            return self.at.model
        else:
            types = [np.dtype(np.int64 if x.dtype.kind in "iu" else np.float32) for x in self.at.model]
        return [np.broadcast_to(np.zeros((), t), x.shape) for t, x in zip(types, self.at.model, strict=True)]

    def prepared(self, update: Sequence[NDArray[Any]]) -> tuple[Arrays, Arrays | None]:
        """``update`` as it is encrypted, and the public reference that its clip ranges are fitted to.

        The reference is the last step's mean; before there is one, what stands for `Codec.first_ranges`. Where updates
        carry the use of their ranges (`fedcipher.federation.clip_feedback`), it stands for the ranges that follow from
        it, and one more tensor has this update's use.
        """
        codec, made = self._codec, list(update)
        if self._feedback is not None:
            ranges = self._feedback.ranges
            use = use_of(made, ranges)
            return [*made, use], codec.reference_of([*ranges, 1.0], [*made, use])
        if codec.target == "weights":
            first = codec.reference_of(codec.first_ranges(self.at.model), self.at.model)
            return made, self.at.model if self.at.steps else first
        if codec.top is None and not self.at.steps:
            return made, codec.reference_of(codec.first_ranges(self.at.model), self.at.model)
        return made, self.at.delta

    @property
    def hides_ranges(self) -> bool:
        """Whether frames keep their clip ranges to themselves: these follow from opened sums.

        Not where privacy fixes them, and not where each client chooses its coordinates, which the server sees anyway.
        """
        return self._codec.privacy is None and self.scheme.params().get("per_client_top") is None

    def ranges(self) -> list[float] | None:
        """Clip ranges of an update from here, one an array, where frames do not say them."""
        if not self.hides_ranges:
            return None
        update, reference = self.prepared(self.shaped)
        return [alpha for _, _, alpha, _ in self._codec.layout(update, reference).tensors]

    def binding(self, purpose: Purpose, index: int) -> bytes:
        """What a frame that is computed here names."""
        return self.charter.binding(purpose, self.at.position, index)

    def memory(self, purpose: Purpose) -> bytes:
        """Names the memory of the rule of sets that a sum at this position counts in; its first byte 1 is kept."""
        if self.charter.sets_models:
            return b"\x01" + digest_of(b"run", purpose.encode(), self.charter.digest)
        if self.at.steps == 0:
            return b"\x01" + digest_of(b"first", purpose.encode())
        return b"\x00" + digest_of(b"position", purpose.encode(), self.at.position)

    @staticmethod
    def last_of(frames: Sequence[bytes], index: int) -> bytes:
        """The digest that a step of ``frames`` is known by: its sums' rounds and clients, and the run's round."""
        heads = [_native.inspect(frame) for frame in frames]
        said = [(head[3], sorted(client for client, _ in head[4])) for head in heads]
        return digest_of(repr(said).encode(), index.to_bytes(8, "little"))

    @staticmethod
    def clients_of(frames: Sequence[bytes]) -> list[int]:
        """Whose updates are in ``frames``."""
        return sorted(client for frame in frames for client, _ in _native.inspect(frame)[4])

    # --- steps -------------------------------------------------------------------------------

    def step(
        self, decryptor: Decryptor, frames: Sequence[bytes], index: int, *, without: Collection[int] = ()
    ) -> Opened:
        """Open the sums of the run's round ``index`` and go to the next position.

        ``frames`` are of disjoint groups of clients; those that do not open count nothing. Where none opens nothing is
        changed. ``without``: numbers of frames that count nothing, because clients have not opened them and this
        ``decryptor`` cannot check. Raises `ForgedAggregateError`, `DecryptError` and what a decryptor raises.
        """
        clients = self.clients_of(frames)
        if len(set(clients)) != len(clients):
            raise ForgedAggregateError("a client is in two sums of one step")
        opened: list[tuple[Decrypted, Sums | None]] = []
        failed: list[int] = []
        error: Exception | None = None
        for number, frame in enumerate(frames):
            if number in without:
                failed.append(number)
                continue
            try:
                opened.append(self.open(decryptor, frame, index))
            except (ForgedAggregateError, DecryptError) as refused:
                error = refused
                failed.append(number)
        if not opened:
            raise error or ForgedAggregateError("a step without a sum")
        arrays = _together(opened, equal=self.charter.equal_weights)
        ranges = b""
        if self._feedback is not None:
            arrays, use = split_use(arrays)
            self._feedback.observe(use)
            ranges = self._feedback.export()
        self._move(arrays, ranges, index, self.last_of(frames, index))
        groups = [sorted(c.client for c in d.contributions) for d, _ in opened]
        return Opened([s for _, s in opened if s is not None], groups, failed)

    def _move(self, mean: Arrays, ranges: bytes, index: int, last: bytes) -> None:
        before = self.at
        if self._codec.target == "weights":
            model = [saturated(old, new) for old, new in zip(before.model, mean, strict=True)]
        else:
            model = self._steps.step(before.model, mean, index)
        moments = self._steps.moments
        flat = [array for moment in moments for array in moment]
        position = digest_of(
            b"fedcipher position 1",
            before.position,
            last,
            arrays_digest(self.charter.names, model),
            ranges,
            b"".join(arrays_digest([str(k)], [x]) for k, x in enumerate(flat)),
        )
        self.at = Standing(model, mean, moments, ranges, position, before.steps + 1, last)

    def open(self, decryptor: Decryptor, frame: bytes, index: int) -> tuple[Decrypted, Sums | None]:
        """Open a sum of updates of round ``index`` from this position: the mean, and the answers' sums."""
        found: list[Sums] = []
        factor = 1.0

        def rescaled(lanes: Sequence[int], clients: int) -> float:
            nonlocal factor
            if self._lanes is None:
                return 1.0
            sums = self._lanes.decode(lanes, clients)
            found.append(sums)
            if self.charter.equal_weights:
                factor = clients / sums.counted if sums.counted else 0.0
            else:
                factor = clients * self.charter.largest_weight / sums.examples if sums.examples else 0.0
            return factor

        delta = self._codec.target == "delta"
        opened = decryptor.open(
            frame,
            model=self.binding("train", index),
            memory=self.memory("train"),
            reference=self.at.delta if delta else None,
            like=self.at.model,
            rescale=rescaled,
            ranges=self.ranges(),
        )
        if self._feedback is not None and factor:
            # Ranges are of what clients send, which is not scaled.
            opened.arrays[-1] = np.asarray(opened.arrays[-1] / np.float32(factor))
        return opened, found[0] if found else None

    def open_answers(self, decryptor: Decryptor, frame: bytes, index: int) -> Sums:
        """Open a sum of evaluations of this position in round ``index``."""
        lanes = lanes_of(self.charter, self.scheme, "evaluate")
        assert lanes is not None
        opened = decryptor.open(frame, model=self.binding("evaluate", index), memory=self.memory("evaluate"), like=())
        return lanes.decode(opened.lanes, len(opened.contributions))

    def set_model(self, model: Sequence[NDArray[Any]]) -> None:
        """A model that the server has set, where the charter lets it. Raises `LayoutError`, `CharterError`."""
        if not self.charter.sets_models:
            raise CharterError("the charter does not let the server set a model")
        made = [np.array(x) for x in model]
        if [(x.dtype.str, x.shape) for x in made] != [(dtype, shape) for _, dtype, shape in self.charter.arrays]:
            raise LayoutError("a model that the server sets has the first model's shapes and types")
        digest = arrays_digest(self.charter.names, made)
        position = digest_of(b"fedcipher position 1", self.charter.digest, self._context, b"set", digest)
        self.at = Standing(made, None, [], b"", position, self.at.steps)
        self._take_up()


def _together(opened: list[tuple[Decrypted, Sums | None]], *, equal: bool) -> Arrays:
    """The mean of all groups' updates: each group counts as what its clients weigh."""
    if len(opened) == 1:
        return opened[0][0].arrays
    weights = [float(len(d.contributions) if s is None else s.counted if equal else s.examples) for d, s in opened]
    total = sum(weights) or 1.0
    groups = [d.arrays for d, _ in opened]
    return [
        np.asarray(sum(w / total * x.astype(np.float64) for w, x in zip(weights, arrays, strict=True))).astype(
            arrays[0].dtype
        )
        for arrays in zip(*groups, strict=True)
    ]
