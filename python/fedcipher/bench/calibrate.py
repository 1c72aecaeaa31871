"""Measures one scheme on growing updates until its time is over, in a process that can be killed.

The cost of an update grows in steps of whole ciphertexts (`Scheme.values_per_ciphertext`). So all sizes fill whole
ciphertexts, except the size that was asked for. Then the two largest sizes lie on the line that the cost follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from fedcipher._scratch import scratch_folder
from fedcipher.bench.case import Case
from fedcipher.bench.server import end_with_parent
from fedcipher.codec import Array
from fedcipher.errors import BenchError, FedcipherError
from fedcipher.schemes import Committee, CommitteeRound, KeySet, Scheme

__all__ = ["TERMS", "Point", "calibrated", "line", "sizes"]

TERMS = ("encrypt", "operate", "decrypt", "answer")
"""The steps of a round: a client, the server for one client, a reader, a committee's member (0 without one)."""
_MIN_VALUES = 16
"""Values of the first size, if a ciphertext holds fewer."""
_STEPS = (1, 2, 16, 128, 1024, 8192, 65_536)
_MAX_CLIENTS = 10
"""Clients of a calibration. The server's work for more clients is extrapolated as a straight line."""
_RUNS = 3
_BRIEF = 0.1
"""While a size has taken fewer seconds than this, it is measured up to `_MAX_RUNS` times instead of `_RUNS`."""
_MAX_RUNS = 20
_LONG, _CLOSE = 0.3, 0.1
"""The calibration ends after a round of `_LONG` seconds that was predicted with at most this relative error."""


@dataclass(frozen=True)
class Point:
    """The measurement of one size.

    ``wall``: seconds of each term for one update (``operate``: the server's work for one client). ``busy``: busy cores
    in each term. ``request_bytes`` and ``answer_bytes``: for one of the committee's ``members``.
    """

    values: int
    clients: int
    wall: dict[str, float]
    busy: dict[str, float]
    update_bytes: int
    aggregate_bytes: int
    members: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0

    def seconds(self, clients: int) -> float:
        """Seconds of a round of so many clients that run one after the other in this process."""
        clients_part = clients * (self.wall["encrypt"] + self.wall["operate"])
        return clients_part + self.wall["decrypt"] + self.members * self.wall.get("answer", 0.0)


def sizes(values: int, per_ciphertext: int) -> list[int]:
    """Update sizes to measure, in values; the last one is ``values``."""
    first = max(per_ciphertext, _MIN_VALUES)
    return [*(first * step for step in _STEPS if first * step < values), values]


