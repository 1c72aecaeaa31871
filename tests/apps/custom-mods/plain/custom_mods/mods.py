"""A mod that logs metrics: TensorBoard's part in Flower's example, written to a file of JSON lines."""

import json
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod


def get_metrics_mod(logdir: str) -> Mod:
    """Return a mod that appends a line of metrics and times for each message."""

    def metrics_mod(msg: Message, context: Context, app: ClientAppCallable) -> Message:
        folder = Path(logdir, str(msg.metadata.run_id))
        node_id = str(msg.metadata.dst_node_id)
        server_round = msg.content["config"]["server-round"]
        began = time.time()
        reply = app(msg, context)
        seconds = time.time() - began
        kinds = {MessageType.TRAIN: "fit_time", MessageType.EVALUATE: "eval_time"}
        if reply.metadata.message_type in kinds and reply.has_content():
            metrics = dict(reply.content.metric_records["metrics"])
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{node_id}.jsonl").open("a") as file:
                line = {"server-round": server_round, kinds[reply.metadata.message_type]: seconds, **metrics}
                file.write(json.dumps(line) + "\n")
        return reply

    return metrics_mod
