"""What a server saw of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fedcipher.federation.answers import Sums
from fedcipher.federation.charter import MOST_ROUNDS, Purpose
from fedcipher.federation.kept import ENOUGH
from fedcipher.federation.ranges import HISTOGRAMS
from fedcipher.foreign_text import MAX_NAME, MAX_TEXT, quoted

__all__ = [
    "CLIPPED",
    "LARGEST_PHASE",
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
"""Share of values cut to their clip range; above it clients and server warn."""
PHASES = frozenset(
    [f"{phase}_seconds" for phase in ("offline", "encode", "encrypt", "decrypt")]
    + [f"{way}_bytes" for way in ("upload", "setup", "download")]
)
"""What clients say of their rounds in the clear: seconds of work that does not depend on data, and bytes."""

LARGEST_PHASE = 1e15
"""More than any of them: a client writes them, and one that says more must not spoil everybody's sums and pictures."""


@dataclass(frozen=True)
class ClientRecord:
    """One client in one round: seconds and bytes by phase, or why it was left out.

    A client does not tell the server why it refused: ``left_out`` then names the reference under which
    that client's own log (`fedcipher.federation`) has the cause.
    """

    node: int
    client: int | None
    phases: dict[str, float]
    left_out: str | None = None
    refused: bool = False
    """Left out by its own refusal, and not by what it sent."""
    unsummed: bool = False
    """Left out though its frame was good: it sat out, or the sum of its group does not open."""
    clear: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics that the charter and the client's own configuration let leave in the clear."""

    @classmethod
    def parse(cls, said: object) -> ClientRecord:
        """As `RoundRecord.parse`."""
        values = _named(said)
        made = cls(**values)
        if type(made.node) is not int or type(made.client) not in (int, type(None)):
            raise ValueError("a client's record is not what a server writes")
        if type(made.refused) is not bool or type(made.unsummed) is not bool:
            raise ValueError("a client's record says neither yes nor no")
        return replace(made, phases=_numbers(made.phases), left_out=_reason(made.left_out), clear=_numbers(made.clear))


@dataclass
class RoundRecord:
    """One round as the server saw it."""

    round: int
    number: int = 0
    """Of the key's rounds: none is used twice, also where a server has died and asks again."""
    epoch: int = 0
    measured: int = 0
    """The number of the frames of histograms that it began with, of the key's rounds; 0 where there were none."""
    evaluated: int = 0
    """The number of its evaluation, of the key's rounds; 0 where nobody was asked."""
    planned: int = 0
    """Rounds that the server was asked for when this one began; 0 where that is not known."""
    clients: list[ClientRecord] = field(default_factory=list)
    evaluations: list[ClientRecord] = field(default_factory=list)
    aggregate_seconds: float = 0.0
    aggregate_bytes: int = 0
    wall_seconds: float = 0.0
    """From sampling to the end of evaluation; where the server has died in it, to what it had come to."""
    elements: int = 0
    """Values of an update."""
    counted: dict[str, float] = field(default_factory=dict[str, float])
    """Means over the clients of what they count encrypted, where the sum was opened: ``train_seconds``,
    ``evaluate_seconds``, ``clipped``, ``vanished`` and ``saturated`` values, and the share of their updates
    that coding ``kept``."""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What the wrapped strategy has made of the clients' metrics, ``"train"`` and ``"evaluate"``, and what
    ``evaluate_fn`` has found, ``"server"``: metrics by name."""
    unfinished: str | None = None
    """Why the round has no aggregate: the global model is that of the round before."""
    late: list[int] = field(default_factory=list[int])
    """Nodes that have answered after the round closed: in no sum."""

    @classmethod
    def parse(cls, said: object) -> RoundRecord:
        """What `dataclasses.asdict` made of one, of a file that others may have written: its texts are quoted.

        Raises `ValueError` or `TypeError` for anything else.
        """
        made = cls(**_named(said))
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
            raise ValueError("a round's record has something else in the place of a number")
        if not 0 <= made.planned <= MOST_ROUNDS:
            raise ValueError("a round's record has a number of rounds that no run has")
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
        """Updates in the round's sum."""
        return sum(client.left_out is None for client in self.clients)

    def mean(self, phase: str) -> float:
        """Of a phase's seconds, bytes or counted values, over the accepted updates; 0 where nothing is known."""
        return self.counted[phase] if phase in self.counted else _mean(self.clients, phase)

    def evaluation_mean(self, phase: str) -> float:
        """`mean` of the clients that evaluated."""
        return self.counted[phase] if phase in self.counted else _mean(self.evaluations, phase)

    @property
    def clipped_share(self) -> float:
        """Values that were cut to their clip range, over all values of the accepted updates."""
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
    return made


