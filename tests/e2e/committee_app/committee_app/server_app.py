"""FedAvg over clients sampled in one order, whatever the scheme."""

import random

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Sampled(FedAvg):
    """The same clients in the same rounds of every run."""

    def configure_train(self, server_round, arrays, config, grid):
        random.seed(server_round)
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ten rounds."""
    config = context.run_config
    first = {"weight": np.zeros((784, 10), np.float32), "bias": np.zeros(10, np.float32)}
    inner = Sampled(
        fraction_train=config["per-round"] / config["clients"],
        min_train_nodes=config["per-round"],
        min_available_nodes=config["clients"],
        fraction_evaluate=0.0,
    )
    # Parties drop out on purpose.
    lost = config["rounds"]
    strategy = SecureStrategy(
        inner, config["fedcipher-keys"], out=config["fedcipher-out"], committee_timeout=120, may_lose=lost
    )
    arrays = ArrayRecord({name: Array(value) for name, value in first.items()})
    strategy.start(grid, arrays, num_rounds=config["rounds"])
    for record in strategy.rounds:
        print(f"round {record.round}: {record.accepted} updates, {record.unfinished or 'opened by who may'}")
