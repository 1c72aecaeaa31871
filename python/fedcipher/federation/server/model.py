"""The server's global model of a run: encrypted sums in a folder, opened only if the server may see them."""

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
from fedcipher.federation.server.committee import for_reader
from fedcipher.federation.server.run_folder import RunFolder
from fedcipher.schemes import Decryptor, Scheme

__all__ = ["Delivery", "ServerModel"]


@dataclass(frozen=True)
class Delivery:
    """The model part of a message to a node."""

    arrays: Arrays
    """The first model or the server's model, and the sums of the steps that the node lacks."""
    indices: list[int]
    """The run's round of each of these steps, in order."""
    document: bytes
    """The encoded charter for a node that may lack it; otherwise empty."""


class ServerModel:
    """A run's first model and its later steps, and which of these each node has.

    ``folder`` holds a new run or one to resume. ``opener`` is given if the server may see the mean of each round; it
    opens the sums of a resumed run. Raises `RunError` and the errors of a decryptor.
    """

    def __init__(self, folder: RunFolder, scheme: Scheme, opener: Decryptor | None) -> None:
        self.folder, self._scheme, self._opens = folder, scheme, opener is not None
        self.charter: Charter = folder.charter
        self.names = self.charter.names
        self._chain: Chain | None = None
        self._set: list[Array] | None = folder.set_model()
        # For each step, the digest by which clients identify it, and the clients in each of its sums.
        self._steps: list[tuple[bytes, list[list[int]]]] = []
        self._before: ChainState | None = None
        self.widths = BitWidths(scheme.codec)
        self.first_sum_withdrawn = False
        """Whether a resumed run's sum of histograms did not open and was withdrawn."""
        # The number of steps that each node has.
        self._delivered: dict[int, int] = {}
        self._start = named(self.names, folder.first())
        for number in range(1, folder.count + 1):
            frames = folder.step(number)
            self._note(frames, folder.round_of(number))
            if opener is not None and not self.charter.sets_models:
                try:
                    self._step(opener, frames, folder.round_of(number), without=folder.left_out(number))
                except (DecryptError, ForgedAggregateError):
                    # A server that was killed before it opened the histograms could not find that they are false.
                    if number < folder.count or not self.measured:
                        raise
                    self.first_sum_withdrawn = True
                    self.withdraw()

    def _note(self, frames: Sequence[bytes], index: int) -> None:
        self._steps.append((Chain.step_digest(frames, index), [Chain.clients_of([frame]) for frame in frames]))

    @property
    def last(self) -> bytes:
        """The digest of the newest step; empty before the first step."""
        return self._steps[-1][0] if self._steps else b""

    @property
    def steps(self) -> int:
        """Number of steps of the chain."""
        return self.folder.count

    @property
    def measuring(self) -> bool:
        """Whether clients now send only histograms."""
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
        """The clients in each sum of the newest step, if it is a sum of histograms; otherwise empty."""
        return self._steps[-1][1] if self.measured else []

    @property
    def arrays(self) -> list[Array]:
        """The current model if the server may see it; otherwise the run's first model."""
        if self._set is not None:
            return self._set
        return self.folder.first() if self._chain is None else self._chain.model

    def by_name(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """``arrays`` under the model's names."""
        return dict(zip(self.names, arrays, strict=True))

    # --- round by round ----------------------------------------------------------------------

    @property
    def moved(self) -> bool:
        """Whether this server sees a model that is newer than the first."""
        return self._opens and (self.folder.count > 0 or self._set is not None)

    def set_model(self, values: Sequence[Array]) -> None:
        """Set a model of the server's own. Raises `StrategyError` if the charter does not allow it."""
        if not self.charter.sets_models:
            raise StrategyError(
                "the next round has a model that does not follow from the clients' mean. Clients accept such a model "
                "only if the run's charter says that the server sets models: use SecureStrategy(sets_models=True), and "
                '"server_sets_models": true in each site\'s policy (`fedcipher policy`)'
            )
        self._set = [in_type_of(m, v) for v, m in zip(values, self.arrays, strict=True)]
        self.folder.keep_model(self._set)

    def append(self, frames: Sequence[bytes], index: int, context: bytes) -> None:
        """Append the sums of the run's round ``index``; ``context`` is the digest of the clients' other settings."""
        if context != self.folder.context:
            self.folder.set_context(context)
        self.folder.append(frames, index)
        self._note(frames, index)

    def named_sums(self, frames: Sequence[bytes]) -> Arrays:
        """The sums ``frames`` of the newest step, under their names in a message."""
        return wire_record({aggregate_key(self.folder.count, group): frame for group, frame in enumerate(frames)})

    def open(self, opener: Decryptor, frames: Sequence[bytes], index: int) -> OpenedStep:
        """Open the sums of the newest step and make it. Raises the errors of a decryptor."""
        return self._step(opener, frames, index)

    def leave_out(self, opener: Decryptor, groups: Collection[int]) -> None:
        """Make the newest step again without its sums ``groups``, which its clients cannot open."""
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
        """The summed answers of round ``index``'s evaluation. Raises the errors of a decryptor."""
        chain = self._chain
        if chain is None or self.charter.sets_models:
            chain = Chain(self.charter, self._scheme, self.folder.context, first=self.folder.first())
        if self.charter.sets_models:
            chain.set_model(self._set or self.folder.first())
        return chain.open_answers(opener, frame, index)

    def take_strategy_model(self, values: Sequence[Array], replies: int) -> None:
        """Take the strategy's result for the opened mean, which it got in ``replies`` replies.

        If ``values`` differ from the opened model, they become the model of the next round.
        """
        if self.charter.sets_models or not all(_same(a, b, replies) for a, b in zip(values, self.arrays, strict=True)):
            self.set_model(values)

    def withdraw(self) -> list[int]:
        """Remove the last step, and return the clients whose updates were in it."""
        self.folder.withdraw()
        self._set = self.folder.set_model()
        _, sets = self._steps.pop()
        self._delivered = {node: min(have, self.folder.count) for node, have in self._delivered.items()}
        if self._chain is not None and self._before is not None and self._chain.state.steps > self.folder.count:
            self._go_back(self._before)
        return sorted(client for clients in sets for client in clients)

    def check_size(self, elements: int, lanes: int, *, measured: bool = False) -> None:
        """Raise `LayoutError` for a frame with more values than the model and ``lanes``, before a sum gets that size.

        With ``measured``, the frame may have only the values of its lanes.
        """
        values = 0 if measured else sum(x.size for x in self.folder.first())
        if elements > values + lanes:
            raise LayoutError(f"the frame has {elements} values, but the model has {values} and its answers {lanes}")

    # --- to the nodes ------------------------------------------------------------------------

    def to_node(self, node: int, party: int | None) -> Delivery:
        """The part of the global model that ``node`` lacks. Each sum is reduced to the part that ``party`` needs."""
        have = self._delivered.get(node)
        document = b"" if have is not None else self.charter.encode()
        if self.charter.sets_models:
            return Delivery(named(self.names, self.arrays), [], document)
        arrays = Arrays({} if have is not None else self._start)
        steps = range((have or 0) + 1, self.folder.count + 1)
        for number in steps:
            for group, frame in enumerate(self.folder.step(number)):
                needed = frame if party is None else for_reader(self._scheme, frame, party)
                arrays[aggregate_key(number, group)] = packed_frame(needed)
        return Delivery(arrays, [self.folder.round_of(number) for number in steps], document)

    def delivered(self, node: int) -> None:
        """Record that ``node`` has all steps, because it has answered a message that brought them."""
        self._delivered[node] = self.folder.count

    def remember(self, rounds: Iterable[RoundRecord]) -> None:
        """Restore how many steps each node has, from ``rounds`` of an earlier process of the server.

        A node that answered in a round had the steps of all earlier rounds. A node that has lost them since refuses,
        and the next round sends it the whole model.
        """
        made_in = [self.folder.round_of(number) for number in range(1, self.folder.count + 1)]
        for record in rounds:
            for clients, before in ((record.clients, record.round), (record.evaluations, record.round + 1)):
                steps = bisect_left(made_in, before)
                for client in clients:
                    if client.refused:
                        self.forget(client.node)
                    elif client.left_out is None or client.unsummed:
                        self._delivered[client.node] = steps

    def forget(self, node: int) -> None:
        """Forget which steps ``node`` has, so that the next message brings it the whole model."""
        self._delivered.pop(node, None)

    @property
    def any_node_up_to_date(self) -> bool:
        """Whether a node has answered a message that brought it the newest step."""
        return self.folder.count in self._delivered.values()


def _same(a: Array, b: Array, replies: int) -> bool:
    """Whether ``a`` equals ``b`` up to the rounding error of a mean over ``replies`` replies.

    Flower adds the replies one by one in their own type, and integers in float64.
    """
    if a.shape != b.shape:
        return False
    step = float(np.finfo(b.dtype if b.dtype.kind == "f" else np.float64).eps)
    a, b = a.astype(np.float64), b.astype(np.float64)
    tolerance = (8 + replies) * step
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * float(np.max(np.abs(b), initial=0.0))))
