"""A typical ServerApp. The lines that encrypt are marked."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from lora_app.model import make_adapters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg()
    strategy = SecureStrategy(  # <- added
        strategy,
        keys=config["fedcipher-keys"],
        opener=config["fedcipher-opener"],
        train_answers=["loss"],
        evaluate_answers=["loss"],
    )
    initial = {name: Array(values) for name, values in make_adapters().items()}
    result = strategy.start(grid, ArrayRecord(initial), num_rounds=config["num-server-rounds"])
    np.savez("adapters.npz", **{name: array.numpy() for name, array in result.arrays.items()})
