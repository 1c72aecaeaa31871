"""Clients that fine-tune adapters and never send the base model. The one line that encrypts is marked."""

import numpy as np
from fedcipher.adapters.flower import client_mod
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lora_app.data import load_part
from lora_app.model import BATCH, batches, mean_loss, train

app = ClientApp(mods=[client_mod])  # <- added


def adapters_of(msg: Message):
    return {name: array.numpy() for name, array in msg.content["arrays"].items()}


def base_of(context: Context):
    with np.load(context.run_config["base"]) as file:
        return dict(file)


@app.train()
def _(msg: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    text = load_part(context.run_config["text"], part, parts)
    adapters, loss = train(
        adapters_of(msg),
        base_of(context),
        text,
        steps=context.run_config["local-steps"],
        rate=context.run_config["learning-rate"],
        seed=1000 * msg.content["config"]["server-round"] + part,
    )
    arrays = ArrayRecord({name: Array(values) for name, values in adapters.items()})
    metrics = MetricRecord({"num-examples": BATCH * context.run_config["local-steps"], "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    text = load_part(context.run_config["text"], 0, 1, test=True)
    loss = float(mean_loss(base_of(context), adapters_of(msg), batches(text, np.random.default_rng(0), 64)))
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": loss})}), reply_to=msg)
