"""The strategy wrapper: any weighted-mean strategy of Flower, over ciphertexts."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcipher import _native
from fedcipher.codec import Array as NumpyArray
from fedcipher.dp import grid
from fedcipher.errors import (
    DecryptError,
    FedcipherError,
    ForgedAggregateError,
    FrameError,
    LayoutError,
    ParameterError,
    PlaintextError,
    RevokedError,
    StrategyError,
    UnknownClientError,
)
from fedcipher.flower import probe, protocol
from fedcipher.flower.clip_feedback import ClipFeedback, carries_use, split_use
from fedcipher.flower.committee import Committee
from fedcipher.flower.model import named
from fedcipher.flower.optimiser import Optimiser, apply_delta, in_type_of, mean_part
from fedcipher.flower.records import CLIPPED, ClientRecord, RoundRecord
from fedcipher.flower.refusal import reference_of
from fedcipher.flower.replies import Arrivals, Gathering
from fedcipher.flower.run_folder import RunFolder, replay
from fedcipher.flower.sealed import SealedArrays
from fedcipher.flower.settings import RoundSettings
from fedcipher.flower.suspects import Suspects
from fedcipher.keys.provider import FileKeys, ServerKeys
from fedcipher.keys.store import home, load_client, locate
from fedcipher.schemes import Aggregator, Decryptor

__all__ = ["SecureStrategy"]

_log = logging.getLogger("fedcipher.flower")
# Flower shows its own log only; what a run is protected by belongs into it.
_shown = logging.getLogger("flwr")
_PROBE = protocol.PREFIX + "probe"
_PROBE_SIZE = 4
_UNEQUAL = 1.05
_ROUNDS_OF_A_RUN = 1 << 20


def _short(reason: str, most: int = 300) -> str:
    """An error may carry a whole traceback; a report wants its beginning, on one line."""
    reason = " ".join(reason.split())
    return reason if len(reason) <= most else reason[:most] + " ..."


def _why(reply: Message) -> str | None:
    """Where to look for the cause of a client's refusal."""
    reference = reference_of(reply)
    return reference and f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"


