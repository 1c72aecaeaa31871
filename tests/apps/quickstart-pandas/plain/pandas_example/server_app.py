"""A ServerApp that asks clients for histograms and saves statistics."""

import json
import random
import time

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from pandas_example.task import COLUMNS, aggregate

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    min_nodes = 3
    while len(all_node_ids := list(grid.get_node_ids())) < min_nodes:
        time.sleep(1)
    node_ids = random.sample(all_node_ids, int(len(all_node_ids) * context.run_config["fraction-sample"]))

    recorddict = RecordDict()
    messages = [Message(recorddict, message_type=MessageType.QUERY, dst_node_id=node_id) for node_id in node_ids]

    replies = grid.send_and_receive(messages)
    results = [reply.content["query_results"] for reply in replies if not reply.has_error()]

    stats = aggregate(results, COLUMNS)
    with open("histograms.json", "w", encoding="utf-8") as f:
        json.dump(stats, f, indent=2)
    print(json.dumps(stats, indent=2))
