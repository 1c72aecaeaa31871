"""Time and memory of a server against clients and values: the tables of docs/evidence/scale.md, `make scale`.

The server is a process of its own that reads frames from a pipe, so that its peak of memory is its own; clients are
made one after the other in this one. `--small` is a try of the same in a minute, and writes nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from fedcipher import Codec, _native
from fedcipher.scale import RayWorkers
from fedcipher.schemes import Scheme, every_scheme, from_spec, scheme, scheme_class
from measure import machine
from report import into_page, table

_NAMES = tuple(v.name for v in every_scheme() if v.first and v.info.hides and not v.info.workers)
_BITS = 12
# A round may take this long at an aggregator, and this is its link: what a tree is made for.
_ROUND_SECONDS, _LINK = 60.0, 10e9 / 8


@dataclass
class Point:
    """A round: seconds of each client, of the server's additions and its end, of members; bytes."""

    name: str
    clients: int
    values: int
    encrypt: float
    add: float
    end: float
    members: float
    opened: float
    up: int
    peak: int


def _send(pipe: IO[bytes], frame: bytes) -> None:
    pipe.write(struct.pack("<Q", len(frame)))
    pipe.write(frame)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    return pipe.read(struct.unpack("<Q", pipe.read(8))[0])


def serve() -> None:
    """The server's process: a spec, its key and a count of frames come in; the aggregate and what it cost go out."""
    taken, given = sys.stdin.buffer, sys.stdout.buffer
    made = from_spec(json.loads(_receive(taken)))
    aggregator = made.aggregator(_native.ServerKey.from_bytes(_receive(taken)))
    added = 0.0
    for _ in range(int(_receive(taken))):
        frame = _receive(taken)
        began = time.perf_counter()
        aggregator.add(frame)
        added += time.perf_counter() - began
    began = time.perf_counter()
    requests = aggregator.committee.requests() if aggregator.committee else {}
    ended = time.perf_counter() - began
    _send(given, str(len(requests)).encode())
    for member, request in requests.items():
        _send(given, str(member).encode())
        _send(given, request)
    for _ in requests:
        answer = _receive(taken)
        began = time.perf_counter()
        aggregator.committee.answer(answer)
        ended += time.perf_counter() - began
    began = time.perf_counter()
    frame = aggregator.finish()
    ended += time.perf_counter() - began
    _send(given, frame)
    _send(given, json.dumps({"add": added, "end": ended, "peak": _peak()}).encode())


def _peak() -> int:
    # Not getrusage's: that is the parent's too, from before its program was replaced by this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _made(name: str, clients: int) -> Scheme:
    more: dict[str, Any] = {"members": 5} if name == "oneshot" else {}
    return scheme(name, codec=Codec(bits=_BITS, clip=1.0), clients=max(clients, 5), min_contributions=3, **more)


def measured(name: str, clients: int, values: int) -> Point:
    """One round, whose mean is compared with what it must be."""
    made = _made(name, clients)
    keys = made.keygen(max(clients, 5))
    rng = np.random.default_rng(clients)
    update = rng.uniform(-1, 1, values).astype(np.float32)
    command = [sys.executable, __file__, "serve"]
    with (
        tempfile.TemporaryDirectory() as state,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server,
    ):
        os.environ["FEDCIPHER_STATE_DIR"] = state
        assert server.stdin is not None and server.stdout is not None
        for part in (json.dumps(made.spec()).encode(), keys.server().to_bytes(), str(clients).encode()):
            _send(server.stdin, part)
        plan = made.round_plan(keys.server(), range(clients))
        prekeys, encrypting, up = (made.committee.prekeys(keys) if made.committee else []), 0.0, 0
        for client in range(clients):
            encryptor = made.encryptor(keys.client(client))
            began = time.perf_counter()
            encryptor.take_prekeys(prekeys)
            frame = encryptor.encrypt([update], round=1, round_plan=plan)
            encrypting += time.perf_counter() - began
            up = len(frame)
            _send(server.stdin, frame)
        members = 0.0
        answers: list[bytes] = []
        for _ in range(int(_receive(server.stdout))):
            member = made.committee.member(keys.client(int(_receive(server.stdout))))
            request = _receive(server.stdout)
            began = time.perf_counter()
            answers.append(member.answer(request))
            members += time.perf_counter() - began
        for answer in answers:
            _send(server.stdin, answer)
        aggregate = _receive(server.stdout)
        cost = json.loads(_receive(server.stdout))
        decryptor = made.decryptor(keys.client(0))
        began = time.perf_counter()
        (mean,) = decryptor.decrypt(aggregate)
        opened = time.perf_counter() - began
    np.testing.assert_allclose(mean, update, atol=1.01 / (2**_BITS - 2))
    point = Point(
        name, clients, values, encrypting / clients, cost["add"], cost["end"], members, opened, up, cost["peak"]
    )
    print(json.dumps(asdict(point)), file=sys.stderr, flush=True)
    return point


def exponent(points: list[Point], of: str, over: str) -> float:
    """The slope in a log-log plot, through the last three points."""
    points = sorted(points, key=lambda p: getattr(p, over))[-3:]
    x = np.log([getattr(p, over) for p in points])
    y = np.log([getattr(p, of) for p in points])
    return float(np.polyfit(x, y, 1)[0])


def copying() -> float:
    """Bytes a second that all cores move, read and written, in copying arrays far larger than caches."""
    from concurrent.futures import ThreadPoolExecutor

    cores = os.cpu_count() or 1
    arrays = [(np.ones(1 << 25, np.float64), np.zeros(1 << 25, np.float64)) for _ in range(cores)]
    best = 0.0
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            best = max(best, cores * 2 * arrays[0][0].nbytes / (time.perf_counter() - began))
    return best


