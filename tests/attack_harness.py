"""A server that is not honest, against a real app with the real mod: what its tests share."""

import os
import re
import time
from itertools import product

import fedcipher
import numpy as np
from fedcipher import keys
from fedcipher.flower import SecureStrategy, client_mod, protocol
from fedcipher.flower.refusal import TEXT, reference_of
from fedcipher.flower.settings import RoundSettings
from flower_harness import NAMES, LocalGrid, initial, make_app, record
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import MessageTypeLegacy
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE

CLIENTS = 5
TRIES = int(os.environ.get("FEDCIPHER_ATTACK_TRIES", "300"))
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}


def constants(cls):
    return [value for name, value in vars(cls).items() if name.isupper()]


def message_types():
    """Every type that Flower's messages can have, by its own constants."""
    categories = [*constants(MessageType), SYSTEM_MESSAGE_TYPE]
    actions = [f"{category}.{action}" for category in categories for action in ("default", "other")]
    return [*categories, *actions, *constants(MessageTypeLegacy), "reconnect"]


JUNK_TYPES = ["", ".", "train.", ".default", "TRAIN", "train.default.default", "train default", "evaluate\n", "get"]


def message(content, message_type):
    made = Message(content, dst_node_id=1000, message_type="query")
    # Past Flower's own check of names, where an attacker's library would be.
    made.metadata.__dict__["_message_type"] = message_type
    return made


def says_nothing(reply):
    return reply.has_error() and reference_of(reply) is not None


def masked(reply):
    """The reply's bytes as they travel, without its reference and the clock's part."""
    assert re.fullmatch(re.escape(TEXT) + "[0-9a-f]{8}", reply.error.reason)
    reply.metadata.created_at = reply.metadata.ttl = 1.0
    clear = Message(Error(code=reply.error.code, reason=reply.error.reason[:-8]), metadata=reply.metadata)
    return message_to_proto(clear).SerializeToString(deterministic=True)


class Federation:
    """Keys, an app with a handler for everything, contexts, and what honest rounds look like."""

    def __init__(self, folder, name, rng, *, mods=(client_mod,), rounds=0, codec=None, **params):
        codec = codec or fedcipher.Codec(bits=16, clip=2.0, target="weights")
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec, **params)
        self.folder = keys.save(self.scheme.keygen(CLIENTS), self.scheme, folder / f"keys-{name}")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        self.app = make_app(self.goals, [10] * CLIENTS, mods=mods)
        for register, action in product((self.app.train, self.app.evaluate, self.app.query), ("other", "stats")):
            register(action)(self.tell)
        self.app.query()(self.tell)
        self.grid = LocalGrid(self.app, CLIENTS, self.folder)
        self.run = int(time.time()) << 20
        if rounds:
            strategy = SecureStrategy(FedAvg(**ALL), self.folder, out=self.folder.parent / "run")
            strategy.start(self.grid, record(initial()), num_rounds=rounds)
            self.run = strategy._base

    @staticmethod
    def tell(msg, ctxt):
        """Sends what it has, as an app does that knows nothing of encryption."""
        return Message(RecordDict({"arrays": record(initial())}), reply_to=msg)

    def settings(self, number=1, **changes):
        plain = RoundSettings(self.run, 0, self.run + number, 1, "arrays", NAMES, b"", 0.0, "num-examples").to_record()
        return ConfigRecord({**plain, **changes})

    def content(self, config=None, arrays=None):
        content = RecordDict({"arrays": record(initial()) if arrays is None else arrays})
        content["config"] = ConfigRecord({"server-round": 1})
        if config is not None:
            content[protocol.CONFIG] = config
        return content

    def send(self, content, message_type="train", client=0):
        return self.app(message(content, message_type), self.grid.contexts[1000 + client])
