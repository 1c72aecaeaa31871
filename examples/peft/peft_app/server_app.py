"""A typical ServerApp. The lines that encrypt are marked."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from peft_app.task import adapters_of, make_model

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
    initial = ArrayRecord(adapters_of(make_model()))
    result = strategy.start(grid, initial, num_rounds=config["num-server-rounds"])
    np.savez("adapters.npz", **{name: array.numpy() for name, array in result.arrays.items()})
