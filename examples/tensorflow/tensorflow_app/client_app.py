"""A typical TensorFlow ClientApp. The one line that encrypts is marked."""

from fedcipher.adapters.flower import client_mod
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tensorflow_app.task import load_part, make_model

app = ClientApp(mods=[client_mod])  # <- added


def received(msg: Message):
    model = make_model()
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    return model


@app.train()
def _(msg: Message, context: Context) -> Message:
    model = received(msg)
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"])
    history = model.fit(x, y, epochs=context.run_config["local-epochs"], batch_size=16, verbose=0)
    metrics = MetricRecord({"num-examples": len(x), "loss": float(history.history["loss"][-1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.get_weights()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"], test=True)
    _, accuracy = received(msg).evaluate(x, y, verbose=0)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(accuracy)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
