"""Clients that answer queries with sums over their patients."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federated_analytics.task import query_database

app = ClientApp()


@app.query()
def query(msg: Message, context: Context) -> Message:
    selected_features: list[str] = msg.content["config"]["selected_features"]
    data = query_database(context.node_config["partition-id"], context.node_config["num-partitions"], selected_features)
    metrics = {}
    for feature, values in data.items():
        metrics[f"{feature}_count"] = len(values)
        metrics[f"{feature}_sum"] = float(values.sum())
        metrics[f"{feature}_sum_sqd"] = float((values**2).sum())
    return Message(RecordDict({"query_results": MetricRecord(metrics)}), reply_to=msg)