def losses(sums: Sums | None, purpose: Purpose, elements: int) -> list[str]:
    """What is not in the opened ``sums``, with the cause and the remedy; ``elements``: values of an update."""
    made: list[str] = []
    if sums is None:
        return made
    counted = counted_of(sums, purpose)
    if sums.counted < sums.clients:
        made.append(
            f"the apps of {sums.clients - sums.counted} of {sums.clients} clients have failed ({purpose}); their logs "
            "have the cause, and they count nothing"
        )
    if counted.get("saturated"):
        made.append(
            f"{counted['saturated']:.3g} values of a client are no finite numbers and were sent as 0 or cut; a smaller "
            "learning rate may help"
        )
    if counted.get("vanished"):
        made.append(
            f"{counted['vanished']:.0f} values of a client, whole tensors, are below half a step of their range and "
            "were sent as zeros, so the model is not the mean; the clients' logs name the tensors. A clip of its own "
            "for each tensor, clip='auto' or more bits keeps them"
        )
    if sums.drowned:
        made.append(drowned_text(sums.drowned))
    if sums.thin:
        made.append(thin_text(sums.thin))
    share = _clipped_share(counted, elements)
    if share > CLIPPED:
        made.append(
            f"{100 * share:.1f}% of the values were cut to their clip range, so the model is not the mean; the "
            "clients' logs name the tensors. Ranges follow the clients' updates of the round before (clip='auto'); a "
            "number as clip leaves as much room as you say"
        )
    return made


def drowned_text(arrays: Sequence[tuple[str, float]]) -> str:
    """A warning: much noise has hidden the means of these ``arrays``, and so much of them was applied."""
    return (
        f"in {len(arrays)} arrays the noise of rounding is larger than a client's update, so only a part of their "
        f"means is applied ({_worst(arrays)}). More bits or more clients a round end that. It passes by itself where a "
        "start in the Codec is far from the updates' size. Where only clients of small weight have come, "
        "SecureStrategy(weigh_each_round=True) ends it"
    )


def _worst(arrays: Sequence[tuple[str, float]]) -> str:
    """The three of which least is left."""
    worst = sorted(arrays, key=lambda pair: pair[1])[:3]
    return ", ".join(f"{100 * part:.0f}% of {quoted(name, MAX_NAME)}" for name, part in worst)


def thin_text(arrays: Sequence[tuple[str, float]]) -> str:
    """A warning: of the updates of these ``arrays`` coding kept so much."""
    return (
        f"coding kept less than {100 * ENOUGH:.0f}% of the updates of {len(arrays)} arrays ({_worst(arrays)}): the "
        "rest of that training is lost. clip='auto' without a start gives each array the range that it needs; with a "
        "number as clip take more bits, or a range nearer the updates' size"
    )


def _clipped_share(counted: Mapping[str, float], elements: int) -> float:
    return counted.get("clipped", 0.0) / elements if elements else 0.0


def _mean(clients: list[ClientRecord], phase: str) -> float:
    values = [client.phases.get(phase, 0.0) for client in clients if client.left_out is None]
    return sum(values) / max(1, len(values))


def _named(said: object) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise TypeError("no names and values")
    return cast("dict[str, Any]", said)


def _listed(said: object) -> list[Any]:
    if not isinstance(said, list):
        raise TypeError("no list")
    return cast("list[Any]", said)


def _reason(said: object) -> str | None:
    if said is not None and not isinstance(said, str):
        raise TypeError("a reason that is no text")
    return None if said is None else quoted(said, MAX_TEXT)


def _number(said: object) -> float:
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        raise TypeError("no number")
    return said


def _numbers(said: object) -> dict[str, float]:
    return {quoted(name, MAX_NAME): _number(value) for name, value in _named(said).items()}


def _metric(said: object) -> object:
    return [_number(value) for value in cast("list[object]", said)] if isinstance(said, list) else _number(said)
