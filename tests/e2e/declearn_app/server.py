"""The server: `server.py PORT SECAGG KEYS ROUNDS OUT [OPENER]`. Writes the model to OUT; prints seconds and losses."""

import json
import sys
import time

import numpy as np
from common import CLASSES, CLIENTS, FEATURES, network_server, own_server
from declearn.aggregator import AveragingAggregator
from declearn.main import FederatedServer
from declearn.main.config import FLOptimConfig
from declearn.model.sklearn import SklearnSGDModel

port, kind, keys, rounds, out = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
model = SklearnSGDModel.from_parameters("classifier", loss="log_loss", penalty="none", dtype="float32")
model.initialize({"features_shape": (FEATURES,), "classes": list(range(CLASSES))})
optim = FLOptimConfig.from_params(client_opt=0.1, server_opt=1.0, aggregator=AveragingAggregator(steps_weighted=False))
config = {
    "rounds": rounds,
    "register": {"min_clients": CLIENTS},
    "training": {"batch_size": 32, "n_steps": 6, "n_epoch": None, "shuffle": False},
    "evaluate": {"batch_size": 128, "n_steps": 2},
}
if kind == "fedcipher":
    from fedcipher.adapters.declearn import FederatedServer as Protected
    from fedcipher.adapters.declearn import SecaggServer

    options = {"opener": sys.argv[6]} if len(sys.argv) > 6 else {}
    server = Protected(model, network_server(port), optim, SecaggServer(keys=keys, options=options))
else:
    secagg = None if kind == "none" else own_server(kind)
    server = FederatedServer(model, network_server(port), optim, secagg=secagg)
began = time.monotonic()
spent = []
round_before = server.training_round


async def timed(*given):
    started = time.monotonic()
    await round_before(*given)
    spent.append(time.monotonic() - started)


server.training_round = timed
server.run(config)
np.savez(out, **server.model.get_weights(trainable=True).pack())
print(json.dumps({"seconds": time.monotonic() - began, "rounds": spent, "losses": server._losses}))
