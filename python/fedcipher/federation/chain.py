"""The chain of a run's models: which model is current, and the steps from one position to the next.

A position is a digest. Each position covers the position before and everything that the next update depends on: the
model, the clip ranges and the optimiser's moments. Every frame's tag covers the position of its frame. So an aggregate
opens at that position only, and updates that were computed at different positions do not sum.

If the clip ranges follow the updates and the codec has no ``start``, the first step is a sum of histograms. This step
sets the ranges and leaves the model unchanged. Clients encode the update of the first model one step later.

The first position covers the charter and the first model. It also covers the client app's inputs that no charter lists
(`fedcipher.federation.charter`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher.codec import Codec, Layout, root_mean_square, value_bits
from fedcipher.errors import CharterError, DecryptError, ForgedAggregateError, LayoutError
from fedcipher.federation.answers import Answer, Lanes, Sums
from fedcipher.federation.bit_widths import Noise
from fedcipher.federation.charter import Charter, Purpose, arrays_digest, digest_of
from fedcipher.federation.coding import Coding, coding_of
from fedcipher.federation.kept_share import KEPT_SHARE, MIN_KEPT_SHARE, kept_share_answer, mean_kept_shares
from fedcipher.federation.optimiser_step import Optimiser, Steps, apply_delta, saturated
from fedcipher.federation.ranges import (
    HISTOGRAMS,
    REMEMBERED,
    Ranges,
    histogram_lanes,
    ranges_follow_updates,
    reached_by_histograms,
    sends_histograms_at,
)
from fedcipher.federation.whole_numbers import WHOLE, WholeNumbers
from fedcipher.frame import inspect
from fedcipher.schemes import Decrypted, Decryptor, Scheme

__all__ = ["Chain", "ChainState", "OpenedStep", "lanes_of"]

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
"""Every client's counters beside the charter's answers: values cut to their range, values of tensors that rounding
turned into zeros, values that were not finite numbers, and the seconds of its app."""


def lanes_of(charter: Charter, scheme: Scheme, purpose: Purpose, steps: int = 0) -> Lanes | None:
    """The lanes of a frame of ``purpose``; None if differential privacy leaves no room for lanes.

    ``steps`` is the number of steps of the chain. It decides whether a frame of training has histograms alone. Such a
    frame carries no answers.
    """
    if purpose == "train" and scheme.codec.privacy is not None:
        return None
    measuring = purpose == "train" and sends_histograms_at(scheme, charter, steps)
    counters = () if measuring else _COUNTERS[purpose]
    counts = ()
    if purpose == "train" and ranges_follow_updates(scheme):
        weighted = not charter.equal_weights
        lanes = histogram_lanes(len(charter.arrays), weighted=weighted, measuring=measuring and not steps)
        counts = (Answer(HISTOGRAMS, lanes, 1.0, 1.0, "sum"),)
    if purpose == "train" and not measuring:
        counters = (*counters, *WholeNumbers(charter, scheme).answers, *kept_share_answer(charter, scheme))
    return Lanes(
        () if measuring else charter.answers[purpose],
        largest_weight=charter.largest_weight,
        largest_digit=scheme.largest_digit,
        counters=counters,
        counts=counts,
    )


@dataclass
class ChainState:
    """The model at one position, and what the next step needs: mean, optimiser moments and clip ranges."""

    model: Arrays
    delta: Arrays | None
    """The mean of the last step; None before the first step."""
    moments: list[Arrays]
    ranges: bytes
    position: bytes
    steps: int
    last: bytes = b""
    """Digest of the last step, see `Chain.step_digest`."""
    moved: bytes = b""
    """The position at which this model became the current one. A sum of histograms keeps the model, so it keeps this
    field."""


@dataclass(frozen=True)
class OpenedStep:
    """One opened step: the sums of its groups, and which of its frames did not open."""

    sums: list[Sums]
    clients: list[list[int]]
    failed: list[int] = field(default_factory=list[int])
    drowned: tuple[tuple[str, float], ...] = ()
    """Like `Sums.drowned`; the same holds for ``kept`` and ``thin``."""
    kept: float | None = None
    thin: tuple[tuple[str, float], ...] = ()
    measured: bool = False
    """Whether the step was a sum of histograms, which leaves the model unchanged."""
    advice: int = 0
    """`Noise.advice` of the step (`fedcipher.federation.bit_widths`)."""

    @property
    def answers(self) -> Sums | None:
        """The sums of all groups together; None if the frames carry no answers."""
        if not self.sums or self.measured:
            return None
        first = self.sums[0]
        numbers = {
            name: [math.fsum(values) for values in zip(*(s.numbers[name] for s in self.sums), strict=True)]
            for name in first.numbers
            if name not in (WHOLE, KEPT_SHARE)
        }
        clients, counted, examples = (
            sum(s.clients for s in self.sums),
            sum(s.counted for s in self.sums),
            sum(s.examples for s in self.sums),
        )
        return Sums(clients, counted, examples, numbers, self.drowned, self.kept, self.thin)


class Chain:
    """One run's models, as a client or another reader of the run's aggregates computes them.

    ``context`` is the digest of the client app's inputs that the charter does not list. A reader that is not a client
    reads this digest from the run's folder. Give ``first``, the first model, or ``state``, a later position of the same
    charter. Raises `CharterError` if the first model is not the charter's.
    """

    def __init__(
        self,
        charter: Charter,
        scheme: Scheme,
        context: bytes,
        *,
        first: Sequence[NDArray[Any]] | None = None,
        state: ChainState | None = None,
    ) -> None:
        self.charter, self.scheme, self._context = charter, scheme, context
        self._codec = scheme.codec.at()
        self._ranges: Ranges | None = None
        self._steps = Steps(None if charter.optimiser is None else Optimiser(*charter.optimiser))
        self.whole = WholeNumbers(charter, scheme)
        if state is None:
            self.state = self._first_state([np.array(x) for x in first or ()])
        else:
            self.state = state
        self._load_state()

    def _first_state(self, model: Arrays) -> ChainState:
        described = [(name, x.dtype.str, x.shape) for name, x in zip(self.charter.names, model, strict=False)]
        if described != list(self.charter.arrays) or len(model) != len(self.charter.arrays):
            raise CharterError("the first model has other arrays than the charter names")
        digest = arrays_digest(self.charter.names, model)
        if digest.hex() != self.charter.first:
            raise CharterError("the first model is not the one that the charter names")
        position = digest_of(b"fedcipher position 1", b"", self.charter.digest, self._context, digest, b"", b"")
        return ChainState(model, None, [], b"", position, 0, moved=position)

    def _load_state(self) -> None:
        """Set ranges and moments from the current state."""
        if ranges_follow_updates(self.scheme):
            first = self._codec.first_ranges(self.state.model)
            weighted = not self.charter.equal_weights
            begins = self.measuring and not self.state.steps
            remembered = 1 if self.charter.weighs_each_round else REMEMBERED
            self._ranges = Ranges(first, weighted=weighted, measuring=begins, remembered=remembered)
            self._ranges.restore(self.state.ranges)
        self._steps.moments = self.state.moments

    @property
    def model(self) -> Arrays:
        """The arrays of the current model."""
        return self.state.model

    @property
    def position(self) -> bytes:
        """Digest of the current position."""
        return self.state.position

    @property
    def measuring(self) -> bool:
        """Whether training at this position sends histograms alone."""
        return sends_histograms_at(self.scheme, self.charter, self.state.steps)

    @property
    def measured(self) -> bool:
        """Whether the last step was a sum of histograms alone."""
        return reached_by_histograms(self.scheme, self.charter, self.state.steps)

    @property
    def at_first_model(self) -> bool:
        """Whether the run has summed no update yet."""
        return self.state.steps == int(self.measured)

    @property
    def lanes(self) -> Lanes | None:
        """The lanes of a frame of training at this position."""
        return lanes_of(self.charter, self.scheme, "train", self.state.steps)

    @property
    def shaped(self) -> Arrays:
        """Arrays with the shapes and types of an update. Their values mean nothing."""
        model = self.whole.without(self.state.model)
        if self._ranges is not None or not self.charter.equal_weights:
            # Coding and weighting give fractions, also for whole numbers.
            types = [np.dtype(np.float32) for _ in model]
        elif self._codec.target == "weights":
            return model
        else:
            types = [np.dtype(np.int64 if x.dtype.kind in "iu" else np.float32) for x in model]
        return [np.broadcast_to(np.zeros((), t), x.shape) for t, x in zip(types, model, strict=True)]

    @property
    def reference(self) -> Arrays | None:
        """The public arrays that an update's clip ranges are fitted to.

        With a `coding` they stand for that coding's ranges. Otherwise they are the last step's mean, or the current
        model with ``target="weights"``. Before the first step they stand for `Codec.first_ranges`. None for sparse
        updates before the first step.
        """
        codec, model = self._codec, self.whole.without(self.state.model)
        coding = self.coding
        if coding is not None:
            return codec.reference_of(coding.ranges, model)
        if not self.state.steps and (codec.target == "weights" or codec.top is None):
            return codec.reference_of(codec.first_ranges(model), model)
        if codec.target == "weights":
            return model
        return None if self.state.delta is None else self.whole.without(self.state.delta)

    @property
    def layout(self) -> Layout:
        """Shapes, types, bits and clip ranges of an update at this position."""
        return self._codec.layout(self.shaped, self.reference, self.scheme.levels)

    def histogram_counts(self, update: Sequence[NDArray[Any]], share: float) -> list[int]:
        """This client's counts in `HISTOGRAMS`: of its ``update``, and of ``share``, its part of the largest weight."""
        return [] if self._ranges is None else self._ranges.histogram_counts(update, share)

    @property
    def recent_weight(self) -> float:
        """The largest weight that was opened lately, as a share of the charter's largest weight: 0 to 1.

        Clients divide their weights by it before they encode.
        """
        return 1.0 if self._ranges is None else self._ranges.recent_weight

    @property
    def hides_ranges(self) -> bool:
        """Whether frames leave out their clip ranges, because readers compute them from opened sums.

        False with differential privacy, which fixes the ranges. Also False if each client chooses its coordinates: the
        server sees these anyway.
        """
        return self._codec.privacy is None and self.scheme.params().get("per_client_top") is None

    def ranges(self) -> list[float] | None:
        """Clip ranges of an update at this position, one for each array; None if frames state their ranges."""
        if not self.hides_ranges:
            return None
        return [alpha for _, _, alpha, _ in self.layout.tensors]

    def choose_bits(self, bits: int) -> None:
        """Use ``bits`` for the values of all further frames, where the codec leaves a choice.

        0 selects the bits that a run begins with. Raises `ParameterError` for bits that the codec does not offer.
        """
        self._codec = self.scheme.codec.at(bits)

    @property
    def coding(self) -> Coding | None:
        """How an update becomes the values of a frame; None if ranges do not follow the updates."""
        return self._coding(self._codec)

    def _coding(self, codec: Codec) -> Coding | None:
        if self._ranges is None:
            return None
        like = self.shaped
        at_random = codec.rounding == "stochastic"
        return coding_of(self._ranges, like, codec.bits_of(like), self.scheme.levels, at_random=at_random)

    def seed(self, index: int) -> bytes:
        """The public seed of the rotation in round ``index``. Runs from the same first model have the same seeds."""
        return digest_of(b"fedcipher rotation 1", bytes.fromhex(self.charter.first), index.to_bytes(8, "little"))[:16]

    def rounding_seed(self, index: int, client: int) -> bytes:
        """The public seed of a ``client``'s random rounding, for repeatable runs (`Policy.repeatable`)."""
        return digest_of(b"fedcipher rounding 1", self.seed(index), client.to_bytes(8, "little"))[:16]

    def associated_data(self, purpose: Purpose, index: int) -> bytes:
        """The associated data of a frame that is computed at this position: its tag covers them."""
        return self.charter.associated_data(
            "measure" if self._measured(purpose) else purpose, self.state.position, index
        )

    def _measured(self, purpose: Purpose) -> bool:
        return purpose == "train" and self.measuring

    def memory(self, purpose: Purpose) -> bytes:
        """Name of the memory in which the rule of sets counts a sum at this position.

        The first byte is 1 for a memory that lasts beyond the position.
        """
        if self.charter.sets_models:
            return b"\x01" + digest_of(b"run", purpose.encode(), self.charter.digest)
        if self.at_first_model:
            return b"\x01" + digest_of(b"first", purpose.encode())
        return b"\x00" + digest_of(b"position", purpose.encode(), self.state.moved)

    @staticmethod
    def step_digest(frames: Sequence[bytes], index: int) -> bytes:
        """Digest of a step from its ``frames``: the rounds and clients of its sums, and the run's round ``index``."""
        # Spelt out, so that no printing of a language is part of the digest: docs/reference/protocol.md has the form.
        sums = [
            f"({h.round}, [{', '.join(str(client) for client in sorted(h.clients))}])" for h in map(inspect, frames)
        ]
        return digest_of(f"[{', '.join(sums)}]".encode(), index.to_bytes(8, "little"))

    @staticmethod
    def clients_of(frames: Sequence[bytes]) -> list[int]:
        """The clients whose updates are in ``frames``, in rising order."""
        return sorted(client for frame in frames for client in inspect(frame).clients)

    # --- steps -------------------------------------------------------------------------------

    def step(
        self, decryptor: Decryptor, frames: Sequence[bytes], index: int, *, without: Collection[int] = ()
    ) -> OpenedStep:
        """Open the sums of the run's round ``index`` and go to the next position.

        ``frames`` are sums of disjoint groups of clients. A frame that does not open counts as nothing. If no frame
        opens, the chain stays unchanged. ``without``: indices of frames that count as nothing, because clients have not
        opened them and this ``decryptor`` cannot check them. Raises `ForgedAggregateError`, `DecryptError` and the
        errors of the decryptor.
        """
        clients = self.clients_of(frames)
        if len(set(clients)) != len(clients):
            raise ForgedAggregateError("a client is in two sums of one step")
        self._choose_bits_of(frames)
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
        groups = [sorted(c.client for c in d.contributions) for d, _ in opened]
        sums = [s for _, s in opened if s is not None]
        last = self.step_digest(frames, index)
        if self.measuring and self._ranges is not None:
            self._ranges.observe(_histogram_counts(sums))
            before = self.state
            self._advance(before.model, before.delta, before.moments, self._ranges.export(), last, moved=before.moved)
            return OpenedStep(sums, groups, failed, measured=True)
        arrays = _mean_of_groups(opened, equal=self.charter.equal_weights)
        # Each opened sum is as large as a model.
        opened.clear()
        ranges, drowned, advice = b"", list[tuple[int, float]](), 0
        coding = self.coding
        if self._ranges is not None and coding is not None:
            lanes = _histogram_counts(sums)
            total = math.fsum(
                s.counted
                if self.charter.equal_weights
                else s.examples / self.charter.largest_weight / self.recent_weight
                for s in sums
            )
            parts = coding.parts(self._ranges, lanes, total, [x.size for x in arrays])
            arrays = coding.decode(arrays, self.seed(index), parts)
            drowned = [(t, part) for t, part in enumerate(parts) if part < 1]
            advice = self._advice(coding, lanes, total, arrays)
            self._ranges.observe(lanes)
            ranges = self._ranges.export()
        for t, mean in self.whole.means(sums).items():
            arrays[t] = mean
        self._apply_mean(arrays, ranges, index, last)
        names = self.charter.names
        kept, *by_array = mean_kept_shares(sums) or [None]
        thin = tuple(
            (name, part)
            for name, part in zip(names, by_array, strict=False)
            if part is not None and part < MIN_KEPT_SHARE
        )
        named = tuple((names[t], factor) for t, factor in drowned)
        return OpenedStep(sums, groups, failed, named, kept, thin, advice=advice)

    def _choose_bits_of(self, frames: Sequence[bytes]) -> None:
        """Use the bits that the heads of ``frames`` state; the frames' tags cover the heads. Raises `LayoutError`."""
        if not self.scheme.codec.adaptive or self.measuring:
            return
        found = {bits for frame in frames for bits in value_bits(_native.layout_of(frame))}
        if len(found) != 1 or not found <= set(self.scheme.codec.bit_widths):
            raise LayoutError("the sums of one step have values of other bits than the run can choose")
        self.choose_bits(found.pop())

    def _advice(self, coding: Coding, lanes: Sequence[int], total: float, mean: Arrays) -> int:
        """`Noise.advice` of an opened ``mean``. The other arguments are those of `Coding.noise`."""
        codec, ranges = self.scheme.codec, self._ranges
        if not codec.adaptive or ranges is None or not total:
            return 0
        opened = ranges, lanes, total, [x.size for x in mean]
        added = coding.total_noise(*opened)
        fewer = [bits for bits in codec.bit_widths if bits < self._codec.bit_widths[0]]
        narrower = self._coding(codec.at(fewer[-1])) if fewer else None
        square = max(0.0, math.fsum(x.size * root_mean_square(x) ** 2 for x in mean) - added)
        clients = sum(count for count, _ in ranges.shares(lanes))
        return Noise(
            added,
            None if narrower is None else narrower.total_noise(*opened),
            square,
            max(0.0, coding.total_square(*opened) - square / clients),
        ).advice

    def _apply_mean(self, mean: Arrays, ranges: bytes, index: int, last: bytes) -> None:
        before = self.state
        if self._codec.target == "weights":
            model = [
                apply_delta([old], [new])[0] if t in self.whole else saturated(old, new)
                for t, (old, new) in enumerate(zip(before.model, mean, strict=True))
            ]
        else:
            model = self._steps.step(before.model, mean, index)
        self._advance(model, mean, self._steps.moments, ranges, last)

    def _advance(
        self,
        model: Arrays,
        mean: Arrays | None,
        moments: list[Arrays],
        ranges: bytes,
        last: bytes,
        *,
        moved: bytes = b"",
    ) -> None:
        """Go to the next position. ``moved`` is `ChainState.moved` if the step leaves the model unchanged."""
        before = self.state
        flat = [array for moment in moments for array in moment]
        position = digest_of(
            b"fedcipher position 1",
            before.position,
            last,
            arrays_digest(self.charter.names, model),
            ranges,
            b"".join(arrays_digest([str(k)], [x]) for k, x in enumerate(flat)),
        )
        self.state = ChainState(model, mean, moments, ranges, position, before.steps + 1, last, moved or position)

    def open(self, decryptor: Decryptor, frame: bytes, index: int) -> tuple[Decrypted, Sums | None]:
        """Open a sum of updates of round ``index`` at this position; returns the mean and the answers' sums.

        Frames without lanes give None for the sums. Raises the errors of the decryptor.
        """
        found: list[Sums] = []
        expected, measuring = self.lanes, self.measuring

        def rescaled(lanes: Sequence[int], clients: int) -> float:
            if expected is None:
                return 1.0
            sums = expected.decode(lanes, clients)
            if self._ranges is not None:
                self._ranges.check([int(n) for n in sums.numbers[HISTOGRAMS]], sums.counted)
            found.append(sums)
            if measuring:
                return 1.0
            if self.charter.equal_weights:
                return clients / sums.counted if sums.counted else 0.0
            largest = self.charter.largest_weight * self.recent_weight
            return clients * largest / sums.examples if sums.examples else 0.0

        delta = self._codec.target == "delta"
        opened = decryptor.open(
            frame,
            model=self.associated_data("train", index),
            memory=self.memory("train"),
            reference=self.state.delta if delta else None,
            like=() if measuring else self.state.model,
            rescale=rescaled,
            ranges=None if measuring else self.ranges(),
        )
        return opened, found[0] if found else None

    def open_answers(self, decryptor: Decryptor, frame: bytes, index: int) -> Sums:
        """Open the sum of the answers that clients gave when they evaluated this position in round ``index``."""
        lanes = lanes_of(self.charter, self.scheme, "evaluate")
        assert lanes is not None
        opened = decryptor.open(
            frame, model=self.associated_data("evaluate", index), memory=self.memory("evaluate"), like=()
        )
        return lanes.decode(opened.lanes, len(opened.contributions))

    def set_model(self, model: Sequence[NDArray[Any]]) -> None:
        """Go to the position of a ``model`` that the server has set.

        Raises `CharterError` if the charter does not allow that, `LayoutError` for other shapes or types.
        """
        if not self.charter.sets_models:
            raise CharterError("the charter does not let the server set a model")
        made = [np.array(x) for x in model]
        if [(x.dtype.str, x.shape) for x in made] != [(dtype, shape) for _, dtype, shape in self.charter.arrays]:
            raise LayoutError("a model that the server sets must have the first model's shapes and types")
        digest = arrays_digest(self.charter.names, made)
        position = digest_of(b"fedcipher position 1", self.charter.digest, self._context, b"set", digest)
        self.state = ChainState(made, None, [], b"", position, self.state.steps, moved=position)
        self._load_state()


def _histogram_counts(sums: Sequence[Sums]) -> list[int]:
    """The histograms, summed over all groups."""
    return [int(sum(n)) for n in zip(*(s.numbers[HISTOGRAMS] for s in sums), strict=True)]


def _mean_of_groups(opened: list[tuple[Decrypted, Sums | None]], *, equal: bool) -> Arrays:
    """The mean of all groups' updates. Each group weighs as much as its clients together."""
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
