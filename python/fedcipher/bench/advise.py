"""Predicts the round time of each scheme for a federation, from a quick calibration on this machine.

In a round a client encrypts an update and sends it. The server adds the updates of all clients, asks the committee's
members if the scheme has a committee, and sends back the aggregate, which the client decrypts. Each term is measured
here on growing updates (`fedcipher.bench.calibrate`) and extrapolated as a straight line. A term that uses several
cores here is scaled to the federation's cores. `check` measures a predicted round in the two processes of
`fedcipher bench`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedcipher._units import number
from fedcipher.bench.calibrate import TERMS, Point, calibrated, line, sizes
from fedcipher.bench.case import Case, CaseResult
from fedcipher.bench.link import Link
from fedcipher.bench.statistics import summarise
from fedcipher.bench.study import run_study
from fedcipher.errors import BenchError, FedcipherError, UnsupportedError
from fedcipher.schemes import scheme_class, scheme_names

__all__ = ["Checked", "Federation", "Prediction", "advise", "check"]

_MIN_SECONDS = 0.02
"""A shorter term is not scaled to other cores, because its use of cores cannot be measured."""
_SUMS, _RUNS = 2, 3
"""Sums in a run, and runs, of a check."""


@dataclass(frozen=True)
class Federation:
    """The federation to predict rounds for. ``threat`` is the attacker, beside eavesdroppers.

    ``"server"``: a server without a key. ``"quantum"``: also a server with a quantum computer later.
    ``"collusion"``: also a server that gets a client's key.
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
    """Predicted seconds and bytes of a round under one scheme, or why the scheme is excluded."""

    scheme: str
    encrypt: float = 0.0
    operate: float = 0.0
    decrypt: float = 0.0
    answer: float = 0.0
    """Seconds of one member of a committee; 0 without a committee."""
    transfer: float = 0.0
    asking: float = 0.0
    """The part of ``transfer`` for the requests to members and their answers."""
    members: int = 0
    update_bytes: int = 0
    aggregate_bytes: int = 0
    smallest: int = 0
    largest: int = 0
    """Values of the smallest and of the largest update that was measured."""
    clients: int = 0
    """Clients in the measurement of the largest update."""
    values_beyond: float = 1.0
    clients_beyond: float = 1.0
    """The federation's values and clients, as multiples of those in the largest measurement."""
    excluded: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of the round, without training."""
        return self.encrypt + self.operate + self.answer + self.decrypt + self.transfer

    @property
    def extrapolated(self) -> bool:
        """Whether the measurement was smaller than the federation."""
        return self.values_beyond > 1 or self.clients_beyond > 1

    def basis(self) -> str:
        """A text that says what was measured, and how far the prediction extrapolates."""
        if self.excluded:
            return "not measured"
        to = f" to {self.largest:,}" if self.largest > self.smallest else ""
        measured = f"{self.smallest:,}{to} values, {self.clients} {'clients' if self.clients > 1 else 'client'}"
        beyond = [("values", self.values_beyond), ("clients", self.clients_beyond)]
        far = [f"{number(times)} times the {what}" for what, times in beyond if times > 1]
        return f"{measured}; extrapolated to {' and '.join(far)}" if far else f"{measured}; as asked for"

    def why(self) -> str:
        """A text that names the largest term, or why the scheme is excluded."""
        if self.excluded:
            return self.excluded
        terms = {"encrypting": self.encrypt, "the server": self.operate, "decrypting": self.decrypt}
        terms["the committee"] = self.answer
        terms["the link"] = self.transfer
        name, most = max(terms.items(), key=lambda item: item[1])
        return f"{most / self.seconds:.0%} of the round is {name}"


def advise(
    federation: Federation,
    schemes: list[str] | None = None,
    on_progress: Callable[[int, str], None] | None = None,
    seconds: float = 25.0,
) -> list[Prediction]:
    """Predictions for every scheme, the fastest round first and excluded schemes last.

    All measurements together take at most ``seconds``. ``on_progress`` is called with the number of finished schemes
    and a text on the current measurement.
    """
    until = time.perf_counter() + seconds
    names = schemes or scheme_names()
    found: list[Prediction] = []
    widths: dict[str, int] = {}
    for name in names:
        try:
            widths[name] = _per_ciphertext(name, federation)
        except FedcipherError as error:
            found.append(Prediction(name, excluded=str(error)))
    # Schemes with larger ciphertexts are slower, so they come later. The last scheme gets all the time that is left.
    for left, name in zip(
        range(len(widths), 0, -1),
        sorted(widths, key=lambda name: widths[name]),
        strict=True,
    ):

        def show_progress(text: str) -> None:
            if on_progress is not None:
                on_progress(len(found), text)

        show_progress(name)
        share = (until - time.perf_counter()) / (left + (left > 1))
        found.append(_predicted(name, widths[name], federation, share, show_progress))
    if on_progress is not None:
        on_progress(len(names), "done")
    return sorted(found, key=lambda p: (bool(p.excluded), p.seconds))


def _case(name: str, federation: Federation) -> Case:
    return Case(name, name, federation.values, federation.clients, 1, federation.bits)


def _per_ciphertext(name: str, federation: Federation) -> int:
    """`Scheme.values_per_ciphertext`. Raises `FedcipherError` if the scheme does not fit or cannot be measured."""
    info = scheme_class(name).info
    if not info.hides:
        raise UnsupportedError("encrypts nothing; the scheme is for comparison only")
    if federation.threat == "collusion" and not info.committee:
        raise UnsupportedError(f"broken by {info.broken_by}")
    if federation.threat == "quantum" and not info.post_quantum:
        raise UnsupportedError("not post-quantum")
    return _case(name, federation).made().values_per_ciphertext


def _predicted(
    name: str, per_ciphertext: int, federation: Federation, seconds: float, show_progress: Callable[[str], None]
) -> Prediction:
    values = federation.values
    points: list[Point] = []
    try:
        for point in calibrated(_case(name, federation), seconds):
            points.append(point)
            show_progress(f"{name}, {point.values:,} values measured")
    except FedcipherError as error:
        return Prediction(name, excluded=f"{type(error).__name__}: {error}")
    if not points:
        first = sizes(values, per_ciphertext)[0]
        why = f"{first:,} values take longer than the {seconds:.0f} s of this scheme; give more --seconds"
        return Prediction(name, excluded=why)

    def at(of: Callable[[Point], float]) -> float:
        return line(points, values, of, per_ciphertext)

    wall = {term: at(lambda p, t=term: _scaled(p, t, federation)) for term in TERMS}
    update, aggregate = round(at(lambda p: p.update_bytes)), round(at(lambda p: p.aggregate_bytes))
    last = points[-1]
    transfer, asking = federation.link.seconds(update) + federation.link.seconds(aggregate), 0.0
    if last.members:
        asking = federation.link.seconds(_request_bytes(last, federation)) + federation.link.seconds(last.answer_bytes)
    return Prediction(
        name,
        encrypt=wall["encrypt"],
        operate=federation.clients * wall["operate"],
        decrypt=wall["decrypt"],
        answer=wall["answer"],
        transfer=transfer + asking,
        asking=asking,
        members=last.members,
        update_bytes=update,
        aggregate_bytes=aggregate,
        smallest=points[0].values,
        largest=last.values,
        clients=last.clients,
        values_beyond=values / last.values,
        clients_beyond=federation.clients / last.clients,
    )


def _request_bytes(point: Point, federation: Federation) -> int:
    """Bytes of a request to one member: a sealed share of each client, independent of the update's size."""
    return round(point.request_bytes * federation.clients / point.clients)


