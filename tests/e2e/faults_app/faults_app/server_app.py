"""FedAvg that goes on with the run in its folder, and closes a round without those who have died."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from faults_app.client_app import SIDE

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, or those that are left of them."""
    config = context.run_config
    clients = config["clients"]
    inner = FedAvg(min_train_nodes=clients - 1, min_available_nodes=clients - 1, fraction_evaluate=0.0)
    first = {"weight": np.zeros((SIDE * SIDE, 10), np.float32), "bias": np.zeros(10, np.float32)}
    strategy = SecureStrategy(
        inner,
        config["fedcipher-keys"],
        out=config["fedcipher-out"],
        resume=True,
        quorum=0.6,
        deadline=60,
        grace=10,
        # Clients and servers die on purpose.
        may_lose=config["rounds"],
    )
    arrays = ArrayRecord({name: Array(value) for name, value in first.items()})
    strategy.start(grid, arrays, num_rounds=config["rounds"])