class SecureStrategy(Strategy):
    """Wrap a Flower strategy whose aggregation is a weighted mean; the server sees no update.

    Parameters
    ----------
    strategy
        The strategy that samples clients, sets configurations and aggregates metrics (`FedAvg`,
        `FedProx`, your own). It is tried on made-up rounds at `start`, and each round it is given small random
        arrays in place of updates; if what it makes of them is not their mean, `StrategyError` is raised. Of FedAdam,
        FedYogi, FedAdagrad and FedAvgM that goes for the part that averages; where the server may not see the mean,
        clients make their step (`fedcipher.flower.optimiser`), with the numbers that they have at `start`.
    keys
        ``server.key``, the folder of `fedcipher keygen` that holds it, or a
        `fedcipher.engine.Authority`: then each round is of the newest key epoch, and the epoch before
        ends with the round. With deltas a run keeps its first epoch, because a client that was away
        needs every aggregate since.
    opener
        For an operator whose server may see the mean of each round: a `fedcipher.schemes.Decryptor`, such as that of
        an engine (``fedcipher.engine.connect(...).decryptor()``), which opens aggregates only; or a client's key file
        (its path, or its name in the folder of ``keys``; best that of a client id that never trains). A key file is
        the cohort's key: whoever controls this process can open single updates with it. The wrapped strategy is
        given the mean in place of every update and makes its own step of it; ``evaluate_fn``, checkpoints and
        ``Result.arrays`` are plaintext as in any Flower app.
    out
        A new folder that keeps the run: its first model and the encrypted aggregates, complete after each round. A
        relative path is one under ``~/.fedcipher/runs``; where the folder exists, ``-2`` and so on is appended.
        `fedcipher.flower.open_run` or ``fedcipher open`` opens it with a client's key. Without an opener this is the
        only place where the model is, so one of the two must be given.
    examples_per_weight
        How many examples make one unit of weight; a client of n examples counts
        ``max(1, round(n / examples_per_weight))``, which must not exceed the scheme's ``max_weight``. ``None``: what
        the keys were made for (``fedcipher keygen --examples``), else all clients weigh the same.
    quorum
        Share of the sampled clients whose updates are enough: ``grace`` seconds after that many are in the sum the
        round closes. 1: all are waited for.
    deadline
        Seconds after which a round closes with the updates that are there; ``None``: the ``timeout`` of `start`.
    grace
        Seconds that the others have once the quorum is there.
    committee_timeout
        Seconds that the members of a committee have to answer in a round, for schemes that have one.
    on_round
        Called with each finished `RoundRecord`.
    on_progress
        Called with (done, total) steps of a long aggregation.

    Notes
    -----
    Updates are added as they arrive and are not kept: the server's memory does not grow with the number of clients. Who
    has not answered when a round closes is in its `RoundRecord` as left out, and later in ``late`` if the update comes
    after all; it is in no sum.

    A round of fewer accepted updates than the scheme's ``min_contributions`` has no aggregate: the sum of
    one update is that update. The global model stays, `RoundRecord.unfinished` says so, and nobody is
    sent anything of it. A first round that samples fewer clients is refused with a `StrategyError`, and so is a
    whole run without any aggregate.

    Without an opener, ``Result.arrays`` is a `fedcipher.flower.sealed.SealedArrays`, which raises when it is read.
    """

    def __init__(
        self,
        strategy: Strategy,
        keys: str | Path | ServerKeys,
        *,
        opener: Decryptor | str | Path | None = None,
        out: str | Path | None = None,
        examples_per_weight: float | None = None,
        quorum: float = 1.0,
        deadline: float | None = None,
        grace: float = 10.0,
        committee_timeout: float = 60.0,
        on_round: Callable[[RoundRecord], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if not isinstance(cast(object, strategy), Strategy):
            raise StrategyError(
                f"{type(strategy).__name__} is no flwr.serverapp.strategy.Strategy; strategies of flwr.server.strategy "
                "are of Flower's older API: use the class of the same name from flwr.serverapp.strategy"
            )
        self.inner = strategy
        self._keys = keys if isinstance(keys, ServerKeys) else FileKeys(keys)
        self.scheme, self._key = self._keys.scheme, self._keys.current()
        self._opener, self._holds_key = self._opener_of(opener), isinstance(opener, (str, Path))
        self._opens_itself = opener is None and self._opener is not None
        self._committee = Committee(committee_timeout)
        if not 0 < quorum <= 1:
            raise ParameterError(f"quorum={quorum} is no share of the sampled clients above 0 and up to 1")
        if not (grace >= 0 and (deadline is None or deadline > 0)):
            raise ParameterError(f"grace={grace} and deadline={deadline} are seconds; the deadline is more than 0")
        self._quorum, self._deadline, self._grace = quorum, deadline, grace
        self._training = False
        self._gathering: Gathering | None = None
        # Messages of rounds that have closed without their answer, and which round.
        self._outstanding: dict[str, RoundRecord] = {}
        self._grid: Grid | None = None
        self._train_type: str = MessageType.TRAIN
        self._accused: set[int] = set()
        self._suspects = Suspects()
        # Of each aggregate of the segment: its round, and whose updates are in it.
        self._sums: list[tuple[int, list[int]]] = []
        # What a server that opens sums had before the last one.
        self._before: tuple[list[NumpyArray], list[NumpyArray] | None, bytes] = ([], None, b"")
        # A relative path would be in whatever folder Flower runs the app in.
        self._out = None if out is None else home() / "runs" / out
        unit = self._keys.examples_per_weight if examples_per_weight is None else examples_per_weight
        self._unit = float(unit)
        if self._unit > 0 and self.scheme.codec.privacy is not None:
            raise StrategyError(
                "examples_per_weight and privacy: weights say how many examples a client has, which no noise covers; "
                "weigh all clients the same"
            )
        self._minimum = self.scheme.min_contributions
        self._most = int(self.scheme.params()["clients"])
        self._on_round = on_round
        self._on_progress = on_progress
        self.rounds: list[RoundRecord] = []
        # Rounds must increase over the life of a key, also when the app is run again.
        self._base = 0
        self._run: RunFolder | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._names: list[str] = []
        self._first: ArrayRecord | None = None
        self._start = ArrayRecord()
        self._returned: ArrayRecord | None = None
        self._model: list[NumpyArray] = []
        self._delta: list[NumpyArray] | None = None
        self._feedback = ClipFeedback(self.scheme.codec, [])
        self._first_ranges: list[float] = []
        self._delivered: dict[int, tuple[int, int]] = {}
        self._client_of: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._warned_weights = False
        # What clients make of a mean that this server does not see.
        self._optimiser: Optimiser | None = None

    def _opener_of(self, opener: Decryptor | str | Path | None) -> Decryptor | None:
        if opener is None and self.scheme.reveals_to_server:
            return self.scheme.server_decryptor(self._key)
        if not isinstance(opener, (str, Path)):
            return opener
        folder = self._keys.folder
        beside = None if folder is None or len(Path(opener).parts) != 1 else folder / opener
        scheme, key = load_client(beside if beside is not None and beside.exists() else locate(opener))
        if scheme.spec() != self.scheme.spec():
            raise StrategyError(f"the opener {opener} is of another scheme or other parameters than the server's keys")
        return scheme.decryptor(key)

    @property
    def weighted_by(self) -> str:
        """The metric that clients are weighted by."""
        return str(getattr(self.inner, "weighted_by_key", "num-examples"))

    @property
    def names(self) -> list[str]:
        """Names of the model's arrays, from the first round on."""
        return list(self._names)

    def summary(self) -> None:
        """Log what protects the run, then the inner strategy's summary."""
        sees = "no model"
        if self._opener is not None:
            sees = "each round's mean"
            if self._holds_key:
                sees += ", and holds a client's key, with which whoever controls it can open single updates"
        weights = f"one unit of weight per {self._unit:g} examples" if self._unit else "all clients weigh the same"
        _shown.info(
            "Fedcipher: updates %s; it withstands %s; sums of at least %s clients are opened; this server sees %s; %s",
            f"leave the clients encrypted with {self.scheme}"
            if self.scheme.info.hides
            else "are NOT encrypted (plain)",
            self.scheme.info.withstands,
            self._minimum,
            sees,
            weights,
        )
        if self._optimiser is not None:
            _shown.info("Fedcipher: the clients make the step of %s, after they have opened the mean", self._optimiser)
        self.inner.summary()

    # --- the run -----------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run ``num_rounds`` rounds, as any Flower strategy does.

        Raises `StrategyError` before the first round where the run could not end with a usable model: without
        ``opener`` and ``out``, with ``evaluate_fn`` and no opener, with a strategy that is no mean; and at the end
        where no round had an aggregate. Each call is a run of its own.
        """
        if evaluate_fn is not None and self._opener is None:
            raise StrategyError(
                "evaluate_fn needs the model, and this server has no key: pass opener=... to SecureStrategy if the "
                "server may see the mean of each round, or evaluate on the clients (the strategy's fraction_evaluate)"
            )
        self._begin(initial_arrays)
        streaming = cast(Grid, Arrivals(grid, partial(self._gathered, grid)))
        result = super().start(
            streaming, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        self._collect_late(grid)
        finished = sum(record.unfinished is None for record in self.rounds)
        if num_rounds > 0 and finished == 0:
            raise StrategyError(f"none of {len(self.rounds)} rounds has an aggregate; the last: {self._last_reason()}")
        if finished < len(self.rounds):
            _log.warning("%s of %s rounds have no aggregate", len(self.rounds) - finished, len(self.rounds))
        if self._opener is not None:
            # What Flower has kept may be of a sum that was withdrawn.
            result.arrays = named(self._names, self._model)
        elif self._run is not None:
            result.arrays = SealedArrays(self._run.folder)
            _shown.info(
                "Fedcipher: the model is encrypted in %s; a client opens it with `fedcipher open %s --key "
                "client-0.key --out model.npz`",
                self._run.folder,
                self._run.folder,
            )
        return result

    def _last_reason(self) -> str:
        record = self.rounds[-1]
        left_out = next((c.left_out for c in record.clients if c.left_out), None)
        return f"{record.unfinished}{f' ({left_out})' if left_out else ''}"

    def _begin(self, initial: ArrayRecord) -> None:
        """Everything that can be refused before a client trains."""
        if isinstance(initial, SealedArrays):
            raise StrategyError(f"{initial!r} is no model to start from: open it first, with `fedcipher open`")
        if not len(initial):
            raise StrategyError("the initial ArrayRecord is empty; pass the model's first arrays")
        if self._opener is None and self._out is None:
            raise StrategyError(
                "this server has no key, so Result.arrays will hold no model. Say where it goes: out='a new folder' "
                "keeps it encrypted for `fedcipher open`; opener=<a client's key file> lets the server see the mean"
            )
        self._check_inner()
        values: list[NumpyArray] = []
        for name, array in initial.items():
            try:
                values.append(protocol.to_numpy(array))
            except FrameError as error:
                raise LayoutError(f"array {name!r} cannot be averaged: {error}") from error
        # Refused here, and not by each client after it has trained.
        codec = self.scheme.codec
        codec.check(values, list(initial.keys()))
        if codec.privacy is not None:
            grid(codec.privacy, codec.bit_widths[0], sum(x.size for x in values), self.scheme.noise_shares)
        if self._optimiser is not None:
            self._optimiser.check_types(values)
        self._base = max(int(time.time()) << 20, self._base + _ROUNDS_OF_A_RUN)
        self.rounds, self._delivered, self._warned_weights, self._delta = [], {}, False, None
        self._suspects, self._accused, self._sums = Suspects(), set(), []
        self._names, self._first, self._returned = list(initial.keys()), initial, None
        self._run, self._first_ranges = None, []
        self._feedback = ClipFeedback(self.scheme.codec, self.scheme.codec.first_ranges(values))
        if self._out is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="fedcipher-run-")
        folder = self._out if self._scratch is None else Path(self._scratch.name) / "run"
        self._run = RunFolder(cast(Path, folder), self.scheme, self._settings("arrays", self._base + 1))
        self._begin_segment(values)

    def _begin_segment(self, model: Sequence[NumpyArray]) -> None:
        """From here on everybody starts from ``model``, which is sent in the clear."""
        assert self._run is not None
        self._model = [np.array(x) for x in model]
        # Of a run's first model clients know the first ranges themselves; of a later one only an opener does.
        opened = self._run.segment >= 0 and carries_use(self.scheme)
        self._first_ranges = self._feedback.ranges if opened else []
        self._run.begin(self._model)
        self._sums = []
        self._start = named(self._names, self._model)

    def _check_inner(self) -> None:
        inner = self.inner
        cls = type(inner)
        if cls.start is not Strategy.start:
            raise StrategyError(
                f"{cls.__name__} has a start() of its own, which would not run under SecureStrategy: do its work in "
                "on_round=, or in a class derived from SecureStrategy"
            )
        own = cls.aggregate_train.__module__.partition(".")[0] != "flwr"
        if self._opener is None and own and not getattr(inner, "fedcipher_blind", False):
            raise StrategyError(
                f"{cls.__name__} has an aggregate_train() of its own. Without opener=... it would be given random "
                "numbers in place of updates and models, and whatever it kept or saved of them would be lost: pass an "
                "opener, or set fedcipher_blind = True on it if it touches metrics only"
            )
        if self._opener is not None:
            probe.check_sees_only_the_mean(inner, self.weighted_by)
            return
        self._optimiser = Optimiser.of(inner)
        if self._optimiser is None:
            probe.check_is_mean(inner, self.weighted_by)
            return
        if self.scheme.codec.target != "delta":
            raise StrategyError(
                f"{cls.__name__} without opener=... makes its step on the clients, from the mean of their changes, and "
                'these keys are for whole models: make them with Codec(target="delta"), which is the default'
            )
        probe.check_step(inner, self.weighted_by, self._optimiser)

    def _check_unchanged(self) -> None:
        if self._optimiser is not None and Optimiser.of(self.inner) != self._optimiser:
            raise StrategyError(
                f"the run began with {self._optimiser}, which {type(self.inner).__name__} no longer is: clients hold "
                "on to the first numbers. Where they are to change from round to round, pass opener=..."
            )

    # --- towards the clients -----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy sample, then replace what it sends by ciphertext."""
        self._take(arrays)
        self._check_unchanged()
        self._follow_epochs()
        self.rounds.append(RoundRecord(server_round, epoch=self._key.epoch))
        shown, self._grid, self._training = self._shown_to_inner(), grid, True
        self._collect_late(grid)
        messages = list(self.inner.configure_train(server_round, shown, config, grid))
        messages = self._without_accused(server_round, messages)
        self._train_type = messages[0].metadata.message_type if messages else self._train_type
        if 0 < len(messages) < self._minimum:
            return self._too_few(server_round, len(messages))
        if len(messages) > self._most:
            messages = self._too_many(server_round, messages)
        return self._dress(server_round, shown, messages)

    def _without_accused(self, server_round: int, messages: list[Message]) -> list[Message]:
        """Without clients that have spoilt a round, or may have."""
        known = [self._client_of.get(m.metadata.dst_node_id) for m in messages]
        there = [client for client in known if client is not None and client not in self._accused]
        strangers = len(known) - len(there) - sum(client in self._accused for client in known)
        out = self._accused | self._suspects.excluded(there, self._minimum - strangers)
        kept = [m for m, client in zip(messages, known, strict=True) if client not in out]
        if len(kept) < len(messages):
            certain = sorted(self._accused | self._suspects.found)
            _log.warning(
                "round %s: %s clients are not asked, to find out who has spoilt a round; found: %s",
                server_round,
                len(messages) - len(kept),
                certain or "nobody yet",
            )
        return kept

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

    def _too_many(self, server_round: int, messages: list[Message]) -> list[Message]:
        """A sum has room for so many; whoever is one too many must not train for nothing."""
        said = f"{type(self.inner).__name__} sampled {len(messages)} clients, and the keys have room for {self._most}"
        if len(self.rounds) == 1:
            raise StrategyError(
                f"{said} in a round: lower its fraction_train and min_train_nodes, or make keys with "
                f"`fedcipher keygen --per-round {len(messages)}`"
            )
        _log.warning("round %s: %s; the others are not asked", server_round, said)
        return messages[: self._most]

    def _leave_unfinished(self, server_round: int, why: str) -> None:
        # The first cause stands: a round that was not begun has no updates either.
        if self.rounds[-1].unfinished is None:
            self.rounds[-1].unfinished = why
            _log.warning("round %s has no aggregate, the global model stays: %s", server_round, why)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Like `configure_train`."""
        self._take(arrays)
        self._training = False
        shown = self._shown_to_inner()
        return self._dress(server_round, shown, list(self.inner.configure_evaluate(server_round, shown, config, grid)))

    def _follow_epochs(self) -> None:
        """A round is of one epoch, the newest at its start."""
        newest = self._keys.current()
        if newest.epoch == self._key.epoch:
            return
        if self.scheme.codec.target == "delta" and self._run is not None and self._run.count:
            _log.warning("key epoch %s waits: with deltas this run keeps epoch %s", newest.epoch, self._key.epoch)
            return
        _log.info("key epoch %s follows %s", newest.epoch, self._key.epoch)
        self._key = newest
        if self._opens_itself:
            self._opener = self.scheme.server_decryptor(newest)

    def _take(self, arrays: ArrayRecord) -> None:
        """The arrays that the round is run with: the first model, or what the last round returned.

        Anything else was changed on the way, by a strategy around this one (noise for differential privacy, say):
        honoured where the server may see the model, refused where what was changed is ciphertext.
        """
        if self._run is None:
            self._begin(arrays)
        if arrays is self._first or arrays is self._returned:
            return
        values = [protocol.to_numpy(array) for array in arrays.values()]
        expected = [np.shape(x) for x in self._model]
        if self._opener is None:
            raise StrategyError(
                "the arrays that this round is run with are not what the last round returned: something around "
                "SecureStrategy changed them, and without a key that changed ciphertext. Noise on the server needs "
                "opener=...; clipping and noise on the clients go into a mod before fedcipher.flower.client_mod"
            )
        if list(arrays.keys()) != self._names or [x.shape for x in values] != expected:
            raise StrategyError(
                f"the round is run with arrays {list(arrays.keys())[:5]}, the run began with {self._names[:5]}"
            )
        self._begin_segment([in_type_of(m, v) for v, m in zip(values, self._model, strict=True)])
        self._first = arrays

    def _shown_to_inner(self) -> ArrayRecord:
        """The model, where the server may see it; else numbers that stand for it."""
        if self._opener is not None:
            return named(self._names, self._model)
        return ArrayRecord({_PROBE: Array(np.zeros(_PROBE_SIZE))})

    def _dress(self, server_round: int, shown: ArrayRecord, messages: list[Message]) -> list[Message]:
        """The inner strategy's messages with the model in the place of what it was ``shown``, and the settings."""
        run = self._run
        assert run is not None
        known = [self._client_of.get(m.metadata.dst_node_id) for m in messages]
        sampled = [client for client in known if client is not None]
        plan = self.scheme.plan(self._key, sampled)

        @cache
        def settings(record: str) -> ConfigRecord:
            return self._settings(record, self._base + server_round, plan).to_record()

        for message in messages:
            model = self._place_of_model(message, shown)
            # The inner strategy may share one record among all messages: each gets its own. Other ArrayRecords are
            # the server's own, and go as they are.
            content = RecordDict(dict(message.content.items()))
            content[model] = self._model_for(message.metadata.dst_node_id)
            content[protocol.CONFIG] = settings(model)
            message.content = content
        return messages

    def _settings(self, record: str, number: int, plan: bytes = b"") -> RoundSettings:
        """Of round ``number``, for a message with the model in its ArrayRecord ``record``."""
        return RoundSettings(
            run=self._base,
            segment=0 if self._run is None else self._run.segment,
            round=number,
            epoch=self._key.epoch,
            record=record,
            names=self._names,
            plan=plan,
            unit=self._unit,
            weighted_by=self.weighted_by,
            ranges=self._first_ranges,
            last=self._sums[-1][0] if self._sums else 0,
            optimiser=self._optimiser,
        )

    def _place_of_model(self, message: Message, shown: ArrayRecord) -> str:
        """The ArrayRecord of ``message`` that is what the inner strategy was ``shown``."""
        names = list(shown.keys())
        found = [key for key, record in message.content.array_records.items() if list(record.keys()) == names]
        if len(found) == 1:
            record = message.content.array_records[found[0]]
            if record is shown or all(_equal(record[name], shown[name]) for name in names):
                return found[0]
        raise StrategyError(
            f"{type(self.inner).__name__} sends node {message.metadata.dst_node_id} something else than the arrays it "
            "was given: every client trains from one model, whole and unchanged. Further arrays of the server's own go "
            "into an ArrayRecord beside it"
        )

    def _model_for(self, node: int) -> ArrayRecord:
        """What ``node`` lacks of the global model."""
        run = self._run
        assert run is not None
        if self.scheme.codec.target == "weights":
            if run.count == 0:
                return self._start
            return protocol.wire_record({protocol.aggregate_key(run.count): self._aggregate_for(node, run.count)})
        segment, have = self._delivered.get(node, (-1, 0))
        same = segment == run.segment
        arrays = {} if same else dict(self._start.items())
        for number in range((have if same else 0) + 1, run.count + 1):
            arrays[protocol.aggregate_key(number)] = protocol.bytes_array(self._aggregate_for(node, number))
        return ArrayRecord(arrays)

    def _aggregate_for(self, node: int, number: int) -> bytes:
        """An aggregate of the run, with what this node needs of it once it is known which party it is."""
        assert self._run is not None
        frame = self._run.aggregate(number)
        party = self._client_of.get(node)
        return frame if party is None else self.scheme.addressed(frame, party)

    # --- from the clients --------------------------------------------------------------------

    def _gathered(self, grid: Grid, messages: Iterable[Message], timeout: float | None) -> Iterable[Message]:
        """The replies to a round's messages, as they come, until the round closes."""
        seconds = math.inf if timeout is None else timeout
        if not self._training:
            return Gathering(grid, messages, until=time.monotonic() + seconds)
        until = time.monotonic() + (seconds if self._deadline is None else min(seconds, self._deadline))
        self._gathering = Gathering(grid, messages, until=until, enough=self._has_quorum, grace=lambda _: self._grace)
        return self._gathering

    def _has_quorum(self) -> bool:
        assert self._gathering is not None
        share = math.ceil(self._quorum * len(self._gathering.asked))
        return self._quorum < 1 and self.rounds[-1].accepted >= max(share, self._minimum)

    def _note_silent(self, record: RoundRecord) -> None:
        """Who has not answered when the round closes."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        heard = {client.node for client in record.clients}
        for node in gathering.asked:
            if node not in heard:
                said = f"is left out of round {record.round}"
                record.clients.append(self._left_out(node, said, "no answer when the round closed"))
        self._outstanding.update(dict.fromkeys(gathering.waiting, record))

    def _left_out(
        self, node: int, said: str, why: str, reply: Message | None = None, phases: dict[str, float] | None = None
    ) -> ClientRecord:
        """A node whose reply is of no use: logged, and sent everything again when it is asked next."""
        refusal = None if reply is None else _why(reply)
        _log.warning("node %s %s: %s", node, said, refusal or why)
        self._delivered.pop(node, None)
        return ClientRecord(node, self._client_of.get(node), phases or {}, refusal or why, refusal is not None)

    def _collect_late(self, grid: Grid) -> None:
        """Answers to rounds that have closed: counted, and thrown away."""
        if not self._outstanding:
            return
        for reply in grid.pull_messages(list(self._outstanding)):
            record = self._outstanding.pop(reply.metadata.reply_to_message_id, None)
            if record is not None:
                record.late.append(reply.metadata.src_node_id)
                _log.warning(
                    "node %s has answered round %s after it closed; its update is not used",
                    reply.metadata.src_node_id,
                    record.round,
                )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the ciphertexts of all sound replies; whoever sent garbage is left out with a warning."""
        assert self._run is not None
        record = self.rounds[-1]
        aggregator = self.scheme.aggregator(self._key, round=self._base + server_round)
        accepted = self._added(aggregator, replies, record)
        self._note_opened(record.clients)
        self._note_silent(record)
        if len(accepted) < self._minimum:
            self._leave_unfinished(server_round, f"{len(accepted)} usable updates, {self._minimum} are needed")
            return None, None
        if self._grid is not None:
            away = self._committee.ask(self._grid, aggregator, self._train_type, self._node_of)
            self._accused.update(aggregator.accused)
            if away is not None:
                self._leave_unfinished(server_round, away)
                return None, None
        began = time.perf_counter()
        frame = aggregator.finish(self._on_progress)
        record.aggregate_seconds += time.perf_counter() - began
        self._run.append(frame)
        self._sums.append(
            (self._base + server_round, sorted(self._client_of[r.metadata.src_node_id] for r in accepted))
        )
        if self.scheme.codec.target == "weights":
            self._keys.settle(self._key.epoch)
        record.aggregate_bytes = len(frame)
        self._say(record)
        if self.scheme.info.committee:
            self._before = (self._model, self._delta, self._feedback.export())
        if self._opener is None:
            metrics = self._blind_metrics(server_round, accepted)
            self._returned = protocol.wire_record({protocol.aggregate_key(self._run.count): frame})
            return self._returned, metrics
        try:
            self._open(server_round, self._opener, frame)
        except (DecryptError, ForgedAggregateError) as error:
            if not self.scheme.info.committee:
                raise
            self._withdraw(f"it does not open ({error})")
            return None, None
        clients = self._sums[-1][1]
        made = self._optimised(server_round, accepted)
        if not (self._opens_itself and self._sums):
            # Without the key of tags a false sum may open: where clients open it too, they say.
            self._suspects.opened(clients)
        return made

    def _say(self, record: RoundRecord) -> None:
        share = record.clipped_share
        _shown.info(
            "Fedcipher: round %s: sum of %s encrypted updates, %s left out, %.2g%% of the values clipped",
            record.round,
            record.accepted,
            len(record.clients) - record.accepted,
            100 * share,
        )
        if share > CLIPPED:
            _log.warning(
                "round %s: %.1f%% of the values were cut to their clip range, so the model is not the mean; the "
                "clients' logs name the tensors. Ranges follow the last aggregate (clip='auto'); a larger margin or "
                "start in the Codec, or more bits, leaves more room",
                record.round,
                100 * share,
            )

    def _added(self, aggregator: Aggregator, replies: Iterable[Message], record: RoundRecord) -> list[Message]:
        """The replies whose updates are in the sum."""
        assert self._run is not None
        accepted: list[Message] = []
        revoked = self._keys.revoked()
        for reply in replies:
            node = reply.metadata.src_node_id
            phases = self._take_phases(reply)
            began = time.perf_counter()
            try:
                frame = self._frame_of(reply)
                self._check_owner(node, frame, revoked)
                contribution = aggregator.add(frame)
            except FedcipherError as error:
                said = f"is left out of round {record.round}"
                why = f"{type(error).__name__}: {_short(str(error))}"
                record.clients.append(self._left_out(node, said, why, reply, phases))
                continue
            # Replies come one by one: the wait between them is no work.
            record.aggregate_seconds += time.perf_counter() - began
            self._client_of[node] = contribution.client
            self._node_of[contribution.client] = node
            self._delivered[node] = (self._run.segment, self._run.count)
            record.clients.append(ClientRecord(node, contribution.client, phases))
            # In the sum; what the inner strategy needs of it is its metrics, and where its arrays were.
            for key in list(reply.content.array_records):
                reply.content[key] = ArrayRecord()
            accepted.append(reply)
        return accepted

    def _note_opened(self, replies: list[ClientRecord]) -> None:
        """What replies say of the last aggregate, which this server cannot open, or not check.

        Where a client can spoil a sum unseen (a committee's scheme), a spoilt one opens for nobody who has the key of
        tags, so that everybody refuses what comes with it. One client that goes on has opened it. Of whole models
        there is no way back: clients keep none, and open no aggregate older than the one they have tried.
        """
        assert self._run is not None
        if not (self.scheme.info.committee and self._sums and self.scheme.codec.target == "delta"):
            return
        if (self._run.segment, self._run.count) in self._delivered.values():
            self._suspects.opened(self._sums[-1][1])
        elif len(replies) >= self._minimum and all(reply.refused for reply in replies):
            self._withdraw("nobody opens it")

    def _withdraw(self, why: str) -> None:
        """Without the last aggregate, which one of its clients has spoilt: part of them sit out until it is found."""
        assert self._run is not None
        self._run.withdraw()
        number, clients = self._sums.pop()
        self._model, self._delta, use = self._before
        self._feedback.restore(use)
        self._suspects.spoilt(clients)
        record = next(record for record in self.rounds if self._base + record.round == number)
        record.unfinished = f"its sum, of clients {clients}, is withdrawn: {why}, so one of them has spoilt it"
        _log.warning("round %s has no aggregate, the global model stays: %s", record.round, record.unfinished)

    def _open(self, server_round: int, opener: Decryptor, frame: bytes) -> None:
        """The mean of a round as the model."""
        number = self._base + server_round
        if self.scheme.codec.target == "weights":
            mean = opener.decrypt(frame, round=number)
        else:
            # Of a segment's first aggregate nobody has a reference.
            reference = self._delta if self._run is not None and self._run.count > 1 else None
            self._delta = opener.decrypt(frame, round=number, reference=reference, like=self._model)
            if carries_use(self.scheme):
                self._delta, use = split_use(self._delta)
                self._feedback.observe(use)
            mean = apply_delta(self._model, self._delta)
        self._model = mean

    def _optimised(self, server_round: int, accepted: list[Message]) -> tuple[ArrayRecord, MetricRecord | None]:
        """The inner strategy on the opened mean; a model that it makes of it is the next round's first."""
        mean = self._model
        made, metrics = self._inner_on(server_round, accepted, named(self._names, mean))
        if made is None or list(made.keys()) != self._names:
            raise StrategyError(f"{type(self.inner).__name__} did not aggregate a round with valid updates")
        values = [protocol.to_numpy(made[name]) for name in self._names]
        if not all(_same(a, b) for a, b in zip(values, mean, strict=True)):
            self._begin_segment([in_type_of(m, v) for v, m in zip(values, mean, strict=True)])
        self._returned = named(self._names, self._model)
        return self._returned, metrics

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

    def _inner_on(
        self, server_round: int, accepted: list[Message], each: ArrayRecord | list[ArrayRecord]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's aggregation, with other arrays in the replies."""
        records = each if isinstance(each, list) else [each] * len(accepted)
        for reply, record in zip(accepted, records, strict=True):
            key = next(iter(reply.content.array_records))
            reply.content.array_records[key] = record
        try:
            aggregate = self.inner.aggregate_train if self._optimiser is None else mean_part(self.inner)
            return aggregate(server_round, accepted)
        except FedcipherError:
            raise
        except Exception as error:
            raise StrategyError(f"{type(self.inner).__name__} cannot aggregate: {error}") from error

    def _blind_metrics(self, server_round: int, accepted: list[Message]) -> MetricRecord | None:
        """Run the inner strategy on random probes: its metrics, and proof that it still is a mean."""
        rng = np.random.default_rng()
        probes = [rng.normal(size=_PROBE_SIZE) for _ in accepted]
        weights = [self._examples(reply) for reply in accepted]
        made, metrics = self._inner_on(server_round, accepted, [ArrayRecord({_PROBE: Array(p)}) for p in probes])
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
        assert self._run is not None
        kept = list(replies)
        for reply in kept:
            node = reply.metadata.src_node_id
            phases = self._take_phases(reply)
            if reply.has_error():
                said = f"does not evaluate round {server_round}"
                why = _short(str(reply.error.reason))
                self.rounds[-1].evaluations.append(self._left_out(node, said, why, reply))
            else:
                self._delivered[node] = (self._run.segment, self._run.count)
                self.rounds[-1].evaluations.append(ClientRecord(node, self._client_of.get(node), phases))
        self._note_opened(self.rounds[-1].evaluations)
        metrics = self.inner.aggregate_evaluate(server_round, kept)
        if self._on_round is not None:
            self._on_round(self.rounds[-1])
        return metrics

    def open_model(self, decryptor: Decryptor) -> list[NumpyArray]:
        """The current global model, for whoever holds a client's key."""
        if self._run is None:
            raise StrategyError("no round has been run yet")
        settings = self._settings("arrays", self._base + 1)
        return replay(self._run.frames(), self._run.first(), self.scheme, decryptor, settings)


def _equal(a: Array, b: Array) -> bool:
    return a is b or (a.dtype, a.shape, a.data) == (b.dtype, b.shape, b.data)


def _same(a: NumpyArray, b: NumpyArray) -> bool:
    """Whether ``a`` is ``b`` but for the rounding of a mean, which Flower makes of whole numbers in double."""
    if a.shape != b.shape:
        return False
    step = float(np.finfo(b.dtype if b.dtype.kind == "f" else np.float64).eps)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.allclose(a, b, rtol=8 * step, atol=8 * step * float(np.max(np.abs(b), initial=0.0))))
