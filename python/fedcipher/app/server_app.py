# pyright: basic
"""The ServerApp: FedAvg inside `SecureStrategy`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.errors import StrategyError
from fedcipher.flower import RoundRecord, SecureStrategy
from fedcipher.keys.provider import ServerKeys
from fedcipher.models import Learner

__all__ = ["app", "make_server_app", "pool_evaluations"]


def pool_evaluations(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Accuracy, loss and macro precision, recall, F1 over all clients' test examples together."""
    metrics = [next(iter(record.metric_records.values())) for record in records]
    hits, true, guessed = (np.sum([m[name] for m in metrics], axis=0) for name in ("hits", "true", "guessed"))
    present = true > 0
    recall = hits[present] / true[present]
    precision = hits[present] / np.maximum(guessed[present], 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    examples = [cast(float, m[weighted_by]) for m in metrics]
    models = {cast(int, m["model"]) for m in metrics}
    if len(models) != 1:
        raise StrategyError(f"the clients evaluated {len(models)} different models; some decrypted another aggregate")
    return MetricRecord(
        {
            "accuracy": float(hits.sum() / true.sum()),
            "loss": float(np.average([cast(float, m["loss"]) for m in metrics], weights=examples)),
            "precision": float(precision.mean()),
            "recall": float(recall.mean()),
            "f1": float(f1.mean()),
            "model": models.pop(),
        }
    )


def make_server_app(
    settings: Settings | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    keys: ServerKeys | None = None,
    on_end: Callable[[SecureStrategy], None] | None = None,
) -> ServerApp:
    """A ServerApp for ``settings``, or for the run config it is started with; ``keys`` before ``settings.keys``."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = settings or Settings.from_config(context.run_config)
        random.seed(chosen.seed)
        data = load(chosen.dataset, chosen.data_dir or None)
        learner = Learner(chosen.model, data.classes, data.train_x[0])
        initial = learner.initial(chosen.seed)
        strategy = SecureStrategy(
            FedAvg(
                fraction_train=chosen.per_round / chosen.clients,
                min_train_nodes=chosen.per_round,
                min_evaluate_nodes=chosen.clients,
                min_available_nodes=chosen.clients,
                evaluate_metrics_aggr_fn=pool_evaluations,
            ),
            keys or chosen.keys,
            out=chosen.out,
            resume=chosen.resume,
            examples_per_weight=chosen.examples_per_weight or None,
            on_round=on_round,
            on_progress=on_progress,
        )
        arrays = ArrayRecord({n: Array(p) for n, p in zip(learner.names, initial, strict=True)})
        strategy.start(grid, arrays, num_rounds=chosen.rounds)
        if on_end is not None:
            on_end(strategy)

    return made


app = make_server_app()
