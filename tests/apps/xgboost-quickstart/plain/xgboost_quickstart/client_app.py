"""Clients that grow trees; what they send is a serialised booster."""

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import unflatten_dict

from xgboost_quickstart.task import load_data, replace_keys

app = ClientApp()


def _parameters(context: Context) -> dict:
    return replace_keys(unflatten_dict(context.run_config))["params"]


@app.train()
def train(msg: Message, context: Context) -> Message:
    train_dmatrix, _, num_train, _ = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    num_local_round = context.run_config["local-epochs"]
    params = _parameters(context)
    if msg.content["config"]["server-round"] == 1:
        bst = xgb.train(params, train_dmatrix, num_boost_round=num_local_round)
    else:
        bst = xgb.Booster(params=params)
        bst.load_model(bytearray(msg.content["arrays"]["0"].numpy().tobytes()))
        for _ in range(num_local_round):
            bst.update(train_dmatrix, bst.num_boosted_rounds())
        # Bagging: only this round's trees travel.
        bst = bst[bst.num_boosted_rounds() - num_local_round : bst.num_boosted_rounds()]
    model = ArrayRecord([np.frombuffer(bst.save_raw("json"), dtype=np.uint8)])
    return Message(RecordDict({"arrays": model, "metrics": MetricRecord({"num-examples": num_train})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, valid_dmatrix, _, num_val = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    bst = xgb.Booster(params=_parameters(context))
    bst.load_model(bytearray(msg.content["arrays"]["0"].numpy().tobytes()))
    results = bst.eval_set(evals=[(valid_dmatrix, "valid")], iteration=bst.num_boosted_rounds() - 1)
    metrics = MetricRecord({"auc": float(results.split("\t")[1].split(":")[1]), "num-examples": num_val})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
