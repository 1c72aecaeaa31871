"""Measures one scheme on growing updates for as long as there is time, in a process that can be ended.

An update's cost grows by whole ciphertexts (`Scheme.values_per_ciphertext`). Sizes are therefore one
grain, two grains, and then more of them, so that the two largest sizes lie on the line that the cost follows; no size
is a part of a grain but the one that was asked for.
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
"""What a round takes a client, the server for one client, a reader, and a member of a committee (0 without one)."""
_FEWEST = 16
"""Values of the first size where a grain is less."""
_STEPS = (1, 2, 16, 128, 1024, 8192, 65_536)
_MOST_CLIENTS = 10
"""Clients of a calibration; the server's work for more of them is continued as a straight line."""
_RUNS = 3
_BRIEF = 0.1
"""Seconds in which a size is measured more often than `_RUNS` times."""
_MOST_RUNS = 20
_LONG, _CLOSE = 0.3, 0.1
"""Seconds of a round, and the share by which a foretold one may be off, for a scheme to be known well enough."""


@dataclass(frozen=True)
class Point:
    """One size: seconds of each term for one update (``operate``: one client's share), cores kept busy, frame bytes.

    ``request_bytes`` and ``answer_bytes`` are those of one of ``members`` members of a committee.
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
        """What a round of so many clients took when they were played one after the other."""
        clients_part = clients * (self.wall["encrypt"] + self.wall["operate"])
        return clients_part + self.wall["decrypt"] + self.members * self.wall.get("answer", 0.0)


def sizes(values: int, grain: int) -> list[int]:
    """Update sizes to measure, the last one ``values`` itself."""
    first = max(grain, _FEWEST)
    return [*(first * step for step in _STEPS if first * step < values), values]


def line(points: list[Point], values: int, of: Callable[[Point], float], grain: int = 1) -> float:
    """A straight line through the last two points, at ``values`` rounded up to whole grains.

    Through the origin where there is one point only, and where the last two are about the same: such a
    term grows in steps that are larger than both.
    """
    exact = next((p for p in points if p.values == values), None)
    if exact is not None:
        return of(exact)
    values = -(-values // grain) * grain
    last = points[-1]
    if len(points) > 1:
        before = points[-2]
        slope = (of(last) - of(before)) / (last.values - before.values)
        if slope * last.values > of(last) / 2:
            return of(last) + slope * (values - last.values)
    return of(last) * values / last.values


def calibrated(case: Case, seconds: float) -> Iterator[Point]:
    """Points of growing size up to the case's own, as far as one gets in ``seconds``.

    The process is ended then, whatever it is doing. Raises `BenchError` where the scheme cannot be measured at all.
    """
    command = [sys.executable, "-m", "fedcipher.bench.calibrate"]
    began = time.perf_counter()
    # Of its own session: Ctrl-C is this process's to handle. It ends when its standard input does.
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
            # A process may be over before it has heard what to do.
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
    # An end before its time that nobody asked for.
    if process.returncode > 0 and time.perf_counter() - began < seconds:
        raise BenchError(f"the process that measures {case.scheme} ended with status {process.returncode}")


def _points(case: Case, seconds: float) -> Iterator[Point]:
    made = case.made()
    until = time.perf_counter() + seconds
    least = min(made.min_contributions, case.clients)
    most = max(min(case.clients, _MOST_CLIENTS), least)
    keys = case.keys(made)
    points: list[Point] = []
    number = 0
    for values in sizes(case.values, made.values_per_ciphertext):
        left = until - time.perf_counter()
        # One client, or as few as may be, where a scheme is slow, and while it is not known how slow.
        clients = least
        if points:
            if _expected(points, values, clients, made.values_per_ciphertext) > left or _settled(
                points, made.values_per_ciphertext
            ):
                return
            # All of them where a round costs little of the time that is left.
            clients = most if _expected(points, values, most, made.values_per_ciphertext) < left / 6 else clients
        rng = np.random.default_rng(0)
        updates: list[list[Array]] = [[rng.normal(0, 0.2, values).astype(np.float32)] for _ in range(clients)]
        runs: list[Point] = []
        spent = 0.0
        while not runs or (spent < left / 8 and len(runs) < (_MOST_RUNS if spent < _BRIEF else _RUNS)):
            number += 1
            runs.append(_round(made, keys, updates, number))
            spent += runs[-1].seconds(clients)
        points.append(_least(runs))
        yield points[-1]


def _settled(points: list[Point], grain: int) -> bool:
    """Whether the last size took long, and what the two before it had foretold: larger ones will say no more."""
    if len(points) < 3 or points[-1].seconds(points[-1].clients) < _LONG:
        return False
    *before, last = points
    return abs(_expected(before, last.values, 1, grain) / last.seconds(1) - 1) < _CLOSE


def _expected(points: list[Point], values: int, clients: int, grain: int) -> float:
    return line(points, values, lambda p: p.seconds(clients), grain)


def _least(runs: list[Point]) -> Point:
    """Each term's shortest time: what is longer is other work of this machine."""
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
    """Seconds, and the cores that this process kept busy in them."""

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
    """For `calibrated`: a case on standard input, a line of JSON a point on standard output."""
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
