"""The chain of a run's models: where the model stands, and what leads from one position to the next.

A position is a digest of the one before and of everything that the next update depends on: the model, the clip ranges
and the optimiser's moments. Where ranges follow the updates, the first step is a sum of histograms, which sets them;
the model stays. Every frame's tag names its position. So an aggregate opens at that position and nowhere else, and
updates that were computed at different positions do not sum; the update of the first model is encoded one step later.
The first position names the charter and the first model. It also names the client app's inputs that no charter lists
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
from fedcipher.federation.charter import Charter, Purpose, arrays_digest, digest_of
from fedcipher.federation.coding import Coding, coding_of
from fedcipher.federation.kept import ENOUGH, KEPT, kept_answer, kept_means
from fedcipher.federation.optimiser_step import Optimiser, Steps, apply_delta, saturated
from fedcipher.federation.ranges import (
    HISTOGRAMS,
    REMEMBERED,
    Ranges,
    follows,
    histogram_lanes,
    measured_at,
    measures_at,
)
from fedcipher.federation.whole_numbers import WHOLE, WholeNumbers
from fedcipher.federation.widths import Noise
from fedcipher.frame import inspect
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


def lanes_of(charter: Charter, scheme: Scheme, purpose: Purpose, steps: int = 0) -> Lanes | None:
    """The lanes of a frame of ``purpose``; none where privacy leaves no room for them.

    ``steps`` of the chain say whether a frame of training has histograms alone; that one carries no answers.
    """
    if purpose == "train" and scheme.codec.privacy is not None:
        return None
    measuring = purpose == "train" and measures_at(scheme, charter, steps)
    counters = () if measuring else _COUNTERS[purpose]
    counts = ()
    if purpose == "train" and follows(scheme):
        weighted = not charter.equal_weights
        lanes = histogram_lanes(len(charter.arrays), weighted=weighted, measuring=measuring and not steps)
        counts = (Answer(HISTOGRAMS, lanes, 1.0, 1.0, "sum"),)
    if purpose == "train" and not measuring:
        counters = (*counters, *WholeNumbers(charter, scheme).answers, *kept_answer(charter, scheme))
    return Lanes(
        () if measuring else charter.answers[purpose],
        largest_weight=charter.largest_weight,
        largest_digit=scheme.largest_digit,
        counters=counters,
        counts=counts,
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
    moved: bytes = b""
    """The position at which the model was first this one: a sum of histograms leaves it."""


@dataclass(frozen=True)
class Opened:
    """One step that was opened: its groups' sums, and which of the frames did not open."""

    sums: list[Sums]
    clients: list[list[int]]
    failed: list[int] = field(default_factory=list[int])
    drowned: tuple[tuple[str, float], ...] = ()
    """As in `Sums`."""
    kept: float | None = None
    thin: tuple[tuple[str, float], ...] = ()
    measured: bool = False
    """Whether these were histograms alone, and the model is as before."""
    advice: int = 0
    """Whether more bits pay, or fewer do (`fedcipher.federation.widths`)."""

    @property
    def answers(self) -> Sums | None:
        """The sums of all groups together; none where the frames carry no answers."""
        if not self.sums or self.measured:
            return None
        first = self.sums[0]
        numbers = {
            name: [math.fsum(values) for values in zip(*(s.numbers[name] for s in self.sums), strict=True)]
            for name in first.numbers
            if name not in (WHOLE, KEPT)
        }
        clients, counted, examples = (
            sum(s.clients for s in self.sums),
            sum(s.counted for s in self.sums),
            sum(s.examples for s in self.sums),
        )
        return Sums(clients, counted, examples, numbers, self.drowned, self.kept, self.thin)


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
        self._codec = scheme.codec.at()
        self._ranges: Ranges | None = None
        self._steps = Steps(None if charter.optimiser is None else Optimiser(*charter.optimiser))
        self.whole = WholeNumbers(charter, scheme)
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
        return Standing(model, None, [], b"", position, 0, moved=position)

    def _take_up(self) -> None:
        """Ranges and moments of the standing."""
        if follows(self.scheme):
            first = self._codec.first_ranges(self.at.model)
            weighted = not self.charter.equal_weights
            begins = self.measuring and not self.at.steps
            remembered = 1 if self.charter.weighs_each_round else REMEMBERED
            self._ranges = Ranges(first, weighted=weighted, measuring=begins, remembered=remembered)
            self._ranges.restore(self.at.ranges)
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
    def measuring(self) -> bool:
        """Whether training here sends histograms alone."""
        return measures_at(self.scheme, self.charter, self.at.steps)

    @property
    def measured(self) -> bool:
        """Whether a sum of histograms, and nothing else, has led here."""
        return measured_at(self.scheme, self.charter, self.at.steps)

    @property
    def at_first_model(self) -> bool:
        """Whether no update has been summed yet."""
        return self.at.steps == int(self.measured)

    @property
    def lanes(self) -> Lanes | None:
        """Of a frame of training from here."""
        return lanes_of(self.charter, self.scheme, "train", self.at.steps)

    @property
    def shaped(self) -> Arrays:
        """Arrays of an update's shapes and types, without values of their own."""
        model = self.whole.without(self.at.model)
        if self._ranges is not None or not self.charter.equal_weights:
            # What is coded, and a share of the largest weight, is no whole number.
            types = [np.dtype(np.float32) for _ in model]
        elif self._codec.target == "weights":
            return model
        else:
            types = [np.dtype(np.int64 if x.dtype.kind in "iu" else np.float32) for x in model]
        return [np.broadcast_to(np.zeros((), t), x.shape) for t, x in zip(types, model, strict=True)]

    @property
    def reference(self) -> Arrays | None:
        """The public reference that an update's clip ranges are fitted to.

        It is the last step's mean. Before the first step it stands for `Codec.first_ranges`. Where there is a `coding`
        it stands for that coding's ranges.
        """
        codec, model = self._codec, self.whole.without(self.at.model)
        coding = self.coding
        if coding is not None:
            return codec.reference_of(coding.ranges, model)
        if not self.at.steps and (codec.target == "weights" or codec.top is None):
            return codec.reference_of(codec.first_ranges(model), model)
        if codec.target == "weights":
            return model
        return None if self.at.delta is None else self.whole.without(self.at.delta)

    @property
    def layout(self) -> Layout:
        """Shapes, types, bits and clip ranges of an update from here."""
        return self._codec.layout(self.shaped, self.reference, self.scheme.levels)

    def counted(self, update: Sequence[NDArray[Any]], share: float) -> list[int]:
        """What this client counts in `HISTOGRAMS` of an ``update`` of this ``share`` of the largest weight."""
        return [] if self._ranges is None else self._ranges.counted(update, share)

    @property
    def omega(self) -> float:
        """The largest weight that was opened lately, as a share of the charter's: updates travel beside it."""
        return 1.0 if self._ranges is None else self._ranges.omega

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
        return [alpha for _, _, alpha, _ in self.layout.tensors]

    def choose(self, bits: int) -> None:
        """Values of frames that are made or opened from here on have these ``bits``, where the codec leaves a choice.

        0: those that a run begins with. Raises `ParameterError` for bits that are no choice.
        """
        self._codec = self.scheme.codec.at(bits)

    @property
    def coding(self) -> Coding | None:
        """How an update from here becomes the values of a frame, where ranges follow; else they are its own."""
        return self._coding(self._codec)

    def _coding(self, codec: Codec) -> Coding | None:
        if self._ranges is None:
            return None
        like = self.shaped
        at_random = codec.rounding == "stochastic"
        return coding_of(self._ranges, like, codec.bits_of(like), self.scheme.levels, at_random=at_random)

    def seed(self, index: int) -> bytes:
        """The public seed of the rotation of round ``index``. Runs from one first model have the same."""
        return digest_of(b"fedcipher rotation 1", bytes.fromhex(self.charter.first), index.to_bytes(8, "little"))[:16]

    def draws(self, index: int, client: int) -> bytes:
        """The seed of a ``client``'s rounding that everybody knows (`Policy.repeatable`)."""
        return digest_of(b"fedcipher rounding 1", self.seed(index), client.to_bytes(8, "little"))[:16]

    def binding(self, purpose: Purpose, index: int) -> bytes:
        """What a frame that is computed here names."""
        return self.charter.binding("measure" if self._measured(purpose) else purpose, self.at.position, index)

    def _measured(self, purpose: Purpose) -> bool:
        return purpose == "train" and self.measuring

    def memory(self, purpose: Purpose) -> bytes:
        """Names the memory of the rule of sets that a sum at this position counts in; its first byte 1 is kept."""
        if self.charter.sets_models:
            return b"\x01" + digest_of(b"run", purpose.encode(), self.charter.digest)
        if self.at_first_model:
            return b"\x01" + digest_of(b"first", purpose.encode())
        return b"\x00" + digest_of(b"position", purpose.encode(), self.at.moved)

    @staticmethod
    def last_of(frames: Sequence[bytes], index: int) -> bytes:
        """The digest that a step of ``frames`` is known by: the run's round, and each sum's round and clients."""
        # Spelt out, so that no printing of a language is part of the digest: docs/reference/protocol.md has the form.
        sums = [
            f"({h.round}, [{', '.join(str(client) for client in sorted(h.clients))}])" for h in map(inspect, frames)
        ]
        return digest_of(f"[{', '.join(sums)}]".encode(), index.to_bytes(8, "little"))

    @staticmethod
    def clients_of(frames: Sequence[bytes]) -> list[int]:
        """Whose updates are in ``frames``."""
        return sorted(client for frame in frames for client in inspect(frame).clients)

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
        self._choose_of(frames)
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
        last = self.last_of(frames, index)
        if self.measuring and self._ranges is not None:
            self._ranges.observe(_counts(sums))
            before = self.at
            self._go(before.model, before.delta, before.moments, self._ranges.export(), last, moved=before.moved)
            return Opened(sums, groups, failed, measured=True)
        arrays = _together(opened, equal=self.charter.equal_weights)
        ranges, drowned, advice = b"", list[tuple[int, float]](), 0
        coding = self.coding
        if self._ranges is not None and coding is not None:
            lanes = _counts(sums)
            total = math.fsum(
                s.counted if self.charter.equal_weights else s.examples / self.charter.largest_weight / self.omega
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
        self._move(arrays, ranges, index, last)
        names = self.charter.names
        kept, *by_array = kept_means(sums) or [None]
        thin = tuple(
            (name, part) for name, part in zip(names, by_array, strict=False) if part is not None and part < ENOUGH
        )
        slowed = tuple((names[t], factor) for t, factor in drowned)
        return Opened(sums, groups, failed, slowed, kept, thin, advice=advice)

    def _choose_of(self, frames: Sequence[bytes]) -> None:
        """The bits that the values of ``frames`` have; their tags bind what their heads say. Raises `LayoutError`."""
        if not self.scheme.codec.adaptive or self.measuring:
            return
        found = {bits for frame in frames for bits in value_bits(_native.layout_of(frame))}
        if len(found) != 1 or not found <= set(self.scheme.codec.bit_widths):
            raise LayoutError("the sums of one step have values of other bits than a run chooses among")
        self.choose(found.pop())

    def _advice(self, coding: Coding, lanes: Sequence[int], total: float, mean: Arrays) -> int:
        """`Noise.advice` of an opened ``mean``; arguments as `Coding.noise`."""
        codec, ranges = self.scheme.codec, self._ranges
        if not codec.adaptive or ranges is None or not total:
            return 0
        told = ranges, lanes, total, [x.size for x in mean]
        added = coding.total_noise(*told)
        fewer = [bits for bits in codec.bit_widths if bits < self._codec.bit_widths[0]]
        narrower = self._coding(codec.at(fewer[-1])) if fewer else None
        square = max(0.0, math.fsum(x.size * root_mean_square(x) ** 2 for x in mean) - added)
        clients = sum(count for count, _ in ranges.shares(lanes))
        return Noise(
            added,
            None if narrower is None else narrower.total_noise(*told),
            square,
            max(0.0, coding.total_square(*told) - square / clients),
        ).advice

    def _move(self, mean: Arrays, ranges: bytes, index: int, last: bytes) -> None:
        before = self.at
        if self._codec.target == "weights":
            model = [
                apply_delta([old], [new])[0] if t in self.whole else saturated(old, new)
                for t, (old, new) in enumerate(zip(before.model, mean, strict=True))
            ]
        else:
            model = self._steps.step(before.model, mean, index)
        self._go(model, mean, self._steps.moments, ranges, last)

    def _go(
        self,
        model: Arrays,
        mean: Arrays | None,
        moments: list[Arrays],
        ranges: bytes,
        last: bytes,
        *,
        moved: bytes = b"",
    ) -> None:
        """Go to the next position; ``moved``: where the model was first this one, where it stays."""
        before = self.at
        flat = [array for moment in moments for array in moment]
        position = digest_of(
            b"fedcipher position 1",
            before.position,
            last,
            arrays_digest(self.charter.names, model),
            ranges,
            b"".join(arrays_digest([str(k)], [x]) for k, x in enumerate(flat)),
        )
        self.at = Standing(model, mean, moments, ranges, position, before.steps + 1, last, moved or position)

    def open(self, decryptor: Decryptor, frame: bytes, index: int) -> tuple[Decrypted, Sums | None]:
        """Open a sum of updates of round ``index`` from this position: the mean, and the answers' sums."""
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
            largest = self.charter.largest_weight * self.omega
            return clients * largest / sums.examples if sums.examples else 0.0

        delta = self._codec.target == "delta"
        opened = decryptor.open(
            frame,
            model=self.binding("train", index),
            memory=self.memory("train"),
            reference=self.at.delta if delta else None,
            like=() if measuring else self.at.model,
            rescale=rescaled,
            ranges=None if measuring else self.ranges(),
        )
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
        self.at = Standing(made, None, [], b"", position, self.at.steps, moved=position)
        self._take_up()


def _counts(sums: Sequence[Sums]) -> list[int]:
    """The histograms of all groups together."""
    return [int(sum(n)) for n in zip(*(s.numbers[HISTOGRAMS] for s in sums), strict=True)]


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
