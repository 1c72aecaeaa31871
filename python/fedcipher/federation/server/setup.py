"""What a run's operator chooses: keys, who opens sums, answers, and how long a round lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from fedcipher._arguments import (
    as_path,
    callable_or_none,
    check_truths,
    instance_of,
    real_number,
    seconds,
    several,
    texts,
    whole_number,
)
from fedcipher.errors import StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.charter import PURPOSES, Purpose, Settings
from fedcipher.federation.optimiser_step import Optimiser
from fedcipher.federation.ranges import begins_with_histograms
from fedcipher.federation.records import RoundRecord
from fedcipher.federation.server.round_close import RoundClose
from fedcipher.keys.provider import ServerKeys, server_keys
from fedcipher.keys.store import home, load_client, locate
from fedcipher.scale import RayWorkers
from fedcipher.schemes import Decryptor

__all__ = ["Plan", "RunOptions", "RunSetup"]

_EXAMPLES = 1 << 30
"""Where all clients weigh the same: the largest number of examples that weighs a metric."""


@dataclass(frozen=True)
class Plan:
    """What a run's strategy does with each round's mean, and what it tells the clients.

    ``name`` is the strategy's, for messages. ``trains``: it asks somebody to train in some round. ``record`` is the
    record of the model in its messages, ``types`` are their types, ``settings`` what they tell beside the model, and
    ``listed`` says that some setting is a list of values, one a round. Clients make the step of ``optimiser`` of each
    mean, and are weighted by the metric ``weighted_by``.
    """

    name: str = "the server"
    trains: bool = True
    record: str = "arrays"
    types: Mapping[Purpose, str] = field(default_factory=lambda: {purpose: purpose for purpose in PURPOSES})
    settings: Mapping[Purpose, Settings] = field(default_factory=lambda: dict.fromkeys(PURPOSES, Settings({})))
    listed: bool = False
    optimiser: Optimiser | None = None
    weighted_by: str = "num-examples"


class RunOptions(TypedDict, total=False):
    """The keyword arguments of `RunSetup`, for whoever passes them on."""

    opener: Decryptor | str | Path | None
    out: str | Path | None
    resume: bool
    examples_per_weight: float | None
    weigh_each_round: bool
    train_answers: Iterable[Answer | str]
    evaluate_answers: Iterable[Answer | str]
    clear: Iterable[str]
    signed_charter: bool
    sets_models: bool
    corrupt_clients: int | None
    may_lose: int
    least_kept: float
    quorum: float
    deadline: float | None
    grace: float
    committee_timeout: float
    on_round: Callable[[RoundRecord], None] | Iterable[Callable[[RoundRecord], None]] | None
    on_progress: Callable[[int, int], None] | None
    workers: RayWorkers | None


class RunSetup:
    """The options of a run's server, checked.

    Raises `ParameterError` and `StrategyError` for options that go together with no run, and what a key file raises.

    Parameters
    ----------
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
        `open_run` or ``fedcipher open`` opens it with a client's key. Without an opener the model is nowhere else: give
        one of the two.
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
    """

    def __init__(
        self,
        keys: str | Path | ServerKeys,
        *,
        opener: Decryptor | str | Path | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        examples_per_weight: float | None = None,
        weigh_each_round: bool = False,
        train_answers: Iterable[Answer | str] = (),
        evaluate_answers: Iterable[Answer | str] = (),
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
        self.keys = server_keys(keys)
        self.scheme, self.key = self.keys.scheme, self.keys.current()
        self.minimum, self.most = self.scheme.min_contributions, int(self.scheme.params()["clients"])
        self.opener, self.holds_key = self._opener_of(opener), isinstance(opener, (str, Path))
        self.opens_itself = opener is None and self.opener is not None
        """Whether the scheme reveals sums to its server, which cannot check that they are genuine."""
        if sets_models and self.opener is None:
            raise StrategyError(
                "sets_models=True makes models of means, which this server does not see: pass opener=..."
            )
        self.sets_models = sets_models
        self.answers: dict[Purpose, list[Answer]] = {
            "train": Answer.all_of(train_answers, "train_answers"),
            "evaluate": Answer.all_of(evaluate_answers, "evaluate_answers"),
        }
        self.clear = sorted(set(texts(clear, "clear")))
        self.round_close = RoundClose(quorum=quorum, deadline=deadline, grace=grace, minimum=self.minimum)
        self.committee_timeout = seconds(committee_timeout, "committee_timeout")
        self.corrupt = self._corrupt_of(corrupt_clients)
        self.may_lose, self.least_kept = whole_number(may_lose, "may_lose"), real_number(least_kept, "least_kept")
        # A relative path would be in whatever folder a framework runs the app in.
        self.out = None if out is None else home() / "runs" / as_path(out, "out")
        self.resume, self.signed_charter = resume, signed_charter
        if (resume or signed_charter) and out is None:
            raise StrategyError("resume=True and signed_charter=True need the run's folder: say which, out='...'")
        unit = self.keys.examples_per_weight if examples_per_weight is None else examples_per_weight
        self.unit = float(real_number(unit, "examples_per_weight", 0))
        """Examples of a weight of 1; 0 where all clients weigh the same."""
        if self.unit > 0 and self.scheme.codec.privacy is not None:
            raise StrategyError(
                "examples_per_weight and privacy: weights say how many examples a client has, which no noise covers; "
                "weigh all clients the same"
            )
        self.weighs_each_round = weigh_each_round
        if weigh_each_round and not (self.unit > 0 and begins_with_histograms(self.scheme, sets_models=sets_models)):
            raise StrategyError(
                "weigh_each_round=True needs clients of different weights (examples_per_weight) and ranges that follow "
                'the updates: Codec(target="delta", clip="auto") without start, and no sets_models'
            )
        self.watchers = _called_with(on_round)
        self.on_progress, self.workers = callable_or_none(on_progress, "on_progress"), workers

    def _corrupt_of(self, chosen: int | None) -> int:
        most = max(0, self.minimum - 2)
        if chosen is None:
            return min(int(self.scheme.params().get("corrupt_clients", most)), most)
        chosen = whole_number(chosen, "corrupt_clients")
        if not 0 <= chosen <= most:
            raise StrategyError(
                f"corrupt_clients={chosen} of sums of at least {self.minimum}: two honest clients must be in each, so "
                f"at most {most}; make keys with a larger min_contributions"
            )
        return chosen

    def _opener_of(self, opener: Decryptor | str | Path | None) -> Decryptor | None:
        committee = self.scheme.committee
        if opener is None and committee is not None and committee.reveals_to_server:
            return committee.server_decryptor(self.key)
        if not isinstance(opener, (str, Path)):
            said = "give a decryptor, or the path of a client's key file"
            return None if opener is None else instance_of(opener, Decryptor, "opener", said)
        folder = self.keys.folder
        opener = as_path(opener, "opener")
        beside = None if folder is None or len(opener.parts) != 1 else folder / opener
        scheme, key = load_client(beside or locate(opener))
        if scheme.spec() != self.scheme.spec():
            raise StrategyError(f"the opener {opener} is of another scheme or other parameters than the server's keys")
        return scheme.decryptor(key)

    def check_model(self, names: Sequence[str]) -> None:
        """Refuse, with `StrategyError`, a model without arrays, and one that nobody would have in the end."""
        if not names:
            raise StrategyError("the initial ArrayRecord is empty; pass the model's first arrays")
        if self.opener is None and self.out is None:
            raise StrategyError(
                "this server has no key, so Result.arrays will hold no model. Say where it goes: out='a new folder' "
                "keeps it encrypted for `fedcipher open`; opener=<a client's key file> lets the server see the mean"
            )

    @property
    def largest(self) -> int:
        """The largest number of examples that counts."""
        return max(1, round(self.unit * self.scheme.max_weight)) if self.unit else _EXAMPLES

    def summary(self) -> str:
        """What protects the run, on one line."""
        sees = "no model"
        if self.opener is not None:
            sees = "each round's mean"
            if self.holds_key:
                sees += ", and holds a client's key, with which whoever controls it can open single updates"
        hides = "are NOT encrypted (plain)"
        if self.scheme.info.hides:
            hides = f"leave the clients encrypted with {self.scheme}"
        weights = f"clients count their examples, at most {self.largest}" if self.unit else "all weigh the same"
        return (
            f"updates {hides}; it withstands {self.scheme.info.withstands}; sums of at least {self.minimum} clients "
            f"are opened; this server sees {sees}; {weights}"
        )


def _called_with(given: object) -> list[Callable[[RoundRecord], None]]:
    """The functions of ``on_round``. Raises `ParameterError`."""
    if given is None:
        return []
    listed = [given] if callable(given) else several(given, "on_round")
    return [cast("Callable[[RoundRecord], None]", callable_or_none(one, "on_round")) for one in listed]
