"""Clients that answer a query with histograms and sums over their table."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pandas_example.task import EDGES, get_dataset

app = ClientApp()


@app.query()
def query(msg: Message, context: Context):
    dataset = get_dataset(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = {}
    for column in dataset.columns:
        frequencies, _ = np.histogram(dataset[column], bins=EDGES)
        metrics[f"{column}_histogram"] = frequencies.tolist()
        metrics[f"{column}_sum"] = float(dataset[column].sum())
        metrics[f"{column}_count"] = len(dataset)
    return Message(RecordDict({"query_results": MetricRecord(metrics)}), reply_to=msg)