def curve(points: list[Point], over: str) -> str:
    """A table of one curve, with exponents."""
    head = ["scheme", "clients", "values", "encrypt, ms", "add, ms a client", "end of the round, s", "members, s"]
    head += ["open, ms", "up, MB", "server's peak, MB"]
    rows = [
        [
            f"`{p.name}`",
            f"{p.clients:,}",
            f"{p.values:,}",
            f"{1e3 * p.encrypt:.2f}",
            f"{1e3 * p.add / p.clients:.3f}",
            f"{p.end:.3f}",
            f"{p.members:.2f}" if p.members else "",
            f"{1e3 * p.opened:.1f}",
            f"{p.up / 1e6:.3f}",
            f"{p.peak / 1e6:.0f}",
        ]
        for p in points
    ]
    said: list[str] = []
    for name in _NAMES:
        own = [p for p in points if p.name == name]
        if len(own) > 2:
            fits = ", ".join(f"{of} {exponent(own, of, over):.2f}" for of in ("add", "peak", "encrypt", "opened"))
            said.append(f"`{name}`: {fits}")
    below = f"\n\nExponents over the last three points, against {over}: {'; '.join(said)}." if said else ""
    return table(head, rows) + below


def bandwidth(points: list[Point]) -> str:
    """How far from the memory's speed the additions of the largest update are."""
    copied = copying()
    largest = max(p.values for p in points)
    rows: list[list[str]] = []
    for p in points:
        if p.values == largest:
            # A frame is read; the sum, as large as it or larger, is read and written.
            moved = 3 * p.up * p.clients / p.add
            rows.append([f"`{p.name}`", f"{p.values:,}", f"{moved / 1e9:.1f}", f"{moved / copied:.0%}"])
    text = table(["scheme", "values", "GB/s moved by adding, at least", f"of {copied / 1e9:.1f} GB/s of copying"], rows)
    return f"{text}\n\nCopying is numpy's, an array a core, in the same run."


def tree(points: list[Point]) -> str:
    """The cost of 10^5 and 10^6 clients, extrapolated from the measurements."""
    rows: list[list[str]] = []
    for name in _NAMES:
        per_client = max((p for p in points if p.name == name), key=lambda p: p.clients * p.values)
        seconds = per_client.add / per_client.clients
        for clients in (10**5, 10**6):
            by_time, by_link = _ROUND_SECONDS / seconds, _ROUND_SECONDS * _LINK / per_client.up
            leaf = int(min(by_time, by_link))
            leaves = -(-clients // leaf)
            rows.append(
                [
                    f"`{name}`",
                    f"{clients:,}",
                    f"{clients * seconds / 3600:.2f}",
                    f"{clients * per_client.up / 1e12:.2f}",
                    f"{leaf:,} ({'its link' if by_link < by_time else 'adding'})",
                    f"{leaves:,}",
                ]
            )
    head = ["scheme", "clients", "hours of adding", "TB in", "clients a leaf takes in a minute", "leaves"]
    return table(head, rows)


def ray_work(values: int) -> str:
    """Transciphering here and on a Ray cluster of this machine's cores."""
    import ray

    made = scheme("pasta-bfv", codec=Codec(bits=_BITS, clip=1.0), clients=4, min_contributions=3)
    keys = made.keygen(4)
    frames = [
        made.encryptor(keys.client(c)).encrypt([np.linspace(-1, 1, values, dtype=np.float32)], round=1)
        for c in range(4)
    ]

    def added() -> Any:
        aggregator = made.aggregator(keys.server())
        for frame in frames:
            aggregator.add(frame)
        return aggregator

    aggregator, began = added(), time.perf_counter()
    here = aggregator.finish()
    alone = time.perf_counter() - began
    rows = [["one process, all cores", f"{alone:.1f}", ""]]
    for what in ("Ray, workers started in the round", "Ray, workers that have the key"):
        aggregator, began = added(), time.perf_counter()
        same = RayWorkers().finish(made, keys.server(), aggregator) == here
        rows.append([what, f"{time.perf_counter() - began:.1f}", "the same bytes" if same else "ANOTHER aggregate"])
    ray.shutdown()
    pieces = len(added().parts().pieces)
    said = f"4 clients, {values:,} values, {pieces} ciphertexts on {os.cpu_count()} cores: as many tasks."
    return f"{table(['pasta-bfv', 'seconds', 'aggregate'], rows)}\n\n{said}"


def main() -> None:
    """Measure, print, and write the tables into the page."""
    small = "--small" in sys.argv
    many = (10, 30, 100) if small else (10, 100, 1000, 10_000)
    long = (10_000, 100_000) if small else (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
    # A roster of 10,000 is in each of its parties' keys: as one process's keys they do not fit a machine.
    clients = [measured(n, c, 10_000) for n in _NAMES for c in many if not scheme_class(n).info.committee or c <= 1000]
    large = 10_000 if small else 1_000_000
    flat = [measured(n, c, large) for n in _NAMES for c in many if 10 < c <= 1000]
    values = [measured(n, 5, v) for n in _NAMES for v in long]
    today = datetime.datetime.now(datetime.timezone.utc).date()
    sections = [
        f"Written by `make scale` on {today}: {machine()}.",
        "## Clients, 10,000 values",
        curve(clients, "clients"),
        f"## Clients, {large:,} values",
        curve(flat, "clients"),
        "## Values, 5 clients",
        curve(values, "values"),
        "## Adding, and the memory's speed",
        bandwidth(values),
        "## Transciphering on Ray",
        ray_work(20_000 if small else 100_000),
        f"## A hundred thousand clients, and a million, {large:,} values each, on paper",
        tree(flat),
    ]
    text = "\n\n".join(sections)
    print(text)
    if not small:
        into_page("evidence/scale.md", "scale", text)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
