"""The strategy wrapper: any weighted-mean strategy of Flower, over ciphertexts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
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
    PlaintextError,
    StrategyError,
    WorkersError,
)
from fedcipher.flower import protocol
from fedcipher.flower.attendance import Attendance
from fedcipher.flower.committee import Committee
from fedcipher.flower.inner import Inner
from fedcipher.flower.journal import Ended, Journal
from fedcipher.flower.model import named
from fedcipher.flower.numbers import asked_after, reserve
from fedcipher.flower.parties import Parties
from fedcipher.flower.records import CLIPPED, LARGEST_PHASE, PHASES, ClientRecord, RoundRecord
from fedcipher.flower.refusal import reference_of
from fedcipher.flower.replies import Arrivals
from fedcipher.flower.run_folder import RunFolder, replay
from fedcipher.flower.sealed import SealedArrays
from fedcipher.flower.server_model import ServerModel
from fedcipher.flower.settings import RoundSettings
from fedcipher.flower.sums import Sums
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.keys.provider import ServerKeys, server_keys
from fedcipher.keys.store import home, load_client, locate
from fedcipher.scale import RayWorkers
from fedcipher.schemes import Aggregator, Decryptor

__all__ = ["SecureStrategy"]

_log = quoting_log("fedcipher.flower")
# Flower shows its own log only; what a run is protected by belongs into it.
_shown = quoting_log("flwr")
_ROUNDS_OF_A_RUN = 1 << 20


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
        ``server.key``, the folder of `fedcipher keygen` that holds it, or an authority, as a
        `fedcipher.engine.Authority` or as ``"authority://HOST:PORT/FOLDER"`` of its credentials: then each round is
        of the newest key epoch, and the epoch before ends with the round. With deltas a run keeps its first epoch,
        because a client that was away needs every aggregate since.
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
    resume
        Where ``out`` holds a run, go on with it in place of beginning another: after the last round that ended, or was
        under way, when its server was. ``num_rounds`` of `start` counts the run's rounds from its first, and its
        ``initial_arrays`` only say which arrays there are. Clients need nothing for it.
    examples_per_weight
        How many examples make one unit of weight; a client of n examples counts
        ``max(1, round(n / examples_per_weight))``, which must not exceed the scheme's ``max_weight``. ``None``: what
        the keys were made for (``fedcipher keygen --examples``), else all clients weigh the same.
    quorum
        Share of the sampled clients whose updates are enough: ``grace`` seconds after that many are in the sum the
        round closes. 1: all are waited for.
    deadline
        Seconds after which a round closes with the updates that are there, and its evaluation with the answers;
        ``None``: the ``timeout`` of `start`.
    grace
        Seconds that the others have once the quorum is there.
    committee_timeout
        Seconds that the members of a committee have to answer in a round, for schemes that have one.
    on_round
        One or several to call with each finished `RoundRecord`, such as the loggers of `fedcipher.watch`.
    on_progress
        Called with (done, total) steps of a long aggregation.
    workers
        A Ray cluster that does a long aggregation's work, see `fedcipher.scale`; where it fails, this process does it.

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
        resume: bool = False,
        examples_per_weight: float | None = None,
        quorum: float = 1.0,
        deadline: float | None = None,
        grace: float = 10.0,
        committee_timeout: float = 60.0,
        on_round: Callable[[RoundRecord], None] | Iterable[Callable[[RoundRecord], None]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        workers: RayWorkers | None = None,
    ) -> None:
        self._keys = server_keys(keys)
        self.scheme, self._key = self._keys.scheme, self._keys.current()
        self._opener, self._holds_key = self._opener_of(opener), isinstance(opener, (str, Path))
        self._opens_itself = opener is None and self._opener is not None
        self._delta = self.scheme.codec.target == "delta"
        self._inner = Inner(strategy, opens=self._opener is not None, delta=self._delta)
        self._minimum = self.scheme.min_contributions
        self._most = int(self.scheme.params()["clients"])
        self._attendance = Attendance(quorum=quorum, deadline=deadline, grace=grace, minimum=self._minimum)
        self._committee = Committee(committee_timeout)
        self._parties = Parties()
        # A relative path would be in whatever folder Flower runs the app in.
        self._out = None if out is None else home() / "runs" / out
        self._resume = resume
        if resume and out is None:
            raise StrategyError("resume=True goes on with the run in a folder: say which, out='...'")
        unit = self._keys.examples_per_weight if examples_per_weight is None else examples_per_weight
        self._unit = float(unit)
        if self._unit > 0 and self.scheme.codec.privacy is not None:
            raise StrategyError(
                "examples_per_weight and privacy: weights say how many examples a client has, which no noise covers; "
                "weigh all clients the same"
            )
        self._watchers = list(on_round) if isinstance(on_round, Iterable) else [on_round] if on_round else []
        self._on_progress, self._workers = on_progress, workers
        self.rounds: list[RoundRecord] = []
        # Rounds must increase over the life of a key, also when the app is run again.
        self._base = self._number = 0
        # Rounds of the run that another process has ended.
        self._done = 0
        self._ended = Ended(0, 0)
        self._round_began = 0.0
        self._evaluates = False
        self._model: ServerModel | None = None
        self._journal: Journal | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._grid: Grid | None = None
        self._train_type: str = MessageType.TRAIN
        self._training = False

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
        return self._inner.weighted_by

    @property
    def inner(self) -> Strategy:
        """The wrapped strategy."""
        return self._inner.strategy

    @property
    def names(self) -> list[str]:
        """Names of the model's arrays, from the first round on."""
        return [] if self._model is None else list(self._model.names)

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
        if self._inner.optimiser is not None:
            _shown.info(
                "Fedcipher: the clients make the step of %s, after they have opened the mean", self._inner.optimiser
            )
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
        evaluate = None if evaluate_fn is None else partial(self._evaluated_here, evaluate_fn)
        self._evaluates = evaluate is not None
        streaming = cast(Grid, Arrivals(grid, partial(self._gathered, grid)))
        try:
            self._begin(initial_arrays)
            before = len(self.rounds)
            left, arrays = max(num_rounds - self._done, 0), self._running.expected
            self._warn_of_budget(num_rounds)
            result = super().start(streaming, arrays, left, timeout, train_config, evaluate_config, evaluate)
            self._note_late()
        finally:
            if self._journal is not None:
                self._journal.close()
        self._with_past(result)
        finished = sum(record.unfinished is None for record in self.rounds)
        if num_rounds > 0 and finished == 0:
            raise StrategyError(f"none of {len(self.rounds)} rounds has an aggregate; the last: {self._last_reason()}")
        ours = self.rounds[before:]
        if before and ours and all(record.unfinished is not None for record in ours):
            raise StrategyError(
                f"none of the {len(ours)} rounds since the run was resumed has an aggregate: its model "
                f"is what it was; the last: {self._last_reason()}"
            )
        if finished < len(self.rounds):
            _log.warning("%s of %s rounds have no aggregate", len(self.rounds) - finished, len(self.rounds))
        if self._opener is not None:
            # What Flower has kept may be of a sum that was withdrawn.
            result.arrays = named(self._running.names, self._running.arrays)
        else:
            folder = self._running.folder.folder
            result.arrays = SealedArrays(folder)
            _shown.info(
                "Fedcipher: the model is encrypted in %s; a client opens it with `fedcipher open %s --key "
                "client-0.key --out model.npz`",
                folder,
                folder,
            )
        return result

    def _last_reason(self) -> str:
        record = self.rounds[-1]
        left_out = next((c.left_out for c in record.clients if c.left_out), None)
        return f"{record.unfinished}{f' ({left_out})' if left_out else ''}"

    def _warn_of_budget(self, num_rounds: int) -> None:
        privacy = self.scheme.codec.privacy
        if privacy is not None and num_rounds > privacy.rounds:
            _log.warning(
                "num_rounds=%s, and these keys give %s updates of each client, by its differential privacy: clients "
                "that have given them refuse all further rounds. Sample fewer in a round, or make keys for more",
                num_rounds,
                privacy.rounds,
            )

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
        self._inner.check()
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
        if self._inner.optimiser is not None:
            self._inner.optimiser.check_types(values)
        self.rounds, self._done = [], 0
        self._parties.restart()
        names = list(initial.keys())
        begun = self._resume and self._out is not None and self._out.exists()
        if begun and RunFolder.has_run(cast(Path, self._out)):
            self._go_on(cast(Path, self._out), names, values)
            return
        self._base = self._number = max(reserve(_ROUNDS_OF_A_RUN), self._base + _ROUNDS_OF_A_RUN)
        if self._out is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="fedcipher-run-")
        path = self._out if self._scratch is None else Path(self._scratch.name) / "run"
        folder = RunFolder(cast(Path, path), self.scheme, self._shared_settings(names), begun=begun)
        self._journal = None if self._scratch is not None else Journal(folder.folder)
        self._model = ServerModel(folder, self.scheme, names, self._opener)
        self._model.begin(initial, values)

    def _go_on(self, path: Path, names: list[str], values: list[NumpyArray]) -> None:
        """With the run in ``path``, after what of it has ended."""
        self._journal = Journal(path)
        past = self._journal.past
        at = past.newest or Ended(0, 0)
        folder, settings = RunFolder.reopen(path, self.scheme, at.segment, at.count)
        self._base = settings.run
        ours = replace(self._shared_settings(names), epoch=settings.epoch)
        if ours != settings:
            changed = [key for key, value in vars(ours).items() if value != getattr(settings, key)]
            raise StrategyError(
                f"the run {path} cannot go on with other {', '.join(changed)} than it began with: begin another with "
                "another out=..., or make the app what it was"
            )
        if self._delta and folder.count and settings.epoch != self._key.epoch:
            raise StrategyError(
                f"the run {path} is of key epoch {settings.epoch}, the server has {self._key.epoch}: with deltas a run "
                "keeps its epoch. Begin another with another out=..., from the model of `fedcipher open`"
            )
        if [np.shape(x) for x in folder.first()] != [np.shape(x) for x in values]:
            raise StrategyError(f"the run {path} has a model of other shapes than initial_arrays")
        self._model = ServerModel(folder, self.scheme, names, self._opener)
        self.rounds = past.rounds
        self._number = max([self._base, *(record.number for record in past.rounds)])
        self._done = max((record.round for record in past.finished), default=0)
        if asked_after(self._base + _ROUNDS_OF_A_RUN):
            _log.warning(
                "another run or query of this user has begun since the run %s did, and its round numbers are later: "
                "clients whose keys had part in it refuse this run's as used. Then begin a run anew, from the model of "
                "`fedcipher open`",
                path,
            )
        if past.inner is not None:
            self._inner.restore(past.inner)
        if past.rounds:
            _shown.info(
                "Fedcipher: the run %s goes on after its round %s; Flower counts rounds from 1 again", path, self._done
            )

    def _evaluated_here(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None], number: int, arrays: ArrayRecord
    ) -> MetricRecord | None:
        metrics = evaluate_fn(self._done + number, arrays)
        if number > 0:
            self._note(self.rounds[-1], "server", metrics)
            self._tell(self.rounds[-1])
        return metrics

    def _with_past(self, result: Result) -> None:
        """The metrics of rounds that another process has run, and Flower's own under the run's round numbers."""
        if not self._done or self._journal is None:
            return
        parts = {
            "train": result.train_metrics_clientapp,
            "evaluate": result.evaluate_metrics_clientapp,
            "server": result.evaluate_metrics_serverapp,
        }
        for part, metrics in parts.items():
            moved = {self._done + number: values for number, values in metrics.items()}
            metrics.clear()
            for record in self._journal.past.finished:
                if part in record.metrics:
                    metrics[record.round] = MetricRecord(record.metrics[part])
            metrics.update(moved)

    @property
    def _running(self) -> ServerModel:
        assert self._model is not None
        return self._model

    # --- towards the clients -----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy sample, then replace what it sends by ciphertext."""
        self._take(arrays)
        self._inner.check_unchanged()
        self._follow_epochs()
        server_round += self._done
        self._number += 1
        record = RoundRecord(server_round, number=self._number, epoch=self._key.epoch)
        self._round_began = time.monotonic()
        self.rounds.append(record)
        if self._journal is not None:
            self._journal.begin(record)
        self._grid, self._training = grid, True
        self._note_late()
        shown, messages = self._inner.sample(False, server_round, self._running.shown(), config, grid)
        messages = self._parties.without_accused(server_round, messages, self._minimum)
        self._train_type = messages[0].metadata.message_type if messages else self._train_type
        if 0 < len(messages) < self._minimum:
            return self._too_few(server_round, len(messages))
        if len(messages) > self._most:
            messages = self._too_many(server_round, messages)
        return self._dress(shown, messages)

    def _too_few(self, server_round: int, sampled: int) -> list[Message]:
        """A round that cannot be finished is not begun; a first one means that no round could be."""
        said = f"{self._inner.name} sampled {sampled} clients, and a round needs {self._minimum} updates"
        if len(self.rounds) == 1:
            raise StrategyError(
                f"{said}: raise its fraction_train or min_train_nodes (or per-round), or make the scheme with a "
                "smaller min_contributions, which lets whoever decrypts see the sum of so few"
            )
        self._leave_unfinished(server_round, said)
        return []

    def _too_many(self, server_round: int, messages: list[Message]) -> list[Message]:
        """A sum has room for so many; whoever is one too many must not train for nothing."""
        said = f"{self._inner.name} sampled {len(messages)} clients, and the keys have room for {self._most}"
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
        shown, messages = self._inner.sample(True, self._done + server_round, self._running.shown(), config, grid)
        return self._dress(shown, messages)

    def _follow_epochs(self) -> None:
        """A round is of one epoch, the newest at its start."""
        newest = self._keys.current()
        if newest.epoch == self._key.epoch:
            return
        if self._delta and self._running.folder.count:
            _log.warning("key epoch %s waits: with deltas this run keeps epoch %s", newest.epoch, self._key.epoch)
            return
        _log.info("key epoch %s follows %s", newest.epoch, self._key.epoch)
        self._key = newest
        if self._opens_itself:
            self._opener = self.scheme.server_decryptor(newest)

    def _take(self, arrays: ArrayRecord) -> None:
        if self._model is None:
            self._begin(arrays)
        self._running.take(arrays)

    def _dress(self, shown: ArrayRecord, messages: list[Message]) -> list[Message]:
        """The inner strategy's messages with the model in the place of what it was ``shown``, and the settings."""
        model = self._running
        shared = replace(
            self._shared_settings(model.names),
            segment=model.folder.segment,
            round=self._number,
            epoch=self._key.epoch,
            plan=self.scheme.plan(self._key, self._parties.clients(messages)),
            ranges=model.ranges,
            last=model.last,
        )

        @cache
        def settings(record: str) -> ConfigRecord:
            return replace(shared, record=record).to_record()

        for message in messages:
            place, node = self._inner.place_of_model(message, shown), message.metadata.dst_node_id
            # The inner strategy may share one record among all messages: each gets its own. Other ArrayRecords are
            # the server's own, and go as they are.
            content = RecordDict(dict(message.content.items()))
            content[place] = model.to_node(node, self._parties.client_of.get(node))
            content[protocol.CONFIG] = settings(place)
            message.content = content
        return messages

    def _shared_settings(self, names: list[str]) -> RoundSettings:
        """What the settings of all rounds of a run have in common, with its first round's number."""
        return RoundSettings(
            run=self._base,
            segment=0,
            round=self._base + 1,
            epoch=self._key.epoch,
            record="arrays",
            names=names,
            plan=b"",
            unit=self._unit,
            weighted_by=self.weighted_by,
            optimiser=self._inner.optimiser,
        )

    # --- from the clients --------------------------------------------------------------------

    def _gathered(self, grid: Grid, messages: Iterable[Message], timeout: float | None) -> Iterable[Message]:
        """The replies to a round's messages, as they come, until the round closes."""
        return self._attendance.gather(grid, messages, timeout, self.rounds[-1] if self._training else None)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the ciphertexts of all sound replies; whoever sent garbage is left out with a warning."""
        arrays, metrics = self._aggregated(self._done + server_round, replies)
        record, folder = self.rounds[-1], self._running.folder
        self._ended = Ended(folder.segment, folder.count)
        # From here on nobody needs this round's process.
        self._note(record, "train", metrics, changed=arrays is not None)
        return arrays, metrics

    def _note_late(self) -> None:
        """Count the answers to rounds that have closed, also in the journal."""
        for record in self._attendance.collect_late():
            if self._journal is not None:
                self._journal.change(record)

    def _note(self, record: RoundRecord, part: str, metrics: MetricRecord | None, *, changed: bool = False) -> None:
        """A part of a round has ended: what there is to say of it, also in the journal."""
        record.wall_seconds = time.monotonic() - self._round_began
        if metrics is not None:
            record.metrics[part] = dict(metrics)
        if self._journal is not None:
            self._journal.end(record, self._ended, self._inner.export() if changed else None)

    def _tell(self, record: RoundRecord) -> None:
        for watcher in self._watchers:
            watcher(record)

    def _aggregated(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        record, model, parties = self.rounds[-1], self._running, self._parties
        aggregator, accepted = self._added(replies, record)
        self._note_opened(record.clients)
        for node in self._attendance.silent(record, record.clients, training=True):
            said = f"is left out of round {record.round}"
            record.clients.append(self._left_out(node, said, "no answer when the round closed"))
        if len(accepted) < self._minimum:
            self._leave_unfinished(server_round, f"{len(accepted)} usable updates, {self._minimum} are needed")
            return None, None
        if self._grid is not None:
            away = self._committee.ask(self._grid, aggregator, self._train_type, parties.node_of)
            parties.accused.update(aggregator.accused)
            if away is not None:
                self._leave_unfinished(server_round, away)
                return None, None
        began = time.perf_counter()
        frame = self._finished(aggregator)
        record.aggregate_seconds += time.perf_counter() - began
        clients = sorted(parties.client_of[reply.metadata.src_node_id] for reply in accepted)
        model.append(frame, record.number, clients)
        if not self._delta:
            self._keys.settle(self._key.epoch)
        record.aggregate_bytes = len(frame)
        self._say(record)
        if self._opener is None:
            return model.sealed(frame), self._inner.blind(server_round, accepted, weighted=self._unit > 0)
        try:
            mean = model.open(self._opener, frame)
        except (DecryptError, ForgedAggregateError) as error:
            if not self.scheme.info.committee:
                raise
            self._withdraw(f"it does not open ({error})")
            return None, None
        made, metrics = self._inner.on_mean(server_round, accepted, mean)
        returned = model.step(made)
        if not (self._opens_itself and model.last):
            # Without the key of tags a false sum may open: where clients open it too, they say.
            parties.suspects.opened(clients)
        return returned, metrics

    def _finished(self, aggregator: Aggregator) -> bytes:
        if self._workers is not None:
            try:
                return self._workers.finish(self.scheme, self._key, aggregator, self._on_progress)
            except WorkersError as error:
                _log.warning("%s: this process does the round's work itself", error)
        return aggregator.finish(self._on_progress)

    def _say(self, record: RoundRecord) -> None:
        share = record.clipped_share
        _shown.info(
            "Fedcipher: round %s: sum of %s encrypted updates, %s left out, %.2g%% of the values clipped",
            record.round,
            record.accepted,
            len(record.clients) - record.accepted,
            100 * share,
        )
        vanished = record.mean("vanished")
        if vanished:
            _log.warning(
                "round %s: %.0f values of a client, whole tensors, are below half a step of their range and were sent "
                "as zeros, so the model is not the mean; the clients' logs name the tensors. A clip of its own for "
                "each tensor, clip='auto' or more bits keeps them",
                record.round,
                vanished,
            )
        if share > CLIPPED:
            _log.warning(
                "round %s: %.1f%% of the values were cut to their clip range, so the model is not the mean; the "
                "clients' logs name the tensors. Ranges follow the last aggregate (clip='auto'); a larger margin or "
                "start in the Codec, or more bits, leaves more room",
                record.round,
                100 * share,
            )

    def _added(self, replies: Iterable[Message], record: RoundRecord) -> tuple[Aggregator, list[Message]]:
        """The round's sum, and the replies whose updates are in it."""
        sums = Sums(lambda: self.scheme.aggregator(self._key, round=record.number))
        revoked, left_out = self._keys.revoked(), f"is left out of round {record.round}"
        for reply in replies:
            node = reply.metadata.src_node_id
            phases = _take_phases(reply)
            began = time.perf_counter()
            try:
                frame = _frame_of(reply)
                _, _, _, _, contributions, elements, _ = _native.inspect(frame)
                self._running.check_size(elements)
                self._parties.check(node, [client for client, _ in contributions], revoked, self._nodes)
                contribution = sums.add(frame, reply)
            except FedcipherError as error:
                why = quoted(f"{type(error).__name__}: {error}")
                record.clients.append(self._left_out(node, left_out, why, reply, phases))
                continue
            # Replies come one by one: the wait between them is no work.
            record.aggregate_seconds += time.perf_counter() - began
            self._parties.learn(node, contribution.client)
            self._running.delivered(node)
            record.clients.append(ClientRecord(node, contribution.client, phases))
            # In the sum; what the inner strategy needs of it is its metrics, and where its arrays were.
            for key in list(reply.content.array_records):
                reply.content[key] = ArrayRecord()
        aggregator, accepted, others = sums.largest()
        astray = {reply.metadata.src_node_id for reply in others}
        why = "its update goes with another model or layout than most: it was not trained from this round's model"
        record.clients = [
            self._left_out(client.node, left_out, why, phases=client.phases)
            if client.node in astray and client.left_out is None
            else client
            for client in record.clients
        ]
        return aggregator, accepted

    def _nodes(self) -> frozenset[int]:
        """Those that are there."""
        return frozenset(() if self._grid is None else self._grid.get_node_ids())

    def _left_out(
        self, node: int, said: str, why: str, reply: Message | None = None, phases: dict[str, float] | None = None
    ) -> ClientRecord:
        """A node whose reply is of no use: logged, and sent everything again when it is asked next."""
        refusal = None if reply is None else _why(reply)
        _log.warning("node %s %s: %s", node, said, refusal or why)
        self._running.forget(node)
        client = self._parties.client_of.get(node)
        return ClientRecord(node, client, phases or {}, refusal or why, refusal is not None)

    def _note_opened(self, replies: list[ClientRecord]) -> None:
        """What replies say of the last aggregate, which this server cannot open, or not check.

        Where a client can spoil a sum unseen (a committee's scheme), a spoilt one opens for nobody who has the key of
        tags, so that everybody refuses what comes with it. One client that goes on has opened it. Of whole models
        there is no way back: clients keep none, and open no aggregate older than the one they have tried.
        """
        model = self._running
        if not (self.scheme.info.committee and model.last and self._delta):
            return
        if model.somebody_has_all:
            self._parties.suspects.opened(model.last_clients)
        elif len(replies) >= self._minimum and all(reply.refused for reply in replies):
            self._withdraw("nobody opens it")

    def _withdraw(self, why: str) -> None:
        """Without the last aggregate, which one of its clients has spoilt: part of them sit out until it is found."""
        number, clients = self._running.withdraw()
        self._parties.suspects.spoilt(clients)
        record = next(record for record in self.rounds if record.number == number)
        record.unfinished = f"its sum, of clients {clients}, is withdrawn: {why}, so one of them has spoilt it"
        if self._journal is not None:
            self._journal.change(record)
        _log.warning("round %s has no aggregate, the global model stays: %s", record.round, record.unfinished)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's aggregation of metrics."""
        record, kept = self.rounds[-1], list(replies)
        for reply in kept:
            node = reply.metadata.src_node_id
            phases = _take_phases(reply)
            if reply.has_error():
                said = f"does not evaluate round {record.round}"
                why = quoted(reply.error.reason)
                record.evaluations.append(self._left_out(node, said, why, reply))
            else:
                self._running.delivered(node)
                record.evaluations.append(ClientRecord(node, self._parties.client_of.get(node), phases))
        self._note_opened(record.evaluations)
        for node in self._attendance.silent(record, record.evaluations, training=False):
            said = f"does not evaluate round {record.round}"
            record.evaluations.append(self._left_out(node, said, "no answer when the evaluation closed"))
        metrics = self._inner.evaluated(self._done + server_round, kept)
        self._note(record, "evaluate", metrics)
        if not self._evaluates:
            self._tell(record)
        return metrics

    def open_model(self, decryptor: Decryptor) -> list[NumpyArray]:
        """The current global model, for whoever holds a client's key."""
        if self._model is None:
            raise StrategyError("no round has been run yet")
        folder = self._model.folder
        settings = self._shared_settings(self._model.names)
        return replay(folder.frames(), folder.first(), self.scheme, decryptor, settings)


def _why(reply: Message) -> str | None:
    """Where to look for the cause of a client's refusal."""
    reference = reference_of(reply)
    return reference and f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"


def _frame_of(reply: Message) -> bytes:
    if reply.has_error():
        raise StrategyError(quoted(reply.error.reason))
    arrays = [a for record in reply.content.array_records.values() for a in record.items()]
    if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:
        raise PlaintextError("the update is not encrypted; add fedcipher.flower.client_mod to the ClientApp's mods")
    return protocol.frame_bytes(arrays[0][1])


def _take_phases(reply: Message) -> dict[str, float]:
    if reply.has_error():
        return {}
    taken = reply.content.metric_records.pop(protocol.METRICS, None)
    # A client writes them.
    numbers = {} if taken is None else {k: float(v) for k, v in taken.items() if isinstance(v, (int, float))}
    return {name: value for name, value in numbers.items() if name in PHASES and 0 <= value < LARGEST_PHASE}
