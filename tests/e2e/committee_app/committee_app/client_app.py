"""Softmax regression on a part of MNIST; three tenths of the uploads are lost, and members die each third round."""

import os
import random

import numpy as np
from fedcipher.adapters.flower import client_mod
from fedcipher.data import load
from fedcipher.frame import inspect
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

COMMITTEE = "fedcipher.committee"


def fails(msg: Message, ctxt: Context, call_next):
    """What happens to this client's part of the round, the same in every run."""
    client = ctxt.node_config["partition-id"]
    if COMMITTEE not in msg.content:
        number = msg.content["config"]["server-round"]
        reply = call_next(msg, ctxt)
        lost = random.Random(100 * number + client).random() < 0.3
        return Message(Error(code=0, reason="the upload was lost"), reply_to=msg) if lost else reply
    for record in msg.content.array_records.values():
        number = inspect(record["fedcipher.request"].data).round & 0xFFFFF
        if number % 3 == 0 and client == (number // 3) % 5:
            # As a machine that loses its power: nothing is said.
            os._exit(1)
    return call_next(msg, ctxt)


app = ClientApp(mods=[fails, client_mod])


@app.train()
def train(msg: Message, ctxt: Context) -> Message:
    """Ten steps of gradient descent."""
    data = load("mnist", ctxt.run_config["data-dir"])
    own = slice(ctxt.node_config["partition-id"], None, 12 * ctxt.run_config["clients"])
    x = data.train_x[own].reshape(-1, 784).astype(np.float64)
    y = np.eye(10)[data.train_y[own]]
    weight, bias = (a.numpy().astype(np.float64) for a in msg.content["arrays"].values())
    for _ in range(10):
        logits = x @ weight + bias
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        error = exponents / exponents.sum(1, keepdims=True) - y
        weight, bias = weight - 0.5 * x.T @ error / len(x), bias - 0.5 * error.mean(0)
    arrays = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    content = {
        "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=msg)
