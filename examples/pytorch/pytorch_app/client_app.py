"""A typical PyTorch ClientApp on digits. The one line that encrypts is marked."""

import torch
from fedcipher.adapters.flower import client_mod
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_app.task import Net, evaluate, load_part, train

app = ClientApp(mods=[client_mod])  # <- added


@app.train()
def _(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train(model, x, y, epochs=context.run_config["local-epochs"])
    metrics = MetricRecord({"num-examples": len(x), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_part(context.node_config["partition-id"], context.node_config["num-partitions"], test=True)
    with torch.no_grad():
        accuracy = evaluate(model, x, y)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
