"""Loggers that write a round's figures to a file, TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import io
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcipher._arguments import as_path
from fedcipher._files import create_private, own_target
from fedcipher._optional import load, require
from fedcipher.errors import ReportError
from fedcipher.foreign_text import quoting_log

if TYPE_CHECKING:
    # The command line imports this package even if Flower is not installed.
    from fedcipher.engine import Engine
    from fedcipher.federation.records import RoundRecord

__all__ = ["JsonLines", "MLflow", "TensorBoard", "WandB", "figures", "follow"]

_log = quoting_log("fedcipher.watch")


def figures(record: RoundRecord) -> dict[str, float]:
    """The figures of a round by name.

    ``clients/...``: the number of updates accepted, left out, refused by their own clients, and late.
    ``seconds/...``: the time of the round, of the server and, as a mean over clients, of each phase.
    ``bytes/...``: means over clients, and the size of the aggregate.
    ``finished``: 1 if the round has an aggregate, else 0.
    ``clipped``, ``kept``: shares from 0 to 1, if the round's sums were opened (`fedcipher.federation.curves`).
    ``train/...``, ``evaluate/...``: the opened metrics that are numbers.
    ``server/...``: the results of ``evaluate_fn`` that are numbers.
    """
    out = {
        "clients/accepted": record.accepted,
        "clients/left_out": len(record.clients) - record.accepted,
        "clients/refused": sum(client.refused for client in record.clients),
        "clients/late": len(record.late),
        "seconds/round": record.wall_seconds,
        "seconds/aggregate": record.aggregate_seconds,
        "bytes/aggregate": record.aggregate_bytes,
        "finished": record.unfinished is None,
    }
    if "clipped" in record.counted:
        out["clipped"] = record.clipped_share
    if "kept" in record.counted:
        out["kept"] = record.counted["kept"]
    counted = [name for name in record.counted if name.endswith("_seconds")]
    for phase in sorted({*counted, *(phase for client in record.clients for phase in client.phases)}):
        name, _, unit = phase.rpartition("_")
        if unit in ("seconds", "bytes"):
            out[f"{unit}/{name}"] = record.mean(phase)
    for part, metrics in record.metrics.items():
        out.update({f"{part}/{name}": value for name, value in metrics.items() if isinstance(value, (int, float))})
    return {name: float(value) for name, value in out.items()}


def follow(
    folder: str | Path,
    *watchers: Callable[[RoundRecord], None],
    key: str | Path | Engine | None = None,
    every: float = 2.0,
) -> None:
    """Call ``watchers`` with each finished round of the run in ``folder``, until the run's server stops.

    ``key``: a client's key file or engine, which opens the metrics. The server of a run without an opener has no
    metrics. ``every``: seconds between two looks at the folder. Raises `RunError` for a folder without a run, and the
    errors of `fedcipher.federation.curves.Curves`.
    """
    from fedcipher.watch.metrics import Metrics

    shown, passed_on = Metrics(Path(folder), key), set[int]()
    while True:
        past = shown.past()
        for record in past.finished:
            if record.number not in passed_on:
                passed_on.add(record.number)
                for watcher in watchers:
                    watcher(record)
        if not past.running:
            return
        time.sleep(every)


class _Logger(ABC):
    """A logger for ``SecureStrategy(on_round=...)``. A round that cannot be logged gives a warning; the run goes on."""

    def __call__(self, record: RoundRecord) -> None:
        """Log a finished round."""
        try:
            self._write(record, figures(record))
        except Exception as error:
            # A logging library may raise any error, and none of them may stop the training.
            _log.warning("%s: round %s is not logged: %s", type(self).__name__, record.round, error)

    @abstractmethod
    def _write(self, record: RoundRecord, values: dict[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Write buffered figures and close the log."""


class JsonLines(_Logger):
    """Appends a line of JSON per round to ``path``: time, round, `figures`, and clients left out with the reason.

    Raises `ReportError` if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        path = as_path(path, "path")
        try:
            self._file = io.TextIOWrapper(create_private(own_target(path), append=True), encoding="utf-8")
        except OSError as error:
            raise ReportError(f"the log {path} cannot be written: {error}; name another file") from error

    def _write(self, record: RoundRecord, values: dict[str, float]) -> None:
        left_out = [
            {"node": client.node, "client": client.client, "reason": client.left_out}
            for client in record.clients
            if client.left_out is not None
        ]
        # JSON has no NaN.
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        said = {"time": datetime.now(timezone.utc).isoformat(), "round": record.round, "unfinished": record.unfinished}
        self._file.write(json.dumps({**said, **known, "who_was_left_out": left_out}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard(_Logger):
    """Writes an event file in ``folder`` for ``tensorboard --logdir``. Raises `DependencyError` without the package."""

    def __init__(self, folder: str | Path) -> None:
        require("fedcipher.watch.TensorBoard", "tensorboard", "tensorboard")
        self._writer: Any = load("tensorboard.summary").Writer(os.fspath(as_path(folder, "folder")))

    def _write(self, record: RoundRecord, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow(_Logger):
    """Logs to an MLflow run; the environment or ``mlflow`` sets its server and experiment.

    ``options`` go to ``mlflow.start_run``. Raises `DependencyError` without the package.
    """

    def __init__(self, **options: Any) -> None:
        require("fedcipher.watch.MLflow", "mlflow", "mlflow")
        mlflow = load("mlflow")
        self._client: Any = load("mlflow.tracking").MlflowClient()
        self._ends: bool = mlflow.active_run() is None
        self._run: str = (mlflow.active_run() or mlflow.start_run(**options)).info.run_id
        self._end: Any = mlflow.end_run

    def _write(self, record: RoundRecord, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=record.round)

    def close(self) -> None:
        if self._ends:
            self._end()


class WandB(_Logger):
    """Logs to a Weights & Biases run; ``options`` go to ``wandb.init``.

    Raises `DependencyError` without the package.
    """

    def __init__(self, **options: Any) -> None:
        require("fedcipher.watch.WandB", "wandb", "wandb")
        self._run: Any = load("wandb").init(**options)

    def _write(self, record: RoundRecord, values: dict[str, float]) -> None:
        self._run.log(values, step=record.round, commit=True)

    def close(self) -> None:
        self._run.finish()
