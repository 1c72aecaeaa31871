# pyright: basic
"""Runs `fedcipher train`: makes keys, simulates a federation, shows progress and writes a report."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.logging import RichHandler
from rich.progress import Progress, TimeRemainingColumn

from fedcipher import keys as key_files
from fedcipher._environment import variable
from fedcipher._files import make_private_folder, resolved, write_whole
from fedcipher._terminal import console, progress
from fedcipher.adapters.flower import RoundRecord, SecureStrategy
from fedcipher.adapters.flower.wrapped_strategy import aggregate_by
from fedcipher.app.answers import evaluated, pool_evaluations
from fedcipher.app.client_app import make_client_app
from fedcipher.app.examples import sizes
from fedcipher.app.library_logs import capture_library_logs
from fedcipher.app.memory import at_once, available, resident
from fedcipher.app.outcome import failure
from fedcipher.app.report import Report, RoundResult
from fedcipher.app.report_page import write_report
from fedcipher.app.server_app import make_server_app
from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.engine import Authority, Engine, connect
from fedcipher.engine.accelerator import Accelerator, usage
from fedcipher.engine.local import start_engines
from fedcipher.errors import FedcipherError, LostRoundsError, RunError
from fedcipher.federation.curves import Curves
from fedcipher.federation.policy import POLICY_FILE, SIMULATION_POLICY
from fedcipher.federation.server.journal import read_journal
from fedcipher.federation.server.run_folder import free_folder, save_model
from fedcipher.foreign_text import quoting_log, show
from fedcipher.keys.provider import FileKeys
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.schemes import Scheme
from fedcipher.schemes.base import EPHEMERAL_STATE

__all__ = ["largest_weight", "train"]

_log = quoting_log("fedcipher")
_EQUAL_WITHIN = 0.02


def largest_weight(sizes: list[int]) -> float:
    """The largest number of examples that counts as a weight, for clients of these sizes; 0: no weights are needed."""
    largest, smallest = max(sizes), min(sizes)
    return 0.0 if largest - smallest <= _EQUAL_WITHIN * largest else float(largest)


def client_sizes(settings: Settings) -> list[int]:
    """The number of training examples of each client."""
    return sizes(settings, load(settings.dataset, settings.data_dir or None).train_y)


def train(
    settings: Settings,
    scheme: Scheme,
    out: Path,
    command: list[str],
    *,
    link_mbit: float,
    engine: bool = False,
    accelerator: Accelerator | None = None,
    beside: Scheme | None = None,
    dashboard: bool = False,
) -> Report:
    """Run the app in Flower's simulation and write ``report.json`` and ``report.html`` to ``out``.

    ``engine``: start an authority and an engine as separate processes, so that the clients have no keys.
    ``accelerator``: the engine computes on this accelerator.
    ``beside``: run a second time with the same settings under this scheme; the report has both runs.
    ``dashboard``: serve a page of the first run while this function runs.

    Raises `RunError`, after it has written the report, if a round failed (`fedcipher.app.outcome`).
    """
    screen = console()
    logging.basicConfig(handlers=[RichHandler(console=screen, show_path=False)], format="%(message)s", force=True)
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # One thread per client, because the simulation already runs one client per core.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    # The warning does not apply: Ray forks its daemons before JAX threads of this process hold locks.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    said = shlex.join(command)
    report = Report.begin(asdict(settings), scheme, said, link_mbit, engine=engine, accelerator=accelerator)
    # An absolute path, because Flower's processes run in other folders.
    settings = replace(settings, out=str(resolved(out / "run" if settings.resume else free_folder(out / "run"))))
    model = out / "model.npz"
    earlier = model.stat().st_mtime_ns if model.exists() and not settings.resume else None
    # Measured before all keys are made: a client's process holds its own key only.
    cores, few = at_once(os.cpu_count() or 1, settings.clients, resident(), available())
    if few:
        show(few, flush=True)
    try:
        shown: list[Curves] = []
        with _dashboard(dashboard, settings, shown), progress(screen, "round", TimeRemainingColumn()) as bar:
            past = _run(settings, scheme, report, bar, out, engine, cores, accelerator, shown.append)
            if beside is not None:
                report.beside = Report.begin(asdict(settings), beside, said, link_mbit)
                other = out / beside.name
                plain = replace(settings, keys=f"{settings.keys}-{beside.name}", out=str(resolved(other / "run")))
                _run(plain, beside, report.beside, bar, other, False, cores)
    finally:
        if report.rounds:
            if earlier is not None and model.stat().st_mtime_ns == earlier:
                # A model of an earlier run must not stand beside this run's report.
                model.unlink()
            write_report(report, out)
    report.show()
    show(f"report: {out / 'report.html'}, model: {out / 'model.npz'}")
    for made, began in ((report, past), (report.beside, 0)):
        why = failure(made.rounds[began:]) if made else ""
        if why:
            raise RunError(why)
    return report


@contextmanager
def _dashboard(wanted: bool, settings: Settings, curves: list[Curves]) -> Iterator[None]:
    """Serve the dashboard during the block if ``wanted``; ``curves`` is empty until the run has keys."""
    if not wanted:
        yield
        return
    from fedcipher.watch.app import serving
    from fedcipher.watch.run import WatchedRun

    run = WatchedRun(Path(settings.out), None, lambda: curves[-1] if curves else None, asdict(settings))
    with serving(run) as address:
        show(f"dashboard: {address}", flush=True)
        yield


def _run(
    settings: Settings,
    scheme: Scheme,
    report: Report,
    bar: Progress,
    out: Path,
    engine: bool,
    cores: int,
    accelerator: Accelerator | None = None,
    show: Callable[[Curves], None] = lambda _: None,
) -> int:
    """Run one simulation and add its rounds to ``report`` as they end.

    Returns the number of rounds in ``report`` that an earlier simulation, which this one resumes, had finished.
    ``show`` is called with the `Curves` that open the run's metrics.
    """
    # Ray sets up its log when it is imported.
    import ray  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from flwr.simulation import run_simulation

    with _own_state(settings), _keys(settings, scheme, engine, accelerator) as (keys, reader, used):
        curves = Curves(settings.out, reader, evaluate=aggregate_by(pool_evaluations))
        show(curves)
        task = bar.add_task(f"{scheme.name}: starting clients", total=settings.rounds)

        before: dict[str, float] = {}

        def on_round(record: RoundRecord) -> None:
            now = used()
            result = _opened(curves, record)
            if scheme.codec.privacy is not None and curves.arrays is not None and not record.unfinished:
                # With privacy the clients do not evaluate, because noise does not cover answers. The opened model
                # already has noise, so it may be evaluated here.
                result.metrics.update(evaluated(settings, curves.arrays))
            result.accelerator = {kind: value - before.get(kind, 0.0) for kind, value in now.items()}
            # Read again, so that the next round does not count the work of opening this round's metrics.
            before.update(used())
            report.rounds.append(result)
            accuracy = result.metrics.get("accuracy", float("nan"))
            bar.update(task, advance=1, description=f"{scheme.name}: accuracy {accuracy:.2%}")

        past_rounds = 0
        steps = bar.add_task("server", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            bar.update(steps, completed=done, total=total, visible=total > 0, description="aggregating")

        if settings.resume and (out / "run").exists():
            past = read_journal(out / "run")
            report.rounds += [_opened(curves, record) for record in past.finished]
            past_rounds = len(report.rounds)
            bar.update(task, advance=past_rounds)

        def on_end(strategy: SecureStrategy) -> None:
            # The keys are deleted with this run, so the model is saved as a client sees it.
            names, arrays = strategy.run.charter.names, strategy.open_model(curves.decryptor())
            save_model(out / "model.npz", dict(zip(names, arrays, strict=True)))

        # The report covers the finished rounds and names the lost ones.
        with suppress(LostRoundsError), capture_library_logs(out / "simulation.log"):
            run_simulation(
                server_app=make_server_app(settings, on_round, on_progress, keys, on_end),
                client_app=make_client_app(settings),
                num_supernodes=settings.clients,
                backend_config=_backend(cores),
            )
    return past_rounds


def _opened(curves: Curves, record: RoundRecord) -> RoundResult:
    """A round with the metrics that a client's key opens."""
    try:
        found = curves.read()
        made, not_opened = curves.filled(record), curves.missed.get(record.round, "")
    except FedcipherError as error:
        # Training continues without the metrics: only the report needs them.
        found, made, not_opened = {}, record, str(error)
    if not_opened:
        _log.warning("round %s is shown without its metrics: %s", record.round, not_opened)
    opened = found.get(record.round)
    return RoundResult.of(made, model=opened.model if opened else "", not_opened=not_opened)


