"""A server's record of each round: clients, times, bytes, metrics and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fedcipher.federation.answers import Sums
from fedcipher.federation.charter import MAX_ROUNDS, Purpose
from fedcipher.federation.kept_share import MIN_KEPT_SHARE
from fedcipher.federation.ranges import HISTOGRAMS
from fedcipher.foreign_text import MAX_NAME, MAX_TEXT, quoted

__all__ = [
    "CLIPPED",
    "MAX_PHASE",
    "PHASES",
    "ClientRecord",
    "RoundRecord",
    "counted_of",
    "drowned_text",
    "losses",
    "thin_text",
]

_PREFIX = "fedcipher."

CLIPPED = 0.01
"""Clients and server warn if a larger share of the values was cut to their clip range."""
PHASES = frozenset(
    [f"{phase}_seconds" for phase in ("offline", "encode", "encrypt", "decrypt")]
    + [f"{way}_bytes" for way in ("upload", "setup", "download")]
)
"""Values of a round that clients send unencrypted: seconds of work that does not depend on data, and bytes."""

MAX_PHASE = 1e15
"""Bound above all honest values. Clients write these values, and a larger one would distort all sums and charts."""


@dataclass(frozen=True)
class ClientRecord:
    """One client in one round: seconds and bytes by phase, or why the client was left out.

    A client does not reveal to the server why it refused. ``left_out`` then has the reference under which that client's
    own log (`fedcipher.federation`) has the cause.
    """

    node: int
    client: int | None
    phases: dict[str, float]
    left_out: str | None = None
    refused: bool = False
    """Whether the client was left out because it refused, and not because of its reply's content."""
    unsummed: bool = False
    """Left out although its frame was valid: the client sat out, or the sum of its group did not open."""
    clear: dict[str, float] = field(default_factory=dict[str, float])
    """Unencrypted metrics, which the charter and the client's own configuration allow."""

    @classmethod
    def parse(cls, given: object) -> ClientRecord:
        """Like `RoundRecord.parse`, for one client."""
        values = _named(given)
        made = cls(**values)
        if type(made.node) is not int or type(made.client) not in (int, type(None)):
            raise ValueError("a client's record has a node or client that is not a whole number")
        if type(made.refused) is not bool or type(made.unsummed) is not bool:
            raise ValueError("a client's record has something other than true or false in refused or unsummed")
        return replace(made, phases=_numbers(made.phases), left_out=_reason(made.left_out), clear=_numbers(made.clear))


@dataclass
class RoundRecord:
    """One round, as the server recorded it."""

    round: int
    number: int = 0
    """The round's number among the key's rounds. No number is used twice, even if a server died and asks again."""
    epoch: int = 0
    measured: int = 0
    """Number, among the key's rounds, of the histograms that began this round; 0 if there were none."""
    evaluated: int = 0
    """Number, among the key's rounds, of this round's evaluation; 0 if no client was asked."""
    planned: int = 0
    """Number of rounds that the run was to have when this round began; 0 if unknown."""
    clients: list[ClientRecord] = field(default_factory=list)
    evaluations: list[ClientRecord] = field(default_factory=list)
    aggregate_seconds: float = 0.0
    aggregate_bytes: int = 0
    wall_seconds: float = 0.0
    """Seconds from sampling to the end of evaluation, or to the last step before the server died."""
    elements: int = 0
    """Number of values of an update."""
    counted: dict[str, float] = field(default_factory=dict[str, float])
    """Means over the clients of their encrypted counters, if the sum was opened: ``train_seconds``,
    ``evaluate_seconds``, the number of ``clipped``, ``vanished`` and ``saturated`` values, ``kept``, the share of their
    updates that coding kept, and ``train_failed`` and ``evaluate_failed``, the share of clients whose apps failed."""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Metrics by name: ``"train"`` and ``"evaluate"`` as aggregated by the wrapped strategy, and ``"server"`` from
    ``evaluate_fn``."""
    unfinished: str | None = None
    """Why the round has no aggregate. The global model is then unchanged."""
    late: list[int] = field(default_factory=list[int])
    """Nodes that answered after the round closed; they are in no sum."""

    @classmethod
    def parse(cls, given: object) -> RoundRecord:
        """The record of `dataclasses.asdict` in a file that others may have written. Its texts are quoted.

        Raises `ValueError` or `TypeError` for anything else.
        """
        made = cls(**_named(given))
        whole = [
            made.round,
            made.number,
            made.epoch,
            made.measured,
            made.evaluated,
            made.planned,
            made.elements,
            made.aggregate_bytes,
        ]
        if any(type(number) is not int for number in [*whole, *_listed(made.late)]):
            raise ValueError("a round's record has a number that is not a whole number")
        if not 0 <= made.planned <= MAX_ROUNDS:
            raise ValueError(f"a round's record has a number of planned rounds outside 0 to {MAX_ROUNDS}")
        made.aggregate_seconds, made.wall_seconds = _number(made.aggregate_seconds), _number(made.wall_seconds)
        made.clients = [ClientRecord.parse(client) for client in _listed(made.clients)]
        made.evaluations = [ClientRecord.parse(client) for client in _listed(made.evaluations)]
        made.counted, made.unfinished = _numbers(made.counted), _reason(made.unfinished)
        made.metrics = {
            quoted(part, MAX_NAME): {quoted(name, MAX_NAME): _metric(value) for name, value in _named(metrics).items()}
            for part, metrics in _named(made.metrics).items()
        }
        return made

    @property
    def accepted(self) -> int:
        """Number of updates in the round's sum."""
        return sum(client.left_out is None for client in self.clients)

    @property
    def all_apps_failed(self) -> bool:
        """Whether the round's opened sum shows that the apps of all its clients failed: those of training, if any."""
        return self.counted.get("train_failed" if self.clients else "evaluate_failed", 0.0) == 1.0

    def mean(self, phase: str) -> float:
        """Mean of a phase's seconds, bytes or counted values over the accepted updates; 0 if nothing is known."""
        return self.counted[phase] if phase in self.counted else _mean(self.clients, phase)

    def evaluation_mean(self, phase: str) -> float:
        """Like `mean`, over the clients that evaluated."""
        return self.counted[phase] if phase in self.counted else _mean(self.evaluations, phase)

    @property
    def clipped_share(self) -> float:
        """The share of the accepted updates' values that were cut to their clip range: 0 to 1."""
        return _clipped_share(self.counted, self.elements)


