"""Two worlds: the server's view is the same whatever the clients' data is.

Client code runs twice, with other data and the same server, which draws messages at random: honest ones, replays, other
charters, settings, orders, forks of the chain, lost state. Of each reply everything is compared that the server gets:
its kind, its records and their keys, its frame's length and head, refusals, and their order. Not compared are
ciphertexts and what is random or a time: tags and signatures, references of refusals, seconds. Nor are the ratios that
a reader reports of a sum, which differ where the sums do. Tags of models are compared by which of them are equal.

The bytes of all replies, as they travel, are compared too, by one digest, with zeros for what is not compared. With
ideal sealing every frame is of zeros and counts nothing. Sums are then the same in both worlds, so that ratios and the
server's log are compared whole.
"""

import dataclasses
import hashlib
import logging
import random
import re
import shutil
from contextlib import contextmanager, suppress

import fedcipher
import numpy as np
import pytest
import wire_tools
from attack_harness import TRIES, Interrupted, Left, in_parts, masked
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.federation import messages as protocol
from fedcipher.federation.answers import Answer, Lanes, Tally
from fedcipher.federation.charter import Charter, Settings, arrays_digest
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.refusal import TEXT
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.frame import inspect
from fedcipher.schemes.base import KernelEncryptor
from flower_harness import NAMES, LocalGrid, bytes_array, initial, record, reference_of, wire_record
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, of_committee, schemes_that

CLIENTS = 4
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
A_RUN = 40
"""Messages that a server sends before it begins anew, where the honest run has ended."""
RUNS = 25
"""So often it begins anew after one honest run."""
SCHEMES = schemes_that(hides, adds)
MODEL = [*initial(), np.array([5, 2**40]), np.array(True)]
MODEL_NAMES = [*NAMES, "seen", "flag"]
HONEST = 2
"""Rounds of the honest run, of twice as many that its charter has."""
ROUNDS_OF_STEPS = [1, 1, 2]
"""The first step is the sum of histograms."""


def model_record(arrays):
    return record(arrays, MODEL_NAMES)


def data_of(world, client, number):
    """What a client's app makes in a message: another thing in each world."""
    draw = random.Random(f"{world} {client} {number}")
    kind = draw.choice(
        ["plain", "plain", "plain", "nan", "huge", "empty", "raises", "nothing", "shapes", "ragged", "types"]
    )
    size = 10.0 ** draw.uniform(-6, 3)
    return kind, size, draw


def app_of(world):
    """A ClientApp whose behaviour depends on its data alone, in every way that an app's may."""
    app, counts = ClientApp(mods=[client_mod]), {}

    def reply(msg, ctxt, training):
        client = ctxt.node_config["partition-id"]
        counts[client] = counts.get(client, 0) + 1
        kind, size, draw = data_of(world, client, counts[client])
        if kind == "raises":
            raise ValueError(f"patient {draw.random()}")
        if kind == "nothing":
            return None
        values = {"num-examples": draw.randrange(10**6), "loss": size, "classes": [draw.random() for _ in range(3)]}
        if kind == "nan":
            values = {"num-examples": -1, "loss": float("nan"), "classes": [float("inf")] * 3}
        if kind == "ragged":
            values = {"loss": [size] * draw.randrange(5), f"class-{draw.randrange(9)}": 1.0}
        content = RecordDict({} if kind == "empty" else {"metrics": MetricRecord(values)})
        if training and kind != "empty":
            moved = [a + np.float32(size) for a in msg.content["arrays"].to_numpy_ndarrays()]
            if kind == "huge":
                moved = [np.full_like(a, np.inf if draw.random() < 0.5 else 3e38) for a in moved]
            if kind == "nan":
                moved = [np.full_like(a, np.nan) for a in moved]
            if kind == "shapes":
                moved = [a[:1] for a in moved]
            if kind == "types":
                odd = draw.choice([0.0, 1e300, float("nan"), float("-inf")])
                types = [np.float16, np.float64, np.longdouble, np.int8, np.uint64, np.bool_]
                with np.errstate(all="ignore"):
                    moved = [np.full(a.shape, odd).astype(draw.choice(types)) for a in moved]
            content["arrays"] = model_record(moved)
        return Message(content, reply_to=msg)

    app.train()(lambda msg, ctxt: reply(msg, ctxt, True))
    app.evaluate()(lambda msg, ctxt: reply(msg, ctxt, False))
    return app


