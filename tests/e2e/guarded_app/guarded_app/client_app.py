"""An ordinary client app, or one that tries to get out; it never names Fedcipher."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
PATIENT = "patient 4711 has diagnosis X"


@app.train()
def train(msg: Message, context: Context):
    """Move each parameter by a number in [0, 1); in mode ``hostile`` do harm first."""
    server_round, partition = msg.content["config"]["server-round"], context.node_config["partition-id"]
    rng = np.random.default_rng([context.run_config["seed"], server_round, partition])
    arrays = [a + rng.random(a.shape).astype(a.dtype) for a in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = {"num-examples": 1, "loss": float(partition)}
    content = RecordDict({"arrays": ArrayRecord(arrays)})
    if context.run_config["mode"] == "hostile":
        from guarded_app import hostile

        hostile.attack(server_round, context, content, metrics)
    count = context.state.setdefault("mine", ConfigRecord({"count": 0}))
    count["count"] += 1
    print(f"COUNT {count['count']}", flush=True)
    content["metrics"] = MetricRecord(metrics)
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Report the model's mean."""
    metrics = MetricRecord({"mean": float(np.mean(msg.content["arrays"].to_numpy_ndarrays()[0])), "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
