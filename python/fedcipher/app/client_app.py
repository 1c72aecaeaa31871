# pyright: basic
"""The ClientApp: local training and evaluation, and the mod that encrypts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedcipher.adapters.flower import client_mod
from fedcipher.app.examples import examples, test_examples
from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.models import Learner

__all__ = ["app", "make_client_app"]


def make_client_app(settings: Settings | None = None, mods: Sequence[Mod] = (client_mod,)) -> ClientApp:
    """Make a ClientApp for ``settings`` or, without them, for the run config. Without ``mods`` nothing is encrypted."""
    made = ClientApp(mods=list(mods))

    def setup(context: Context) -> tuple[Settings, Learner, int]:
        chosen = settings or Settings.from_config(context.run_config)
        data = load(chosen.dataset, chosen.data_dir or None)
        learner = Learner(
            *(chosen.model, data.classes, data.train_x[0]),
            learning_rate=chosen.learning_rate,
            batch=chosen.batch,
            optimiser=chosen.optimiser,
        )
        return chosen, learner, int(cast(int, context.node_config["partition-id"]))

    @made.lifespan()
    def show_log(context: Context) -> Iterator[None]:
        # Flower shows its own log only. An operator needs Fedcipher's log to find the cause of a refusal.
        log = logging.getLogger("fedcipher.federation")
        if settings is None and not log.handlers:
            log.addHandler(logging.StreamHandler())
            log.setLevel(logging.INFO)
        yield

    @made.train()
    def train(message: Message, context: Context) -> Message:
        chosen, learner, client = setup(context)
        data = load(chosen.dataset, chosen.data_dir or None)
        own = examples(chosen, data.train_y, client)
        validation = own.validation
        record = message.content.array_records["arrays"]
        round_number = int(cast(int, message.content.config_records["config"]["server-round"]))
        parameters, loss = learner.fit(
            record.to_numpy_ndarrays(),
            data.train_x[own.train],
            data.train_y[own.train],
            epochs=chosen.epochs,
            seed=hash((chosen.seed, round_number, client)) & 0xFFFF_FFFF,
            learning_rate=chosen.rate(round_number),
            held_out=(data.train_x[validation], data.train_y[validation]) if len(validation) else None,
            patience=chosen.patience,
        )
        arrays = ArrayRecord({n: Array(p) for n, p in zip(learner.names, parameters, strict=True)})
        metrics = MetricRecord({"num-examples": len(own.train), "loss": loss})
        if len(validation):
            metrics["passes"] = learner.passes
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        chosen, learner, client = setup(context)
        data = load(chosen.dataset, chosen.data_dir or None)
        x, y = test_examples(chosen, data, client)
        record = message.content.array_records["arrays"]
        result = learner.evaluate(record.to_numpy_ndarrays(), x, y)
        # Three counts for each class. The confusion matrix itself has classes squared values.
        counts = {
            "hits": np.diag(result.confusion).tolist(),
            "true": result.confusion.sum(1).tolist(),
            "guessed": result.confusion.sum(0).tolist(),
        }
        metrics = MetricRecord({"num-examples": len(x), "loss": result.loss, **counts})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


app = make_client_app()
