"""`make bench-offload`: the engine against the core in this process.

Fills its section of docs/evidence/benchmarks.md.
"""

from __future__ import annotations

import datetime
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedcipher import Codec, _native
from fedcipher.engine import Authority, Engine, connect
from fedcipher.engine.local import LocalEngines, Service, lock_arguments, run_program, start_engines, started
from fedcipher.schemes import Decryptor, Encryptor, Scheme, scheme
from measure import ROOT, machine, openssl_rate
from report import BEGIN, END, table, verdict

PARAMETERS = 1_200_000


@dataclass
class Path_:
    """One way to encrypt and decrypt."""

    name: str
    encryptor: Encryptor
    decryptor: Decryptor
    scheme: Scheme
    key: _native.ServerKey


@dataclass
class Cost:
    """Medians over rounds: wall seconds of both ways, CPU seconds of the host process."""

    encrypt: float
    decrypt: float
    cpu: float

    @property
    def wall(self) -> float:
        return self.encrypt + self.decrypt


def measure(paths: list[Path_], update: list[np.ndarray], rounds: int) -> dict[str, Cost]:
    """All paths round by round, so that what else the machine does falls on all of them."""
    samples: dict[str, list[tuple[float, float, float]]] = {path.name: [] for path in paths}
    for number in range(1, rounds + 2):
        for path in paths:
            cpu, began = time.process_time(), time.perf_counter()
            frame = path.encryptor.encrypt(update, round=number)
            encrypted, cpu = time.perf_counter() - began, time.process_time() - cpu
            aggregator = path.scheme.aggregator(path.key)
            aggregator.add(frame)
            aggregate = aggregator.finish()
            cpu_2, began = time.process_time(), time.perf_counter()
            path.decryptor.open(aggregate)
            decrypted = time.perf_counter() - began
            samples[path.name].append((encrypted, decrypted, cpu + time.process_time() - cpu_2))
    return {
        name: Cost(*(statistics.median(s[k] for s in taken[1:]) for k in range(3))) for name, taken in samples.items()
    }


@contextmanager
def tls_engine(local: LocalEngines, folder: Path, *arguments: str) -> Iterator[Service]:
    """One more engine, over loopback with mutual TLS, for the host `trainer`."""
    authority = ("fedcipher-authority", "--state", local.state)
    run_program(*authority, "enrol", "nic", "--out", folder / "nic")
    run_program(*authority, "enrol", "trainer", "--role", "host", "--device", "nic", "--out", folder / "trainer")
    run_program(*authority, "rotate", *lock_arguments())
    command = ("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", folder / "nic-state")
    credentials = ("--authority", local.authority.address, "--credentials", folder / "nic", "--host", "trainer")
    with started(*command, *credentials, *arguments, *lock_arguments(), log=folder / "nic.log") as service:
        yield service


def offloaded(name: str, engine: Engine, key: _native.ServerKey) -> Path_:
    return Path_(name, engine.encryptor(), engine.decryptor(), engine.scheme, key)


def compare(made: Scheme, update: list[np.ndarray], rounds: int) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["FEDCIPHER_STATE_DIR"] = str(folder / "state")
        issued = made.keygen(1)
        own = issued.client(0)
        local = stack.enter_context(start_engines(made, 1, folder / "run"))
        nic = stack.enter_context(tls_engine(local, folder))
        key = Authority(local.authority.address, local.server_credentials).current()
        time.sleep(1.5)
        paths = [
            Path_("in process", made.encryptor(own), made.decryptor(own), made, issued.server()),
            offloaded("Unix socket", connect(local.target), key),
            offloaded("loopback mTLS", connect(nic.address, credentials=folder / "trainer"), key),
        ]
        return measure(paths, update, rounds)


def peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match.group(1)) * 1024 if match else 0


def engine_memory(name: str, parameters: int) -> tuple[int, float]:
    """(peak resident bytes of a fresh engine, seconds) for one update of so many float32, there and back."""
    made = scheme(name, clients=10, min_contributions=1, codec=Codec(bits=16 if name == "flashe" else 12, clip=1.0))
    with tempfile.TemporaryDirectory() as folder, start_engines(made, 1, Path(folder) / "run") as local:
        engine = connect(local.target)
        key = Authority(local.authority.address, local.server_credentials).current()
        update = [np.random.default_rng(0).normal(0, 0.2, parameters).astype(np.float32)]
        began = time.perf_counter()
        frame = engine.encryptor().encrypt(update, round=1)
        seconds = time.perf_counter() - began
        aggregator = engine.scheme.aggregator(key)
        aggregator.add(frame)
        del frame
        aggregate = aggregator.finish()
        began = time.perf_counter()
        engine.decryptor().open(aggregate)
        return peak_bytes(local.engine.process.pid), seconds + time.perf_counter() - began


