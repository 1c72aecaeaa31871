"""The strategy wrapper: any weighted-mean strategy of Flower, over ciphertexts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FedcipherError, PlaintextError, RevokedError, StrategyError, UnknownClientError
from fedcipher.flower import protocol
from fedcipher.flower.refusal import reference_of
from fedcipher.flower.settings import RoundSettings
from fedcipher.keys.provider import FileKeys, ServerKeys
from fedcipher.schemes import Decryptor

__all__ = ["ClientRecord", "RoundRecord", "SecureStrategy"]

_log = logging.getLogger("fedcipher.flower")
_PROBE = protocol.PREFIX + "probe"
_PROBE_SIZE = 4
_UNEQUAL = 1.05


def _short(reason: str, most: int = 300) -> str:
    """An error may carry a whole traceback; a report wants its beginning, on one line."""
    reason = " ".join(reason.split())
    return reason if len(reason) <= most else reason[:most] + " ..."


def _why(reply: Message) -> str | None:
    """Where to look for the cause of a client's refusal."""
    reference = reference_of(reply)
    return reference and f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"


@dataclass(frozen=True)
class ClientRecord:
    """One client in one round: seconds and bytes by phase, or why it was left out.

    A client does not tell the server why it refused: ``left_out`` then names the reference under which
    that client's own log (`fedcipher.flower`) has the cause.
    """

    node: int
    client: int | None
    phases: dict[str, float]
    left_out: str | None = None


@dataclass
class RoundRecord:
    """One round as the server saw it."""

    round: int
    epoch: int = 0
    clients: list[ClientRecord] = field(default_factory=list)
    evaluations: list[ClientRecord] = field(default_factory=list)
    aggregate_seconds: float = 0.0
    aggregate_bytes: int = 0
    unfinished: str | None = None
    """Why the round has no aggregate: the global model is that of the round before."""