def _state(settings: Settings) -> Path:
    keys = Path(settings.keys)
    return keys.with_name(f"{keys.name}-state")


@contextmanager
def _own_state(settings: Settings) -> Iterator[None]:
    """Keep the simulated clients' state beside their keys, with the policy for simulations instead of a site's."""
    state = _state(settings)
    make_private_folder(state)
    policy = state / "policy.json"
    write_whole(policy, json.dumps(SIMULATION_POLICY.to_values()).encode())
    with (
        variable("FEDCIPHER_STATE_DIR", str(state)),
        variable(EPHEMERAL_STATE, "1"),
        variable(POLICY_FILE, str(policy)),
    ):
        yield


@contextmanager
def _keys(
    settings: Settings, scheme: Scheme, engine: bool, accelerator: Accelerator | None
) -> Iterator[tuple[ServerKeys, Path | Engine, Callable[[], dict[str, float]]]]:
    """The aggregator's keys, a client's key file or engine, and a function that gives the accelerators' usage.

    During the block an environment variable names the clients' key folder or their engine.
    """
    if not engine:
        folder = Path(settings.keys)
        if settings.resume and not folder.exists() and (folder.parent / "run").exists():
            raise RunError(
                f"the run in {folder.parent} has ended and its keys are deleted: name another folder with --out"
            )
        if not (settings.resume and (folder / "server.key").exists()):
            key_files.save(scheme.keygen(settings.clients), scheme, folder)
        with variable("FEDCIPHER_KEYS", settings.keys):
            yield FileKeys(folder), key_files.client_file(folder, 0), dict
        if settings.resume:
            # The run has ended and needs its keys no longer.
            shutil.rmtree(folder)
            shutil.rmtree(_state(settings), ignore_errors=True)
        return
    with (
        start_engines(scheme, settings.clients, Path(settings.keys), on=accelerator) as local,
        variable("FEDCIPHER_ENGINE", local.target),
    ):
        keys = Authority(local.authority.address, local.server_credentials)
        page = local.metrics if accelerator else ""
        used = (lambda: usage(page)) if accelerator else dict
        yield keys, connect(local.target, device="client-0"), used


def _backend(cores: int) -> dict[str, Any]:
    quiet = {"num_cpus": cores, "log_to_driver": False, "include_dashboard": False}
    return {"init_args": quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
