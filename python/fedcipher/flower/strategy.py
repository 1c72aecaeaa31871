"""The strategy wrapper: any weighted-mean strategy of Flower, over ciphertexts."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcipher import _native
from fedcipher._arguments import (
    as_float,
    as_path,
    callable_or_none,
    check_truths,
    instance_of,
    is_finite,
    real_number,
    seconds,
    several,
    texts,
    whole_number,
)
from fedcipher.codec import Array as NumpyArray
from fedcipher.dp import grid
from fedcipher.errors import (
    CharterError,
    DecryptError,
    FedcipherError,
    ForgedAggregateError,
    FrameError,
    LayoutError,
    LostRoundsError,
    PlaintextError,
    SetRuleError,
    StrategyError,
    WorkersError,
)
from fedcipher.federation.answers import Answer, Report, Sums
from fedcipher.federation.canonical import encode
from fedcipher.federation.chain import Opened, lanes_of
from fedcipher.federation.charter import MOST_ROUNDS, Charter, Purpose, arrays_digest
from fedcipher.federation.ranges import follows, measures
from fedcipher.federation.widths import ADVICE, advice_answer
from fedcipher.flower import protocol
from fedcipher.flower.attendance import Attendance
from fedcipher.flower.committee import Committee, NoSum, addressed, members_of, needed_of
from fedcipher.flower.inner import Inner
from fedcipher.flower.journal import Ended, Journal
from fedcipher.flower.numbers import asked_after, clock_advice, reserve
from fedcipher.flower.outcome import Outcome, SecureResult
from fedcipher.flower.parties import Parties
from fedcipher.flower.records import LARGEST_PHASE, PHASES, ClientRecord, RoundRecord, counted_of, losses, thin_text
from fedcipher.flower.refusal import reference_of
from fedcipher.flower.replies import Arrivals, check_grid
from fedcipher.flower.reports import Reports, request
from fedcipher.flower.run_folder import RunFolder, read_run, replay
from fedcipher.flower.sealed import SealedArrays
from fedcipher.flower.search import Search
from fedcipher.flower.server_model import Brought, ServerModel
from fedcipher.flower.set_memory import ServerSets
from fedcipher.flower.settings import RoundSettings
from fedcipher.flower.sums import RoundSums
from fedcipher.flower.survey import survey
from fedcipher.flower.told import records_of
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.keys.provider import ServerKeys, server_keys
from fedcipher.keys.store import home, load_client, locate
from fedcipher.scale import RayWorkers
from fedcipher.schemes import Aggregator, Decryptor

__all__ = ["SecureStrategy"]

_log = quoting_log("fedcipher.flower")
# Flower shows its own log only; what a run is protected by belongs into it.
_shown = quoting_log("flwr")
_ROUNDS_OF_A_RUN = 1 << _native.ROUND_INDEX_BITS
_OVERTAKEN = (
    "another run or query of this user has begun since this run did, and its round numbers are later: clients whose "
    "keys had part in it refuse this run's as used. Then begin a run anew, from the model of `fedcipher open`"
)
_SAT_OUT = "with its update, sums would have differed by too few clients"
_UNOPENED = "the sum that its update was in does not open"
_DIGEST = 32
_SPARE_ROUNDS = 10
"""A charter allows so many times the rounds that a run begins with, so that a resumed run may be longer."""
_EXAMPLES = 1 << 30
"""Where all clients weigh the same: the largest number of examples that weighs a metric."""
Answers = Iterable[Answer | str]


@dataclass(frozen=True)
class Added:
    """A round's frames in one sum, and the replies that they came with."""

    aggregator: Aggregator
    replies: list[Message]
    context: bytes
    """What the replies' apps were told beside the charter."""
    unopened: dict[int, list[int]]
    """By node: the numbers of the last step's sums that its client could not open."""
    frames: list[bytes]
    """Of the replies, where they were kept."""