def _scaled(point: Point, term: str, federation: Federation) -> float:
    """A term's seconds, scaled to the federation's cores if the term used all cores of this machine."""
    here = os.cpu_count() or 1
    cores = federation.server_cores if term == "operate" else federation.client_cores
    spreads = point.wall[term] > _MIN_SECONDS and point.busy[term] > 1.0 + 0.3 * (here - 1)
    return point.wall[term] * here / cores if spreads else point.wall[term]


def _measured(name: str, federation: Federation, values: int, clients: int, runs: int) -> CaseResult:
    study = run_study("advise", [Case(name, name, values, clients, _SUMS, federation.bits)], runs=runs, link=Link())
    if study.interrupted:
        raise KeyboardInterrupt
    result = study.results[0]
    if result.failure or not result.runs:
        raise BenchError(f"{name} could not be measured: {result.failure}")
    return result


@dataclass(frozen=True)
class Checked:
    """A prediction, and the seconds measured in a client and a server process."""

    prediction: Prediction
    encrypt: float
    operate: float
    answer: float
    decrypt: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Seconds of the measured round, from the same terms as the prediction."""
        return self.encrypt + self.operate + self.answer + self.decrypt + self.transfer

    @property
    def error(self) -> float:
        """The prediction's relative error: 0.1 if it is 10 % too high."""
        return self.prediction.seconds / self.seconds - 1


def check(federation: Federation, prediction: Prediction) -> Checked:
    """Measure a predicted round in a client and a server process. Raises `BenchError` if the run fails.

    The link's times are computed, and the committee's transfer times are taken from the prediction.
    """
    name, clients = prediction.scheme, federation.clients
    summary = summarise(_measured(name, federation, federation.values, clients, _RUNS))
    sizes = (summary["one update"].minimum, summary["one aggregate"].minimum)
    return Checked(
        prediction,
        encrypt=summary["encrypt"].minimum / _SUMS / clients,
        operate=summary["operate"].minimum / _SUMS,
        answer=summary["answer"].minimum / _SUMS / max(1, prediction.members),
        decrypt=summary["decrypt"].minimum / _SUMS,
        transfer=sum(federation.link.seconds(int(size)) for size in sizes) + prediction.asking,
    )
