"""A typical JAX ClientApp. The one line that encrypts is marked."""

from fedcipher.adapters.flower import client_mod
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from jax_app.task import accuracy, load_part, train

app = ClientApp(mods=[client_mod])  # <- added


def received(msg: Message):
    return {name: array.numpy() for name, array in msg.content["arrays"].items()}


@app.train()
def _(msg: Message, context: Context) -> Message:
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"])
    parameters, loss = train(received(msg), x, y, context.run_config["local-epochs"])
    arrays = ArrayRecord({name: Array(values) for name, values in parameters.items()})
    metrics = MetricRecord({"num-examples": len(x), "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"], test=True)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": accuracy(received(msg), x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