class SecureStrategy(Strategy):
    """Wrap a Flower strategy whose aggregation is a weighted mean; the server sees no update.

    Parameters
    ----------
    strategy
        The strategy that samples clients, sets configurations and aggregates metrics (`FedAvg`,
        `FedProx`, your own). It is tried on made-up rounds at `start`, and each round it is given small random
        arrays in place of updates; if what it makes of them is not their mean, `StrategyError` is raised. Of FedAdam,
        FedYogi, FedAdagrad and FedAvgM that goes for the part that averages: clients make their step
        (`fedcipher.federation.optimiser_step`), with the numbers that they have at `start`. What it tells the clients
        in each round is asked of a copy before the first round, and stands in the run's charter.
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
        given the model that the mean makes in place of every update, and the mean answers in place of every client's;
        ``evaluate_fn``, checkpoints and ``Result.arrays`` are plaintext as in any Flower app.
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
        The largest weight is so many examples times the scheme's ``max_weight``: a client of n examples counts n, at
        most that. ``None``: what the keys were made for (``fedcipher keygen --examples``), else all clients weigh the
        same.
    weigh_each_round
        Whether every round begins with a sum of histograms, as the first does, in a message of its own. For clients
        whose numbers of examples differ more than about eight times, where the largest are not in every round: a small
        client's update then is beside the largest of its own round. Needs weights, and ranges that follow the updates.
    train_answers, evaluate_answers
        The metrics that clients answer with, by name or as `fedcipher.federation.answers.Answer`. They travel
        encrypted beside the update, and only their sums are opened, by whoever may open means. What a client's app
        returns beyond them stays on the client.
    clear
        Metrics that each client may send in the clear, where its own configuration names them too
        (``fedcipher-clear``).
    signed_charter
        Whether the run waits for its coordinator: `start` then writes the charter to ``out`` and raises
        `StrategyError` until ``fedcipher charter RUN --sign`` has signed it; start again with ``resume=True``.
    sets_models
        Whether the server makes the next model of each mean itself, as a strategy of your own may. Clients then
        evaluate models that this server chooses, which can measure their data: each site must allow it in its policy.
        Needs ``opener``.
    corrupt_clients
        How many clients may lie, in every scheme: more refusals of a sum than that begin a search for the liar.
        ``None``: the scheme's own ``corrupt_clients``, else two less than its ``min_contributions``.
    may_lose
        How many rounds of a run may end without an aggregate. Where more did, `start` raises
        `fedcipher.errors.LostRoundsError` at its end, so that the run is seen to have failed.
    least_kept
        How much of the updates the clients' coding has to keep in the first round that this server opens, where ranges
        do not follow the updates: below it the run ends with `StrategyError`, which says what to change.
    quorum
        Share of the sampled clients whose updates are enough: ``grace`` seconds after that many are in the sum the
        round closes. So does its evaluation with as many answers. 1: all are waited for.
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
        weigh_each_round: bool = False,
        train_answers: Answers = (),
        evaluate_answers: Answers = (),
        clear: Iterable[str] = (),
        signed_charter: bool = False,
        sets_models: bool = False,
        corrupt_clients: int | None = None,
        may_lose: int = 0,
        least_kept: float = 0.5,
        quorum: float = 1.0,
        deadline: float | None = None,
        grace: float = 10.0,
        committee_timeout: float = 60.0,
        on_round: Callable[[RoundRecord], None] | Iterable[Callable[[RoundRecord], None]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        workers: RayWorkers | None = None,
    ) -> None:
        check_truths(
            resume=resume, weigh_each_round=weigh_each_round, sets_models=sets_models, signed_charter=signed_charter
        )
        self._keys = server_keys(keys)
        self.scheme, self._key = self._keys.scheme, self._keys.current()
        self._opener, self._holds_key = self._opener_of(opener), isinstance(opener, (str, Path))
        self._opens_itself = opener is None and self._opener is not None
        if sets_models and self._opener is None:
            raise StrategyError(
                "sets_models=True makes models of means, which this server does not see: pass opener=..."
            )
        self._sets_models = sets_models
        delta = self.scheme.codec.target == "delta"
        self._inner = Inner(strategy, opens=self._opener is not None, sets_models=sets_models, delta=delta)
        self._answers: dict[Purpose, list[Answer]] = {
            "train": Answer.all_of(train_answers, "train_answers"),
            "evaluate": Answer.all_of(evaluate_answers, "evaluate_answers"),
        }
        self._clear = sorted(set(texts(clear, "clear")))
        self._minimum = self.scheme.min_contributions
        self._most = int(self.scheme.params()["clients"])
        self._attendance = Attendance(quorum=quorum, deadline=deadline, grace=grace, minimum=self._minimum)
        self._committee = Committee(seconds(committee_timeout, "committee_timeout"), self.scheme, self._key)
        # That the clients of the present round were given.
        self._prekeys: list[bytes] = []
        self._corrupt = self._corrupt_of(corrupt_clients)
        self._reports = Reports(self._corrupt, committee_timeout)
        self._may_lose, self._least_kept = whole_number(may_lose, "may_lose"), real_number(least_kept, "least_kept")
        self._search: Search | None = None
        # Why no further round can have a sum.
        self._ends = ""
        self._parties = Parties()
        # A relative path would be in whatever folder Flower runs the app in.
        self._out = None if out is None else home() / "runs" / as_path(out, "out")
        self._resume, self._signed = resume, signed_charter
        if (resume or signed_charter) and out is None:
            raise StrategyError("resume=True and signed_charter=True need the run's folder: say which, out='...'")
        unit = self._keys.examples_per_weight if examples_per_weight is None else examples_per_weight
        self._unit = float(real_number(unit, "examples_per_weight", 0))
        if self._unit > 0 and self.scheme.codec.privacy is not None:
            raise StrategyError(
                "examples_per_weight and privacy: weights say how many examples a client has, which no noise covers; "
                "weigh all clients the same"
            )
        self._weighs_each_round = weigh_each_round
        if weigh_each_round and not (self._unit > 0 and measures(self.scheme, sets_models=sets_models)):
            raise StrategyError(
                "weigh_each_round=True needs clients of different weights (examples_per_weight) and ranges that follow "
                'the updates: Codec(target="delta", clip="auto") without start, and no sets_models'
            )
        self._watchers = self._called_with(on_round)
        self._on_progress, self._workers = callable_or_none(on_progress, "on_progress"), workers
        self.rounds: list[RoundRecord] = []
        # Rounds must increase over the life of a key, also when the app is run again.
        self._base = self._number = 0
        # Rounds of the run that another process has ended.
        self._done = 0
        self._ended = Ended(0)
        self._round_began = 0.0
        self._evaluates = False
        self._model: ServerModel | None = None
        self._journal: Journal | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._grid: Grid | None = None
        self._training, self._waits_for_all, self._timeout = False, False, 3600.0
        # What the last messages said beside the model, by node, where they are to be said again.
        self._asked: dict[int, dict[str, Any]] = {}
        # The charter's arguments that `start` is given.
        empty: dict[Purpose, ConfigRecord] = {"train": ConfigRecord(), "evaluate": ConfigRecord()}
        self._planned = 1, empty

    @staticmethod
    def _called_with(given: object) -> list[Callable[[RoundRecord], None]]:
        """The functions of ``on_round``. Raises `ParameterError`."""
        if given is None:
            return []
        listed = [given] if callable(given) else several(given, "on_round")
        return [cast("Callable[[RoundRecord], None]", callable_or_none(one, "on_round")) for one in listed]

    def _corrupt_of(self, chosen: int | None) -> int:
        most = max(0, self._minimum - 2)
        if chosen is None:
            return min(int(self.scheme.params().get("corrupt_clients", most)), most)
        chosen = whole_number(chosen, "corrupt_clients")
        if not 0 <= chosen <= most:
            raise StrategyError(
                f"corrupt_clients={chosen} of sums of at least {self._minimum}: two honest clients must be in each, so "
                f"at most {most}; make keys with a larger min_contributions"
            )
        return chosen

    def _opener_of(self, opener: Decryptor | str | Path | None) -> Decryptor | None:
        committee = self.scheme.committee
        if opener is None and committee is not None and committee.reveals_to_server:
            return committee.server_decryptor(self._key)
        if not isinstance(opener, (str, Path)):
            said = "give a decryptor, or the path of a client's key file"
            return None if opener is None else instance_of(opener, Decryptor, "opener", said)
        folder = self._keys.folder
        opener = as_path(opener, "opener")
        beside = None if folder is None or len(opener.parts) != 1 else folder / opener
        scheme, key = load_client(beside or locate(opener))
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
        weights = f"clients count their examples, at most {self._largest}" if self._unit else "all weigh the same"
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
    ) -> SecureResult:
        """Run ``num_rounds`` rounds, as any Flower strategy does.

        Raises `StrategyError` before the first round where the run could not end with a usable model: without
        ``opener`` and ``out``, with ``evaluate_fn`` and no opener, with a strategy that is no mean; and at the end
        where no round had an aggregate. Raises `LostRoundsError` at the end where more rounds than ``may_lose`` had
        none; the error holds the result. Each call is a run of its own. The result's ``outcome`` says which rounds
        and clients the run has lost, and which sums are not the mean; so does the last line of the log.
        """
        check_grid(grid)
        instance_of(initial_arrays, ArrayRecord, "initial_arrays", "give an ArrayRecord of the model's first arrays")
        num_rounds, timeout = whole_number(num_rounds, "num_rounds", 0, MOST_ROUNDS), seconds(timeout, "timeout")
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config is not None:
                instance_of(config, ConfigRecord, name, "give a ConfigRecord")
        callable_or_none(evaluate_fn, "evaluate_fn")
        if evaluate_fn is not None and self._opener is None:
            raise StrategyError(
                "evaluate_fn needs the model, and this server has no key: pass opener=... to SecureStrategy if the "
                "server may see the mean of each round, or evaluate on the clients (the strategy's fraction_evaluate)"
            )
        evaluate = None if evaluate_fn is None else partial(self._evaluated_here, evaluate_fn)
        self._evaluates, self._timeout = evaluate is not None, timeout
        streaming = cast(Grid, Arrivals(grid, partial(self._gathered, grid)))
        try:
            given = {"train": train_config, "evaluate": evaluate_config}
            configs = {p: ConfigRecord(dict(c)) if c else ConfigRecord() for p, c in given.items()}
            self._planned = max(num_rounds, 1), cast("dict[Purpose, ConfigRecord]", configs)
            self._begin(initial_arrays)
            before = len(self.rounds)
            left, arrays = max(num_rounds - self._done, 0), self._running.expected
            self._warn_of_budget(num_rounds)
            result = super().start(streaming, arrays, left, timeout, train_config, evaluate_config, evaluate)
            self._note_late()
        finally:
            if self._journal is not None:
                self._journal.close()
            if self._model is not None and self._committee_members:
                members = self._committee_members
                self._committee.end(grid, members, needed_of(self.scheme), self._running.charter.types["train"])
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
        if not self._inner.trains:
            result.arrays = initial_arrays
        elif self._opener is not None:
            # What Flower has kept may be of a sum that was withdrawn.
            result.arrays = protocol.named(self._running.names, self._running.arrays)
        else:
            folder = self._running.folder.folder
            result.arrays = SealedArrays(folder)
            _shown.info(
                "Fedcipher: the model is encrypted in %s; a client opens it with `fedcipher open %s --key "
                "client-0.key --out model.npz`",
                folder,
                folder,
            )
            if not self._running.somebody_has_all:
                _log.warning(
                    "no client has tried the last round's sum, since none was asked to evaluate it: only `fedcipher "
                    "open` shows whether it opens"
                )
        ended = SecureResult.of(result, self.outcome)
        self._check_lost(ended)
        return ended

    @property
    def outcome(self) -> Outcome:
        """What the rounds so far have lost."""
        return Outcome.of(self.rounds)

    def _check_lost(self, result: SecureResult) -> None:
        """Say what the run has lost, and raise where rounds without an aggregate are more than it may lose."""
        outcome = result.outcome
        if not outcome.lost and not outcome.losses:
            return
        liars = sorted({*self._searching.found, *self._parties.accused})
        found = f"clients {liars} have lied and are left out" if liars else "no client is proven to have lied"
        text = outcome.text(found)
        _log.warning("%s", text)
        if len(outcome.lost) > self._may_lose:
            raise LostRoundsError(
                f"{text}. SecureStrategy(may_lose={len(outcome.lost)}) takes such a run for a success",
                result=result,
                lost=outcome.lost,
                liars=liars,
            )

    def _last_reason(self) -> str:
        record = self.rounds[-1]
        left_out = next((c.left_out for c in record.clients if c.left_out), None)
        advice = clock_advice()
        return f"{record.unfinished}{f' ({left_out})' if left_out else ''}{f'; {advice}' if advice else ''}"

    def _warn_of_budget(self, num_rounds: int) -> None:
        privacy = self.scheme.codec.privacy
        if privacy is None:
            return
        frames = num_rounds * (2 if self._answers["evaluate"] else 1)
        if frames > privacy.rounds:
            _log.warning(
                "num_rounds=%s, and these keys give %s updates of each client, by its differential privacy, answers to "
                "evaluations among them: clients that have given them refuse all further rounds. Sample fewer in a "
                "round, or make keys for more",
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
        self._inner.check(self._planned[0])
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
        if codec.privacy is not None and self._answers["train"]:
            raise StrategyError("train_answers and privacy: no noise covers answers; leave them out, or the privacy")
        self.rounds, self._done = [], 0
        self._parties.restart()
        begun = self._resume and self._out is not None and self._out.exists()
        if begun and RunFolder.has_run(cast(Path, self._out)):
            self._go_on(cast(Path, self._out), initial, values)
            return
        self._base = self._number = max(reserve(_ROUNDS_OF_A_RUN), self._base + _ROUNDS_OF_A_RUN)
        charter = self._charter(initial, values, self._planned[0])
        if self._out is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="fedcipher-run-")
        path = self._out if self._scratch is None else Path(self._scratch.name) / "run"
        folder = RunFolder(cast(Path, path), self.scheme, charter, values, begun=begun)
        self._journal = None if self._scratch is not None else Journal(folder.folder)
        self._model = ServerModel(folder, self.scheme, self._opener, initial)
        self._search = self._search_in(folder.folder)
        self._announce(charter)
        self._check_signed(folder)

    @property
    def _measured_clients(self) -> list[int]:
        """Clients of the sum of histograms, where no update has been summed since."""
        return [client for clients in self._running.measured_sets for client in clients]

    @property
    def _largest(self) -> int:
        """The largest number of examples that counts."""
        return max(1, round(self._unit * self.scheme.max_weight)) if self._unit else _EXAMPLES

    def _charter(self, initial: ArrayRecord, values: list[NumpyArray], rounds: int) -> Charter:
        """What the run computes from private data. Raises `StrategyError`."""
        configs = self._planned[1]
        shown = self._inner.shown(initial if self._opener is not None else None)
        found = survey(self.inner, shown, rounds, configs, self._inner.place_of_model)
        optimiser = self._inner.optimiser
        names = list(initial.keys())
        try:
            first = arrays_digest(names, values).hex()
        except CharterError as error:
            raise self._refused(error) from error
        made = Charter(
            run=self._base + 1,
            key_set=self._key.fingerprint,
            epoch=self._key.epoch,
            scheme=json.loads(json.dumps(self.scheme.spec())),
            record=found.record,
            arrays=[(name, x.dtype.str, x.shape) for name, x in zip(names, values, strict=True)],
            first=first,
            optimiser=None if optimiser is None else (optimiser.kind, optimiser.numbers),
            equal_weights=not self._unit,
            weighted_by=self.weighted_by,
            largest_weight=self._largest,
            weighs_each_round=self._weighs_each_round,
            answers=self._answers,
            clear={"train": self._clear, "evaluate": self._clear},
            types=found.types,
            rounds=rounds if found.listed else _SPARE_ROUNDS * rounds,
            reader="server" if self._opener is not None else "clients",
            reports=self._opener is None and self.scheme.committee is not None and self._wants_reports,
            sets_models=self._sets_models,
            settings=found.settings,
        )
        try:
            # As each client is going to read it.
            return Charter.decode(made.encode())
        except CharterError as error:
            raise self._refused(error) from error

    @staticmethod
    def _refused(error: CharterError) -> StrategyError:
        return StrategyError(f"no client takes part in such a run: {error}")

    def _search_in(self, folder: Path) -> Search:
        return Search(folder, corrupt=self._corrupt, minimum=self._minimum, seed=self._base)

    @property
    def _searching(self) -> Search:
        assert self._search is not None
        return self._search

    def _announce(self, charter: Charter) -> None:
        _shown.info(
            "Fedcipher: run %s has the charter %s; clients log the same digest, and a site's policy can name it",
            charter.run,
            charter.digest.hex(),
        )

    def _check_signed(self, folder: RunFolder) -> None:
        """Refuse, with `StrategyError`, to ask clients before the coordinator has signed."""
        if self._signed and not folder.signature:
            digest = folder.charter.digest.hex()
            raise StrategyError(
                f"the charter of the run {folder.folder} waits for its coordinator: `fedcipher charter "
                f"{folder.folder} --sign NAME.identity --digest {digest}` signs it, and resume=True goes on"
            )

    def _go_on(self, path: Path, initial: ArrayRecord, values: list[NumpyArray]) -> None:
        """With the run in ``path``, after what of it has ended."""
        self._journal = Journal(path, used=bool(read_run(path).rounds))
        past = self._journal.past
        begun = {record.round for record in past.rounds}
        folder = RunFolder.reopen(path, self.scheme, (past.newest or Ended(0)).count, begun)
        self._base = folder.charter.run - 1
        self._check_same(path, folder.charter, initial, values)
        self._model = ServerModel(folder, self.scheme, self._opener, initial)
        self._search = self._search_in(folder.folder)
        self._done = max((record.round for record in past.finished), default=0)
        if self._model.false_start:
            self._search.settle(range(len(self._search.pending)))
        else:
            self._search.go_on(self._done, measured=bool(self._model.measured_sets))
        self._announce(folder.charter)
        self._check_signed(folder)
        self.rounds = past.rounds
        self._parties.remember(past.rounds)
        self._model.remember(past.rounds)
        self._number = max([self._base, *(max(record.number, record.evaluated) for record in past.rounds)])
        if self._overtaken():
            _log.warning("the run %s: %s", path, _OVERTAKEN)
        if past.inner is not None:
            self._inner.restore(past.inner)
        if past.rounds:
            _shown.info(
                "Fedcipher: the run %s goes on after its round %s; Flower counts rounds from 1 again", path, self._done
            )

    def _check_same(self, path: Path, begun: Charter, initial: ArrayRecord, values: list[NumpyArray]) -> None:
        """Refuse, with `StrategyError`, to go on with another charter than the run began with."""
        if begun.epoch != self._key.epoch or begun.key_set != self._key.fingerprint:
            raise StrategyError(
                f"the run {path} is of key epoch {begun.epoch} of another key set or epoch than the server's: a run "
                "keeps its epoch. Begin another with another out=..., from the model of `fedcipher open`"
            )
        if [x.shape for x in values] != [shape for _, _, shape in begun.arrays]:
            raise StrategyError(f"the run {path} has a model of other shapes than initial_arrays")
        if self._planned[0] > begun.rounds:
            raise StrategyError(
                f"the run {path} has a charter of {begun.rounds} rounds, and {self._planned[0]} are asked for: begin "
                "another run, from the model of `fedcipher open`"
            )
        ours = self._charter(initial, values, min(begun.rounds, self._planned[0]))
        # Only the arrays' names and shapes count of what it is resumed with.
        ours = replace(ours, first=begun.first, rounds=begun.rounds)
        asked = range(1, min(begun.rounds, self._planned[0]) + 1)
        told = {
            p: [encode(ours.settings[p].at(i)) == encode(begun.settings[p].at(i)) for i in asked]
            for p in begun.settings
        }
        names = [field.name for field in fields(ours) if field.name != "settings"]
        changed = [name for name in names if getattr(ours, name) != getattr(begun, name)]
        changed += [] if all(all(same) for same in told.values()) else ["settings"]
        if changed:
            raise StrategyError(
                f"the run {path} cannot go on with other {', '.join(changed)} than it began with: begin another with "
                "another out=..., or make the app what it was"
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
        self._take(arrays, "train", config)
        self._inner.check_unchanged()
        self._follow_epochs()
        server_round += self._done
        measured = 0
        if self._running.measuring:
            self._number += 1
            measured = self._number
        self._number += 1
        record = RoundRecord(server_round, self._number, self._key.epoch, measured)
        self._round_began = time.monotonic()
        self.rounds.append(record)
        if self._journal is not None:
            self._journal.begin(record)
        self._grid, self._training, self._waits_for_all = grid, True, False
        self._note_late()
        if not self._inner.trains:
            return []
        shown, messages = self._inner.sample(False, server_round, self._running.shown(), config, grid)
        messages = self._parties.without(messages, {*self._parties.accused, *self._searching.found})
        able = self._parties.without(messages, self._spent())
        if len(able) < min(len(messages), self._minimum):
            why = f"{len(messages) - len(able)} of {len(messages)} sampled clients have spent their privacy budget"
            self._leave_unfinished(server_round, f"{why}, and a round needs {self._minimum} updates")
            return []
        messages = able
        if 0 < len(messages) < self._minimum:
            return self._too_few(server_round, len(messages))
        if len(messages) > self._most:
            messages = self._too_many(server_round, messages)
        return self._prepared("train", shown, messages, server_round)

    def _spent(self) -> set[int]:
        """Clients that have given all their updates under differential privacy in this run, answers among them.

        They would refuse, and a round of refusals alone looks like a sum that nobody could open.
        """
        privacy = self.scheme.codec.privacy
        if privacy is None:
            return set()
        heard = (client for record in self.rounds for client in [*record.clients, *record.evaluations])
        given = Counter(client.client for client in heard if client.left_out is None or client.unsummed)
        return {client for client, count in given.items() if client is not None and count >= privacy.rounds}

    def _too_few(self, server_round: int, sampled: int) -> list[Message]:
        """A round that cannot be finished is not begun; a first one means that no round could be."""
        said = f"{self._inner.name} sampled {sampled} clients, and a round needs {self._minimum} updates"
        if len(self.rounds) == 1:
            # A sum of one is that client's update, and a committee's scheme has two honest clients in each.
            lying, most = self.scheme.params().get("corrupt_clients", 0), max(0, sampled - 2)
            keys = f"min_contributions={max(sampled, 2)}{f' and corrupt_clients={most}' if lying > most else ''}"
            raise StrategyError(
                f"{said}: raise its fraction_train or min_train_nodes (or per-round) until it samples {self._minimum}, "
                f"or make keys with {keys}, which lets whoever decrypts see the sum of so few"
            )
        self._leave_unfinished(server_round, said)
        return []

    def _too_many(self, server_round: int, messages: list[Message]) -> list[Message]:
        """A sum has room for so many; whoever is one too many must not train for nothing."""
        said = f"{self._inner.name} sampled {len(messages)} clients, and the keys have room for {self._most}"
        cohort = len(self._key.cohort)
        if len(self.rounds) == 1 and cohort < len(messages):
            # A larger --per-round alone is refused: no round has more clients than there are keys.
            raise StrategyError(
                f"{said}, of whom there are {cohort}: {len(messages) - cohort} or more nodes have no key. Make keys "
                f"for all of them, with `fedcipher keygen --clients {len(messages)}` or a roster of all, or lower "
                "fraction_train and min_train_nodes"
            )
        if len(self.rounds) == 1:
            raise StrategyError(
                f"{said} in a round: lower its fraction_train and min_train_nodes, or make keys with "
                f"`fedcipher keygen --per-round {len(messages)}`"
            )
        _log.warning("round %s: %s; the others are not asked", server_round, said)
        return messages[: self._most]

    def _overtaken(self) -> bool:
        return asked_after(self._base + _ROUNDS_OF_A_RUN)

    def _leave_unfinished(self, server_round: int, why: str) -> None:
        # The first cause stands: a round that was not begun has no updates either.
        if self.rounds[-1].unfinished is None:
            if self._overtaken():
                why = f"{why}; {_OVERTAKEN}"
            self.rounds[-1].unfinished = why
            _log.warning("round %s has no aggregate, the global model stays: %s", server_round, why)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Like `configure_train`."""
        self._take(arrays, "evaluate", config)
        self._training, self._waits_for_all = False, False
        if self.scheme.codec.privacy is not None and not self._answers["evaluate"]:
            # An evaluation without answers says nothing, and its frame would spend an update of each client's budget.
            return []
        server_round += self._done
        shown, sampled = self._inner.sample(True, server_round, self._running.shown(), config, grid)
        messages = self._parties.without(sampled, self._spent())
        if sampled and len(messages) < self._minimum:
            _log.warning(
                "round %s is not evaluated: %s of %s sampled clients may answer, and a sum of answers needs %s",
                *(server_round, len(messages), len(sampled), self._minimum),
            )
            return []
        if messages and self.rounds:
            self._number += 1
            self.rounds[-1].evaluated = self._number
            if self._journal is not None:
                self._journal.change(self.rounds[-1])
        return self._prepared("evaluate", shown, messages[: self._most], server_round)

    def _follow_epochs(self) -> None:
        """A run keeps the epoch of its charter; a new one is said."""
        newest = self._keys.current()
        if newest.epoch != self._key.epoch:
            _log.warning("key epoch %s waits: this run keeps epoch %s", newest.epoch, self._key.epoch)

    def _take(self, arrays: ArrayRecord, purpose: Purpose, config: ConfigRecord) -> None:
        if self._model is None:
            # Without `start`: the configuration of this round is that of all.
            self._planned[1][purpose] = ConfigRecord(dict(config))
            self._begin(arrays)
        self._running.take(arrays)

    def _prepared(self, purpose: Purpose, shown: ArrayRecord, messages: list[Message], index: int) -> Iterator[Message]:
        """The inner strategy's messages with the model in the place of what it was ``shown``, and the settings."""
        model, charter = self._running, self._running.charter
        for message in messages:
            self._check_told(message, charter, purpose, index, self._inner.place_of_model(message, shown))
        number = self._number
        if purpose == "train" and model.measuring:
            number = self.rounds[-1].measured
            self._asked = {message.metadata.dst_node_id: dict(message.content.items()) for message in messages}
        return self._with_model(messages, index, number)

    def _with_model(self, messages: list[Message], index: int, number: int) -> Iterator[Message]:
        """The messages of the frames of ``number``, each with what its node lacks of the model."""
        plan = self.scheme.plan(self._key, self._parties.clients(messages))
        if messages and self._grid is not None:
            message_type = self._running.charter.types["train"]
            needed = needed_of(self.scheme)
            self._prekeys = self._committee.meet(self._grid, self._committee_members, needed, message_type)
        return self._one_by_one(messages, index, number, plan)

    def _one_by_one(self, messages: list[Message], index: int, number: int, plan: bytes) -> Iterator[Message]:
        """Each message is made when it is sent, and is nobody's then: to a node that has nothing it brings all sums."""
        model, place = self._running, self._running.charter.record
        while messages:
            message = messages.pop(0)
            node = message.metadata.dst_node_id
            brought = model.to_node(node, self._parties.client_of.get(node))
            # The inner strategy may share one record among all messages: each gets its own.
            content = RecordDict(dict(message.content.items()))
            content[place] = brought.arrays
            content[protocol.CONFIG] = self._settings(brought, index, number, plan, self._prekeys)
            message.content = content
            del content, brought
            yield message

    def _settings(
        self, brought: Brought, index: int, number: int, plan: bytes = b"", prekeys: Sequence[bytes] = ()
    ) -> ConfigRecord:
        """Of a message of round ``index`` that brings what is ``brought``, for a frame of ``number``."""
        model, charter = self._running, self._running.charter
        return RoundSettings(
            charter=charter.digest,
            round=number,
            index=index,
            steps=0 if charter.sets_models else model.steps,
            document=brought.document,
            signature=model.folder.signature if brought.document else b"",
            plan=plan,
            last=b"" if charter.sets_models else model.last,
            indices=brought.indices,
            bits=model.widths.bits,
            prekeys=list(prekeys),
        ).to_record()

    def _check_told(self, message: Message, charter: Charter, purpose: Purpose, index: int, place: str) -> None:
        """Refuse, with `StrategyError`, to tell a client what the charter does not say: the client would refuse it."""
        told = records_of(message.content, without=frozenset([place]))
        said = charter.settings[purpose].at(index)
        if (
            encode(told) == encode(said)
            and place == charter.record
            and message.metadata.message_type == charter.types[purpose]
        ):
            return
        changed = sorted(
            f"{name}.{key}"
            for name in {*told, *said}
            for key in {*told.get(name, {}), *said.get(name, {})}
            if encode(told.get(name, {}).get(key)) != encode(said.get(name, {}).get(key))
        )
        raise StrategyError(
            f"{self._inner.name} tells node {message.metadata.dst_node_id} in round {index} something else than it did "
            f"before the run, when its charter was made: {changed or 'another message type or record'}. Settings must "
            "follow from the round alone, and be the same for all clients"
        )

    # --- from the clients --------------------------------------------------------------------

    def _gathered(self, grid: Grid, messages: Iterable[Message], timeout: float | None) -> Iterable[Message]:
        """The replies to a round's messages, as they come, until the round closes."""
        record = self.rounds[-1]
        heard = record.clients if self._training else record.evaluations
        return self._attendance.gather(grid, messages, timeout, None if self._waits_for_all else heard)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the ciphertexts of all sound replies; a reply that is garbage is left out with a warning."""
        arrays, metrics = self._aggregated(self._done + server_round, replies)
        record = self.rounds[-1]
        self._ended = Ended(self._running.steps)
        # From here on nobody needs this round's process.
        self._note(record, "train", metrics, changed=arrays is not None)
        if self._ends:
            raise StrategyError(f"the run ends in round {record.round}: {self._ends}")
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
            # Loggers and pages take whole numbers for floats.
            record.metrics[part] = {
                name: as_float(value) if isinstance(value, int) and not is_finite(value) else value
                for name, value in metrics.items()
            }
        if self._journal is not None:
            self._journal.end(record, self._ended, self._inner.export() if changed else None)

    def _tell(self, record: RoundRecord) -> None:
        for watcher in self._watchers:
            watcher(record)

    def _aggregated(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        record, model = self.rounds[-1], self._running
        if not self._inner.trains:
            return None, None
        before: dict[int, dict[str, float]] = {}
        if model.measuring:
            asked = self._measured(record, replies)
            if asked is None:
                return None, None
            replies, before = asked
        summed = self._step(record, replies, record.number)
        record.clients[:] = [replace(c, phases=_together(c.phases, before.get(c.node, {}))) for c in record.clients]
        if summed is None:
            return None, None
        added, frames = summed
        record.aggregate_bytes = sum(map(len, frames))
        if self._opener is None:
            if model.charter.reports:
                # Readers get the step now: a server that is killed from here on must not make another.
                self._ended = Ended(model.steps)
                self._note(record, "train", None)
            said = self._reported("train", added.replies, server_round)
            metrics = self._inner.blind(server_round, added.replies, said, self._answers["train"])
            self._say(record)
            return model.sealed(frames), metrics
        return self._opened(record, frames, added, server_round)

    def _step(self, record: RoundRecord, replies: Iterable[Message], number: int) -> tuple[Added, list[bytes]] | None:
        """The next step of the run: the sums of the frames of ``number``; None where there is none."""
        model, measuring = self._running, self._running.measuring
        said = f"is left out of round {record.round}"
        remembers = model.at_first_model and not model.charter.sets_models
        first = ServerSets("first", self.scheme, self._key) if remembers else None
        kept = self._searching.under_way(self._key.cohort) or bool(first.groups if first else model.measured)
        added = self._added("train", replies, record.clients, number, said, kept=kept)
        self._note_opened(record.clients, added.unopened)
        for node in self._attendance.silent(record, record.clients, training=True):
            record.clients.append(self._left_out(node, said, "no answer when the round closed"))
        # Where the sum of histograms is withdrawn, its updates go with it.
        if len(added.replies) < self._minimum or model.measuring != measuring:
            why = f"{len(added.replies)} usable updates, {self._minimum} are needed"
            if self._committee.lacking:
                why = f"{why}; {self._committee.lacking}"
            self._leave_unfinished(record.round, why)
            return None
        frames = self._summed_in_sets(added, record, first, number)
        if isinstance(frames, NoSum):
            self._searching.drop(asked=frames.asked)
            self._leave_unfinished(record.round, frames.why)
            return None
        model.append(frames, record.round, added.context)
        summed = frozenset[int]().union(*self._searching.pending)
        self._mark_unsummed(record, summed, _SAT_OUT)
        there = [reply for reply in added.replies if self._parties.client_of[reply.metadata.src_node_id] in summed]
        return replace(added, replies=there), frames

    def _measured(
        self, record: RoundRecord, replies: Iterable[Message]
    ) -> tuple[Iterable[Message], dict[int, dict[str, float]]] | None:
        """Sum the histograms that set the first ranges, and ask the same clients for their updates.

        Their replies, and what each node has said of its histograms' frame.
        """
        summed = self._step(record, replies, record.measured)
        if summed is None or (self._opener is not None and self._open_step(summed[1], record.round) is None):
            return None
        there = {reply.metadata.src_node_id for reply in summed[0].replies}
        # Nobody trains any more: all are waited for.
        self._waits_for_all = True
        before = {client.node: client.phases for client in record.clients if client.node in there}
        record.clients[:] = [client for client in record.clients if client.node not in there]
        messages = [
            Message(RecordDict(dict(content)), dst_node_id=node, message_type=self._running.charter.types["train"])
            for node, content in self._asked.items()
            if node in there
        ]
        assert self._grid is not None
        messages = self._with_model(messages, record.round, record.number)
        return self._grid.send_and_receive(messages, timeout=self._timeout), before

    @property
    def _wants_reports(self) -> bool:
        """Of answers, or of which bits pay."""
        return any(self._answers.values()) or self.scheme.codec.adaptive

    def _reported(
        self, purpose: Purpose, accepted: Sequence[Message], index: int, frame: bytes | None = None
    ) -> Report | None:
        """What readers say of the answers in the newest sum; ``frame`` is that of an evaluation."""
        model, answers = self._running, self._answers[purpose]
        # What the next bits are is asked beside the charter's answers.
        beside = [advice_answer()] if purpose == "train" and model.widths.bits else []
        if not model.charter.reports or not [*answers, *beside] or self._grid is None:
            return None
        committee = self.scheme.committee
        readers = frozenset[int]() if committee is None else committee.readers(self._key)
        nodes = [reply.metadata.src_node_id for reply in accepted]
        asked = [node for node in nodes if self._parties.client_of[node] in readers][: self._reports.wanted]
        messages = [self._report_message(purpose, node, index, frame) for node in asked]
        said = self._reports.ask(self._grid, messages, [*answers, *beside])
        for node in self._reports.heard:
            model.delivered(node)
        if said is not None and beside:
            model.widths.hear(round(said.values[ADVICE][0]))
        return said if answers else None

    def _report_message(self, purpose: Purpose, node: int, index: int, frame: bytes | None) -> Message:
        charter, client = self._running.charter, self._parties.client_of[node]
        content = request(purpose, None if frame is None else addressed(self.scheme, frame, client))
        brought = self._running.to_node(node, client)
        content[charter.record] = brought.arrays
        content[protocol.CONFIG] = self._settings(brought, index, self._number)
        return Message(content, dst_node_id=node, message_type=charter.types[purpose])

    def _opened(
        self, record: RoundRecord, frames: list[bytes], added: Added, server_round: int
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of sums that this server opens."""
        stepped = self._open_step(frames, server_round)
        if stepped is None:
            return None, None
        mean, opened = stepped
        self._check_kept(opened)
        self._count(record, "train", opened.answers)
        there = {client for clients in opened.clients for client in clients}
        self._mark_unsummed(record, there, _UNOPENED)
        self._say(record)
        accepted = [r for r in added.replies if self._parties.client_of[r.metadata.src_node_id] in there]
        made, metrics = self._inner.on_mean(server_round, accepted, mean, opened.answers, self._answers["train"])
        return self._running.step(made, len(accepted)), metrics

    def _check_kept(self, opened: Opened) -> None:
        """End a run that would lose most of what its clients learn, round for round."""
        follow = follows(self.scheme) and not self._sets_models
        if opened.kept is not None and opened.kept < self._least_kept and self._running.steps == 1 and not follow:
            self._ends = (
                f"{100 * opened.kept:.0f}% of the clients' updates are kept, and no range changes. "
                f"{thin_text(opened.thin)}. SecureStrategy(least_kept=0) goes on all the same"
            )

    def _open_step(self, frames: list[bytes], index: int) -> tuple[ArrayRecord, Opened] | None:
        """What the newest step's sums lead to; None where they do not open and are withdrawn."""
        assert self._opener is not None
        try:
            mean, opened = self._running.open(self._opener, frames, index)
        except (DecryptError, ForgedAggregateError) as error:
            self._searching.settle(range(len(frames)))
            self._withdraw(f"it does not open ({error})")
            return None
        # Without the key of tags a false sum may open: where clients open it too, they say.
        if not self._opens_itself:
            self._searching.settle(opened.failed)
        return mean, opened

    def _summed_in_sets(
        self, added: Added, record: RoundRecord, first: ServerSets | None, number: int
    ) -> list[bytes] | NoSum:
        """The round's sums: one, or while a liar is searched one of each group; or why there is none.

        ``first`` remembers the sets of all first positions. Elsewhere updates count beside their round's histograms.
        """
        clients = [self._parties.client_of[reply.metadata.src_node_id] for reply in added.replies]
        if first is None:
            remembered = [(measured, self._minimum) for measured in self._running.measured_sets]
        else:
            first.refresh()
            remembered = first.groups
        sets, why = self._searching.sets(clients, remembered, round=record.round, measures=self._running.measuring)
        if not sets:
            away = sorted(set(self._measured_clients) - set(clients))
            if why and away and not self._searching.under_way(self._key.cohort):
                # They may come back: the next round asks for its updates again.
                return NoSum(
                    f"clients {away} were in the sum of histograms and have sent no update, and a sum without them "
                    f"would set them apart: {why}"
                )
            if why:
                self._ends = why
            return NoSum(why or "no set of clients fits the rule of sets")
        together = len(sets) == 1 and sets[0] == frozenset(clients)
        if not together and not added.frames:
            return NoSum("its clients do not fit the rule of sets beside the sums before")
        if first is not None:
            try:
                # Not later: members of a committee remember each set that they answer for.
                first.remember(*sets)
            except SetRuleError as error:
                return NoSum(f"another run has summed other clients meanwhile: {error}. The next round chooses again")
        if together:
            frame = self._summed("train", added.aggregator, record)
            return frame if isinstance(frame, NoSum) else [frame]
        return self._summed_groups(sets, clients, added, record, number)

    @property
    def _committee_members(self) -> frozenset[int]:
        return members_of(self.scheme, self._key)

    def _empty_sum(self, number: int) -> Aggregator:
        """A sum of the frames of ``number``, which takes shares for the prekeys that clients were given only."""
        made = self.scheme.aggregator(self._key, round=number)
        if made.committee is not None:
            for why in made.committee.take_prekeys(self._prekeys):
                _log.warning("a prekey of the committee is not used: %s", why)
        return made

    def _summed_groups(
        self, sets: Iterable[frozenset[int]], clients: list[int], added: Added, record: RoundRecord, number: int
    ) -> list[bytes] | NoSum:
        """A sum of each of ``sets``, or why there is none."""
        frames: list[bytes] = []
        for group in sets:
            aggregator = self._empty_sum(number)
            for client, frame in zip(clients, added.frames, strict=True):
                if client in group:
                    aggregator.add(frame)
            summed = self._summed("train", aggregator, record)
            if isinstance(summed, NoSum):
                return replace(summed, asked=summed.asked or bool(frames))
            frames.append(summed)
        return frames

    def _count(self, record: RoundRecord, purpose: Purpose, sums: Sums | None) -> None:
        """What the opened sum says of the clients' counters, as means over the clients."""
        if sums is None:
            return
        record.counted.update(counted_of(sums, purpose))
        for lost in losses(sums, purpose, record.elements):
            _log.warning("round %s: %s", record.round, lost)

    def _summed(self, purpose: Purpose, aggregator: Aggregator, record: RoundRecord) -> bytes | NoSum:
        """The sum of all updates, or why there is none: too few of a committee have answered."""
        if self._grid is not None:
            message_type = self._running.charter.types[purpose]
            away = self._committee.ask(self._grid, aggregator, message_type, self._parties.node_of)
            if aggregator.committee is not None:
                self._accuse(aggregator.committee.accused, record)
            if away is not None:
                return away
        began = time.perf_counter()
        frame = self._finished(aggregator)
        record.aggregate_seconds += time.perf_counter() - began
        return frame

    def _accuse(self, clients: Iterable[int], record: RoundRecord) -> None:
        """Leave those out of the run that the committee has named."""
        news = sorted(set(clients) - self._parties.accused)
        if news:
            _log.warning(
                "round %s: clients %s have sealed false shares to the committee, and are left out of the run",
                *(record.round, news),
            )
        self._parties.accused.update(news)

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
            "Fedcipher: round %s: sum of %s encrypted updates, %s left out%s",
            record.round,
            record.accepted,
            len(record.clients) - record.accepted,
            f", {100 * share:.2g}% of the values clipped" if "clipped" in record.counted else "",
        )

    def _added(
        self,
        purpose: Purpose,
        replies: Iterable[Message],
        heard: list[ClientRecord],
        number: int,
        said: str,
        *,
        kept: bool = False,
    ) -> Added:
        """The round's sum and the replies whose frames are in it; ``kept`` keeps the frames beside it."""
        sums = RoundSums(lambda: self._empty_sum(number))
        revoked, record = self._keys.revoked(), self.rounds[-1]
        measured = purpose == "train" and self._running.measuring
        lanes = lanes_of(self._running.charter, self.scheme, purpose, self._running.steps)
        frames: dict[int, bytes] = {}
        unopened: dict[int, list[int]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            phases, clear = _take_phases(reply, self._running.charter.clear[purpose])
            began = time.perf_counter()
            try:
                frame, context, failed = _frame_of(reply)
                _, _, _, _, contributions, elements, *_ = _native.inspect(frame)
                self._running.check_size(elements, 0 if lanes is None else lanes.count, measured=measured)
                named = [client for client, _ in contributions]
                self._parties.check(node, named, revoked, self._nodes)
                contribution = sums.add(frame, reply, named, context)
            except FedcipherError as error:
                why = quoted(f"{type(error).__name__}: {error}")
                heard.append(self._left_out(node, said, why, reply, phases))
                continue
            # Replies come one by one: the wait between them is no work.
            record.aggregate_seconds += time.perf_counter() - began
            if purpose == "train":
                record.elements = elements - (0 if lanes is None else lanes.count)
            self._parties.learn(node, contribution.client)
            self._running.delivered(node)
            heard.append(ClientRecord(node, contribution.client, phases, clear=clear))
            unopened[node] = failed
            if kept:
                frames[node] = frame
            # In the sum. Nothing that a client wrote reaches the inner strategy, which is given a place for arrays.
            reply.content = RecordDict({self._running.charter.record: ArrayRecord()})
        aggregator, accepted, others = sums.largest()
        astray = {reply.metadata.src_node_id for reply in others}
        why = "its frame goes with another model or layout than most, or its app was told something else"
        heard[:] = [
            self._left_out(client.node, said, why, phases=client.phases)
            if client.node in astray and client.left_out is None
            else client
            for client in heard
        ]
        held = [frames[reply.metadata.src_node_id] for reply in accepted] if kept else []
        return Added(aggregator, accepted, cast(bytes, sums.alike or b""), unopened, held)

    def _nodes(self) -> frozenset[int]:
        """Those that are there."""
        return frozenset(() if self._grid is None else self._grid.get_node_ids())

    def _left_out(
        self, node: int, said: str, why: str, reply: Message | None = None, phases: dict[str, float] | None = None
    ) -> ClientRecord:
        """A node whose reply is of no use, or that gave none: logged.

        After a reply it is sent everything again. After silence it has still what it had.
        """
        refusal = None if reply is None else _why(reply)
        client = self._parties.client_of.get(node)
        known = "" if client is None else f" (client {client})"
        _log.warning("node %s%s %s: %s", node, known, said, refusal or why)
        if reply is not None:
            self._running.forget(node)
        return ClientRecord(node, client, phases or {}, refusal or why, refusal is not None)

    def _note_opened(self, replies: list[ClientRecord], unopened: dict[int, list[int]]) -> None:
        """What replies say of the last step, which this server cannot open, or not check."""
        sums = self._searching.pending
        outcome = self._searching.heard(replies, unopened) if self._running.last else None
        if outcome is None or not outcome.failed:
            return
        if not outcome.step:
            self._withdraw("clients do not open it")
            return
        if not self._running.measured:
            self._note_last_step(frozenset[int]().union(*outcome.opened))
        if self._opens_itself and self._opener is not None:
            failed = [number for number, clients in enumerate(sums) if clients in outcome.failed]
            self._running.leave_out(self._opener, failed)
            _log.warning(
                "round %s: its clients do not open the sums of %s, which this server cannot check: the model goes on "
                "without them. What the round has returned counted them",
                self._running.folder.round_of(self._running.steps),
                [sorted(clients) for clients in outcome.failed],
            )

    def _note_last_step(self, summed: Collection[int]) -> None:
        """Of the last step only the updates of these clients count."""
        number = self._running.folder.round_of(self._running.steps)
        record = next(record for record in self.rounds if record.round == number)
        self._mark_unsummed(record, summed, _UNOPENED)
        if self._journal is not None:
            self._journal.change(record)

    @staticmethod
    def _mark_unsummed(record: RoundRecord, summed: Collection[int], why: str) -> None:
        """Write into the round's record that the frames of all clients but those ``summed`` count nothing."""
        record.clients[:] = [
            replace(client, left_out=why, unsummed=True)
            if client.left_out is None and client.client not in summed
            else client
            for client in record.clients
        ]

    def _withdraw(self, why: str) -> None:
        """Without the last step, which one of its clients has spoilt: its clients are summed in groups next."""
        number = self._running.folder.round_of(self._running.steps)
        clients = self._running.withdraw()
        record = next(record for record in self.rounds if record.round == number)
        record.unfinished = f"its sum, of clients {clients}, is withdrawn: {why}, so one of them has spoilt it"
        if self._journal is not None:
            self._journal.change(record)
        _log.warning("round %s has no aggregate, the global model stays: %s", record.round, record.unfinished)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add the encrypted answers; the inner strategy is given their means where this server may see them."""
        record = self.rounds[-1]
        metrics = self._evaluated(record, self._done + server_round, replies)
        if not self._inner.trains and not self._running.folder.evaluations():
            self._leave_unfinished(record.round, "nobody trains in this run, and its evaluation has no sum of answers")
        self._note(record, "evaluate", metrics)
        if not self._evaluates:
            self._tell(record)
        return metrics

    def _evaluated(self, record: RoundRecord, index: int, replies: Iterable[Message]) -> MetricRecord | None:
        said = f"does not evaluate round {record.round}"
        added = self._added("evaluate", replies, record.evaluations, record.evaluated, said)
        accepted, context = added.replies, added.context
        self._note_opened(record.evaluations, added.unopened)
        for node in self._attendance.silent(record, record.evaluations, training=False):
            record.evaluations.append(self._left_out(node, said, "no answer when the evaluation closed"))
        if len(accepted) < self._minimum:
            if record.evaluations:
                _log.warning(
                    "round %s has no evaluation: %s usable answers, %s are needed",
                    *(record.round, len(accepted), self._minimum),
                )
            return None
        frame = self._summed("evaluate", added.aggregator, record)
        if isinstance(frame, NoSum):
            _log.warning("round %s has no evaluation: %s", record.round, frame.why)
            return None
        model = self._running
        if context != model.folder.context:
            model.folder.know_context(context)
        model.folder.append_evaluation(frame, index)
        if self._opener is None:
            reported = self._reported("evaluate", accepted, index, frame)
            return (
                None
                if reported is None
                else self._inner.evaluated(index, accepted, reported, self._answers["evaluate"])
            )
        try:
            sums = model.open_answers(self._opener, frame, index)
        except (DecryptError, ForgedAggregateError) as error:
            _log.warning("round %s has no evaluation: the sum of its answers does not open (%s)", record.round, error)
            return None
        self._count(record, "evaluate", sums)
        return self._inner.evaluated(index, accepted, sums, self._answers["evaluate"])

    def open_model(self, decryptor: Decryptor) -> list[NumpyArray]:
        """The current global model, for a holder of a client's key."""
        if self._model is None:
            raise StrategyError("no round has been run yet")
        model = self._model
        return model.arrays if model.charter.sets_models else replay(model.folder, self.scheme, decryptor).model


def _together(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}


def _why(reply: Message) -> str | None:
    """Where to look for the cause of a client's refusal."""
    reference = reference_of(reply)
    return reference and f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"


def _frame_of(reply: Message) -> tuple[bytes, bytes, list[int]]:
    """The frame, what its client's app was told beside the charter, and which sums its client could not open."""
    if reply.has_error():
        raise StrategyError(quoted(reply.error.reason))
    arrays = [a for record in reply.content.array_records.values() for a in record.items()]
    if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE:
        raise PlaintextError("the update is not encrypted; add fedcipher.flower.client_mod to the ClientApp's mods")
    context = reply.content.config_records.pop(protocol.CONTEXT, ConfigRecord())
    said = context.get("digest")
    if not isinstance(said, bytes) or len(said) != _DIGEST:
        raise FrameError("the reply does not say what its app was told")
    failed = context.get("unopened", [])
    numbers = [n for n in failed if isinstance(n, int)] if isinstance(failed, list) else []
    return protocol.frame_bytes(arrays[0][1]), said, numbers


def _take_phases(reply: Message, clear: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes by phase, and the metrics that the client sends in the clear."""
    if reply.has_error():
        return {}, {}
    taken = reply.content.metric_records.pop(protocol.METRICS, None)
    said = reply.content.metric_records.pop(protocol.CLEAR, None) or {}
    # A client writes them.
    numbers = {} if taken is None else {k: as_float(v) for k, v in taken.items() if isinstance(v, (int, float))}
    shown: dict[str, float] = {}
    for name in clear:
        value = said.get(name)
        if isinstance(value, (int, float)):
            shown[name] = as_float(value)
    return {name: value for name, value in numbers.items() if name in PHASES and 0 <= value < LARGEST_PHASE}, shown
