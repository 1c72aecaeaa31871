"""A ServerApp that asks clients for sums and saves statistics."""

import json
import random
import time

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from federated_analytics.task import aggregate_features

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    min_nodes = 3
    selected_features = str(context.run_config["selected-features"]).split(",")
    feature_aggregation = str(context.run_config["feature-aggregation"]).split(",")

    while len(all_node_ids := list(grid.get_node_ids())) < min_nodes:
        time.sleep(1)
    node_ids = random.sample(all_node_ids, int(len(all_node_ids) * context.run_config["fraction-sample"]))

    config = ConfigRecord({"selected_features": selected_features, "feature_aggregation": feature_aggregation})
    recorddict = RecordDict({"config": config})
    messages = [Message(recorddict, message_type=MessageType.QUERY, dst_node_id=node_id) for node_id in node_ids]

    replies = grid.send_and_receive(messages)
    results = [reply.content["query_results"] for reply in replies if not reply.has_error()]

    stats = aggregate_features(results, selected_features, feature_aggregation)
    with open("aggregated_stats.json", "w", encoding="utf-8") as f:
        json.dump(stats, f, indent=2)
    print(json.dumps(stats, indent=2))
