# pyright: basic
"""`fedcipher train`: keys, a simulated federation, a progress bar, a table and a report."""

from __future__ import annotations

import logging
import os
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedcipher import keys as key_files
from fedcipher.app.client_app import make_client_app
from fedcipher.app.report import Report, RoundResult
from fedcipher.app.server_app import make_server_app
from fedcipher.app.settings import Settings
from fedcipher.data import load, partition
from fedcipher.engine import Authority
from fedcipher.engine.local import start_engines
from fedcipher.errors import FedcipherError
from fedcipher.flower import RoundRecord
from fedcipher.keys.provider import FileKeys, ServerKeys
from fedcipher.schemes import Scheme

__all__ = ["train", "weight_unit"]

_EQUAL_WITHIN = 0.02


def weight_unit(sizes: list[int], levels: int) -> tuple[float, int]:
    """(examples per weight, max weight) for clients of these sizes; equal sizes need no weights."""
    largest, smallest = max(sizes), min(sizes)
    if largest - smallest <= _EQUAL_WITHIN * largest:
        return 0.0, 1
    return largest / levels, levels


def client_sizes(settings: Settings) -> list[int]:
    """Training examples of each client."""
    labels = load(settings.dataset, settings.data_dir or None).train_y
    return [len(p) for p in partition(labels, settings.clients, alpha=settings.dirichlet or None, seed=settings.seed)]


def train(
    settings: Settings, scheme: Scheme, out: Path, command: list[str], *, link_mbit: float, engine: bool = False
) -> Report:
    """Run the app in Flower's simulation; writes ``report.json`` and ``report.html`` to ``out``.

    With ``engine``, an authority and an engine are started as processes of their own; the clients have
    no keys.
    """
    console = Console()
    logging.basicConfig(handlers=[RichHandler(console=console, show_path=False)], format="%(message)s", force=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # One thread a client: the simulation already runs one client a core.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    # Ray forks to start its daemons before any of this process's JAX threads hold locks.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    report = Report.begin(asdict(settings), scheme, shlex.join(["fedcipher", *command]), link_mbit)
    columns = (
        TextColumn("[bold]round"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    from flwr.simulation import run_simulation

    with ExitStack() as stack:
        keys = stack.enter_context(_keys(settings, scheme, engine))
        progress = stack.enter_context(Progress(*columns, console=console))
        task = progress.add_task("starting clients", total=settings.rounds)
        began = [time.perf_counter()]

        def on_round(record: RoundRecord, metrics: MetricRecord) -> None:
            now = time.perf_counter()
            result = RoundResult.of(record, dict(metrics), now - began[0])
            began[0] = now
            report.rounds.append(result)
            accuracy = result.metrics.get("accuracy", float("nan"))
            progress.update(task, advance=1, description=f"accuracy {accuracy:.2%}")

        steps = progress.add_task("server", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            progress.update(steps, completed=done, total=total, visible=total > 0, description="aggregating")

        try:
            run_simulation(
                server_app=make_server_app(settings, on_round, on_progress, keys),
                client_app=make_client_app(settings),
                num_supernodes=settings.clients,
                backend_config=_backend(),
            )
        except FedcipherError:
            raise
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, FedcipherError):
                cause = cause.__cause__
            raise (cause or error) from error
        finally:
            if report.rounds:
                report.write(out)
    report.show(console)
    console.print(f"report: {out / 'report.html'}")
    return report


@contextmanager
def _keys(settings: Settings, scheme: Scheme, engine: bool) -> Iterator[ServerKeys]:
    """The aggregator's keys; the clients' are in files, or in an engine that the environment names."""
    if not engine:
        key_files.save(scheme.keygen(settings.clients), scheme, settings.keys)
        with _environment("FEDCIPHER_KEYS", settings.keys):
            yield FileKeys(settings.keys)
        return
    with (
        start_engines(scheme, settings.clients, Path(settings.keys)) as local,
        _environment("FEDCIPHER_ENGINE", local.target),
    ):
        yield Authority(local.authority.address, local.server_credentials)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Ray's workers inherit it."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _backend() -> dict[str, Any]:
    quiet = {"num_cpus": os.cpu_count() or 1, "log_to_driver": False, "include_dashboard": False}
    return {"init_args": quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
