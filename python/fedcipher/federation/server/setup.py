"""The options of a run's server: keys, opener, answers, and when a round closes."""

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
from fedcipher.keys.provider import server_keys
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.keys.store import home, load_client, locate
from fedcipher.scale import RayWorkers
from fedcipher.schemes import Decryptor

__all__ = ["Plan", "RunOptions", "RunSetup"]

_MAX_EXAMPLES = 1 << 30
"""The largest number of examples that weights a metric, if all clients have the same weight."""


@dataclass(frozen=True)
class Plan:
    """A strategy's plan for a run: its use of each round's mean, and the settings that it sends to clients."""

    name: str = "the server"
    """The strategy's name, for messages."""
    trains: bool = True
    """Whether some round trains."""
    record: str = "arrays"
    """Name of the model's record in the strategy's messages."""
    types: Mapping[Purpose, str] = field(default_factory=lambda: {purpose: purpose for purpose in PURPOSES})
    """The message type of each purpose."""
    settings: Mapping[Purpose, Settings] = field(default_factory=lambda: dict.fromkeys(PURPOSES, Settings({})))
    """The settings that each message carries with the model, by purpose."""
    listed: bool = False
    """Whether some setting is a list with one value for each round."""
    optimiser: Optimiser | None = None
    """The optimiser whose step clients make from each mean; None if the mean is the next model."""
    weighted_by: str = "num-examples"
    """The metric that weights each client."""


class RunOptions(TypedDict, total=False):
    """The keyword arguments of `RunSetup`, for functions that pass them on."""

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
    consent_timeout: float
    on_round: Callable[[RoundRecord], None] | Iterable[Callable[[RoundRecord], None]] | None
    on_progress: Callable[[int, int], None] | None
    workers: RayWorkers | None