class SecureStrategy(Strategy):
    """Wrap a Flower strategy whose aggregation is a weighted mean; the server sees no update.

    Parameters
    ----------
    strategy
        The strategy that samples clients, sets configurations and aggregates metrics (`FedAvg`,
        `FedProx`, your own). Each round it is given small random probe arrays in place of updates; if
        what it makes of them is not their weighted mean, `StrategyError` is raised, because then the
        encrypted aggregate would not be what the strategy means.
    keys
        ``server.key``, the folder of `fedcipher keygen` that holds it, or a
        `fedcipher.engine.Authority`: then each round is of the newest key epoch, and the epoch before
        ends with the round. With deltas a run keeps its first epoch, because a client that was away
        needs every aggregate since.
    examples_per_weight
        How many examples make one unit of weight. ``None``: all clients weigh the same. With a value,
        a client of n examples counts ``round(n / examples_per_weight)``, which must not exceed the
        scheme's ``max_weight``.
    on_round
        Called with each finished `RoundRecord`.
    on_progress
        Called with (done, total) steps of a long aggregation.

    Notes
    -----
    A round of fewer accepted updates than the scheme's ``min_contributions`` has no aggregate: the sum of
    one update is that update. The global model stays, `RoundRecord.unfinished` says so, and nobody is
    sent anything of it. A first round that samples fewer clients is refused with a `StrategyError`.

    ``Result.arrays`` is the encrypted aggregate: only clients hold the model. `open_model` decrypts it
    with a client's decryptor. A server-side ``evaluate_fn`` sees ciphertext and cannot evaluate.
    """

    def __init__(
        self,
        strategy: Strategy,
        keys: str | Path | ServerKeys,
        *,
        examples_per_weight: float | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.inner = strategy
        self._keys = keys if isinstance(keys, ServerKeys) else FileKeys(keys)
        self.scheme, self._key = self._keys.scheme, self._keys.current()
        self._unit = float(examples_per_weight or 0.0)
        self._minimum = int(getattr(self.scheme, "min_contributions", 1))
        self._on_round = on_round
        self._on_progress = on_progress
        self.rounds: list[RoundRecord] = []
        # Rounds must increase over the life of a key, also when the app is run again.
        self._base = int(time.time()) << 20
        self._names: list[str] = []
        self._initial: ArrayRecord | None = None
        self._aggregates: list[bytes] = []
        self._delivered: dict[int, int] = {}
        self._client_of: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._warned_weights = False

    @property
    def weighted_by(self) -> str:
        """The metric that clients are weighted by."""
        return str(getattr(self.inner, "weighted_by_key", "num-examples"))

    def summary(self) -> None:
        """Log the scheme, then the inner strategy's summary."""
        _log.info("Fedcipher: %s", self.scheme)
        self.inner.summary()

    # --- towards the clients -----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy sample, then replace what it sends by ciphertext."""
        self._keep_initial(arrays)
        self._follow_epochs()
        self.rounds.append(RoundRecord(server_round, epoch=self._key.epoch))
        messages = list(self.inner.configure_train(server_round, self._placeholder(), config, grid))
        if 0 < len(messages) < self._minimum:
            return self._too_few(server_round, len(messages))
        return self._dress(server_round, messages)

    def _too_few(self, server_round: int, sampled: int) -> list[Message]:
        """A round that cannot be finished is not begun; a first one means that no round could be."""
        said = f"{type(self.inner).__name__} sampled {sampled} clients, and a round needs {self._minimum} updates"
        if len(self.rounds) == 1:
            raise StrategyError(
                f"{said}: raise its fraction_train or min_train_nodes (or per-round), or make the scheme with a "
                "smaller min_contributions, which lets whoever decrypts see the sum of so few"
            )
        self._leave_unfinished(server_round, said)
        return []

    def _leave_unfinished(self, server_round: int, why: str) -> None:
        # The first cause stands: a round that was not begun has no updates either.
        if self.rounds[-1].unfinished is None:
            self.rounds[-1].unfinished = why
            _log.warning("round %s has no aggregate, the global model stays: %s", server_round, why)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Like `configure_train`."""
        self._keep_initial(arrays)
        messages = list(self.inner.configure_evaluate(server_round, self._placeholder(), config, grid))
        return self._dress(server_round, messages)

    def _follow_epochs(self) -> None:
        """A round is of one epoch, the newest at its start."""
        newest = self._keys.current()
        if newest.epoch == self._key.epoch:
            return
        if self.scheme.codec.target == "delta" and self._aggregates:
            _log.warning("key epoch %s waits: with deltas this run keeps epoch %s", newest.epoch, self._key.epoch)
            return
        _log.info("key epoch %s follows %s", newest.epoch, self._key.epoch)
        self._key = newest

    def _keep_initial(self, arrays: ArrayRecord) -> None:
        """The first arrays are the initial model; later ones are our own ciphertext."""
        if self._initial is None:
            self._initial = arrays
            self._names = list(arrays.keys())

    @staticmethod
    def _placeholder() -> ArrayRecord:
        return ArrayRecord({_PROBE: Array(np.zeros(_PROBE_SIZE))})

    def _dress(self, server_round: int, messages: list[Message]) -> list[Message]:
        known = [self._client_of.get(m.metadata.dst_node_id) for m in messages]
        sampled = [client for client in known if client is not None]
        plan = self.scheme.plan(self._key, sampled)
        config = RoundSettings(
            run=self._base,
            round=self._base + server_round,
            epoch=self._key.epoch,
            names=self._names,
            plan=plan,
            unit=self._unit,
            weighted_by=self.weighted_by,
        ).to_record()
        for message in messages:
            # The inner strategy may share one record among all messages: each gets its own.
            content = RecordDict()
            for key, record in message.content.items():
                if isinstance(record, ArrayRecord):
                    content[key] = self._model_for(message.metadata.dst_node_id)
                else:
                    content[key] = record
            content[protocol.CONFIG] = config
            message.content = content
        return messages

    def _model_for(self, node: int) -> ArrayRecord:
        """What ``node`` lacks of the global model."""
        if self._initial is None:
            raise StrategyError("the strategy was asked for messages before it was started")
        count = len(self._aggregates)
        if self.scheme.codec.target == "weights":
            if count == 0:
                return self._initial
            return protocol.wire_record({protocol.aggregate_key(count): self._aggregates[-1]})
        have = self._delivered.get(node)
        arrays = {} if have is not None else dict(self._initial.items())
        for k in range(have or 0, count):
            arrays[protocol.aggregate_key(k + 1)] = protocol.bytes_array(self._aggregates[k])
        return ArrayRecord(arrays)

    # --- from the clients --------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the ciphertexts of all sound replies; whoever sent garbage is left out with a warning."""
        began = time.perf_counter()
        record = self.rounds[-1]
        aggregator = self.scheme.aggregator(self._key, round=self._base + server_round)
        accepted: list[Message] = []
        revoked = self._keys.revoked()
        for reply in replies:
            node = reply.metadata.src_node_id
            phases = self._take_phases(reply)
            try:
                frame = self._frame_of(reply)
                self._check_owner(node, frame, revoked)
                contribution = aggregator.add(frame)
            except FedcipherError as error:
                reason = _why(reply) or _short(f"{type(error).__name__}: {error}")
                _log.warning("node %s is left out of round %s: %s", node, server_round, reason)
                record.clients.append(ClientRecord(node, self._client_of.get(node), phases, reason))
                self._delivered.pop(node, None)
                continue
            self._client_of[node] = contribution.client
            self._node_of[contribution.client] = node
            self._delivered[node] = len(self._aggregates)
            record.clients.append(ClientRecord(node, contribution.client, phases))
            accepted.append(reply)
        if len(accepted) < max(1, self._minimum):
            why = f"{len(accepted)} usable updates, at least {max(1, self._minimum)} are needed"
            self._leave_unfinished(server_round, why)
            return None, None
        self._aggregates.append(aggregator.finish(self._on_progress))
        if self.scheme.codec.target == "weights":
            # Older aggregates are of no use to anyone; their place keeps the numbering.
            self._aggregates[:-1] = [b""] * (len(self._aggregates) - 1)
            self._keys.settle(self._key.epoch)
        record.aggregate_bytes = len(self._aggregates[-1])
        record.aggregate_seconds = time.perf_counter() - began
        metrics = self._probe(server_round, accepted)
        return protocol.wire_record({protocol.aggregate_key(len(self._aggregates)): self._aggregates[-1]}), metrics

    def _check_owner(self, node: int, frame: bytes, revoked: frozenset[int]) -> None:
        """A client id belongs to the node that used it first, until it is revoked."""
        for client, _ in _native.inspect(frame)[4]:
            if client in revoked:
                raise RevokedError(f"client {client} has been revoked; its update is not used")
            owner = self._node_of.get(client, node)
            if owner != node:
                raise UnknownClientError(f"node {node} sent a frame of client {client}, which belongs to node {owner}")

    @staticmethod
    def _frame_of(reply: Message) -> bytes:
        if reply.has_error():
            raise StrategyError(str(reply.error.reason))
        arrays = [a for record in reply.content.array_records.values() for a in record.items()]
        if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:
            raise PlaintextError("the update is not encrypted; add fedcipher.flower.client_mod to the ClientApp's mods")
        return protocol.frame_bytes(arrays[0][1])

    @staticmethod
    def _take_phases(reply: Message) -> dict[str, float]:
        if reply.has_error():
            return {}
        taken = reply.content.metric_records.pop(protocol.METRICS, None)
        return {} if taken is None else {k: cast(float, v) for k, v in taken.items()}

    def _probe(self, server_round: int, accepted: list[Message]) -> MetricRecord | None:
        """Run the inner strategy on random probes: its metrics, and proof that it is a weighted mean."""
        rng = np.random.default_rng()
        probes = [rng.normal(size=_PROBE_SIZE) for _ in accepted]
        for reply, probe in zip(accepted, probes, strict=True):
            key = next(iter(reply.content.array_records))
            reply.content.array_records[key] = ArrayRecord({_PROBE: Array(probe)})
        weights = [self._examples(reply) for reply in accepted]
        try:
            made, metrics = self.inner.aggregate_train(server_round, accepted)
        except FedcipherError:
            raise
        except Exception as error:
            raise StrategyError(f"{type(self.inner).__name__} cannot aggregate: {error}") from error
        if made is None or _PROBE not in made:
            raise StrategyError(f"{type(self.inner).__name__} did not aggregate a round with valid updates")
        result = made[_PROBE].numpy()
        weighted = np.average(probes, axis=0, weights=weights)
        equal = np.mean(probes, axis=0)
        if not (np.allclose(result, weighted, rtol=1e-6) or np.allclose(result, equal, rtol=1e-6)):
            raise StrategyError(
                f"{type(self.inner).__name__} does not compute a weighted mean of its updates, which is all that "
                "can be done on ciphertexts; use FedAvg, FedProx or another averaging strategy"
            )
        if not self._unit and max(weights) > _UNEQUAL * min(weights) and not self._warned_weights:
            self._warned_weights = True
            _log.warning(
                "clients have different %s but weigh the same; pass examples_per_weight to "
                "SecureStrategy and max_weight to the scheme to weight by it",
                self.weighted_by,
            )
        return metrics

    def _examples(self, reply: Message) -> float:
        for record in reply.content.metric_records.values():
            if self.weighted_by in record:
                return float(cast(float, record[self.weighted_by]))
        return 1.0

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's aggregation of metrics."""
        kept = list(replies)
        for reply in kept:
            node = reply.metadata.src_node_id
            phases = self._take_phases(reply)
            if reply.has_error():
                self._delivered.pop(node, None)
                reason = _why(reply) or _short(str(reply.error.reason))
                _log.warning("node %s does not evaluate round %s: %s", node, server_round, reason)
                self.rounds[-1].evaluations.append(ClientRecord(node, self._client_of.get(node), {}, reason))
            else:
                self._delivered[node] = len(self._aggregates)
                self.rounds[-1].evaluations.append(ClientRecord(node, self._client_of.get(node), phases))
        metrics = self.inner.aggregate_evaluate(server_round, kept)
        if self._on_round is not None:
            self._on_round(self.rounds[-1])
        return metrics

    def open_model(self, decryptor: Decryptor, initial: Sequence[NumpyArray] | None = None) -> list[NumpyArray]:
        """The current global model, for whoever holds a client's key."""
        if self._initial is None:
            raise StrategyError("no round has been run yet")
        model = list(initial) if initial is not None else self._initial.to_numpy_ndarrays()
        if not self._aggregates:
            return model
        if self.scheme.codec.target == "weights":
            return decryptor.decrypt(self._aggregates[-1])
        delta: list[NumpyArray] | None = None
        for frame in self._aggregates:
            delta = decryptor.decrypt(frame, reference=delta, like=model)
            model = [(m + d).astype(m.dtype) for m, d in zip(model, delta, strict=True)]
        return model
