"""A typical scikit-learn ClientApp. The one line that encrypts is marked."""

from fedcipher.adapters.flower import client_mod
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sklearn_app.task import load_part, make_model, parameters, set_parameters

app = ClientApp(mods=[client_mod])  # <- added


def received(msg: Message):
    model = make_model()
    set_parameters(model, {name: array.numpy() for name, array in msg.content["arrays"].items()})
    return model


@app.train()
def _(msg: Message, context: Context) -> Message:
    model = received(msg)
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"])
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(x, y)
    arrays = ArrayRecord({name: Array(values) for name, values in parameters(model).items()})
    metrics = MetricRecord({"num-examples": len(x), "accuracy": model.score(x, y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"], test=True)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": received(msg).score(x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