class ServerLog(logging.Handler):
    """What the server's process writes while no client's code runs, without its folders and without times."""

    LOGGERS = ("flwr", "fedcipher")

    def __init__(self, folder):
        super().__init__()
        self.lines, self._folder, self._elsewhere = [], str(folder), False

    def emit(self, record):
        if not self._elsewhere:
            line = record.getMessage().replace(self._folder, "")
            self.lines.append((record.name, record.levelname, re.sub(r"\b\d+(\.\d+)? ?s\b", "seconds", line)))

    def apart_from(self, app):
        """The ``app``, whose lines are at its client and not here."""

        def at_its_client(message, context):
            self._elsewhere = True
            try:
                return app(message, context)
            finally:
                self._elsewhere = False

        return at_its_client

    @contextmanager
    def reading(self):
        loggers = [logging.getLogger(name) for name in self.LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.removeHandler(self)
                logger.setLevel(level)


def seal_ideally(monkeypatch):
    """Every frame is of zeros that count nothing, whatever its client has computed."""
    encrypt, encode = KernelEncryptor.encrypt, Lanes.encode

    def nothing(self, update, **said):
        return encrypt(self, [np.zeros_like(array) for array in update], **said)

    monkeypatch.setattr(KernelEncryptor, "encrypt", nothing)
    monkeypatch.setattr(Lanes, "encode", lambda self, tally: encode(self, Tally(False, 0, {})))


class World:
    """One world's clients, and the honest run that a server began with them."""

    def __init__(self, folder, world, key_sets, key_folder, monkeypatch):
        self.world, self.folder, self.key_sets = world, folder / world, key_sets
        self.enter(monkeypatch)
        _holders.clear()
        self.grid = LocalGrid(app_of(world), CLIENTS, key_folder)
        for k, context in enumerate(self.grid.contexts.values()):
            context.node_config["fedcipher-key"] = str(key_folder / f"client-{k}.key")
            # Its digest leaves, and the folders' names differ.
            context.run_config = {}
        answers = ["loss", Answer("classes", 3, 1e-3, 1.0, "sum")]
        self.strategy = SecureStrategy(
            FedAvg(**ALL), key_folder, out=self.folder / "run", train_answers=["loss"], evaluate_answers=answers
        )
        # Flower samples by this.
        random.seed(1)
        self.log = ServerLog(self.folder)
        app, self.grid.app = self.grid.app, self.log.apart_from(self.grid.app)
        # A run that goes on: of one that has ended clients answer nothing.
        with suppress(Left), self.log.reading():
            stopped = Interrupted(self.grid, HONEST, range(CLIENTS))
            self.strategy.start(stopped, model_record(MODEL), num_rounds=2 * HONEST)
        self.grid.app = app
        self.view = [seen(reply) for _, reply in self.grid.received]
        self._ended = {node: RecordDict(dict(context.state.items())) for node, context in self.grid.contexts.items()}
        shutil.copytree(self.folder / "state", self.folder / "ended")

    def enter(self, monkeypatch):
        monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(self.folder / "state"))
        monkeypatch.setenv("FEDCIPHER_HOME", str(self.folder / "home"))

    def begin_anew(self):
        """All clients are where the honest run has ended."""
        _holders.clear()
        shutil.rmtree(self.folder / "state")
        shutil.copytree(self.folder / "ended", self.folder / "state")
        for node, context in self.grid.contexts.items():
            context.state = RecordDict(dict(self._ended[node].items()))

    def steps(self, count):
        """Arrays of the first model and ``count`` steps, as this world's server has them."""
        folder = self.strategy.run.model.folder
        arrays = dict(model_record(folder.first()).items())
        for step in range(1, min(count, folder.count) + 1):
            for group, frame in enumerate(folder.step(step)):
                arrays[protocol.aggregate_key(step, group)] = bytes_array(frame)
        return arrays


def seen(reply):
    """All that a server gets of a reply but ciphertexts, times, and what is random."""
    if reply.has_error():
        return ("refused", reply.error.code, re.sub(re.escape(TEXT) + "[0-9a-f]{8}", TEXT, reply.error.reason or ""))
    if reference_of(reply) is not None:
        return ("refused", [sorted(held) for held in reply.content.values()])
    said = []
    for name, held in reply.content.items():
        if isinstance(held, ArrayRecord):
            for key, array in held.items():
                said.append((name, key, array.dtype, array.shape, head_of(protocol.frame_bytes(array))))
        elif name == protocol.REPORT:
            # Of opened sums, which differ in two worlds with other data.
            said.append((name, tuple(held)))
        elif name == protocol.METRICS:
            counted = tuple(sorted((key, held[key]) for key in held if key.endswith("_bytes")))
            said.append((name, tuple(sorted(held.keys())), counted))
        else:
            values = {key: head_of(held[key]) if key == "prekey" else held[key] for key in sorted(held)}
            said.append((name, tuple(values.items())))
    return tuple(said)


def head_of(frame):
    """Of a frame all but what is random."""
    kind, scheme, epoch, number, contributions, elements, payload, *_ = inspect(frame)
    head = (kind, scheme, epoch, number, tuple(contributions), elements, payload, len(frame))
    return (*head, untagged(frame, payload))


