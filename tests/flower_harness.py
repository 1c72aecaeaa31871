"""Runs a ClientApp and a strategy in one process: Flower's messages, no network, no Ray."""

import shutil

import numpy as np
from fedcipher.adapters.flower import client_mod
from fedcipher.adapters.flower.records import array_record
from fedcipher.federation import messages, refusal
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.schemes.base import state_dir
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

try:
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError:
    # Older Flower makes messages without one.
    TaskIdentity = None
else:
    TaskIdentity.run_id = 1
    TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0

NAMES = ["layer/weight", "layer/bias"]


def initial():
    return [np.zeros((20, 30), np.float32), np.zeros(7, np.float32)]


def record(arrays, names=NAMES):
    return ArrayRecord({n: Array(a) for n, a in zip(names, arrays, strict=True)})


def make_app(targets, examples, seen=None, mods=(client_mod,), step=0.5):
    """Clients that move ``step`` of the way from the global model to their own target."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(msg, ctxt):
        client = ctxt.node_config["partition-id"]
        arrays = msg.content["arrays"].to_numpy_ndarrays()
        if seen is not None:
            seen.append((msg.content["config"]["server-round"], client, arrays))
        moved = [((1 - step) * a + step * t).astype(np.float32) for a, t in zip(arrays, targets[client], strict=True)]
        metrics = MetricRecord({"num-examples": examples[client], "loss": float(client)})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg, ctxt):
        client = ctxt.node_config["partition-id"]
        arrays = msg.content["arrays"].to_numpy_ndarrays()
        distance = float(np.abs(arrays[0] - targets[client][0]).mean())
        metrics = MetricRecord({"num-examples": examples[client], "distance": distance})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


class LocalGrid:
    """A grid of clients in this process; ``tamper(message, reply)`` may change or lose a reply.

    The run's configuration names their keys, as a simulation's does. ``sites``: each node's own configuration does,
    so that the policy of a site applies.
    """

    def __init__(self, app, clients, keys, tamper=None, *, sites=False):
        self.app, self.tamper = app, tamper
        self.run_config = {} if sites else {"fedcipher-keys": str(keys)}
        self.keys = keys
        self.contexts = {
            1000 + k: Context(
                run_id=1,
                node_id=1000 + k,
                node_config={
                    "partition-id": k,
                    "num-partitions": clients,
                    **({"fedcipher-key": str(keys / f"client-{k}.key")} if sites else {}),
                },
                state=RecordDict(),
                run_config=self.run_config,
            )
            for k in range(clients)
        }
        self.sent, self.received = [], []
        self.pushed, self.kept_silent = {}, False

    def push_messages(self, messages):
        """Each is answered at once, or never; ``kept_silent``: what is never answered is waited for."""
        asked = []
        for message in messages:
            name = f"message-{len(self.pushed)}"
            self.pushed[name] = None
            for reply in self.send_and_receive([message]):
                reply.metadata.__dict__["_reply_to_message_id"] = name
                self.pushed[name] = reply
            # As Flower does for what could not be sent.
            asked.append(name if self.pushed[name] is not None or self.kept_silent else None)
        return asked

    def pull_messages(self, message_ids):
        asked = set(message_ids)
        here = [k for k, reply in self.pushed.items() if k in asked and reply is not None]
        replies = [self.pushed[k] for k in here]
        self.pushed.update(dict.fromkeys(here))
        return replies

    def get_node_ids(self):
        return list(self.contexts)

    def forget(self, client):
        """The framework loses what it keeps for the client."""
        self.contexts[1000 + client].state = RecordDict()

    def lose(self, client):
        """The client loses what it remembers of its runs; its key's ledgers stay."""
        self.forget(client)
        for folder in (state_dir() / "identities").glob(f"*-{client}"):
            shutil.rmtree(folder)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            # A copy, as the wire would make one.
            content = RecordDict(dict(message.content.items()))
            self.sent.append((node - 1000, RecordDict(dict(content.items()))))
            delivered = Message(content, dst_node_id=node, message_type=message.metadata.message_type)
            try:
                reply = self.app(delivered, self.contexts[node])
            except Exception as error:
                reply = Message(Error(code=2, reason=repr(error)), reply_to=delivered)
            if self.tamper is not None:
                reply = self.tamper(delivered, reply, node - 1000)
            if reply is not None:
                # As it left: the strategy strips what it has read.
                left = (
                    reply if reply.has_error() else Message(RecordDict(dict(reply.content.items())), reply_to=delivered)
                )
                self.received.append((node - 1000, left))
                replies.append(reply)
        return replies


# --- the federation's records, for Flower's messages -----------------------------------------


def wire_record(frames):
    """Flower's record of frames."""
    return array_record(messages.wire_record(frames))


def bytes_array(frame):
    """Flower's array of a frame."""
    return wire_record({"frame": frame})["frame"]


def reference_of(reply):
    """The reference of a refusal; None where ``reply`` is anything else.

    Training without a run is refused in arrays that nobody can read, and the reply has nothing else.
    """
    if reply.has_error():
        return refusal.reference_of(reply.error.reason or "", reply.error.code)
    arrays, metrics = (list(kind.values()) for kind in (reply.content.array_records, reply.content.metric_records))
    said = {(array.dtype, array.shape, array.stype, array.data) for record in arrays for array in record.values()}
    if len(said) != 1 or [list(record) for record in metrics] != [["num-examples"]] or len(reply.content) != 2:
        return None
    ((dtype, shape, stype, data),) = said
    weight = metrics[0]["num-examples"]
    if (dtype, shape, stype, data[:8], weight == weight) != (
        "float32",
        (0,),
        "numpy.ndarray",
        b"\x93NUMPY\x03\0",
        False,
    ):
        return None
    return refusal.reference_of(data[12:].decode())


def party_of(context):
    """The key's holder that a node of Flower's has."""
    return key_holder_of(context.node_config, context.run_config)
