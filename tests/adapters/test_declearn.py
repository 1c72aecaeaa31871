"""The adapter for declearn: its rounds without declearn, and its gates with it."""

import asyncio
import importlib.util
import json
import logging
import threading
import time
from functools import partial
from types import SimpleNamespace

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.declearn.round_work import (
    RECORD,
    Request,
    RoundWork,
    evaluated,
    request_record,
    request_settings,
    trained,
)
from fedcipher.errors import CharterError, LayoutError, UnsupportedError
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.messages import Message, Metrics
from fedcipher.federation.refusal import TEXT
from fedcipher.federation.server.loop_link import LoopLink
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import Plan, RunSetup

CLIENTS, ROUNDS = 3, 2
NAMES, FIRST = ["weights", "bias"], [np.zeros((4, 3), np.float32), np.ones(3, np.float32)]
FIELDS = {
    "train": {"batches": {"batch_size": 8, "shuffle": False}, "n_epoch": 1, "n_steps": None, "timeout": None},
    "evaluate": {"batches": {"batch_size": 8}, "n_steps": None, "timeout": None},
}
needs_declearn = pytest.mark.skipif(
    importlib.util.find_spec("declearn") is None, reason="no declearn here: make e2e-declearn runs these tests"
)


def target(client):
    """The arrays that this client's app ends with."""
    return [np.full(x.shape, client + 1.0, x.dtype) for x in FIRST]


def app_of(client, work, request):
    """declearn's answer: the model before less the model after, times the weight of two."""
    if request.purpose == "evaluate":
        return evaluated({"loss": (10.0 * client, 10.0)})
    updates = {name: (x - y) for name, x, y in zip(NAMES, request.arrays.values(), target(client), strict=True)}
    return trained(work, {name: x * 2.0 for name, x in updates.items()}, 2.0)


class Federation:
    """A run and its clients in one process, over an event loop of another thread."""

    def __init__(self, folder, told=lambda client: b"model", app=app_of, **options):
        scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16))
        keys.save(scheme.keygen(CLIENTS + 1), scheme, folder)
        self.app, self.work, self.seen = app, [], []
        for client in range(CLIENTS):
            settings = {"fedcipher-key": str(folder / f"client-{client}.key")}
            self.work.append(RoundWork(partial(key_holder_of, settings, {})))
            self.work[-1].tell(told(client))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.link = LoopLink(self.loop, range(CLIENTS), self.ask)
        self.run = ServerRun(RunSetup(folder, opener=folder / f"client-{CLIENTS}.key", **options))
        self.settings = {purpose: request_settings(fields) for purpose, fields in FIELDS.items()}

    async def ask(self, node, number, raw):
        made = self.work[node].receive(raw)
        if isinstance(made, Request):
            self.seen.append(made)
            made = self.work[node].seal(partial(self.app, node, request=made))
        return made

    def replies(self, purpose, index, fields=None):
        kind = self.run.charter.types[purpose]
        asked = [Message(k, kind, {RECORD: request_record(fields or FIELDS[purpose])}) for k in range(CLIENTS)]
        return self.run.gather(partial(self.link.exchange, self.run.ask(purpose, index, asked)), 60)

    def train(self, index):
        self.run.begin_round(index, self.link)
        summed = self.run.accept_train(self.replies("train", index))
        self.run.end_training(None)
        return summed

    def begin(self):
        self.run.begin(NAMES, FIRST, ROUNDS, Plan(name="a test", settings=self.settings))

    def close(self):
        self.run.close()
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def federation(tmp_path):
    made = []

    def make(**options):
        made.append(Federation(tmp_path / "keys", **options))
        made[-1].begin()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_rounds_make_the_mean_of_all_clients_and_their_loss(federation):
    run = federation(evaluate_answers=["loss"])
    for index in range(1, ROUNDS + 1):
        summed = run.train(index)
        for got, first in zip(summed.model, FIRST, strict=True):
            assert np.abs(got - np.full_like(first, 2.0)).max() < 1e-3, "the mean of 1, 2 and 3"
        evaluation = run.run.accept_evaluate(run.replies("evaluate", index))
        assert evaluation.answers.ratio(run.run.setup.answers["evaluate"][0]) == [1.0]
        run.run.end_evaluation(None)
    assert [r.index for r in run.seen if r.purpose == "train"] == [1] * CLIENTS + [2] * CLIENTS
    assert all(r.fields == FIELDS[r.purpose] for r in run.seen)


