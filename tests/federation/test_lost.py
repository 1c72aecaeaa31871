"""What training loses by coding, at the bits that keygen takes; `make results-lost` measures it of real models."""

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.schemes import following_bits
from flower_harness import NAMES, LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, of_committee, schemes_that

EXAMPLES, ROUNDS = [10, 20, 60, 40, 50], 4
# Least squares: the weights of 40 inputs to 30 outputs, and offsets.
SHAPE = (40, 30)


class Clients:
    """Each has points of its own, and makes five steps a round."""

    def __init__(self, rng, rate):
        self.rate, self.goal = rate, rng.normal(0, 1, SHAPE)
        self.points = [rng.normal(0.3, 1, (n, SHAPE[0])) for n in EXAMPLES]
        self.first = [rng.normal(0, 0.1, SHAPE).astype(np.float32), np.zeros(SHAPE[1], np.float32)]

    def trained(self, model, client):
        weights, offsets = (x.astype(np.float64) for x in model)
        x = self.points[client]
        for _ in range(5):
            off = x @ (weights - self.goal) + offsets - 1
            weights, offsets = weights - self.rate * x.T @ off / len(x), offsets - self.rate * off.mean(0)
        return [weights.astype(np.float32), offsets.astype(np.float32)]

    def in_the_clear(self):
        model = self.first
        for _ in range(ROUNDS):
            made = [self.trained(model, k) for k in range(len(EXAMPLES))]
            model = [np.average(x, axis=0, weights=EXAMPLES).astype(np.float32) for x in zip(*made, strict=True)]
        return model

    def under(self, name, folder):
        app, clients = ClientApp(mods=[client_mod]), len(EXAMPLES)

        @app.train()
        def train(msg, ctxt):
            client = ctxt.node_config["partition-id"]
            made = self.trained(msg.content["arrays"].to_numpy_ndarrays(), client)
            metrics = MetricRecord({"num-examples": EXAMPLES[client]})
            return Message(RecordDict({"arrays": record(made), "metrics": metrics}), reply_to=msg)

        more = of_committee(name, members=clients, corrupt_clients=1, corrupt_members=1)
        scheme = fedcipher.scheme(name, clients=clients, codec=fedcipher.Codec(bits=following_bits(name)), **more)
        made = keys.save(scheme.keygen(clients), scheme, folder / "keys", examples_per_weight=max(EXAMPLES))
        averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        opener = {} if name == "oneshot" else {"opener": made / "client-0.key"}
        strategy = SecureStrategy(averaging, made, out=folder / "run", **opener)
        strategy.start(LocalGrid(app, clients, made), record(self.first, NAMES), num_rounds=ROUNDS)
        return strategy.open_model(scheme.decryptor(keys.load_client(made / "client-1.key")[1], in_memory=True))


@pytest.mark.parametrize("name", schemes_that(hides, adds))
@pytest.mark.parametrize("rate", [0.1, 5e-4, 1e-5])
def test_training_loses_at_most_one_percent(tmp_path, rng, name, rate):
    """Of how far each array moves in the clear, whatever the learning rate."""
    clients = Clients(rng, rate)
    models = zip(clients.first, clients.in_the_clear(), clients.under(name, tmp_path), strict=True)
    moved = [(a.astype(np.float64) - first, b.astype(np.float64) - first) for first, a, b in models]
    lost = [1 - float((b * a).sum() / (a * a).sum()) for a, b in moved]
    assert max(abs(x) for x in lost) < 0.01, lost
