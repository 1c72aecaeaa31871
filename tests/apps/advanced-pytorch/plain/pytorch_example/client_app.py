"""Clients that keep a classification head of their own between rounds, in their state."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_example.task import Net, load_data
from pytorch_example.task import test as test_fn
from pytorch_example.task import train as train_fn

app = ClientApp()
HEAD = "classification-head"


def personal_model(msg: Message, context: Context):
    """The global model with this client's own head, where this client has trained before."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    if HEAD in context.state.array_records:
        model.fc2.load_state_dict(context.state[HEAD].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return model.to(device), device


@app.train()
def train(msg: Message, context: Context):
    model, device = personal_model(msg, context)
    trainloader, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    train_loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    context.state[HEAD] = ArrayRecord(model.fc2.state_dict())
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, device = personal_model(msg, context)
    _, valloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test_fn(model, valloader, device)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(valloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
