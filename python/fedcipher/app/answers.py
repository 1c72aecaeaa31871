# pyright: basic
"""The answers that the app's clients send beside their updates, and the metrics computed from all answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcipher.federation.answers import Answer
from fedcipher.federation.charter import Charter

if TYPE_CHECKING:
    # A dashboard needs no JAX.
    from fedcipher.app.settings import Settings
    from fedcipher.data import Dataset

__all__ = ["COUNTS", "evaluate_answers", "evaluated", "has_app_answers", "pool_evaluations", "train_answers"]

COUNTS = ("hits", "true", "guessed")
"""Counts of test examples for each class: recognised correctly, belonging to the class, predicted as the class."""


def train_answers(settings: Settings) -> list[Answer]:
    """Answers to a training: the last pass's loss and, if training may stop early, the number of passes."""
    return [Answer("loss"), *([Answer("passes")] if settings.validation_share else [])]


def evaluate_answers(settings: Settings, data: Dataset) -> list[Answer]:
    """Answers to an evaluation: the loss, and the `COUNTS` of each class."""
    examples = data.train_y.size if settings.test_share else data.test_y.size
    return [Answer("loss"), *(Answer(name, data.classes, 1.0, float(examples), "sum") for name in COUNTS)]


def evaluated(settings: Settings, model: Sequence[NDArray[Any]]) -> dict[str, float]:
    """The metrics of ``model`` on the test examples of all clients together; only a simulation has these examples."""
    from fedcipher.app.examples import test_examples
    from fedcipher.data import load
    from fedcipher.models import Learner

    data = load(settings.dataset, settings.data_dir or None)
    learner = Learner(settings.model, data.classes, data.train_x[0])
    parts = [test_examples(settings, data, client) for client in range(settings.clients)]
    x, y = (np.concatenate(held) for held in zip(*parts, strict=True))
    found = learner.evaluate(list(model), x, y)
    counts = zip(COUNTS, (np.diag(found.confusion), found.confusion.sum(1), found.confusion.sum(0)), strict=True)
    metrics = {"num-examples": len(x), "loss": found.loss, **{name: held.tolist() for name, held in counts}}
    made = pool_evaluations([RecordDict({"metrics": MetricRecord(metrics)})], "num-examples")
    return {name: cast(float, value) for name, value in made.items()}


def has_app_answers(charter: Charter) -> bool:
    """Whether a run's evaluations come from this app, so that `pool_evaluations` can pool them."""
    named = {answer.name: answer.how for answer in charter.answers["evaluate"]}
    return named == {"loss": "mean", **dict.fromkeys(COUNTS, "sum")}


def pool_evaluations(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Accuracy, loss and macro precision, recall, F1 over all clients' test examples together."""
    metrics = [next(iter(record.metric_records.values())) for record in records]
    hits, true, guessed = (np.sum([m[name] for m in metrics], axis=0) for name in COUNTS)
    present = true > 0
    recall = hits[present] / true[present]
    precision = hits[present] / np.maximum(guessed[present], 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    examples = [cast(float, m[weighted_by]) for m in metrics]
    return MetricRecord(
        {
            "accuracy": float(hits.sum() / true.sum()),
            "loss": float(np.average([cast(float, m["loss"]) for m in metrics], weights=examples)),
            "precision": float(precision.mean()),
            "recall": float(recall.mean()),
            "f1": float(f1.mean()),
        }
    )
