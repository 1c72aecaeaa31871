"""Softmax regression on a part of MNIST; what was given and sent is noted, and who is told to die dies."""

import os
from pathlib import Path

import numpy as np
from fedcipher.adapters.flower import client_mod
from fedcipher.data import load
from fedcipher.frame import inspect
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

COMMITTEE = "fedcipher.committee"
SIDE = 7
step = {}


def dies(shadow: Path, what: str) -> None:
    """As a machine that loses its power, once: the first process that takes the order away is the one."""
    try:
        (shadow / what).unlink()
    except FileNotFoundError:
        return
    os._exit(1)


def noted(msg: Message, ctxt: Context, call_next):
    """Notes each update under its round's number; two of one number and client are an error."""
    shadow = Path(str(ctxt.run_config["shadow"]))
    if COMMITTEE in msg.content:
        dies(shadow, "kill-member")
        return call_next(msg, ctxt)
    dies(shadow, "kill-client")
    reply = call_next(msg, ctxt)
    if not reply.has_error():
        (record,) = reply.content.array_records.values()
        (frame,) = record.values()
        number = inspect(frame.data).round
        with (shadow / f"{number}-{ctxt.node_config['partition-id']}.npz").open("xb") as file:
            np.savez(file, **step)
    return reply


app = ClientApp(mods=[noted, client_mod])


@app.train()
def train(msg: Message, ctxt: Context) -> Message:
    """Ten steps of gradient descent on pictures of seven by seven."""
    data = load("mnist", ctxt.run_config["data-dir"])
    own = slice(ctxt.node_config["partition-id"], None, 12 * ctxt.run_config["clients"])
    x = data.train_x[own].reshape(-1, SIDE, 28 // SIDE, SIDE, 28 // SIDE).mean((2, 4)).reshape(-1, SIDE * SIDE)
    y = np.eye(10)[data.train_y[own]]
    weight, bias = (a.numpy().astype(np.float64) for a in msg.content["arrays"].values())
    step.update(given_weight=weight, given_bias=bias)
    for _ in range(10):
        logits = x @ weight + bias
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        error = exponents / exponents.sum(1, keepdims=True) - y
        weight, bias = weight - 0.5 * x.T @ error / len(x), bias - 0.5 * error.mean(0)
    arrays = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    step.update(made_weight=arrays["weight"], made_bias=arrays["bias"])
    content = {
        "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=msg)