class RunSetup:
    """The checked options of a run's server.

    Raises `ParameterError` and `StrategyError` for options that do not fit together, and the errors of a key file.

    Parameters
    ----------
    keys
        ``server.key``, the folder of `fedcipher keygen` that holds it, or an authority. An authority is a
        `fedcipher.engine.Authority`, or ``"authority://HOST:PORT/FOLDER"`` with the folder of its credentials. With an
        authority, a run begins with the newest key epoch and keeps that epoch. The run's first sum ends all earlier
        epochs.
    opener
        Lets the server see the mean of each round. Either a `fedcipher.schemes.Decryptor`, such as an engine's
        (``fedcipher.engine.connect(...).decryptor()``), which opens only aggregates; or a client's key file, by its
        path or by its name in the folder of ``keys``. Best use the file of a client id that never trains. A key file
        holds the cohort's key, so a party that controls this process can open single updates. The wrapped strategy
        gets the mean's model in place of every update, and the mean answers in place of every client's answers.
        ``evaluate_fn``, checkpoints and ``Result.arrays`` are plaintext, as in any Flower app.
    out
        A new folder for the run: its first model and the encrypted aggregates, complete after each round. A relative
        path is below ``~/.fedcipher/runs``. If the folder exists, ``-2``, ``-3`` and so on is appended. `open_run` or
        ``fedcipher open`` opens the run with a client's key. Give ``out`` or ``opener``: without an opener, the model
        is stored only here.
    resume
        If ``out`` holds a run, resume it instead of beginning a new one. A resumed run continues after the last round
        that ended or was active when its server ended. ``num_rounds`` of `start` counts the run's rounds from the
        first. Of ``initial_arrays``, only names and shapes count. Clients need no change.
    examples_per_weight
        Number of examples for a weight of 1. A client with n examples counts n, up to this number times the scheme's
        ``max_weight``. ``None``: the number that the keys were made for (``fedcipher keygen --examples``). If the keys
        have none, all clients have the same weight.
    weigh_each_round
        Whether every round begins with a sum of histograms in its own message, like the first round. Use this if the
        clients' numbers of examples differ by more than about a factor of eight and the largest clients are not in
        every round. A small client's update is then scaled by the largest client of its own round. Needs weights, and
        ranges that follow the updates.
    train_answers, evaluate_answers
        The metrics that clients answer with, by name or as `fedcipher.federation.answers.Answer`. They are sent
        encrypted beside the update. Only their sums are opened, by the same parties that may open means. All other
        results of a client's app stay on the client.
    clear
        Metrics that each client may send in the clear, if its own configuration (``fedcipher-clear``) also names them.
    signed_charter
        Whether a coordinator must sign the run's charter. `start` then writes the charter to ``out`` and raises
        `StrategyError` until ``fedcipher charter RUN --sign`` has signed it. Then start again with ``resume=True``.
    sets_models
        Whether the server itself makes the next model from each mean, for example with your own strategy. Clients then
        evaluate models that this server chooses, and such models can reveal their data. So each site must allow this
        in its policy. Needs ``opener``.
    corrupt_clients
        How many clients may lie, under any scheme. More refusals of a sum than this start a search for the liar.
        ``None``: the scheme's own ``corrupt_clients``; if the scheme has none, two less than ``min_contributions``.
    may_lose
        How many rounds of a run may end without an aggregate. If more do, `start` raises
        `fedcipher.errors.LostRoundsError` at its end, so that the run counts as failed.
    least_kept
        The share of the updates that the clients' coding must keep in the first round that this server opens, if the
        ranges do not follow the updates. Below this share, the run ends with a `StrategyError` that says what to
        change.
    quorum
        Share of the sampled clients whose updates are enough. The round closes ``grace`` seconds after that many
        updates are in the sum. Its evaluation closes in the same way. 1: the round waits for all clients.
    deadline
        Seconds after which a round closes with the updates that have arrived, and its evaluation with the answers.
        ``None``: the ``timeout`` of `start`.
    grace
        Seconds that the other clients have after the quorum is reached.
    committee_timeout
        Seconds that a committee's members have to answer in a round, for schemes with a committee.
    consent_timeout
        Seconds that people at sites with a guard have to agree to the run's charter, before the first round. 0: clients
        are not asked first, and a site that has not agreed is left out of its first rounds.
    on_round
        One or several functions, called with each finished `RoundRecord`, such as the loggers of `fedcipher.watch`.
    on_progress
        A function, called with (done, total) steps of a long aggregation.
    workers
        A Ray cluster for long aggregations (see `fedcipher.scale`). If the cluster fails, this process does the work.
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
        consent_timeout: float = 0.0,
        on_round: Callable[[RoundRecord], None] | Iterable[Callable[[RoundRecord], None]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        workers: RayWorkers | None = None,
    ) -> None:
        check_truths(
            resume=resume, weigh_each_round=weigh_each_round, sets_models=sets_models, signed_charter=signed_charter
        )
        self.keys = server_keys(keys)
        self.scheme, self.key = self.keys.scheme, self.keys.current()
        self.minimum, self.max_clients = self.scheme.min_contributions, int(self.scheme.params()["clients"])
        self.opener, self.holds_key = self._opener_of(opener), isinstance(opener, (str, Path))
        self.opens_itself = opener is None and self.opener is not None
        """Whether the scheme reveals sums to its server, which cannot check that they are genuine."""
        if sets_models and self.opener is None:
            raise StrategyError(
                "sets_models=True makes models from means, which this server cannot see: pass opener=..."
            )
        self.sets_models = sets_models
        self.answers: dict[Purpose, list[Answer]] = {
            "train": Answer.all_of(train_answers, "train_answers"),
            "evaluate": Answer.all_of(evaluate_answers, "evaluate_answers"),
        }
        self.clear = sorted(set(texts(clear, "clear")))
        self.round_close = RoundClose(quorum=quorum, deadline=deadline, grace=grace, minimum=self.minimum)
        self.committee_timeout = seconds(committee_timeout, "committee_timeout")
        self.consent_timeout = float(real_number(consent_timeout, "consent_timeout", 0))
        self.corrupt = self._corrupt_of(corrupt_clients)
        self.may_lose, self.least_kept = whole_number(may_lose, "may_lose"), real_number(least_kept, "least_kept")
        # Not relative to the current folder, because a framework chooses the folder that the app runs in.
        self.out = None if out is None else home() / "runs" / as_path(out, "out")
        self.resume, self.signed_charter = resume, signed_charter
        if (resume or signed_charter) and out is None:
            raise StrategyError("resume=True and signed_charter=True need the run's folder: pass out='...'")
        unit = self.keys.examples_per_weight if examples_per_weight is None else examples_per_weight
        self.unit = float(real_number(unit, "examples_per_weight", 0))
        """Number of examples for a weight of 1; 0 if all clients have the same weight."""
        if self.unit > 0 and self.scheme.codec.privacy is not None:
            raise StrategyError(
                "examples_per_weight does not work with privacy: weights reveal how many examples a client has, and no "
                "noise covers them; give all clients the same weight"
            )
        self.weighs_each_round = weigh_each_round
        if weigh_each_round and not (self.unit > 0 and begins_with_histograms(self.scheme, sets_models=sets_models)):
            raise StrategyError(
                "weigh_each_round=True needs clients of different weights (examples_per_weight) and ranges that follow "
                'the updates: Codec(target="delta", clip="auto") without start, and no sets_models'
            )
        self.on_round = _functions_of(on_round)
        self.on_progress, self.workers = callable_or_none(on_progress, "on_progress"), workers

    def _corrupt_of(self, chosen: int | None) -> int:
        most = max(0, self.minimum - 2)
        if chosen is None:
            return min(int(self.scheme.params().get("corrupt_clients", most)), most)
        chosen = whole_number(chosen, "corrupt_clients")
        if not 0 <= chosen <= most:
            raise StrategyError(
                f"corrupt_clients={chosen} is not possible with sums of at least {self.minimum} clients: each needs "
                f"two honest clients, so at most {most} may be corrupt; make keys with a larger min_contributions"
            )
        return chosen

    def _opener_of(self, opener: Decryptor | str | Path | None) -> Decryptor | None:
        committee = self.scheme.committee
        if opener is None and committee is not None and committee.reveals_to_server:
            return committee.server_decryptor(self.key)
        if not isinstance(opener, (str, Path)):
            fix = "give a decryptor, or the path of a client's key file"
            return None if opener is None else instance_of(opener, Decryptor, "opener", fix)
        folder = self.keys.folder
        opener = as_path(opener, "opener")
        beside = None if folder is None or len(opener.parts) != 1 else folder / opener
        scheme, key = load_client(beside or locate(opener))
        if scheme.spec() != self.scheme.spec():
            raise StrategyError(f"the opener {opener} has another scheme or other parameters than the server's keys")
        return scheme.decryptor(key)

    def check_model(self, names: Sequence[str]) -> None:
        """Raise `StrategyError` for a model without arrays, and if the final model would be stored nowhere."""
        if not names:
            raise StrategyError("the initial ArrayRecord is empty; pass the model's first arrays")
        if self.opener is None and self.out is None:
            raise StrategyError(
                "this server has no key, so Result.arrays would hold no model. Choose one: out='a new folder' stores "
                "the model encrypted for `fedcipher open`; opener=<a client's key file> lets the server see the mean"
            )

    @property
    def largest(self) -> int:
        """The largest number of examples that counts for a client."""
        return max(1, round(self.unit * self.scheme.max_weight)) if self.unit else _MAX_EXAMPLES

    def summary(self) -> str:
        """The run's protection, on one line."""
        sees = "no model"
        if self.opener is not None:
            sees = "each round's mean"
            if self.holds_key:
                sees += ", and holds a client's key, so a party that controls the server can open single updates"
        hides = "are NOT encrypted (plain)"
        if self.scheme.info.hides:
            hides = f"leave the clients encrypted with {self.scheme}"
        weights = f"a client counts its examples, at most {self.largest}" if self.unit else "all have the same weight"
        return (
            f"updates {hides}; the scheme withstands {self.scheme.info.withstands}; sums of at least {self.minimum} "
            f"clients are opened; this server sees {sees}; {weights}"
        )


def _functions_of(given: object) -> list[Callable[[RoundRecord], None]]:
    """The functions of ``on_round``. Raises `ParameterError`."""
    if given is None:
        return []
    listed = [given] if callable(given) else several(given, "on_round")
    return [cast("Callable[[RoundRecord], None]", callable_or_none(one, "on_round")) for one in listed]
