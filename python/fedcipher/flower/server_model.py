"""The global model of a run as its server has it: encrypted aggregates in a folder, opened where it may see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import LayoutError, StrategyError
from fedcipher.flower import protocol
from fedcipher.flower.clip_feedback import ClipFeedback, carries_use, split_use
from fedcipher.flower.model import named
from fedcipher.flower.optimiser import apply_delta, in_type_of
from fedcipher.flower.run_folder import RunFolder
from fedcipher.schemes import Decryptor, Scheme

__all__ = ["ServerModel"]


class ServerModel:
    """What a run began with, the aggregates since, and what each node lacks of them.

    ``folder`` is a new one, or one with a run in it that goes on. ``opener`` is there where the server sees the mean of
    each round; it opens what a resumed run has aggregated. Raises `RunError`, and what a decryptor raises.
    """

    def __init__(self, folder: RunFolder, scheme: Scheme, names: Sequence[str], opener: Decryptor | None) -> None:
        self.folder = folder
        self.names = list(names)
        self.ranges: list[float] = []
        """Clip ranges of the segment's first round, where clients do not know them themselves."""
        self._scheme, self._opens = scheme, opener is not None
        self._delta_coded = scheme.codec.target == "delta"
        self._feedback = ClipFeedback(scheme.codec, [])
        self._delta: list[NumpyArray] | None = None
        # Of each aggregate of the segment: its round, and whose updates are in it.
        self._sums: list[tuple[int, list[int]]] = []
        # What a server that opens sums had before the last one.
        self._before: tuple[list[NumpyArray], list[NumpyArray] | None, bytes] = ([], None, b"")
        # Which aggregate of which segment each node has.
        self._delivered: dict[int, tuple[int, int]] = {}
        # What Flower runs the next round with, unless something around the strategy changes it: what the last round
        # returned, or what it has begun with where none has returned anything.
        self._expected: list[ArrayRecord] = []
        if folder.segment >= 0:
            self._go_on(opener)

    def begin(self, initial: ArrayRecord, values: Sequence[NumpyArray]) -> None:
        """A new run, from ``initial``, which Flower runs the first round with; ``values`` are the same as NumPy's."""
        self._feedback = ClipFeedback(self._scheme.codec, self._scheme.codec.first_ranges(values))
        self._expected = [initial]
        self._begin_segment(values)

    def _go_on(self, opener: Decryptor | None) -> None:
        """From where the folder's run is."""
        self.arrays = self.folder.first()
        self._start = named(self.names, self.arrays)
        self._feedback = ClipFeedback(self._scheme.codec, self._scheme.codec.first_ranges(self.arrays))
        self._feedback.restore(self.folder.feedback)
        self._set_ranges()
        for frame in self.folder.frames():
            _, _, _, number, contributions, *_ = _native.inspect(frame)
            self._sums.append((number, sorted(client for client, _ in contributions)))
            if opener is not None:
                self.open(opener, frame)
        self._expected = [named(self.names, self.arrays)]

    @property
    def expected(self) -> ArrayRecord:
        """What Flower is to run the next round with."""
        return self._expected[-1]

    def _begin_segment(self, model: Sequence[NumpyArray]) -> None:
        """From here on everybody starts from ``model``, which is sent in the clear."""
        self.arrays = [np.array(x) for x in model]
        self.folder.begin(self.arrays, self._feedback.export())
        self._set_ranges()
        self._sums = []
        self._start = named(self.names, self.arrays)

    def _set_ranges(self) -> None:
        # Of a run's first model clients know the first ranges themselves; of a later one only an opener does.
        later = self.folder.segment > 0 and carries_use(self._scheme)
        self.ranges = self._feedback.ranges if later else []

    @property
    def last(self) -> int:
        """The round of the newest aggregate; 0 before there is one."""
        return self._sums[-1][0] if self._sums else 0

    @property
    def last_clients(self) -> list[int]:
        """Whose updates are in the newest aggregate."""
        return self._sums[-1][1] if self._sums else []

    # --- round by round ----------------------------------------------------------------------

    def take(self, arrays: ArrayRecord) -> None:
        """The arrays that the round is run with: the first model, or what the last round returned.

        Anything else was changed on the way, by a strategy around this one (noise for differential privacy, say):
        honoured where the server may see the model, refused where what was changed is ciphertext.
        """
        if any(arrays is expected for expected in self._expected):
            return
        values = [protocol.to_numpy(array) for array in arrays.values()]
        if not self._opens:
            raise StrategyError(
                "the arrays that this round is run with are not what the last round returned: something around "
                "SecureStrategy changed them, and without a key that changed ciphertext. Noise on the server needs "
                "opener=...; clipping and noise on the clients go into a mod before fedcipher.flower.client_mod"
            )
        if list(arrays.keys()) != self.names or [x.shape for x in values] != [np.shape(x) for x in self.arrays]:
            raise StrategyError(
                f"the round is run with arrays {list(arrays.keys())[:5]}, the run began with {self.names[:5]}"
            )
        self._begin_segment([in_type_of(m, v) for v, m in zip(values, self.arrays, strict=True)])
        self._expected = [arrays]

    def append(self, frame: bytes, number: int, clients: Sequence[int]) -> None:
        """The aggregate of round ``number``, of updates of ``clients``."""
        self.folder.append(frame)
        self._sums.append((number, list(clients)))

    def sealed(self, frame: bytes) -> ArrayRecord:
        """What a round returns whose aggregate ``frame`` the server does not open."""
        return self._returned(protocol.wire_record({protocol.aggregate_key(self.folder.count): frame}))

    def open(self, opener: Decryptor, frame: bytes) -> ArrayRecord:
        """The mean in ``frame``, the newest aggregate, as the model. Raises what a decryptor raises."""
        number = self.last
        if self._scheme.info.committee:
            self._before = (self.arrays, self._delta, self._feedback.export())
        if not self._delta_coded:
            self.arrays = opener.decrypt(frame, round=number)
        else:
            # Of a segment's first aggregate nobody has a reference.
            reference = self._delta if len(self._sums) > 1 else None
            self._delta = opener.decrypt(frame, round=number, reference=reference, like=self.arrays)
            if carries_use(self._scheme):
                self._delta, use = split_use(self._delta)
                self._feedback.observe(use)
            self.arrays = apply_delta(self.arrays, self._delta)
        return named(self.names, self.arrays)

    def step(self, made: ArrayRecord) -> ArrayRecord:
        """What a strategy has made of the opened mean: where that is another model, the next round's first."""
        values = [protocol.to_numpy(made[name]) for name in self.names]
        if not all(_same(a, b) for a, b in zip(values, self.arrays, strict=True)):
            self._begin_segment([in_type_of(m, v) for v, m in zip(values, self.arrays, strict=True)])
        return self._returned(named(self.names, self.arrays))

    def withdraw(self) -> tuple[int, list[int]]:
        """Without the last aggregate; its round, and whose updates were in it."""
        self.folder.withdraw()
        number, clients = self._sums.pop()
        if self._opens:
            self.arrays, self._delta, use = self._before
            self._feedback.restore(use)
        return number, clients

    def _returned(self, record: ArrayRecord) -> ArrayRecord:
        self._expected = [self._expected[0], record]
        return record

    def check_size(self, elements: int) -> None:
        """Refuse an update that has more values than the model, before there is a sum of that size.

        Beside the model's values an update may have two a tensor (`fedcipher.flower.clip_feedback`). Raises
        `LayoutError`.
        """
        most = sum(x.size for x in self.arrays) + 2 * len(self.arrays)
        if elements > most:
            raise LayoutError(f"an update of {elements} values, and the model has {most - 2 * len(self.arrays)}")

    # --- to the nodes ------------------------------------------------------------------------

    def shown(self) -> ArrayRecord | None:
        """The model, where the server may see it."""
        return named(self.names, self.arrays) if self._opens else None

    def to_node(self, node: int, party: int | None) -> ArrayRecord:
        """What ``node`` lacks of the global model; of an aggregate, what it needs of it as that ``party``."""
        run = self.folder
        if not self._delta_coded:
            if run.count == 0:
                return self._start
            return protocol.wire_record({protocol.aggregate_key(run.count): self._addressed(run.count, party)})
        segment, have = self._delivered.get(node, (-1, 0))
        same = segment == run.segment
        arrays = {} if same else dict(self._start.items())
        for number in range((have if same else 0) + 1, run.count + 1):
            arrays[protocol.aggregate_key(number)] = protocol.bytes_array(self._addressed(number, party))
        return ArrayRecord(arrays)

    def _addressed(self, number: int, party: int | None) -> bytes:
        frame = self.folder.aggregate(number)
        return frame if party is None else self._scheme.addressed(frame, party)

    def delivered(self, node: int) -> None:
        """``node`` has answered a message that brought it up to date."""
        self._delivered[node] = (self.folder.segment, self.folder.count)

    def forget(self, node: int) -> None:
        """Nobody knows what ``node`` has: it is sent everything again."""
        self._delivered.pop(node, None)

    @property
    def somebody_has_all(self) -> bool:
        """Whether a node has answered a message that brought it the newest aggregate."""
        return (self.folder.segment, self.folder.count) in self._delivered.values()


def _same(a: NumpyArray, b: NumpyArray) -> bool:
    """Whether ``a`` is ``b`` but for the rounding of a mean, which Flower makes of whole numbers in double."""
    if a.shape != b.shape:
        return False
    step = float(np.finfo(b.dtype if b.dtype.kind == "f" else np.float64).eps)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.allclose(a, b, rtol=8 * step, atol=8 * step * float(np.max(np.abs(b), initial=0.0))))
