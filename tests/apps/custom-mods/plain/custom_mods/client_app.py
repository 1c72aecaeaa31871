"""A ClientApp with a mod of its own."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from custom_mods.mods import get_metrics_mod
from custom_mods.task import Net, load_data
from custom_mods.task import test as test_fn
from custom_mods.task import train as train_fn

app = ClientApp(
    mods=[
        get_metrics_mod(".runs_history/"),
    ],
)


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"])
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    trainset, _ = load_data(partition_id, num_partitions)
    train_loss = train_fn(
        model,
        trainset,
        epochs=context.run_config["local-epochs"],
        batch_size=context.run_config["batch-size"],
        lr=msg.content["config"]["lr"],
        seed=context.run_config["seed"] + 1000 * msg.content["config"]["server-round"],
    )
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainset[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"])
    _, testset = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test_fn(model, testset)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testset[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
