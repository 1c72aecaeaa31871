"""Which scheme for this federation: predicted from a quick calibration on this machine.

A round is one update encrypted on a client, sent, added by the server with those of the others, sent back
and decrypted. Each term is measured here, by the processes of `fedcipher bench`, on growing updates, and
continued as a straight line; a term that works on several cores here is scaled to the cores asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedcipher.bench.case import Case, CaseResult
from fedcipher.bench.link import Link
from fedcipher.bench.statistics import summarise
from fedcipher.bench.study import run_study
from fedcipher.errors import BenchError, DependencyError, FedcipherError
from fedcipher.schemes import scheme_class, scheme_names

__all__ = ["Checked", "Federation", "Prediction", "advise", "check"]

_SIZES = (64, 16_384, 131_072, 1_048_576, 4_194_304)
_BUDGET = 8.0
"""Seconds of calibration a scheme; the smallest size is always measured, the second unless that took all of it."""
_SLOW = 1.0
"""Seconds after which a scheme is measured with two clients, once."""
_LITTLE = 0.2
"""CPU seconds below which nothing is said of how many cores they were spread over."""
_MOST_CLIENTS = 10
"""Clients of a calibration; the server's work for more of them is continued as a straight line."""
_SUMS, _RUNS = 2, 3
_TERMS = ("encrypt", "operate", "decrypt")


