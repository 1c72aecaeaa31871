"""A server that is not honest, against a real app with the real mod: what its tests share."""

import json
import os
import re
import time
from contextlib import suppress
from itertools import product

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.federation import messages as protocol
from fedcipher.federation.charter import Charter, Settings, arrays_digest
from fedcipher.federation.refusal import CODE, TEXT
from fedcipher.federation.round_settings import RoundSettings
from flower_harness import NAMES, LocalGrid, initial, make_app, record, reference_of
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import MessageTypeLegacy
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE

CLIENTS = 5
_TRIES = int(os.environ.get("FEDCIPHER_ATTACK_TRIES", "200"))
_PARTS = max(1, _TRIES // 5000)
TRIES = _TRIES // _PARTS
"""Of one part; `in_parts` makes the tests that try the rest."""
in_parts = pytest.mark.parametrize("part", range(_PARTS))
"""Many tries are as many tests, which other processes may run at the same time."""
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
    return reference_of(reply) is not None


def masked(reply):
    """The reply's bytes as they travel, without its reference and the clock's part.

    Training without a run has the same text in its arrays, which is decided by the message alone: here it is as the
    error that every other refusal is.
    """
    error = reply.error if reply.has_error() else Error(code=CODE, reason=f"{TEXT}{reference_of(reply)}")
    assert re.fullmatch(re.escape(TEXT) + "[0-9a-f]{8}", error.reason)
    reply.metadata.created_at = reply.metadata.ttl = 1.0
    clear = Message(Error(code=error.code, reason=error.reason[:-8]), metadata=reply.metadata)
    return message_to_proto(clear).SerializeToString(deterministic=True)


class Left(Exception):
    """The server has had enough honest rounds."""


class Interrupted:
    """A grid that keeps what is sent in round ``rounds`` + 1, delivers nothing of it, and raises `Left`.

    ``held``: clients that nothing of the evaluation of round ``rounds`` is delivered to.
    """

    def __init__(self, grid, rounds, held):
        self._grid, self._rounds, self._held = grid, rounds, held

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def _late(self, made):
        index = made.content[protocol.CONFIG]["index"] if protocol.CONFIG in made.content else 0
        client = made.metadata.dst_node_id - 1000
        held = index == self._rounds and client in self._held and made.metadata.message_type.startswith("evaluate")
        return index > self._rounds, held

    def push_messages(self, messages):
        messages = list(messages)
        for made in messages:
            if any(self._late(made)):
                self._grid.sent.append((made.metadata.dst_node_id - 1000, RecordDict(dict(made.content.items()))))
        if any(self._late(made)[0] for made in messages):
            raise Left
        names = [None] * len(messages)
        for k, made in enumerate(messages):
            if not self._late(made)[1]:
                (names[k],) = self._grid.push_messages([made])
        return names


class Federation:
    """Keys, an app with a handler for everything, contexts, and what honest rounds look like.

    `charter` is that of the ``rounds`` that have been run; without any, one of the server's own. ``sites``: clients are
    sites with the strict policy. ``planned``: the charter has so many rounds, and the server leaves after ``rounds``;
    nothing of the last evaluation is delivered to clients that are ``held``.
    """

    def __init__(
        self,
        folder,
        name,
        rng,
        *,
        mods=(client_mod,),
        rounds=0,
        planned=0,
        held=(),
        codec=None,
        sites=False,
        strategy=None,
        **params,
    ):
        codec = codec or fedcipher.Codec(bits=16, clip=2.0, target="weights")
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec, **params)
        self.issued = self.scheme.keygen(CLIENTS)
        self.folder = keys.save(self.issued, self.scheme, folder / f"keys-{name}")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        self.app = make_app(self.goals, [10] * CLIENTS, mods=mods)
        for register, action in product((self.app.train, self.app.evaluate, self.app.query), ("other", "stats")):
            register(action)(self.tell)
        self.app.query()(self.tell)
        self.grid = LocalGrid(self.app, CLIENTS, self.folder, sites=sites)
        self.run, self.steps, self.last = int(time.time()) << 20, 0, b""
        self.given, self.held, self.runs = strategy or {}, held, 0
        if rounds:
            self.honest(rounds, planned)
        else:
            self.charter, self.number = self.make_charter(), self.run

    def honest(self, rounds, planned=0):
        """A run of honest rounds, as ``rounds`` and ``planned`` say."""
        self.grid.sent.clear()
        self.grid.received.clear()
        out = self.folder.parent / "run"
        self.runs += 1
        made = SecureStrategy(
            FedAvg(**ALL), self.folder, out=out if self.runs == 1 else f"{out}-{self.runs}", **self.given
        )
        grid = Interrupted(self.grid, rounds, self.held) if planned else self.grid
        with suppress(Left):
            made.start(grid, record(initial()), num_rounds=planned or rounds)
        self.run, self.charter = made.run.base, made.run.model.charter
        self.steps, self.last = made.run.model.steps, made.run.model.last
        self.number = made.run.number

    def make_charter(self, **changes):
        """A charter of the server's own choice, for these keys and `initial`."""
        key = keys.load_server(self.folder)[1]
        model, told = initial(), Settings({"config:config": {"server-round": {"round": 0}}})
        given = {
            "run": self.run + 1,
            "key_set": key.fingerprint,
            "epoch": key.epoch,
            "scheme": json.loads(json.dumps(self.scheme.spec())),
            "record": "arrays",
            "arrays": [(n, x.dtype.str, x.shape) for n, x in zip(NAMES, model, strict=True)],
            "first": arrays_digest(NAMES, model).hex(),
            "optimiser": None,
            "equal_weights": True,
            "weighted_by": "num-examples",
            "largest_weight": 1000,
            "weighs_each_round": False,
            "answers": {"train": [], "evaluate": []},
            "clear": {"train": [], "evaluate": []},
            "types": {"train": "train", "evaluate": "evaluate"},
            "rounds": 1 << 20,
            "reader": "clients",
            "reports": False,
            "sets_models": False,
            "settings": {"train": told, "evaluate": told},
        }
        return Charter(**{**given, **changes})

    @staticmethod
    def tell(msg, ctxt):
        """Sends what it has, as an app does that knows nothing of encryption."""
        return Message(RecordDict({"arrays": record(initial())}), reply_to=msg)

    def round(self, number):
        """The key's round of the run's round ``number``: an honest run has one more for each evaluation."""
        return self.run + 2 * number

    def settings(self, number=1, charter=None, **changes):
        """Of the run's round ``number``."""
        charter = charter or self.charter
        plain = RoundSettings(
            charter=charter.digest,
            document=charter.encode(),
            round=self.round(number),
            index=number,
            steps=self.steps,
            last=self.last,
            prekeys=wire_tools.prekeys(self.scheme, self.issued),
        ).to_record()
        changed = {**plain, **changes}
        return ConfigRecord({key: value for key, value in changed.items() if value is not None})

    def aggregate(self, step):
        """The aggregate of one step, as an honest round has sent it."""
        key = protocol.aggregate_key(step)
        arrays = (content.get("arrays", {}) for _, content in self.grid.sent)
        return next(protocol.frame_bytes(held[key]) for held in arrays if key in held)

    def content(self, config=None, arrays=None):
        """A message's content; without ``arrays`` with the first model, or with nothing where there are steps."""
        if arrays is None:
            arrays = record(initial()) if not self.steps or config is None else ArrayRecord({})
        content = RecordDict({"arrays": arrays})
        index = 1 if config is None else config.get("index", 1)
        content["config"] = ConfigRecord({"server-round": index if type(index) is int and abs(index) < 2**63 else 1})
        if config is not None:
            content[protocol.CONFIG] = config
        return content

    def send(self, content, message_type="train", client=0):
        return self.app(message(content, message_type), self.grid.contexts[1000 + client])
