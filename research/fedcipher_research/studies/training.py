# pyright: basic
"""Measures how long a client trains: some batches are timed and scaled to a pass over the client's examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fedcipher.codec import Array
from fedcipher.data import load, partition

from fedcipher_research.studies.timing import best

__all__ = ["BATCHES", "one_pass"]

BATCHES = 5


def one_pass(model: str, data: str, data_dir: str, *, clients: int, batch: int, runs: int) -> tuple[float, list[Array]]:
    """Processor seconds of one pass over a client's examples, and the update of `BATCHES` batches."""
    from fedcipher.models import Learner

    found = load(data, str(Path(data_dir) / data))
    own = partition(found.train_y, clients)[0]
    learner = Learner(model, found.classes, found.train_x[0], batch=batch)
    start = learner.initial()
    few = own[: BATCHES * batch]
    x, y = found.train_x[few], found.train_y[few]
    # The first batch compiles, so it is not timed.
    learner.fit(start, x[:batch], y[:batch], epochs=1, seed=0)
    spent, (trained, _) = best(lambda: learner.fit(start, x, y, epochs=1, seed=0), runs)
    update: list[Array] = [np.asarray(a - b, np.float32) for a, b in zip(trained, start, strict=True)]
    return spent * len(own) / len(few), update