def as_sent(reply, ideal):
    """The bytes of a reply as they travel, with zeros for ciphertexts, times and what is random; else for ratios."""
    if reply.has_error() or reference_of(reply) is not None:
        return masked(reply)
    content = RecordDict()
    for name, held in reply.content.items():
        if isinstance(held, ArrayRecord):
            content[name] = ArrayRecord({key: sealed_ideally(array) for key, array in held.items()})
        elif name == protocol.METRICS or (name == protocol.REPORT and not ideal):
            content[name] = type(held)({key: zero_of(value, key) for key, value in held.items()})
        elif "prekey" in held:
            content[name] = ConfigRecord({**held, "prekey": without_payload(held["prekey"])})
        else:
            content[name] = held
    reply.metadata.created_at = reply.metadata.ttl = 1.0
    return message_to_proto(Message(content, metadata=reply.metadata)).SerializeToString(deterministic=True)


def sealed_ideally(array):
    """An array whose frame keeps its length and its head, with zeros for tags, ciphertext and checksum."""
    frame = protocol.frame_bytes(array)
    return Array(array.dtype, array.shape, array.stype, bytes(array.data).replace(frame, without_payload(frame)))


def without_payload(frame):
    tags, head = _tags_at(), frame[: len(frame) - 8 - inspect(frame).payload_bytes]
    return head[: tags[0]] + bytes(tags[1] - tags[0]) + head[tags[1] :] + bytes(len(frame) - len(head))


def zero_of(value, key):
    """A metric's value where it is a number of bytes; of seconds and ratios as many zeros."""
    if key.endswith("_bytes"):
        return value
    return [type(one)() for one in value] if isinstance(value, list) else type(value)()


def digest_of(replies, ideal):
    """Of all ``replies``, each behind its length."""
    digest = hashlib.sha256()
    for reply in replies:
        sent = as_sent(reply, ideal)
        digest.update(len(sent).to_bytes(8, "little") + sent)
    return digest.hexdigest()


def logged(world, ideal):
    """The server's lines; of those with ratios that readers have reported, only which these are, as of reports."""

    def without_ratios(line):
        return re.findall("'([^']+)'", line) if "Aggregated MetricRecord" in line else line

    return [(name, level, line if ideal else without_ratios(line)) for name, level, line in world.log.lines]


def untagged(frame, payload):
    """The head without its two keyed tags, which are 16 bytes each: everything else is compared to the byte."""
    head, tags = frame[: len(frame) - 8 - payload], _tags_at()
    return bytes(head[: tags[0]] + head[tags[1] :])


def _tags_at():
    """Where a head has its tags: behind magic, version, scheme, parameters, key set and three numbers of 8 bytes."""
    start = 4 + 4 + 16 + 16 + 16 + 8 + 8 + 8
    return start, start + 32


class Server:
    """Draws the same messages for both worlds."""

    def __init__(self, seed, charter, number):
        self.draw, self.charter, self.number = random.Random(seed), charter, number
        self.sent = []

    def message(self):
        """A function of a world that makes the next message, to which client, and what is done before."""
        draw = self.draw
        self.number += draw.choice([0, 1, 1, 1, 2])
        client, kind = draw.randrange(CLIENTS), draw.choice(["train", "evaluate"])
        charter = self._charter()
        index, steps, brings = HONEST + draw.choice([0, 1, 1, 1, 2]), len(ROUNDS_OF_STEPS), len(ROUNDS_OF_STEPS)
        if draw.random() < 0.5:
            index, steps = draw.choice([1, 2, 3, 4, 99]), draw.choice([0, 1, 2, 3, 3])
            brings = draw.choice([0, 1, 2, 3, 3])
        indices = ROUNDS_OF_STEPS[:brings]
        if draw.random() < 0.1:
            indices = indices[::-1]
        config = {"server-round": index if draw.random() < 0.95 else 7}
        if draw.random() < 0.1:
            config["lr"] = 0.5
        chosen = draw.random() < 0.15
        lost, reports = draw.random() < 0.03, draw.random() < (0.2 if self.charter.reports else 0.05)
        number, known = self.number, CLIENTS if draw.random() < 0.9 else draw.randrange(CLIENTS)

        def make(world):
            if lost:
                _holders.clear()
                for context in world.grid.contexts.values():
                    context.state = RecordDict()
            arrays = world.steps(brings)
            if chosen:
                arrays.update(model_record([np.full_like(a, 3) for a in MODEL]).items())
            run = world.strategy.run.model
            last = run._steps[steps - 1][0] if 0 < steps <= len(run._steps) else b""
            said = RoundSettings(
                charter=charter.digest,
                round=number,
                index=index,
                steps=steps,
                last=last,
                document=charter.encode(),
                indices=indices,
                prekeys=wire_tools.prekeys(world.strategy.setup.scheme, world.key_sets)[:known],
            )
            content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(config)})
            content[protocol.CONFIG] = ConfigRecord(said.to_record())
            if reports:
                content[protocol.REPORT] = ConfigRecord({"purpose": kind})
                frame, committee = run.folder.evaluation(1), world.strategy.setup.scheme.committee
                frame = committee.for_reader(frame, client) if committee else frame
                content[protocol.EVALUATION] = wire_record({protocol.EVALUATION: frame})
            return Message(content, dst_node_id=1000 + client, message_type=kind), client

        return make

    def _charter(self):
        """Mostly the run's; else one that asks for more, or for something else."""
        draw = self.draw
        if draw.random() < 0.85:
            return self.charter
        changes = draw.choice(
            [
                {},
                {"sets_models": True},
                {"optimiser": ("adam", (1e6, 0.0, 0.0, 1e-30))},
                {"first": arrays_digest(MODEL_NAMES, [np.full_like(a, 3) for a in MODEL]).hex()},
                {"largest_weight": 1, "equal_weights": False},
                {"answers": {"train": [], "evaluate": [Answer("loss", 0, 1.0, 1.0)]}},
                {"clear": {"train": ["loss"], "evaluate": ["loss"]}},
                {"settings": {"train": Settings({}), "evaluate": Settings({})}},
                {"rounds": 1},
                {"reports": not self.charter.reports},
            ]
        )
        made = dataclasses.replace(self.charter, run=self.charter.run + draw.randrange(3), **changes)
        if not changes:
            # A run of the same, which the server goes on with.
            self.charter = made
        return made


