"""The global model of a run as its server has it: encrypted sums in a folder, opened where it may see them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcipher.codec import Array
from fedcipher.errors import DecryptError, ForgedAggregateError, LayoutError, StrategyError
from fedcipher.federation.answers import Sums
from fedcipher.federation.bit_widths import BitWidths
from fedcipher.federation.chain import Chain, ChainState, OpenedStep
from fedcipher.federation.charter import Charter
from fedcipher.federation.messages import Arrays, aggregate_key, named, packed_frame, wire_record
from fedcipher.federation.optimiser_step import in_type_of
from fedcipher.federation.ranges import reached_by_histograms, sends_histograms_at
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.committee import addressed
from fedcipher.federation.server.run_folder import RunFolder
from fedcipher.schemes import Decryptor, Scheme

__all__ = ["Brought", "ServerModel"]


@dataclass(frozen=True)
class Brought:
    """What a message brings a node: arrays and sums, and the rounds of the steps among them."""

    arrays: Arrays
    indices: list[int]
    document: bytes
    """The charter, for a node that may lack it."""


class ServerModel:
    """What a run began with, the steps since, and what each node lacks of them.

    ``folder`` is a new one, or one with a run in it that goes on. ``opener`` is there where the server sees the mean of
    each round; it opens what a resumed run has summed. Raises `RunError`, and what a decryptor raises.
    """

    def __init__(self, folder: RunFolder, scheme: Scheme, opener: Decryptor | None) -> None:
        self.folder, self._scheme, self._opens = folder, scheme, opener is not None
        self.charter: Charter = folder.charter
        self.names = self.charter.names
        self._chain: Chain | None = None
        self._set: list[Array] | None = folder.set_model()
        # Of each step: the digest that clients know it by, and whose updates are in each of its sums.
        self._steps: list[tuple[bytes, list[list[int]]]] = []
        self._before: ChainState | None = None
        self.widths = BitWidths(scheme.codec)
        self.false_start = False
        """Whether the sum of histograms that was there did not open, and is withdrawn."""
        # How many steps each node has.
        self._delivered: dict[int, int] = {}
        self._start = named(self.names, folder.first())
        for number in range(1, folder.count + 1):
            frames = folder.step(number)
            self._note(frames, folder.round_of(number))
            if opener is not None and not self.charter.sets_models:
                try:
                    self._step(opener, frames, folder.round_of(number), without=folder.left_out(number))
                except (DecryptError, ForgedAggregateError):
                    # A server that was killed before it opened the histograms has not seen that they are false.
                    if number < folder.count or not self.measured:
                        raise
                    self.false_start = True
                    self.withdraw()

    def _note(self, frames: Sequence[bytes], index: int) -> None:
        self._steps.append((Chain.step_digest(frames, index), [Chain.clients_of([frame]) for frame in frames]))

    @property
    def last(self) -> bytes:
        """Names the newest step; empty before there is one."""
        return self._steps[-1][0] if self._steps else b""

    @property
    def steps(self) -> int:
        """Steps of the chain."""
        return self.folder.count

    @property
    def measuring(self) -> bool:
        """Whether clients send histograms alone."""
        return sends_histograms_at(self._scheme, self.charter, self.folder.count)

    @property
    def measured(self) -> bool:
        """Whether the newest step is a sum of histograms."""
        return reached_by_histograms(self._scheme, self.charter, self.folder.count)

    @property
    def at_first_model(self) -> bool:
        """Whether no update has been summed yet."""
        return self.folder.count == int(self.measured)

    @property
    def measured_sets(self) -> list[list[int]]:
        """Whose histograms are in each sum of the newest step, where no update has followed."""
        return self._steps[-1][1] if self.measured else []

    @property
    def arrays(self) -> list[Array]:
        """The model, where the server may see it; else the one that the run began with."""
        if self._set is not None:
            return self._set
        return self.folder.first() if self._chain is None else self._chain.model

    def by_name(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """``arrays`` under the model's names."""
        return dict(zip(self.names, arrays, strict=True))

    # --- round by round ----------------------------------------------------------------------

    @property
    def moved(self) -> bool:
        """Whether this server sees another model than the first."""
        return self._opens and (self.folder.count > 0 or self._set is not None)

    def change(self, values: Sequence[Array]) -> None:
        """A model of the server's own. Raises `StrategyError` where the charter does not let it set one."""
        if not self.charter.sets_models:
            raise StrategyError(
                "the next round is run with another model than the clients' mean makes. Clients accept such a model "
                "only where the run's charter says that the server sets models: SecureStrategy(sets_models=True), and "
                '"server_sets_models": true in each site\'s policy (`fedcipher policy`)'
            )
        self._set = [in_type_of(m, v) for v, m in zip(values, self.arrays, strict=True)]
        self.folder.keep_model(self._set)

    def append(self, frames: Sequence[bytes], index: int, context: bytes) -> None:
        """The sums of the run's round ``index``; ``context`` is what its clients were told beside the charter."""
        if context != self.folder.context:
            self.folder.know_context(context)
        self.folder.append(frames, index)
        self._note(frames, index)

    def sealed(self, frames: Sequence[bytes]) -> Arrays:
        """The sums of the newest step, by their names in a message."""
        return wire_record({aggregate_key(self.folder.count, group): frame for group, frame in enumerate(frames)})

    def open(self, opener: Decryptor, frames: Sequence[bytes], index: int) -> OpenedStep:
        """Make the newest step: what its clients answered. Raises what a decryptor raises."""
        return self._step(opener, frames, index)

    def leave_out(self, opener: Decryptor, groups: Collection[int]) -> None:
        """Make the newest step again without its sums ``groups``, which its clients do not open."""
        assert self._before is not None
        step = self.folder.count
        self.folder.leave_out(groups)
        self._go_back(self._before)
        self._step(opener, self.folder.step(step), self.folder.round_of(step), without=groups)

    def _go_back(self, before: ChainState) -> None:
        self._chain = Chain(self.charter, self._scheme, self.folder.context, state=before)

    def _step(
        self, opener: Decryptor, frames: Sequence[bytes], index: int, *, without: Collection[int] = ()
    ) -> OpenedStep:
        chain = self._chain
        if chain is None:
            chain = Chain(self.charter, self._scheme, self.folder.context, first=self.folder.first())
        if self.charter.sets_models:
            chain.set_model(self._set or self.folder.first())
        self._before = chain.state
        opened = chain.step(opener, frames, index, without=without)
        self._chain = chain
        if self.charter.sets_models:
            self._set = chain.model
        if not opened.measured:
            self.widths.take_advice(opened.advice)
        return opened

    def open_answers(self, opener: Decryptor, frame: bytes, index: int) -> Sums:
        """The sums of the answers to round ``index``'s evaluation. Raises what a decryptor raises."""
        chain = self._chain
        if chain is None or self.charter.sets_models:
            chain = Chain(self.charter, self._scheme, self.folder.context, first=self.folder.first())
        if self.charter.sets_models:
            chain.set_model(self._set or self.folder.first())
        return chain.open_answers(opener, frame, index)

    def settle(self, values: Sequence[Array], replies: int) -> None:
        """What a strategy has made of the opened mean in so many ``replies``.

        Where that is another model, it is the next round's.
        """
        if self.charter.sets_models or not all(_same(a, b, replies) for a, b in zip(values, self.arrays, strict=True)):
            self.change(values)

    def withdraw(self) -> list[int]:
        """Without the last step; whose updates were in it."""
        self.folder.withdraw()
        self._set = self.folder.set_model()
        _, sets = self._steps.pop()
        self._delivered = {node: min(have, self.folder.count) for node, have in self._delivered.items()}
        if self._chain is not None and self._before is not None and self._chain.state.steps > self.folder.count:
            self._go_back(self._before)
        return sorted(client for clients in sets for client in clients)

    def check_size(self, elements: int, lanes: int, *, measured: bool = False) -> None:
        """Refuse a frame that has more values than the model and ``lanes``, before there is a sum of that size.

        ``measured``: more than the lanes. Raises `LayoutError`.
        """
        values = 0 if measured else sum(x.size for x in self.folder.first())
        if elements > values + lanes:
            raise LayoutError(f"a frame of {elements} values, and the model has {values} and its answers {lanes}")

    # --- to the nodes ------------------------------------------------------------------------

    def to_node(self, node: int, party: int | None) -> Brought:
        """What ``node`` lacks of the global model; of a sum, what it needs of it as that ``party``."""
        have = self._delivered.get(node)
        document = b"" if have is not None else self.charter.encode()
        if self.charter.sets_models:
            return Brought(named(self.names, self.arrays), [], document)
        arrays = Arrays({} if have is not None else self._start)
        steps = range((have or 0) + 1, self.folder.count + 1)
        for number in steps:
            for group, frame in enumerate(self.folder.step(number)):
                needed = frame if party is None else addressed(self._scheme, frame, party)
                arrays[aggregate_key(number, group)] = packed_frame(needed)
        return Brought(arrays, [self.folder.round_of(number) for number in steps], document)

    def delivered(self, node: int) -> None:
        """``node`` has answered a message that brought it up to date."""
        self._delivered[node] = self.folder.count

    def remember(self, rounds: Iterable[RoundRecord]) -> None:
        """Learn again how many steps each node has, from ``rounds`` of another process of the server.

        Whoever has answered in a round had the steps of all rounds before. A node that has lost them refuses, and is
        sent everything in the next round.
        """
        made_in = [self.folder.round_of(number) for number in range(1, self.folder.count + 1)]
        for record in rounds:
            for heard, before in ((record.clients, record.round), (record.evaluations, record.round + 1)):
                steps = bisect_left(made_in, before)
                for client in heard:
                    if client.refused:
                        self.forget(client.node)
                    elif client.left_out is None or client.unsummed:
                        self._delivered[client.node] = steps

    def forget(self, node: int) -> None:
        """Nobody knows what ``node`` has: it is sent everything again."""
        self._delivered.pop(node, None)

    @property
    def somebody_has_all(self) -> bool:
        """Whether a node has answered a message that brought it the newest step."""
        return self.folder.count in self._delivered.values()


def _same(a: Array, b: Array, replies: int) -> bool:
    """Whether ``a`` is ``b`` but for the rounding of a mean of so many ``replies``.

    Flower adds them one by one in their own type, and whole numbers in double.
    """
    if a.shape != b.shape:
        return False
    step = float(np.finfo(b.dtype if b.dtype.kind == "f" else np.float64).eps)
    a, b = a.astype(np.float64), b.astype(np.float64)
    most = (8 + replies) * step
    return bool(np.allclose(a, b, rtol=most, atol=most * float(np.max(np.abs(b), initial=0.0))))