def concurrent(clients: int, rounds: int) -> tuple[int, float]:
    """(errors, seconds) of so many hosts, each with its own device and connection, on one engine."""
    made = scheme("flashe", clients=clients, min_contributions=1, codec=Codec(bits=16, clip=1.0))
    update = [np.random.default_rng(0).normal(0, 0.2, PARAMETERS).astype(np.float32)]
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder, start_engines(made, clients, Path(folder) / "run") as local:
        engines = [connect(local.target, device=f"client-{k}") for k in range(clients)]

        def host(engine: Engine) -> None:
            try:
                for number in range(1, rounds + 1):
                    engine.encryptor().encrypt(update, round=number)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=host, args=(engine,)) for engine in engines]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(failures), time.perf_counter() - began


def scheme_rows(title: str, costs: dict[str, Cost], *, targets: bool) -> list[list[str]]:
    base = costs["in process"]
    rows = []
    for name, limit in (("in process", 0.0), ("Unix socket", 1.15), ("loopback mTLS", 1.25)):
        cost = costs[name]
        ratio = cost.wall / base.wall
        goal = f"at most {limit}x: {verdict(ratio <= limit)}" if limit and targets else ""
        rows.append(
            [title, name, *(f"{s * 1e3:.2f}" for s in (cost.encrypt, cost.decrypt, cost.cpu)), f"{ratio:.2f}x", goal]
        )
    return rows


def main() -> None:
    rng = np.random.default_rng(0)
    update = [rng.normal(0, 0.2, (1000, PARAMETERS // 1000)).astype(np.float32)]
    flashe = compare(scheme("flashe", clients=10, min_contributions=1, codec=Codec(bits=16, clip=1.0)), update, 41)
    bfv = compare(scheme("bfv", clients=10, min_contributions=1, codec=Codec(bits=12, clip=1.0)), update, 21)
    paper = compare(
        scheme("bfv", clients=10, min_contributions=1, preset="fedbit-paper", codec=Codec(bits=8, clip=1.0)), update, 11
    )
    pasta = compare(
        scheme("pasta-bfv", clients=10, min_contributions=1, codec=Codec(bits=12, clip=1.0)),
        [update[0].reshape(-1)[:8000]],
        11,
    )
    head = ["scheme", "path", "encrypt (ms)", "decrypt (ms)", "host CPU (ms)", "wall over in process", "target"]
    rows = scheme_rows("FLASHE, 1.2 M parameters", flashe, targets=True)
    rows += scheme_rows("BFV `compact`, 1.2 M", bfv, targets=False)
    rows += scheme_rows("BFV `fedbit-paper`, 1.2 M", paper, targets=False)
    rows += scheme_rows("PASTA, 8,000", pasta, targets=False)

    figures = []
    for name, costs in (("FLASHE", flashe), ("BFV `compact`", bfv), ("BFV `fedbit-paper`", paper), ("PASTA", pasta)):
        saved = 1 - costs["Unix socket"].cpu / costs["in process"].cpu
        goal = f"at least 90%: {verdict(saved >= 0.9)}"
        figures.append([f"host CPU saved, {name}, what moves the bytes included", f"{saved:.0%}", goal])
    for name in ("flashe", "bfv"):
        runs = [[engine_memory(name, n) for _ in range(3)] for n in (25_000_000, 250_000_000)]
        (small, small_seconds), (large, large_seconds) = (sorted(r)[1] for r in runs)
        ratio = max(small, large) / min(small, large)
        text = f"{small / 1e6:.0f} MB and {large / 1e6:.0f} MB ({small_seconds:.1f} s and {large_seconds:.1f} s)"
        figures.append(
            [
                f"engine's peak memory, {name}, 100 MB and 1 GB update (median of 3)",
                text,
                f"within 10%: {verdict(ratio <= 1.1)}",
            ]
        )
    failed, seconds = concurrent(32, 4)
    moved = 32 * 4 * PARAMETERS * 4 / seconds / 1e9
    figures.append(
        [
            "32 clients at once, 4 updates of 1.2 M each",
            f"{failed} errors, {moved:.2f} GB/s",
            f"no error: {verdict(not failed)}",
        ]
    )
    # Values and frame, each both ways, sealed on one side and opened on the other, over all cores.
    travelled = 2 * (PARAMETERS * 4 + PARAMETERS * 20 / 8)
    floor = 2 * travelled / openssl_rate("aes-256-gcm") / (os.cpu_count() or 1)
    over = flashe["loopback mTLS"].wall - flashe["in process"].wall
    figures.append(
        [
            f"AES-256-GCM of the {travelled / 1e6:.1f} MB that TLS moves, both ends, at `openssl speed`'s rate",
            f"{floor * 1e3:.1f} ms of the {over * 1e3:.1f} ms over in process",
            "",
        ]
    )
    text = "\n\n".join(
        [
            BEGIN,
            "## The offload engine",
            f"Written by `make bench-offload` on {datetime.date.today()}: {machine()}. The engine is another process of"
            " the same machine and shares its cores, all of which work on an update of this size wherever it is."
            " Medians; the paths take turns. Host CPU is all of the host process: offloaded, none of it is quantising"
            " or cryptography of updates.",
            table(head, rows),
            table(["figure", "measured", "target"], figures),
            END,
        ]
    )
    print(text)
    page = ROOT / "docs" / "evidence" / "benchmarks.md"
    content = page.read_text(encoding="utf-8")
    before, _, rest = content.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before.rstrip() + "\n\n" + text + "\n" + after.lstrip("\n"), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
