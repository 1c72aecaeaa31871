"""A client goes half of the way to its goal."""

import numpy as np
from fedcipher.adapters.flower import client_mod
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp(mods=[client_mod])
SHAPE = (100, 100)


def goal(client: int) -> np.ndarray:
    """Where the client of this partition goes."""
    return np.random.default_rng(client).normal(0, 0.3, SHAPE).astype(np.float32)


@app.train()
def train(msg: Message, ctxt: Context) -> Message:
    """Half of the way to as many times the goal as the round's number says, so that no round is like the one before."""
    (start,) = (a.numpy() for a in msg.content["arrays"].values())
    number = msg.content["config"]["server-round"]
    moved = 0.5 * (start + goal(ctxt.node_config["partition-id"]) * np.float32(number % 7))
    content = {
        "arrays": ArrayRecord({"walk": Array(moved.astype(np.float32))}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=msg)
