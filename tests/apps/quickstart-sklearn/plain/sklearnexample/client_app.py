"""Clients that fit a logistic regression."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import (
    UNIQUE_LABELS,
    create_log_reg_and_instantiate_parameters,
    get_model_params,
    load_data,
    set_model_params,
)

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    seed = context.run_config["seed"] + 1000 * msg.content["config"]["server-round"] + partition_id
    model = create_log_reg_and_instantiate_parameters(seed)
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    X_train, y_train, _, _ = load_data(partition_id, num_partitions)
    with warnings.catch_warnings():
        # One local epoch does not converge.
        warnings.simplefilter("ignore")
        model.fit(X_train, y_train)
    metrics = {
        "num-examples": len(X_train),
        "train_logloss": log_loss(y_train, model.predict_proba(X_train), labels=UNIQUE_LABELS),
        "train_accuracy": model.score(X_train, y_train),
    }
    content = RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = create_log_reg_and_instantiate_parameters(context.run_config["seed"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    _, _, X_test, y_test = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = {
        "num-examples": len(X_test),
        "test_logloss": log_loss(y_test, model.predict_proba(X_test), labels=UNIQUE_LABELS),
        "accuracy": model.score(X_test, y_test),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