def tag_classes(frames):
    """Which of a world's model tags are equal, in order of appearance."""
    start, end = _tags_at()
    order = {}
    return [tuple(order.setdefault(f[at : at + 16], len(order)) for at in (start, end - 16)) for f in frames]


def two_worlds(folder, scheme, key_sets, seed, monkeypatch, ideal):
    """The clients of one world and of the other, after an honest run in each, and the server."""
    # Both worlds have the server's numbers alike.
    monkeypatch.setattr("fedcipher.federation.server.run.reserve", lambda count: seed[-1] << 21)
    # A copy of the keys for each world, whose clients use them in a state folder of their own.
    one, other = (
        World(folder, world, key_sets, keys.save(key_sets, scheme, folder / f"keys-{world}"), monkeypatch)
        for world in ("one", "other")
    )
    assert one.view == other.view, "the honest run"
    honest = [digest_of([reply for _, reply in world.grid.received], ideal) for world in (one, other)]
    assert honest[0] == honest[1], "the honest run's bytes"
    assert one.log.lines and logged(one, ideal) == logged(other, ideal)
    charter = one.strategy.run.model.charter
    assert charter.digest == other.strategy.run.model.charter.digest
    return one, other, Charter.decode(charter.encode())


def look_alike(worlds, server, monkeypatch, ideal):
    """Whether all that the server gets for `A_RUN` messages is the same in all ``worlds``."""
    frames, replies = [[] for _ in worlds], [[] for _ in worlds]
    for _ in range(A_RUN):
        make = server.message()
        views = []
        for world, made, given in zip(worlds, frames, replies, strict=True):
            world.enter(monkeypatch)
            message, client = make(world)
            reply = world.grid.app(message, world.grid.contexts[1000 + client])
            views.append(seen(reply))
            given.append(reply)
            if not reply.has_error():
                made += [protocol.frame_bytes(a) for r in reply.content.array_records.values() for a in r.values()]
        assert views[0] == views[1]
    assert tag_classes(frames[0]) == tag_classes(frames[1])
    assert digest_of(replies[0], ideal) == digest_of(replies[1], ideal)


@in_parts
@pytest.mark.parametrize("sealing", ["real", "ideal"])
@pytest.mark.parametrize("name", SCHEMES)
def test_attack_two_worlds_look_alike_to_any_randomised_server(tmp_path, name, sealing, part, monkeypatch):
    ideal = sealing == "ideal"
    if ideal:
        seal_ideally(monkeypatch)
    committee = of_committee(name, members=CLIENTS)
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=16), **committee)
    key_sets = scheme.keygen(CLIENTS)
    for run in range(-(-TRIES // (A_RUN * RUNS))):
        folder = tmp_path / str(run)
        *worlds, charter = two_worlds(folder, scheme, key_sets, (name, part, 1 + run), monkeypatch, ideal)
        base = max(w.strategy.run.number for w in worlds)
        for again in range(-(-min(TRIES - run * A_RUN * RUNS, A_RUN * RUNS) // A_RUN)):
            for world in worlds:
                world.begin_anew()
            look_alike(worlds, Server(f"{name} {part} {run} {again}", charter, base + 1), monkeypatch, ideal)
        shutil.rmtree(folder)
