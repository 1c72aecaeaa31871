"""Compares FedNIC's figures with the measurements of `fedcipher_research.studies.fednic`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedcipher._units import number, seconds
from fedcipher.errors import BenchError

from fedcipher_research.published import cell, claim, doubt, figure
from fedcipher_research.published.verdict import Outcome, judged, stated

__all__ = ["Round", "compared"]

_PAPER = "fednic"
_UNNAMED = "the paper names its library, Palisade, and neither scheme nor parameters"
_CKKS = f"CKKS by TenSEAL; {_UNNAMED}"
_OTHER = f"values of 12 bits, by a scheme of ours; {_UNNAMED}"
_STAND_IN = (
    "a process of the same machine, without the engine's defences, stands for a SmartNIC, and CKKS by TenSEAL for what "
    "is not named; nor is the network's speed printed"
)
_OBJECTS = "float32 here, Python objects of 24 bytes there"


@dataclass(frozen=True)
class Spent:
    """Processor seconds of one go, in the host's control group and apart from it, in the engine's."""

    host: float = 0.0
    apart: float = 0.0

    @property
    def total(self) -> float:
        return self.host + self.apart


@dataclass(frozen=True)
class Round:
    """Seconds of a client and the server, bytes of a client."""

    train: float
    sealing: Spent
    opening: Spent
    add: float
    """Seconds of the fastest addition on the server; ``slowest`` has the slowest one."""
    slowest: float
    up: int
    down: int
    network: float = 0.0
    """Seconds of the slower client's transfers, both ways."""
    hop: float = 0.0
    """Processor time of encryption and decryption in the engine, less their time in this process."""

    @property
    def host(self) -> float:
        """Processor seconds of encryption and decryption in the host's group."""
        return self.sealing.host + self.opening.host

    @property
    def apart(self) -> float:
        """Processor seconds of encryption and decryption in the engine's group."""
        return self.sealing.apart + self.opening.apart

    @property
    def crypto(self) -> float:
        return self.host + self.apart

    def hopped(self, host: Round) -> Round:
        """This round of the engine, with its ``hop`` against the ``host``."""
        return replace(self, hop=self.crypto - host.crypto)

    @property
    def communication(self) -> float:
        return self.network + self.hop

    @property
    def workflow(self) -> float:
        return self.train + self.crypto + self.add + self.network


def compared(rounds: dict[str, Round], paillier: float, values: int) -> list[Outcome]:
    """Compare every figure of Table 3 and Fig. 3 to Fig. 7, and the abstract's claim about the host's processor.

    ``rounds`` are by mode. ``paillier`` is the seconds of a client's encryption and decryption of all ``values``
    weights. Raises `BenchError` for another model than the paper's.
    """
    weights = cell(_PAPER, "Table 3", {"type": "Raw"}, "parameters")
    if values != weights.number:
        raise BenchError(f"the model has {values:,} weights where {weights.named} has {weights.value:,}")
    clear, ckks = rounds["plain"], rounds["ckks on the host"]
    plain = (doubt(_PAPER, "Plain weights of 28,958,160 B"),)
    raw = cell(_PAPER, "Table 3", {"type": "Raw"}, "weights_B")
    found = [judged("plain weights", raw, clear.up, because=_OBJECTS, doubts=plain)]
    for name, one in rounds.items():
        if name != "plain":
            kind = "FedNIC" if "engine" in name else "FedML"
            printed = cell(_PAPER, "Table 3", {"type": kind}, "encrypted_weights_B")
            because = _CKKS if name.startswith("ckks") else _OTHER
            found.append(judged(f"encrypted weights, {name}", printed, one.up, because=because, doubts=plain))
    found.append(
        judged(
            "Paillier slower than TenSEAL's CKKS",
            figure(_PAPER, "Fig. 3", "Paillier slower (text reads against Palisade)"),
            paillier / ckks.crypto,
            because="against TenSEAL's CKKS: Palisade is not here",
            doubts=(doubt(_PAPER, "'40x slower' for Paillier"),),
        )
    )
    trained = [one.train for one in rounds.values()]
    found.append(
        stated(
            "training under each mode",
            figure(_PAPER, "Fig. 5", "FedNIC against Raw and FedML-HE"),
            f"{seconds(min(trained))} to {seconds(max(trained))}, {seconds(clear.train)} of it plain",
            True,
            because="the paper names no bound",
        )
    )
    for name in (mode.removesuffix(" in the engine") for mode in rounds if mode.endswith(" in the engine")):
        found += _engine(name, clear, rounds[f"{name} on the host"], rounds[f"{name} in the engine"])
    return found


def _engine(name: str, clear: Round, host: Round, engine: Round) -> list[Outcome]:
    because = _STAND_IN if name == "ckks" else _OTHER
    total = (doubt(_PAPER, "46% is 'total training time'"),)
    found = [
        judged(
            f"{name}: host CPU saved by the engine, training counted",
            claim(_PAPER, "host CPU cycles saved, up to"),
            100 * (host.host - engine.host) / (host.train + host.host),
            better="larger",
            because=because,
            doubts=(doubt(_PAPER, "'Up to 25% less host CPU'"),),
        ),
        judged(
            f"{name}: communication in the engine above the host's",
            figure(_PAPER, "Fig. 4", "FedNIC above FedML-HE, about"),
            100 * (engine.communication / host.communication - 1),
            because=because,
        ),
    ]
    for what, base in (("FedML-HE", host), ("Raw", clear)):
        found.append(
            judged(
                f"{name}: workflow in the engine above {what}",
                figure(_PAPER, "Fig. 7", f"FedNIC above {what}"),
                # The training is left out of the difference: it is nearly all of a round, and varies more between goes
                # than between modes.
                100 * ((engine.workflow - engine.train) - (base.workflow - base.train)) / (base.workflow),
                because=because,
                doubts=total,
            )
        )
    return [
        *found,
        stated(
            f"{name}: adding what came of the engine",
            figure(_PAPER, "Fig. 6", "FedNIC against FedML-HE"),
            f"{seconds(engine.add)}; of the host's {seconds(host.add)} to {seconds(host.slowest)}",
            engine.add <= host.slowest,
        ),
        stated(
            f"{name}: adding encrypted updates beside plain ones",
            figure(_PAPER, "Fig. 6", "both HE systems against Raw"),
            f"{number(host.add / clear.add)} times as long",
            min(host.add, engine.add) > clear.add,
            because="the paper names no bound",
        ),
    ]
