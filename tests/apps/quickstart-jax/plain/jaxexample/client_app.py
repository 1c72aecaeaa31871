"""Clients that train a CNN in JAX."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from jaxexample.task import apply_model, create_train_state, get_params, load_data, set_params
from jaxexample.task import train as jax_train

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    train_state = create_train_state(float(msg.content["config"]["lr"]))
    train_state = set_params(train_state, msg.content["arrays"].to_numpy_ndarrays())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    batch_size = int(context.run_config["batch-size"])
    seed = context.run_config["seed"] + 1000 * msg.content["config"]["server-round"]
    trainloader, _ = load_data(partition_id, num_partitions, batch_size, seed)
    train_state, loss, acc = jax_train(train_state, trainloader)
    metrics = {"train_loss": loss, "train_acc": acc, "num-examples": len(trainloader) * batch_size}
    content = RecordDict({"arrays": ArrayRecord(get_params(train_state.params)), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    train_state = create_train_state(float(context.run_config["learning-rate"]))
    train_state = set_params(train_state, msg.content["arrays"].to_numpy_ndarrays())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    batch_size = int(context.run_config["batch-size"])
    _, valloader = load_data(partition_id, num_partitions, batch_size)
    results = [apply_model(train_state, images, labels) for images, labels in valloader]
    metrics = {
        "eval_loss": float(np.mean([loss for _, loss, _ in results])),
        "eval_acc": float(np.mean([accuracy for _, _, accuracy in results])),
        "num-examples": len(valloader) * batch_size,
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