def counted_of(sums: Sums, purpose: Purpose) -> dict[str, float]:
    """`RoundRecord.counted` of opened ``sums``: means over their clients."""
    made: dict[str, float] = {}
    for name, held in sums.numbers.items():
        if name.startswith(_PREFIX) and name != HISTOGRAMS:
            kind = name.removeprefix(_PREFIX)
            made[f"{purpose}_{kind}" if kind == "seconds" else kind] = held[0] / sums.clients
    if sums.kept is not None:
        made["kept"] = sums.kept
    if sums.counted < sums.clients:
        made[f"{purpose}_failed"] = 1 - sums.counted / sums.clients
    return made


def losses(sums: Sums | None, purpose: Purpose, elements: int) -> list[str]:
    """Warnings about values that are missing from the opened ``sums``, each with its cause and what to do.

    ``elements`` is the number of values of an update.
    """
    made: list[str] = []
    if sums is None:
        return made
    counted = counted_of(sums, purpose)
    if sums.counted < sums.clients:
        made.append(
            f"the apps of {sums.clients - sums.counted} of {sums.clients} clients failed ({purpose}), so these clients "
            "do not count; their logs have the cause"
        )
    if counted.get("saturated"):
        made.append(
            f"{counted['saturated']:.3g} values of a client are not finite numbers and were sent as 0 or cut; a "
            "smaller learning rate may help"
        )
    if counted.get("vanished"):
        made.append(
            f"{counted['vanished']:.0f} values of a client, whole tensors, are below half a step of their range and "
            "were sent as zeros, so the model is not the exact mean; the clients' logs name the tensors. A separate "
            "clip for each tensor, clip='auto' or more bits keeps them"
        )
    if sums.drowned:
        made.append(drowned_text(sums.drowned))
    if sums.thin:
        made.append(thin_text(sums.thin))
    share = _clipped_share(counted, elements)
    if share > CLIPPED:
        made.append(
            f"{100 * share:.1f}% of the values were cut to their clip range, so the model is not the exact mean; the "
            "clients' logs name the tensors. With clip='auto' ranges follow the clients' updates of the round before. "
            "A number as clip sets a range of your choice"
        )
    return made


def drowned_text(arrays: Sequence[tuple[str, float]]) -> str:
    """A warning that noise hid the means of these ``arrays``, each given with the applied part of its mean."""
    return (
        f"in {len(arrays)} arrays the noise of rounding is larger than a client's update, so only a part of their "
        f"means is applied ({_worst(arrays)}). More bits or more clients a round help. If the Codec's start is far "
        "from the size of the updates, the warning stops after some rounds. If only clients of small weight took part, "
        "use SecureStrategy(weigh_each_round=True)"
    )


def _worst(arrays: Sequence[tuple[str, float]]) -> str:
    """The three arrays with the smallest parts, as text."""
    worst = sorted(arrays, key=lambda pair: pair[1])[:3]
    return ", ".join(f"{100 * part:.0f}% of {quoted(name, MAX_NAME)}" for name, part in worst)


def thin_text(arrays: Sequence[tuple[str, float]]) -> str:
    """A warning that coding lost a part of these ``arrays``. Each comes with the share that coding kept."""
    return (
        f"coding kept less than {100 * MIN_KEPT_SHARE:.0f}% of the updates of {len(arrays)} arrays "
        f"({_worst(arrays)}): the rest of that training is lost. clip='auto' without a start gives each array the "
        "range that it needs. If clip is a number, use more bits, or a range closer to the size of the updates"
    )


def _clipped_share(counted: Mapping[str, float], elements: int) -> float:
    return counted.get("clipped", 0.0) / elements if elements else 0.0


def _mean(clients: list[ClientRecord], phase: str) -> float:
    values = [client.phases.get(phase, 0.0) for client in clients if client.left_out is None]
    return sum(values) / max(1, len(values))


def _named(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise TypeError("names and values are expected")
    return cast("dict[str, Any]", given)


def _listed(given: object) -> list[Any]:
    if not isinstance(given, list):
        raise TypeError("a list is expected")
    return cast("list[Any]", given)


def _reason(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise TypeError("a reason must be a text")
    return None if given is None else quoted(given, MAX_TEXT)


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError("a number is expected")
    return given


def _numbers(given: object) -> dict[str, float]:
    return {quoted(name, MAX_NAME): _number(value) for name, value in _named(given).items()}


def _metric(given: object) -> object:
    return [_number(value) for value in cast("list[object]", given)] if isinstance(given, list) else _number(given)