def test_clients_that_were_told_other_models_do_not_sum(federation):
    run = federation(told=lambda client: b"model" if client else b"another")
    assert run.train(1).nodes == [1, 2]


def test_a_request_that_the_charter_lacks_is_refused(tmp_path, federation):
    run = federation()
    run.run.begin_round(1, run.link)
    asked = [Message(0, "train", {RECORD: request_record(FIELDS["train"])}) for _ in range(CLIENTS)]
    (first, *_) = list(run.run.ask("train", 1, asked))
    altered = dict(first.content, **{RECORD: request_record({**FIELDS["train"], "n_epoch": 50})})
    reply = run.work[0].receive(Message(0, first.type, altered).to_bytes())
    assert isinstance(reply, bytes) and TEXT.encode() in reply and not run.work[0].open
    assert isinstance(run.work[0].receive(first.to_bytes()), Request)


def test_nothing_is_answered_before_the_model_and_a_second_model_is_refused(tmp_path, federation):
    run = federation()
    work = RoundWork(lambda: pytest.fail("a key is used"))
    with pytest.raises(CharterError):
        work.seal(lambda work: None)
    with pytest.raises(CharterError, match="second model"):
        run.work[0].tell(b"model")
    assert TEXT.encode() in work.receive(b"not a message")
    assert TEXT.encode() in work.receive(Message(0, "train", {}).to_bytes())


def test_updates_of_other_names_or_shapes_are_errors():
    work = SimpleNamespace(names=NAMES, model=dict(zip(NAMES, FIRST, strict=True)))
    with pytest.raises(LayoutError, match="other"):
        trained(work, {"other": FIRST[0]}, 1.0)
    with pytest.raises(LayoutError, match="shape"):
        trained(work, {"weights": FIRST[0], "bias": np.ones(1, np.float32)}, 1.0)


def test_a_reply_after_the_deadline_is_late_and_the_next_message_waits_for_it():
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    order = []

    async def ask(node, number, raw):
        order.append(number)
        await asyncio.sleep(0.3 if number == 1 else 0)
        return Message(node, "train", {"m": Metrics({"number": number})}).to_bytes()

    link = LoopLink(loop, [0, 1], ask)
    message = Message(0, "train")
    first = link.exchange([message], until=time.monotonic() + 0.05)
    assert list(first) == [] and list(first.waiting.values()) == [0]
    (second,) = link.exchange([message], until=time.monotonic() + 30)
    assert second.content["m"]["number"] == 2 and order == [1, 2]
    ((name, late),) = link.late(list(first.waiting), time.monotonic())
    assert name in first.waiting and late.content["m"]["number"] == 1
    loop.call_soon_threadsafe(loop.stop)


def test_an_error_of_the_network_is_a_reply_with_an_error():
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def ask(node, number, raw):
        raise RuntimeError("gone")

    (reply,) = LoopLink(loop, [0], ask).exchange([Message(0, "train")], until=time.monotonic() + 30)
    assert "gone" in reply.error
    loop.call_soon_threadsafe(loop.stop)


# --- with declearn -----------------------------------------------------------------------------


class Inner:
    """A network that records what is sent, and gives ``incoming``."""

    server_uri, name, logger = "uri", "client", logging.getLogger("client")

    def __init__(self, *incoming):
        self.incoming, self.sent = list(incoming), []

    async def recv_message(self, timeout=None):
        from declearn.messaging import SerializedMessage

        return SerializedMessage.from_bin_message(self.incoming.pop(0).serialize())

    async def send_message(self, message):
        self.sent.append(message)


def protected(*incoming, **fields):
    from fedcipher.adapters.declearn import SecaggClient

    inner = Inner(*incoming)
    return inner, SecaggClient(key="/no/such.key", **fields).protect(inner)


@needs_declearn
def test_a_plain_request_or_question_is_refused_with_the_constant_text():
    from declearn import messaging

    batches = {"batch_size": 1}
    for message in (
        messaging.TrainRequest(1, None, {}, batches, 1, None, None),
        messaging.EvaluationRequest(1, None, batches, None, None),
        messaging.MetadataQuery(["classes"]),
        messaging.GenericMessage("do", {}),
    ):
        inner, network = protected(message)
        with pytest.raises(CharterError):
            asyncio.run(network.recv_message())
        (sent,) = inner.sent
        assert isinstance(sent, messaging.Error) and sent.message.startswith(TEXT)


