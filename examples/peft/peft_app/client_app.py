"""Clients that fine-tune adapters with PEFT. The one line that encrypts is marked."""

from fedcipher.adapters.flower import client_mod
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from peft_app.task import adapters_of, evaluate, load_part, make_model, set_adapters, train

app = ClientApp(mods=[client_mod])  # <- added


@app.train()
def _(msg: Message, context: Context) -> Message:
    config, part = context.run_config, context.node_config["partition-id"]
    model = make_model()
    set_adapters(model, msg.content["arrays"].to_torch_state_dict())
    text = load_part(config["text"], part, context.node_config["num-partitions"])
    seed = 1000 * msg.content["config"]["server-round"] + part
    loss = train(model, text, config["local-steps"], config["learning-rate"], seed)
    metrics = MetricRecord({"num-examples": 16 * config["local-steps"], "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(adapters_of(model)), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def _(msg: Message, context: Context) -> Message:
    model = make_model()
    set_adapters(model, msg.content["arrays"].to_torch_state_dict())
    loss = evaluate(model, load_part(context.run_config["text"], 0, 1, test=True))
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": loss})}), reply_to=msg)