def line(points: list[Point], values: int, of: Callable[[Point], float], per_ciphertext: int = 1) -> float:
    """The value at ``values``, rounded up to whole ciphertexts, of a straight line through the last two points.

    The line goes through the origin and the last point if there is only one point, or if the last two are about equal:
    such a term grows in steps that are larger than both sizes.
    """
    exact = next((p for p in points if p.values == values), None)
    if exact is not None:
        return of(exact)
    values = -(-values // per_ciphertext) * per_ciphertext
    last = points[-1]
    if len(points) > 1:
        before = points[-2]
        slope = (of(last) - of(before)) / (last.values - before.values)
        if slope * last.values > of(last) / 2:
            return of(last) + slope * (values - last.values)
    return of(last) * values / last.values


def calibrated(case: Case, seconds: float) -> Iterator[Point]:
    """Yield points of growing size, at most the case's size, that can be measured in ``seconds``.

    After this time the measuring process is killed. Raises `BenchError` if the scheme cannot be measured at all.
    """
    command = [sys.executable, "-m", "fedcipher.bench.calibrate"]
    began = time.perf_counter()
    # In a new session, so that only this process handles Ctrl-C. The child ends when its standard input is closed.
    with (
        scratch_folder("fedcipher-advise-") as state,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            # The process may have ended before it reads the case.
            with contextlib.suppress(BrokenPipeError):
                asked = {"case": case.to_dict(), "seconds": seconds, "began": time.time(), "state": state}
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
            for text in process.stdout:
                # A killed process may leave half a line.
                said: dict[str, Any] = json.loads(text) if text.endswith("}\n") else {}
                if "failure" in said:
                    raise BenchError(said["failure"])
                if said:
                    yield Point(**said)
        finally:
            timer.cancel()
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    # The process failed, and was not killed by the timer.
    if process.returncode > 0 and time.perf_counter() - began < seconds:
        raise BenchError(f"the process that measures {case.scheme} ended with status {process.returncode}")


def _points(case: Case, seconds: float) -> Iterator[Point]:
    made = case.made()
    until = time.perf_counter() + seconds
    least = min(made.min_contributions, case.clients)
    most = max(min(case.clients, _MAX_CLIENTS), least)
    keys = case.keys(made)
    points: list[Point] = []
    number = 0
    for values in sizes(case.values, made.values_per_ciphertext):
        left = until - time.perf_counter()
        # The minimum of clients, if the scheme is slow or its speed is not known yet.
        clients = least
        if points:
            if _expected(points, values, clients, made.values_per_ciphertext) > left or _is_predictable(
                points, made.values_per_ciphertext
            ):
                return
            # More clients, if a round costs little of the time that is left.
            clients = most if _expected(points, values, most, made.values_per_ciphertext) < left / 6 else clients
        rng = np.random.default_rng(0)
        updates: list[list[Array]] = [[rng.normal(0, 0.2, values).astype(np.float32)] for _ in range(clients)]
        runs: list[Point] = []
        spent = 0.0
        while not runs or (spent < left / 8 and len(runs) < (_MAX_RUNS if spent < _BRIEF else _RUNS)):
            number += 1
            runs.append(_round(made, keys, updates, number))
            spent += runs[-1].seconds(clients)
        points.append(_shortest(runs))
        yield points[-1]


def _is_predictable(points: list[Point], per_ciphertext: int) -> bool:
    """Whether the last size took long and the points before it had predicted its time, so larger sizes add nothing."""
    if len(points) < 3 or points[-1].seconds(points[-1].clients) < _LONG:
        return False
    *before, last = points
    return abs(_expected(before, last.values, 1, per_ciphertext) / last.seconds(1) - 1) < _CLOSE


def _expected(points: list[Point], values: int, clients: int, per_ciphertext: int) -> float:
    return line(points, values, lambda p: p.seconds(clients), per_ciphertext)


def _shortest(runs: list[Point]) -> Point:
    """The shortest time of each term, because longer times include other work of this machine."""
    best = {term: min(runs, key=lambda r, t=term: r.wall[t]) for term in TERMS}
    return Point(
        runs[0].values,
        runs[0].clients,
        {term: best[term].wall[term] for term in TERMS},
        {term: best[term].busy[term] for term in TERMS},
        runs[0].update_bytes,
        runs[0].aggregate_bytes,
        runs[0].members,
        runs[0].request_bytes,
        runs[0].answer_bytes,
    )


def _round(made: Scheme, keys: KeySet, updates: list[list[Array]], number: int) -> Point:
    clocks = {term: _Clock() for term in TERMS}
    server = keys.server()
    plan = made.round_plan(server, range(len(updates)))
    frames: list[bytes] = []
    committee = made.committee
    prekeys = [] if committee is None else committee.prekeys(keys)
    for client, update in enumerate(updates):
        encryptor = made.encryptor(keys.client(client))
        encryptor.take_prekeys(prekeys)
        with clocks["encrypt"]:
            frames.append(encryptor.encrypt(update, round=number, round_plan=plan))
    with clocks["operate"]:
        aggregator = made.aggregator(server, round=number)
        for frame in frames:
            aggregator.add(frame)
        requests = {} if aggregator.committee is None else aggregator.committee.requests()
    answers = [b""]
    for member, request in requests.items():
        holder = cast(Committee, committee).member(keys.client(member))
        with clocks["answer"]:
            answers.append(holder.answer(request))
    with clocks["operate"]:
        for answer in answers[1:]:
            cast(CommitteeRound, aggregator.committee).answer(answer)
        aggregate = aggregator.finish()
    decryptor = made.decryptor(keys.client(0))
    with clocks["decrypt"]:
        decryptor.decrypt(aggregate, round=number)
    count = len(updates)
    parts = {"encrypt": count, "operate": count, "decrypt": 1, "answer": max(1, len(requests))}
    return Point(
        len(updates[0][0]),
        count,
        {term: clocks[term].wall / parts[term] for term in TERMS},
        {term: clocks[term].cores for term in TERMS},
        len(frames[0]),
        len(aggregate),
        len(requests),
        max(map(len, requests.values()), default=0),
        len(answers[-1]),
    )


class _Clock:
    """Adds up seconds, and the processor time of this process in them."""

    wall = 0.0
    cpu = 0.0

    def __enter__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]

    @property
    def cores(self) -> float:
        return self.cpu / self.wall if self.wall > 0 else 1.0


def main() -> int:
    """Run the child process of `calibrated`: a case on standard input, a line of JSON per point on standard output."""
    asked = json.loads(sys.stdin.readline())
    end_with_parent(asked["state"])
    os.environ["FEDCIPHER_STATE_DIR"] = asked["state"]
    try:
        left = asked["seconds"] - (time.time() - asked["began"])
        for point in _points(Case(**asked["case"]), left):
            print(json.dumps(asdict(point)), flush=True)
    except FedcipherError as error:
        print(json.dumps({"failure": f"{type(error).__name__}: {error}"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
