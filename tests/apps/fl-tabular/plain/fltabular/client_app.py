"""Clients that train a classifier on their own patients."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fltabular.task import Classifier, load_data
from fltabular.task import evaluate as evaluate_fn
from fltabular.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    train_loader, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    net = Classifier()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss = train_fn(net, train_loader)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(train_loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    _, test_loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    net = Classifier()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = evaluate_fn(net, test_loader)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(test_loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
