"""declearn's adapter with declearn: the protected network between declearn's own messages."""

import asyncio
import logging

import numpy as np
from declearn import messaging
from declearn.aggregator import AveragingAggregator, ModelUpdates
from declearn.metrics._mean import MeanState
from declearn.model.sklearn import NumpyVector, SklearnSGDModel
from declearn.optimizer import Optimizer
from declearn.secagg.messaging import SecaggEvaluationReply, SecaggTrainReply
from fedcipher.adapters.declearn import SecaggClient
from fedcipher.adapters.declearn.wire import Collector, RoundQuery, RoundReply
from fedcipher.federation.messages import Message

from conformance import EXAMPLES
from conformance.declearn import Rounds, weighted_change


class Network(Rounds):
    """A client behind `SecaggClient.protect`, which sends and gets messages of declearn."""

    name = "declearn-network"
    server_of = "declearn-rounds"

    def restart(self, client):
        inner = _Inner()
        network = SecaggClient(key=str(self.cohort.key(client))).protect(inner)
        self._work[client] = inner, network
        model = SklearnSGDModel.from_parameters("classifier")
        model.initialize({"features_shape": (3,), "classes": [0, 1]})
        inner.incoming.append(
            messaging.InitRequest(model, Optimizer(lrate=0.1), AveragingAggregator(), secagg="fedcipher")
        )
        asyncio.run(network.recv_message())

    def tell_bytes(self, client, raw):
        inner, network = self._work[client]
        inner.incoming.append(RoundQuery(7, raw))
        try:
            received = asyncio.run(network.recv_message())
        except IndexError:
            # The network has answered itself, and waits for the next message.
            pass
        else:
            asyncio.run(network.send_message(self._answer(client, received.deserialize())))
        (sent,), inner.sent = inner.sent, []
        if type(sent) is not RoundReply or sent.number != 7:
            self.wire.errors.append(AssertionError(f"a {type(sent).__name__} leaves the client"))
        return Message.parse(sent.content)

    def _answer(self, client, request):
        before = request.weights.pack()
        try:
            if isinstance(request, messaging.EvaluationRequest):
                _, metrics = self.app(client, "evaluate", before)
                weight = metrics[EXAMPLES]
                states = {
                    name: MeanState(value * weight, weight) for name, value in metrics.items() if name != EXAMPLES
                }
                reply = messaging.EvaluationReply(metrics["loss"], 1, 0.1, states)
                return SecaggEvaluationReply.from_cleartext_message(reply, Collector())
            arrays, metrics = self.app(client, "train", before)
            weight = metrics[EXAMPLES]
            changes = {name: weighted_change(before[name], np.asarray(x), weight) for name, x in arrays.items()}
            updates = ModelUpdates(NumpyVector(changes), weight)
            reply = messaging.TrainReply(n_epoch=1, n_steps=9, t_spent=0.1, updates=updates, aux_var={})
            return SecaggTrainReply.from_cleartext_message(reply, Collector())
        except Exception as error:
            return messaging.Error(repr(error))


class _Inner:
    """A network that records what is sent, and gives ``incoming``; then it has nothing, an `IndexError`."""

    server_uri, name, logger = "uri", "client", logging.getLogger("client")

    def __init__(self):
        self.incoming, self.sent = [], []

    async def recv_message(self, timeout=None):
        return messaging.SerializedMessage.from_bin_message(self.incoming.pop(0).serialize())

    async def send_message(self, message):
        self.sent.append(messaging.SerializedMessage.from_bin_message(message.serialize()).deserialize())