@needs_declearn
def test_only_set_up_messages_leave_and_errors_leave_without_their_text():
    from declearn import messaging

    inner, network = protected(metadata=("features_shape",))
    asyncio.run(network.send_message(messaging.Error("patient 4711")))
    asyncio.run(network.send_message(messaging.MetadataReply({"features_shape": (3,)})))
    assert [type(m).__name__ for m in inner.sent] == ["Error", "MetadataReply"]
    assert "4711" not in inner.sent[0].message
    for message in (
        messaging.MetadataReply({"features_shape": (3,), "classes": [1]}),
        messaging.EvaluationReply(0.5, 1, 0.1, {}),
        messaging.GenericMessage("leak", {}),
    ):
        with pytest.raises(UnsupportedError):
            asyncio.run(network.send_message(message))
    assert len(inner.sent) == 2


@needs_declearn
def test_a_network_without_protection_gets_no_encrypter():
    from declearn import messaging
    from fedcipher.adapters.declearn import SecaggClient
    from fedcipher.adapters.declearn.wire import SetupQuery

    inner, query = Inner(), SimpleNamespace(message_cls=SetupQuery)
    with pytest.raises(ValueError, match=TEXT):
        asyncio.run(SecaggClient(key="/no/such.key").setup_encrypter(inner, query))
    assert [type(m) for m in inner.sent] == [messaging.Error]


@needs_declearn
def test_a_held_update_has_no_form_in_bytes():
    from declearn.aggregator import ModelUpdates
    from declearn.messaging import TrainReply
    from declearn.model.sklearn import NumpyVector
    from declearn.secagg.messaging import SecaggTrainReply
    from fedcipher.adapters.declearn.wire import Collector

    update = ModelUpdates(NumpyVector({"w": np.ones(2)}), 1.0)
    clear = TrainReply(n_epoch=1, n_steps=9, t_spent=0.5, updates=update, aux_var={})
    held = SecaggTrainReply.from_cleartext_message(clear, Collector())
    assert held.n_steps == 0
    with pytest.raises(UnsupportedError):
        held.serialize()


@needs_declearn
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps_weighted": True}, "same weight"),
        ({"server_opt": 0.5}, "learning rate"),
        ({"server_opt": {"lrate": 1.0, "modules": ["momentum"]}}, "learning rate"),
        ({"client_opt": {"lrate": 0.1, "modules": ["scaffold-client"]}}, "auxiliary"),
        ({"aggregator": "sum"}, "AveragingAggregator"),
        ({"opener": None}, "no key"),
        ({"metrics": ["r2"]}, "mean"),
    ],
    ids=str,
)
def test_the_server_refuses_what_clients_cannot_sum_or_follow(tmp_path, change, said):
    from declearn.aggregator import AveragingAggregator
    from declearn.communication.websockets import WebsocketsServer
    from declearn.main.config import FLOptimConfig
    from declearn.model.sklearn import SklearnSGDModel
    from fedcipher.adapters.declearn import FederatedServer, SecaggServer
    from fedcipher.errors import StrategyError

    scheme = fedcipher.scheme("bfv", clients=3)
    folder = keys.save(scheme.keygen(4), scheme, tmp_path / "keys")
    model = SklearnSGDModel.from_parameters("classifier")
    mean = AveragingAggregator(change.pop("steps_weighted", False))
    opener = change.pop("opener", "client-3.key")
    metrics = change.pop("metrics", None)
    optim = FLOptimConfig.from_params(**{"client_opt": 0.1, "server_opt": 1.0, "aggregator": mean, **change})
    options = {"opener": opener} if opener else {}
    with pytest.raises((StrategyError, UnsupportedError), match=said):
        FederatedServer(
            model,
            WebsocketsServer("127.0.0.1", 0),
            optim,
            SecaggServer(keys=str(folder), options=options),
            metrics=metrics,
        )


@needs_declearn
def test_both_sides_are_registered_with_declearn(tmp_path):
    from declearn.secagg import list_available_secagg_types, parse_secagg_config_client, parse_secagg_config_server
    from fedcipher.adapters.declearn import SecaggClient, SecaggServer

    assert list_available_secagg_types()["fedcipher"] == (SecaggClient, SecaggServer)
    client = parse_secagg_config_client("fedcipher", None, key="/k", metadata=["classes"])
    assert client.metadata == ("classes",) and client.settings() == {"fedcipher-key": "/k"}
    assert parse_secagg_config_server("fedcipher", keys="/k").keys == "/k"


def test_fields_of_a_request_are_text_of_json():
    assert json.loads(request_record(FIELDS["train"])["request"]) == FIELDS["train"]
    with pytest.raises(ValueError, match="JSON"):
        request_record({"batches": {"batch_size": float("nan")}})
