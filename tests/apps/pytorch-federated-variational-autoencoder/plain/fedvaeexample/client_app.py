"""Clients that train a variational autoencoder."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedvaeexample.task import Net, load_data
from fedvaeexample.task import test as test_fn
from fedvaeexample.task import train as train_fn

app = ClientApp()


def begun(msg: Message, context: Context):
    """The global model, its device and the client's batches. The noise is the same in each run of a seed."""
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    torch.manual_seed(context.run_config["seed"] + 1000 * msg.content["config"]["server-round"] + partition_id)
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return net.to(device), device, load_data(partition_id, num_partitions)


@app.train()
def train(msg: Message, context: Context):
    net, device, (trainloader, _) = begun(msg, context)
    loss = train_fn(net, trainloader, context.run_config["local-epochs"], context.run_config["learning-rate"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    net, device, (_, testloader) = begun(msg, context)
    metrics = MetricRecord({"loss": test_fn(net, testloader, device), "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
