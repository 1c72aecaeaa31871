"""Clients whose training is to add noise."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def noise_of(msg: Message, context: Context) -> np.random.Generator:
    """The same noise for this client and round in each run of a seed."""
    server_round = msg.content["config"]["server-round"]
    return np.random.default_rng([context.run_config["seed"], server_round, context.node_config["partition-id"]])


@app.train()
def train(msg: Message, context: Context):
    """Move each parameter by a number in [0, 1)."""
    rng = noise_of(msg, context)
    model = [m + rng.random(m.shape) for m in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"random_metric": rng.random(), "num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Report the model's mean."""
    ndarrays = msg.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"mean": float(np.mean(ndarrays[0])), "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