@dataclass(frozen=True)
class Federation:
    """What the advice is for. ``threat``: who must not learn an update, beside eavesdroppers.

    ``"server"``: a server without a key; ``"quantum"``: also one with a quantum computer later;
    ``"collusion"``: also one to which a client tells its key.
    """

    values: int
    clients: int
    link: Link
    client_cores: int
    server_cores: int
    threat: Literal["server", "quantum", "collusion"] = "server"
    bits: int = 12


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds and bytes of a round under one scheme, or why it is out of the question."""

    scheme: str
    encrypt: float = 0.0
    operate: float = 0.0
    decrypt: float = 0.0
    transfer: float = 0.0
    update_bytes: int = 0
    aggregate_bytes: int = 0
    calibrated: int = 0
    """Largest update that was measured."""
    extrapolated: bool = False
    excluded: str = ""

    @property
    def seconds(self) -> float:
        """The round, without training."""
        return self.encrypt + self.operate + self.decrypt + self.transfer

    def why(self) -> str:
        """Which term decides."""
        if self.excluded:
            return self.excluded
        terms = {"encrypting": self.encrypt, "the server": self.operate, "decrypting": self.decrypt}
        terms["the link"] = self.transfer
        name, most = max(terms.items(), key=lambda item: item[1])
        far = f"; measured up to {self.calibrated:,} values" if self.extrapolated else ""
        return f"{most / self.seconds:.0%} of it is {name}{far}"


@dataclass(frozen=True)
class _Point:
    """Seconds of each term for one update of ``values`` (``operate``: one client's share), and frame bytes."""

    values: int
    wall: dict[str, float]
    parallel: dict[str, float]
    """Cores that each term kept busy."""
    update_bytes: int
    aggregate_bytes: int

    def seconds(self, clients: int) -> float:
        """What measuring it took, once."""
        return _SUMS * (clients * (self.wall["encrypt"] + self.wall["operate"]) + self.wall["decrypt"])


def advise(
    federation: Federation, schemes: list[str] | None = None, on_scheme: Callable[[str], None] | None = None
) -> list[Prediction]:
    """Predictions for every scheme, the fastest round first, those excluded last."""
    found: list[Prediction] = []
    for name in schemes or scheme_names():
        if on_scheme is not None:
            on_scheme(name)
        found.append(_predicted(name, federation))
    return sorted(found, key=lambda p: (bool(p.excluded), p.seconds))


def _predicted(name: str, federation: Federation) -> Prediction:
    info = scheme_class(name).info
    if not info.hides:
        return Prediction(name, excluded="hides nothing; it is here to compare with")
    if federation.threat == "collusion":
        return Prediction(name, excluded=f"broken by {info.broken_by}")
    if federation.threat == "quantum" and not info.post_quantum:
        return Prediction(name, excluded="not post-quantum")
    try:
        points = _calibrate(name, federation)
    except DependencyError as error:
        return Prediction(name, excluded=str(error))
    except FedcipherError as error:
        return Prediction(name, excluded=f"{type(error).__name__}: {error}")
    values = federation.values
    wall = {term: _line(points, values, lambda p, t=term: _scaled(p, t, federation)) for term in _TERMS}
    update = round(_line(points, values, lambda p: p.update_bytes))
    aggregate = round(_line(points, values, lambda p: p.aggregate_bytes))
    return Prediction(
        name,
        encrypt=wall["encrypt"],
        operate=federation.clients * wall["operate"],
        decrypt=wall["decrypt"],
        transfer=federation.link.seconds(update) + federation.link.seconds(aggregate),
        update_bytes=update,
        aggregate_bytes=aggregate,
        calibrated=points[-1].values,
        extrapolated=points[-1].values < values,
    )


def _scaled(point: _Point, term: str, federation: Federation) -> float:
    """A term's seconds on the cores asked for, if it used those that are here."""
    here = os.cpu_count() or 1
    cores = federation.server_cores if term == "operate" else federation.client_cores
    spreads = point.parallel[term] > 1.0 + 0.3 * (here - 1)
    return point.wall[term] * here / cores if spreads else point.wall[term]


def _line(points: list[_Point], values: int, of: Callable[[_Point], float]) -> float:
    """A straight line through the last two points.

    Through the origin where there is one point only, and where the last two are about the same: such a
    term grows in steps, a ciphertext at a time.
    """
    exact = next((p for p in points if p.values == values), None)
    if exact is not None:
        return of(exact)
    last = points[-1]
    if len(points) > 1:
        before = points[-2]
        slope = (of(last) - of(before)) / (last.values - before.values)
        if slope * last.values > of(last) / 2:
            return of(last) + slope * (values - last.values)
    return of(last) * values / last.values


def _calibrate(name: str, federation: Federation) -> list[_Point]:
    # The smallest size tells how slow a scheme is before much is asked of it.
    few = min(federation.clients, 2)
    points = [_point(name, federation, min(_SIZES[0], federation.values), few, 1)]
    left = _BUDGET - points[0].seconds(few)
    slow = points[0].seconds(few) > _SLOW
    clients, runs = (few, 1) if slow else (min(federation.clients, _MOST_CLIENTS), _RUNS)
    for size in sorted({min(size, federation.values) for size in _SIZES}):
        again = size == points[-1].values
        expected = sum(_line(points, size, lambda p, t=t: p.wall[t]) for t in _TERMS) * clients * _SUMS * runs
        if left < 0 or (len(points) > 1 and expected > left):
            break
        if again and slow:
            continue
        point = _point(name, federation, size, clients, runs)
        points = [*points[:-1], point] if again else [*points, point]
        left -= point.seconds(clients) * runs
    return points


def _measured(name: str, federation: Federation, values: int, clients: int, runs: int) -> CaseResult:
    study = run_study("advise", [Case(name, name, values, clients, _SUMS, federation.bits)], runs=runs, link=Link())
    if study.interrupted:
        raise KeyboardInterrupt
    result = study.results[0]
    if result.failure or not result.runs:
        raise BenchError(f"{name} could not be measured: {result.failure}")
    return result


def _point(name: str, federation: Federation, values: int, clients: int, runs: int) -> _Point:
    summary = summarise(_measured(name, federation, values, clients, runs))
    updates = _SUMS * clients
    client = summary["encrypt"].minimum + summary["decrypt"].minimum
    server = summary["operate"].minimum
    busy = _cores(summary["client CPU"].minimum, client)
    return _Point(
        values,
        {
            "encrypt": summary["encrypt"].minimum / updates,
            "operate": server / updates,
            "decrypt": summary["decrypt"].minimum / _SUMS,
        },
        {"encrypt": busy, "decrypt": busy, "operate": _cores(summary["server CPU"].minimum, server)},
        int(summary["one update"].minimum),
        int(summary["one aggregate"].minimum),
    )


def _cores(cpu: float, wall: float) -> float:
    """Cores kept busy; one where so little was used that the clock of CPU seconds, and sending, decide."""
    return cpu / wall if cpu > _LITTLE and wall > 0 else 1.0


@dataclass(frozen=True)
class Checked:
    """A prediction beside a measured run in a client and a server process."""

    prediction: Prediction
    encrypt: float
    operate: float
    decrypt: float
    transfer: float

    @property
    def seconds(self) -> float:
        """The measured round, of the same terms as the predicted one."""
        return self.encrypt + self.operate + self.decrypt + self.transfer

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.prediction.seconds / self.seconds - 1


def check(federation: Federation, prediction: Prediction) -> Checked:
    """Measures what was predicted, in a client and a server process; the link by its own arithmetic.

    Raises `BenchError` where the run fails.
    """
    name, clients = prediction.scheme, federation.clients
    summary = summarise(_measured(name, federation, federation.values, clients, _RUNS))
    sizes = (summary["one update"].minimum, summary["one aggregate"].minimum)
    return Checked(
        prediction,
        encrypt=summary["encrypt"].minimum / _SUMS / clients,
        operate=summary["operate"].minimum / _SUMS,
        decrypt=summary["decrypt"].minimum / _SUMS,
        transfer=sum(federation.link.seconds(int(size)) for size in sizes),
    )
